"""Sample tables, splits, featurizer inputs and the data store: what platforms write and models read.

A `sample` is measured, goes into a `journal` and then into a `table`; `csv_file` reads those of other simulators and
chips, and `csv_samples` offers them as a source. `files` reads and writes Parquet and fetches the stored data. `inputs`
and `windows` are what featurizers read of a matrix, `sources` give tables and inputs of a corpus, `split` selects
matrices and configurations, and `batches` joins labels and inputs. `tuning_problem` counts the labels that a tuner
takes, and `tuning_files` has results of other tuners. `sparloom.data.lightning` batches inputs for training and is the
only part that imports torch.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "sample": (
        "Conditions", "Sample", "checked_seconds", "conditions_entry", "label_seconds", "to_json_values"),
    "journal": ("Journal", "JsonLines", "compact"),
    "table": ("SampleTable",),
    "csv_file": (
        "CsvRules", "check_columns", "described_config", "read_csv", "read_described", "table_rows",
        "write_csv"),
    "csv_samples": ("CsvSamples",),
    "files": ("ensure_data", "read_frame", "read_rows", "verify_stored", "write_frame", "write_rows"),
    "inputs": ("Manifest", "ManifestEntry", "MatrixInput", "MatrixInputs", "coarsen"),
    "windows": ("Window", "cut_windows"),
    "sources": (
        "JoinedSamples", "SampleSource", "StoredSamples", "TinySamples", "read_statistics", "read_walks",
        "write_statistics", "write_walks"),
    "split": (
        "Coverage", "ROLES", "Random", "Selection", "Split", "Spread", "Stratified", "Uncertainty", "draw_labels",
        "select_labels", "split_by_family"),
    "tuning_files": ("read_trials", "write_t4"),
    "tuning_problem": ("LabelsOn", "Tuner", "TuningProblem"),
    "batches": ("MatrixSamples", "Problem", "Sweeps", "matrix_samples"),
})
