"""Sample tables, splits, featurizer inputs and the data store: what platforms write and models read.

A `sample` is measured, goes into a `journal` and then into a `table` (`csv_file` imports those of other simulators);
`files` reads and writes Parquet and fetches the stored data. `inputs` are what featurizers read of a matrix, `sources`
give tables and inputs of a corpus, `split` selects matrices and configurations, and `batches` joins labels and inputs.
`sparloom.data.lightning` batches them for training and is the only part that imports torch.
"""

from functools import partial

from sparloom.data.batches import MatrixSamples, Problem, Sweeps, matrix_samples
from sparloom.data.csv_file import CsvRules, read_csv, write_csv
from sparloom.data.files import ensure_data, read_frame, read_rows, verify_stored, write_frame, write_rows
from sparloom.data.inputs import Manifest, ManifestEntry, MatrixInput, MatrixInputs, coarsen
from sparloom.data.journal import Journal, compact
from sparloom.data.sample import Conditions, Sample, to_json_values
from sparloom.data.sources import (
    CsvSamples,
    SampleSource,
    StoredSamples,
    TinySamples,
    read_statistics,
    read_walks,
    write_statistics,
    write_walks,
)
from sparloom.data.split import (
    ROLES,
    Coverage,
    Random,
    Selection,
    Split,
    Spread,
    Stratified,
    Uncertainty,
    draw_labels,
    select_labels,
    split_by_family,
)
from sparloom.data.table import SampleTable
from sparloom.lazy import resolve

__all__ = [
    "ROLES", "Conditions", "Coverage", "CsvRules", "CsvSamples", "Journal", "Manifest", "ManifestEntry", "MatrixInput",
    "MatrixInputs", "MatrixSamples", "Problem", "Random", "Sample", "SampleSource", "SampleTable", "Selection", "Split",
    "Spread", "StoredSamples", "Stratified", "Sweeps", "TinySamples", "Uncertainty", "coarsen", "compact",
    "draw_labels", "ensure_data", "matrix_samples", "read_csv", "read_frame", "read_rows", "read_statistics",
    "read_walks", "select_labels", "split_by_family", "to_json_values", "verify_stored", "write_csv", "write_frame",
    "write_rows", "write_statistics", "write_walks",
]

__getattr__ = partial(resolve, __name__)
