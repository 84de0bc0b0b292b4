"""Some rows of a result in float64: what is timed is checked against them, own methods like others."""

from typing import Any

import numpy as np

from sparloom.ops import Op, Operands, assert_few_close, few_rows
from sparloom.tuning.sparse import Place

__all__ = ["KnownRows"]


class KnownRows:
    """Rows spread over all, with few nonzeros together, by the oracle of an operation with one sparse operand.

    Args:
        where: operands and results lie.
    """

    def __init__(self, op: Op, operands: Operands, where: Place) -> None:
        pattern = operands.matrix.pattern
        rows = few_rows(pattern)
        self._op, self._where, self._few = op, where, where.few(operands, rows, op.name)
        self._places, count = (pattern.nonzeros_of(rows), pattern.nnz) if op.name == "sddmm" else (rows, pattern.rows)
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite in the results, too
            self._expected = op.oracle(self._few).astype(np.float32)
        self._shape = count, *self._expected.shape[1:]

    def check(self, result: Any) -> None:
        """Compare a float32 result in these rows.

        Raises:
            AssertionError: names the worst element; also where only one of them is infinite or NaN.
        """
        found = self._where.array(result, "the result")
        if found.shape != self._shape:
            raise AssertionError(f"shape {found.shape}: it must be {self._shape}")
        assert_few_close(self._where.some(found, self._places), self._expected, self._op, self._few)
