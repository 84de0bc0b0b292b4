"""Some rows of a result in float64: what is timed is checked against them, own methods like others."""

import numpy as np

from sparloom.ops import Op, Operands, assert_few_close, few_rows

__all__ = ["KnownRows"]


class KnownRows:
    """Rows spread over all, with few nonzeros together, by the oracle of an operation with one sparse operand."""

    def __init__(self, op: Op, operands: Operands) -> None:
        pattern = operands.matrix.pattern
        rows = few_rows(pattern)
        self._op, self._few = op, operands.take_rows(rows, op.name).used_columns(op.name)
        self._places = pattern.nonzeros_of(rows) if op.name == "sddmm" else rows
        self._count = pattern.nnz if op.name == "sddmm" else pattern.rows
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite in the results, too
            self._expected = op.oracle(self._few).astype(np.float32)

    def check(self, found: np.ndarray) -> None:
        """Compare a float32 result in these rows.

        Raises:
            AssertionError: names the worst element; also where only one of them is infinite or NaN.
        """
        if found.shape[:1] != (self._count,):
            raise AssertionError(f"shape {found.shape} where {self._count} come first")
        assert_few_close(found[self._places], self._expected, self._op, self._few)
