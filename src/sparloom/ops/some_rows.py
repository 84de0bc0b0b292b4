"""Comparison of two results in a few rows: cheap beside computing them."""

import numpy as np

from sparloom.ops.compare import assert_close
from sparloom.ops.op import Op, Operands
from sparloom.sparse import Pattern

__all__ = ["assert_few_close", "assert_rows_close", "few_rows"]

ROWS, NONZEROS = 64, 1 << 14  # that are compared, at most


def assert_rows_close(found: np.ndarray, expected: np.ndarray, op: Op, operands: Operands) -> None:
    """Check that two float32 results of an operation with one sparse operand agree in rows spread over all.

    Raises:
        AssertionError: names the worst element; also where only one of them is infinite or NaN.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"shape {found.shape} where the other has {expected.shape}")
    pattern = operands.matrix.pattern
    rows = few_rows(pattern)
    places = pattern.nonzeros_of(rows) if op.name == "sddmm" else rows
    assert_few_close(found[places], expected[places], op, operands.take_rows(rows, op.name).used_columns(op.name))


def assert_few_close(
    found: np.ndarray, expected: np.ndarray, op: Op, few: Operands, *, eps: float | None = None,
) -> None:
    """Check that two results agree, as `assert_rows_close` does with those of some rows.

    Args:
        few: the operands that belong to these results.
        eps: as of `assert_close`.

    Raises:
        AssertionError: as by `assert_rows_close`.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"shape {found.shape} where the other has {expected.shape}")
    known = np.isfinite(expected)
    if not np.array_equal(known, np.isfinite(found)):
        raise AssertionError("infinite or NaN in other places")
    assert_close(np.where(known, found, 0), np.where(known, expected, 0).astype(np.float64), scale=op.scale(few),
                 terms=2 * op.terms(few.matrix.pattern, few.width), eps=eps)


def few_rows(pattern: Pattern) -> np.ndarray:
    """Choose rows, rising, that have few nonzeros together; the shortest one if none has few."""
    spread = np.unique(np.linspace(0, pattern.rows - 1, ROWS).astype(np.int64))
    lengths = pattern.row_lengths()
    few = spread[np.cumsum(lengths[spread]) <= NONZEROS]
    return few if few.size else np.array([np.argmin(lengths)])
