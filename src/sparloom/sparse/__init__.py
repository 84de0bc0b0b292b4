"""Sparse matrices: patterns, files, statistics, orders, and the corpora they come from."""

from sparloom.sparse.anchors import ANCHORS, REORDERED_ANCHORS, AnchorCorpus
from sparloom.sparse.autosage import AUTOSAGE_GRAPHS, AutosageCorpus
from sparloom.sparse.choice import stratified_choice
from sparloom.sparse.corpus import ROW_BINS, Corpus, MatrixEntry, Role, family_role, row_bin
from sparloom.sparse.download import Patience
from sparloom.sparse.folder import FolderCorpus
from sparloom.sparse.matrices import MATRIX_ENDINGS, read_matrix, write_matrix
from sparloom.sparse.npz import read_members
from sparloom.sparse.order import locality_order, reorder
from sparloom.sparse.pattern import Pattern, SparseMatrix
from sparloom.sparse.statistics import STATISTICS, signed_logarithm, statistics
from sparloom.sparse.suitesparse import SuiteSparseCorpus
from sparloom.sparse.synthetic import SYNTHETIC_ROLES, SyntheticCorpus
from sparloom.sparse.walks import WALK, WALK_STATISTICS, WALKS, WalkGrid, WalkStatistics, walk_statistics

__all__ = [
    "ANCHORS",
    "AUTOSAGE_GRAPHS",
    "MATRIX_ENDINGS",
    "REORDERED_ANCHORS",
    "ROW_BINS",
    "STATISTICS",
    "SYNTHETIC_ROLES",
    "WALK",
    "WALKS",
    "WALK_STATISTICS",
    "AnchorCorpus",
    "AutosageCorpus",
    "Corpus",
    "FolderCorpus",
    "MatrixEntry",
    "Patience",
    "Pattern",
    "Role",
    "SparseMatrix",
    "SuiteSparseCorpus",
    "SyntheticCorpus",
    "WalkGrid",
    "WalkStatistics",
    "family_role",
    "locality_order",
    "read_matrix",
    "read_members",
    "reorder",
    "row_bin",
    "signed_logarithm",
    "statistics",
    "stratified_choice",
    "walk_statistics",
    "write_matrix",
]
