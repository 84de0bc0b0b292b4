"""Sparse matrices: patterns, files, statistics, orders, and the corpora they come from."""

from sparloom.sparse.corpus import ROW_BINS, Corpus, MatrixEntry, Role, family_role, row_bin
from sparloom.sparse.matrices import MATRIX_ENDINGS, read_matrix, write_matrix
from sparloom.sparse.order import locality_order, reorder
from sparloom.sparse.pattern import Pattern, SparseMatrix
from sparloom.sparse.statistics import STATISTICS, statistics
from sparloom.sparse.suitesparse import SuiteSparseCorpus

__all__ = [
    "MATRIX_ENDINGS",
    "ROW_BINS",
    "STATISTICS",
    "Corpus",
    "MatrixEntry",
    "Pattern",
    "Role",
    "SparseMatrix",
    "SuiteSparseCorpus",
    "family_role",
    "locality_order",
    "read_matrix",
    "reorder",
    "row_bin",
    "statistics",
    "write_matrix",
]
