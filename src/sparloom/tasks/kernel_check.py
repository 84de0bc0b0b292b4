"""Whether a product of dense and sparse factors is right in some of its rows."""

from collections.abc import Sequence

import numpy as np

from sparloom.ops import Op, Operands, assert_close

__all__ = ["SampledRows"]

ROWS = 32


class SampledRows:
    """A few rows of a result in float64.

    Args:
        rows: which.
        oracle: (rows, width) float64.
        terms, scale: as of `assert_close`.
    """

    def __init__(
        self, rows: np.ndarray, oracle: np.ndarray, *, terms: np.ndarray | int, scale: np.ndarray | float,
    ) -> None:
        self.rows, self.oracle, self.terms, self.scale = rows, oracle, terms, scale

    @classmethod
    def of_dense(cls, left: np.ndarray, right: np.ndarray, *, seed: int) -> "SampledRows":
        """Know rows of left right."""
        rows = _draw(left.shape[0], seed)
        scale = float(np.abs(left).max() * np.abs(right).max())
        oracle = left[rows].astype(np.float64) @ right.astype(np.float64)
        return cls(rows, oracle, terms=left.shape[1], scale=scale)

    @classmethod
    def of_sparse(cls, op: Op, operands: Operands, factors: Sequence[np.ndarray], *, seed: int) -> "SampledRows":
        """Know rows of A times the dense factors, one after the other."""
        pattern = operands.matrix.pattern
        rows = _draw(pattern.rows, seed)
        oracle = operands.matrix.to_scipy()[rows].astype(np.float64)
        for factor in factors:
            oracle = oracle @ factor.astype(np.float64)
        terms = op.terms(pattern, factors[-1].shape[1])
        return cls(rows, oracle, terms=terms[rows], scale=op.scale(operands)[rows])

    def check(self, result: np.ndarray) -> None:
        """Compare a result that held NaN before it was computed.

        Raises:
            AssertionError: names the worst element, or a row that was not written.
        """
        assert_close(result[self.rows], self.oracle, terms=self.terms, scale=self.scale)
        missing = np.flatnonzero(np.isnan(result).any(axis=1))
        if missing.size:
            raise AssertionError(f"{missing.size} rows hold NaN, the first is {missing[0]}")


def _draw(rows: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(rows, size=min(ROWS, rows), replace=False))
