"""Sparse matrices: patterns, files, corpora, orders and statistics.

A `Pattern` or `SparseMatrix` (pattern.py) is read from a file (matrix_files.py), which is unpacked (archive.py) and, as
MatrixMarket text, parsed (market.py). Corpora name many matrices (corpus.py): files of a folder, the SuiteSparse
collection (suitesparse.py, download.py), or generated ones (synthetic.py, generators/). Statistics describe patterns
(features.py), also as a tiled schedule visits them (walks.py).
"""

from functools import partial

from sparloom.lazy import resolve
from sparloom.sparse.corpus import (
    ROW_BINS,
    Corpus,
    FolderCorpus,
    MatrixEntry,
    Role,
    family_role,
    row_bin,
    stratified_choice,
)
from sparloom.sparse.download import RetryPolicy
from sparloom.sparse.features import STATISTICS, locality_order, reorder, signed_logarithm, statistics
from sparloom.sparse.matrix_files import MATRIX_ENDINGS, read_matrix, read_members, write_matrix
from sparloom.sparse.pattern import Pattern, SparseMatrix
from sparloom.sparse.suitesparse import SuiteSparseCorpus
from sparloom.sparse.synthetic import (
    ANCHORS,
    AUTOSAGE_GRAPHS,
    REORDERED_ANCHORS,
    SYNTHETIC_ROLES,
    AnchorCorpus,
    AutosageCorpus,
    SyntheticCorpus,
)
from sparloom.sparse.walks import WALK, WALK_STATISTICS, WALKS, WalkGrid, WalkStatistics, walk_statistics

__all__ = [
    "ANCHORS", "AUTOSAGE_GRAPHS", "MATRIX_ENDINGS", "REORDERED_ANCHORS", "ROW_BINS", "STATISTICS", "SYNTHETIC_ROLES",
    "WALK", "WALKS", "WALK_STATISTICS", "AnchorCorpus", "AutosageCorpus", "Corpus", "FolderCorpus", "MatrixEntry",
    "Pattern", "RetryPolicy", "Role", "SparseMatrix", "SuiteSparseCorpus", "SyntheticCorpus", "WalkGrid",
    "WalkStatistics", "family_role", "locality_order", "read_matrix", "read_members", "reorder", "row_bin",
    "signed_logarithm", "statistics", "stratified_choice", "walk_statistics", "write_matrix",
]
__getattr__ = partial(resolve, __name__)
