"""Sample tables, splits, featurizer inputs and the data store: everything between platforms and models.

`sparloom.data.lightning` holds the batches; it alone imports torch.
"""

from sparloom.data.batches import MatrixSamples, Problem, Sweeps, matrix_samples
from sparloom.data.csv_file import CsvRules, read_csv, write_csv
from sparloom.data.files import check_stored, ensure_data, read_frame, read_rows, write_frame, write_rows
from sparloom.data.inputs import Facts, Manifest, MatrixInput, MatrixInputs, cap
from sparloom.data.journal import Journal, compact
from sparloom.data.sample import Conditions, Sample, plain
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
    draw_more,
    split_by_family,
)
from sparloom.data.table import SampleTable

__all__ = [
    "ROLES", "Conditions", "Coverage", "CsvRules", "CsvSamples", "Facts", "Journal", "Manifest", "MatrixInput",
    "MatrixInputs", "MatrixSamples", "Problem", "Random", "Sample", "SampleSource", "SampleTable", "Selection",
    "Split", "Spread", "StoredSamples", "Stratified", "Sweeps", "TinySamples", "Uncertainty", "cap", "check_stored",
    "compact", "draw_labels", "draw_more", "ensure_data", "matrix_samples", "plain", "read_csv",
    "read_frame", "read_rows", "read_statistics", "read_walks", "split_by_family", "write_csv",
    "write_frame", "write_rows", "write_statistics", "write_walks",
]
