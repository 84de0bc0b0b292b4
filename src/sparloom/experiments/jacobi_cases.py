"""The linear systems on which Jacobi's method is timed."""

from collections.abc import Sequence

import numpy as np

from sparloom.errors import Unsupported
from sparloom.sparse import Corpus, MatrixEntry, Pattern, SparseMatrix

__all__ = ["dominant", "jacobi_set", "system"]


def jacobi_set(corpus: Corpus, part: str, *, least_nonzeros: int) -> Sequence[MatrixEntry]:
    """Choose matrices with more than so many nonzeros.

    Args:
        part: "definite", those that the catalogue knows to be symmetric positive definite; "pattern", other symmetric
            ones that are no graphs: systems whose values the collection has lost; "anchors", all.
    """
    large = [entry for entry in corpus.entries() if entry.rows == entry.cols and entry.nnz > least_nonzeros]
    if part == "definite":
        return [entry for entry in large if entry.spd]
    if part == "pattern":
        return [entry for entry in large if entry.symmetric and not entry.spd and "graph" not in entry.kind]
    return large


def system(matrix: SparseMatrix, part: str) -> SparseMatrix:
    """Make the matrix that is solved with.

    Returns:
        As it is stored if the part is "definite", else `dominant`.

    Raises:
        Unsupported: part "pattern", and the matrix has values, or zeros on its diagonal: it is no such system.
    """
    pattern = matrix.pattern
    if part == "definite":
        return matrix.astype("float64")
    if part == "pattern":
        if matrix.values.min(initial=1) != matrix.values.max(initial=1):
            raise Unsupported("it has values, but is not known to be positive definite")
        if (pattern.row_ids() == pattern.indices).sum() < pattern.rows:
            raise Unsupported("its diagonal is not stored: it is no matrix of a linear system")
    return dominant(pattern)


def dominant(pattern: Pattern) -> SparseMatrix:
    """Give a square pattern the values of its graph's Laplacian plus the identity: strictly diagonally dominant.

    Stored or not, the diagonal is 1 plus the number of other nonzeros in the row, each of which is -1.
    """
    rows, columns = pattern.row_ids(), pattern.indices
    other = rows != columns
    place = np.arange(pattern.rows, dtype=np.int32)
    whole = Pattern.from_coo(np.concatenate([rows[other], place]), np.concatenate([columns[other], place]),
                             pattern.shape)
    values = np.full(whole.nnz, -1.0)
    values[whole.row_ids() == whole.indices] = whole.row_lengths()
    return SparseMatrix(whole, values, np.float64)
