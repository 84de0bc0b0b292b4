"""A few elements of a result, known in float64: cheap enough to check every configuration on every matrix."""

import numpy as np

from sparloom.ops import Op, Operands, assert_close
from sparloom.space import Config

__all__ = ["SpotCheck"]

ROWS = 16


class SpotCheck:
    """Rows of the sparse operand, the longest among them, with their results by the oracle."""

    def __init__(self, op: Op, operands: Operands, *, seed: int) -> None:
        pattern = operands.matrix.pattern
        rng = np.random.default_rng(seed)
        drawn = rng.choice(pattern.rows, size=min(ROWS, pattern.rows), replace=False)
        longest = [int(np.argmax(pattern.row_lengths()))] if pattern.rows else []
        self.op = op
        self.rows = np.unique(np.concatenate([drawn, longest]).astype(np.int64))
        self.nonzeros = pattern.nonzeros_of(self.rows)
        part = operands.take_rows(self.rows, op.name)
        self.oracle = op.oracle(part)
        self.terms = op.terms(part.matrix.pattern, operands.width)
        self.scale = op.scale(part)

    def check(self, result: np.ndarray, config: Config) -> None:
        """Compare the sampled part of a result in the oracle's order.

        Raises:
            AssertionError: names the configuration and the worst element.
        """
        try:
            self.compare(result)
        except AssertionError as error:
            raise AssertionError(f"{self.op.name} with {config} is wrong in the sampled rows: {error}") from error

    def compare(self, result: np.ndarray) -> None:
        """Do as `check` for a caller that names the configuration itself."""
        picked = result[self.nonzeros] if self.op.name == "sddmm" else result[self.rows]
        assert_close(picked, self.oracle, terms=self.terms, scale=self.scale)

    def compare_written(self, result: np.ndarray) -> None:
        """Compare a result that held NaN before the kernel ran: no element of it may be left as it was."""
        self.compare(result)
        if np.isnan(result.sum(dtype=np.promote_types(result.dtype, np.float32))):
            rows = np.unique(np.argwhere(np.isnan(result))[:, 0])
            raise AssertionError(f"{rows.size} rows hold NaN, the first is {rows[0]}")
