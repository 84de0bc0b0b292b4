"""Whether a product of three matrices is right: the oracle in some rows, the first result that passed in all."""

from dataclasses import replace

import numpy as np

from sparloom.fusion import Pair
from sparloom.ops import Operands, assert_close
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["PairCheck"]

ROWS = 32  # drawn; the longest besides


class PairCheck:
    """Checks results of one problem; the first is compared with the float64 oracle, the others with the first too.

    Args:
        op, operands: the problem; B = A where it is sparse.
    """

    def __init__(self, op: Pair, operands: Operands, *, seed: int) -> None:
        pattern = operands.matrix.pattern
        drawn = np.random.default_rng(seed).choice(pattern.rows, size=min(ROWS, pattern.rows), replace=False)
        self._rows = np.unique([*drawn, int(np.argmax(pattern.row_lengths()))])
        self._oracle = op.oracle(_some_rows(operands, self._rows))
        self._terms = op.terms(pattern, op.width(operands))
        self._scale = op.scale(operands)
        if operands.right is not None:  # alike rows of D1 add up with equal signs, so their errors do too
            self._scale = self._scale * (1 + pattern.row_lengths() / 8)[:, None]
        limits = np.finfo(operands.matrix.dtype)
        self._tolerance = (8 * limits.eps * self._scale * (self._terms + 1) + limits.tiny).astype(limits.dtype)
        self._first: np.ndarray | None = None

    def check(self, result: np.ndarray) -> None:
        """Compare a result.

        Raises:
            AssertionError: names the worst element.
        """
        rows = self._rows
        assert_close(result[rows], self._oracle, terms=self._terms[rows], scale=self._scale[rows])
        if self._first is None:
            if not np.isfinite(result).all():
                raise AssertionError(f"{int((~np.isfinite(result)).sum())} elements are not finite")
            self._first = result.copy()
            return
        error = result - self._first
        if not (np.abs(error, out=error) <= self._tolerance).all():
            excess = np.where(np.isfinite(error), error / self._tolerance.astype(np.float64), np.inf)
            worst = np.unravel_index(int(np.argmax(excess)), error.shape)
            raise AssertionError(f"element {tuple(map(int, worst))} is {float(result[worst])!r}, the first method has "
                                 f"{float(self._first[worst])!r}")


def _some_rows(operands: Operands, rows: np.ndarray) -> Operands:
    """Take rows of A, and of B what they reach."""
    part = _rows(operands.matrix, rows)
    reached, columns = np.unique(part.pattern.indices, return_inverse=True)
    left = SparseMatrix(Pattern((rows.size, reached.size), part.pattern.indptr, columns), part.values, part.dtype)
    if operands.right is not None:
        return replace(operands, matrix=left, right=_rows(operands.right, reached))
    return replace(operands, matrix=left, dense={**operands.dense, "B": operands.dense["B"][reached]})


def _rows(matrix: SparseMatrix, rows: np.ndarray) -> SparseMatrix:
    pattern = matrix.pattern
    source, indptr = pattern.nonzeros_of(rows), np.concatenate([[0], np.cumsum(pattern.row_lengths()[rows])])
    return SparseMatrix(Pattern((rows.size, pattern.cols), indptr, pattern.indices[source]), matrix.values[source],
                        matrix.dtype)
