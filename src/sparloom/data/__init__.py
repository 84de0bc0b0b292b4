"""Sample tables, splits, featurizer inputs and the data store: everything between platforms and models.

`sparloom.data.lightning` holds the batches; it alone imports torch.
"""

from sparloom.data.batches import MatrixSamples, matrix_samples
from sparloom.data.conditions import Conditions, plain
from sparloom.data.csv_file import CsvRules, read_csv, write_csv
from sparloom.data.csv_samples import CsvSamples
from sparloom.data.frames import read_frame, read_rows, write_frame, write_rows
from sparloom.data.inputs import MatrixInput, MatrixInputs, cap
from sparloom.data.journal import Journal, compact
from sparloom.data.manifest import Facts, Manifest
from sparloom.data.sample import Sample
from sparloom.data.selection import (
    Coverage,
    Random,
    Selection,
    Spread,
    Stratified,
    Uncertainty,
    draw_labels,
    draw_more,
)
from sparloom.data.sources import (
    SampleSource,
    StoredSamples,
    read_statistics,
    read_walks,
    write_statistics,
    write_walks,
)
from sparloom.data.split import ROLES, Split, split_by_family
from sparloom.data.store import check_stored, ensure_data
from sparloom.data.sweeps import Problem, Sweeps
from sparloom.data.table import SampleTable
from sparloom.data.tiny import TinySamples

__all__ = [
    "ROLES", "Conditions", "Coverage", "CsvRules", "CsvSamples", "Facts", "Journal", "Manifest", "MatrixInput",
    "MatrixInputs", "MatrixSamples", "Problem", "Random", "Sample", "SampleSource", "SampleTable", "Selection",
    "Split", "Spread", "StoredSamples", "Stratified", "Sweeps", "TinySamples", "Uncertainty", "cap", "check_stored",
    "compact", "draw_labels", "draw_more", "ensure_data", "matrix_samples", "plain", "read_csv",
    "read_frame", "read_rows", "read_statistics", "read_walks", "split_by_family", "write_csv",
    "write_frame", "write_rows", "write_statistics", "write_walks",
]
