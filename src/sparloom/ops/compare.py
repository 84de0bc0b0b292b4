"""Comparison of results with a float64 oracle, with a tolerance that grows with the length of the sum.

Comparison of two results in a few rows: cheap beside computing them.
"""

import numpy as np

from sparloom.ops.op import Op, Operands
from sparloom.sparse import Pattern

__all__ = ["OracleBounds", "assert_close", "assert_few_close", "assert_rows_close", "few_rows"]


def assert_close(
    actual: np.ndarray, oracle: np.ndarray, *, terms: np.ndarray | int, scale: np.ndarray | float = 1.0,
    eps: float | None = None,
) -> None:
    """Check that a sum of `terms` products, in any order, gave `oracle`.

    The bound is that of recursive summation, (terms + 1) * eps * scale * terms in the worst case; sums of independent
    signs stay near its square root, so 4 * eps * scale * (terms + 1) is allowed, eps being that of the actual type.

    Args:
        terms: products per element, broadcast against `oracle`.
        scale: largest magnitude of one product, broadcast likewise.
        eps: of the type that numbers were rounded to before they became those of `actual`; its own unless given.

    Raises:
        AssertionError: names the worst element, both values and the tolerance there; also for NaN.
    """
    if actual.shape != oracle.shape:
        raise AssertionError(f"shape {actual.shape} where the oracle has {oracle.shape}")
    if actual.size == 0:
        return
    tolerance = np.broadcast_to(_tolerance(terms, scale, actual.dtype, eps), oracle.shape)
    error = np.abs(actual.astype(np.float64) - oracle)
    excess = np.where(np.isfinite(error), error / tolerance, np.inf)
    worst = np.unravel_index(int(np.argmax(excess)), oracle.shape)
    if excess[worst] > 1:
        place = ", ".join(str(int(axis)) for axis in worst)
        raise AssertionError(
            f"element ({place}) is {float(actual[worst])!r}, the oracle has {float(oracle[worst])!r}: error "
            f"{float(error[worst]):.3e} exceeds {float(tolerance[worst]):.3e}; {int((excess > 1).sum())} of "
            f"{oracle.size} elements differ")


class OracleBounds:
    """An oracle and what `assert_close` allows around it, for many float32 results of one problem.

    Args:
        terms, scale: as in `assert_close`.
    """

    def __init__(self, oracle: np.ndarray, *, terms: np.ndarray | int, scale: np.ndarray | float = 1.0) -> None:
        self._oracle, self._terms, self._scale = oracle, terms, scale
        tolerance = _tolerance(terms, scale, np.dtype(np.float32))
        self._low = np.nextafter((oracle - tolerance).astype(np.float32), np.float32(np.inf))
        self._high = np.nextafter((oracle + tolerance).astype(np.float32), np.float32(-np.inf))

    def check(self, actual: np.ndarray) -> None:
        """Compare a result; quick where it is right.

        Raises:
            AssertionError: as `assert_close`.
        """
        right = actual.shape == self._oracle.shape and ((actual >= self._low) & (actual <= self._high)).all()
        if not right:
            assert_close(actual, self._oracle, terms=self._terms, scale=self._scale)


def _tolerance(
    terms: np.ndarray | int, scale: np.ndarray | float, dtype: np.dtype, eps: float | None = None,
) -> np.ndarray:
    limits = np.finfo(dtype)  # below its smallest normal number a type has fewer digits
    smallest = float(limits.eps) if eps is None else eps
    return 4 * smallest * scale * (np.asarray(terms, dtype=np.float64) + 1) + float(limits.tiny)


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
