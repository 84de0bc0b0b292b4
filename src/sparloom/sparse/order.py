"""Orders of rows and columns that bring nonzeros that share columns close together."""

import numpy as np
import scipy.sparse
from jaxtyping import Int64
from scipy.sparse.csgraph import breadth_first_order, connected_components

from sparloom.sparse.pattern import Pattern

__all__ = ["locality_order", "reorder"]


def reorder(pattern: Pattern, rows_perm: np.ndarray, cols_perm: np.ndarray) -> Pattern:
    """Put old row rows_perm[r] at row r, and old column cols_perm[c] at column c.

    Raises:
        ValueError: an argument is not a permutation of its axis.
    """
    new_column = np.empty(pattern.cols, dtype=np.int32)
    new_column[_checked(cols_perm, pattern.cols, "cols_perm")] = np.arange(pattern.cols, dtype=np.int32)
    moved = pattern.to_scipy()[_checked(rows_perm, pattern.rows, "rows_perm")]
    result = scipy.sparse.csr_array((moved.data, new_column[moved.indices], moved.indptr), shape=pattern.shape)
    result.sort_indices()
    return Pattern(pattern.shape, result.indptr, result.indices)


def locality_order(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Choose the order that the reorder option of SPADE applies: permutations (rows_perm, cols_perm) for `reorder`.

    Square: reverse Cuthill-McKee on the pattern of A + A^T, the same permutation for rows and columns.
    Rectangular: columns by falling degree bucket (power of two), then rows by falling degree bucket and, within one,
    by the new place of their first column. All ties keep the old order.

    Source: the papers name no algorithm; this is the reading recorded in docs/readings.md.
    """
    if pattern.rows == pattern.cols:
        perm = _cuthill_mckee(pattern)
        return perm, perm.copy()
    cols_perm = np.argsort(-_bucket(np.bincount(pattern.indices, minlength=pattern.cols)), kind="stable")
    new_column = np.empty(pattern.cols, dtype=np.int64)
    new_column[cols_perm] = np.arange(pattern.cols)
    lengths = pattern.row_lengths()
    first = np.full(pattern.rows, pattern.cols, dtype=np.int64)
    filled = lengths > 0
    if pattern.nnz:
        first[filled] = np.minimum.reduceat(new_column[pattern.indices], pattern.indptr[:-1][filled])
    rows_perm = np.lexsort((first, -_bucket(lengths)))
    return rows_perm, cols_perm


def _cuthill_mckee(pattern: Pattern) -> Int64[np.ndarray, " rows"]:
    """Order a square pattern by reverse Cuthill-McKee, each component from its vertex of least degree.

    Vertices are numbered by degree first, so a breadth-first walk that takes neighbours by number takes them by degree;
    an entry on the diagonal counts twice, as in SciPy. SciPy's own `reverse_cuthill_mckee` starts where NumPy's
    unstable sort puts the least degree, which depends on the processor.
    """
    if pattern.nnz == 0:
        return np.arange(pattern.rows)
    matrix = pattern.to_scipy()
    both = scipy.sparse.csr_array(matrix + matrix.T)
    stored = np.diff(both.indptr)
    degree = stored + (both.diagonal() != 0)
    by_degree = np.lexsort((stored, degree))
    numbered = both[by_degree][:, by_degree]
    numbered.sort_indices()
    component = connected_components(numbered, directed=False)[1]
    least, start = np.unique(component, return_index=True)
    root = pattern.rows
    indptr = np.append(numbered.indptr, numbered.nnz + len(least))
    indices = np.append(numbered.indices, np.sort(start))
    rooted = scipy.sparse.csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(root + 1, root + 1))
    walk = breadth_first_order(rooted, root, return_predecessors=False)[1:]
    walk = walk[np.argsort(start[component[walk]], kind="stable")]
    return by_degree[walk[::-1]]


def _bucket(degrees: np.ndarray) -> np.ndarray:
    """Number the powers of two: 0 for no nonzeros, 1 for one, 2 for two and three, 3 for four to seven."""
    return np.frexp(degrees.astype(np.float64))[1]


def _checked(perm: np.ndarray, extent: int, name: str) -> np.ndarray:
    perm = np.asarray(perm)
    if perm.shape != (extent,) or not np.array_equal(np.sort(perm), np.arange(extent)):
        raise ValueError(f"{name} of shape {perm.shape} is not a permutation of 0 to {extent - 1}")
    return perm
