"""Comparison of results with a float64 oracle, or with each other in a few rows.

Tolerances grow with the length of the sums, so that the order of additions does not matter.
"""

import numpy as np

from sparloom.ops.op import Op, Operands
from sparloom.sparse import Pattern

MAX_ROWS, MAX_NONZEROS = 64, 1 << 14  # of a comparison


def assert_close(
    actual: np.ndarray, oracle: np.ndarray, *, terms: np.ndarray | int, scale: np.ndarray | float = 1.0,
    eps: float | None = None,
) -> None:
    """Check that a result of sums of `terms` products, in any order, agrees with the oracle.

    The worst case of recursive summation is an error of (terms + 1) * eps * scale * terms. Sums of independent signs
    stay near its square root, so the tolerance is 4 * eps * scale * (terms + 1), with the eps of the actual type.

    Args:
        terms: products per element, broadcast against `oracle`.
        scale: largest magnitude of one product, broadcast likewise.
        eps: of a type to which numbers were rounded on the way to `actual`; default: that of its own type.

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
        position = ", ".join(str(int(axis)) for axis in worst)
        raise AssertionError(
            f"element ({position}) is {float(actual[worst])!r}, the oracle has {float(oracle[worst])!r}: error "
            f"{float(error[worst]):.3e} exceeds {float(tolerance[worst]):.3e}; {int((excess > 1).sum())} of "
            f"{oracle.size} elements differ")


class OracleBounds:
    """An oracle with the interval that `assert_close` accepts, for many float32 results of one problem.

    Args:
        terms, scale: as in `assert_close`.
    """

    def __init__(self, oracle: np.ndarray, *, terms: np.ndarray | int, scale: np.ndarray | float = 1.0) -> None:
        self._oracle, self._terms, self._scale = oracle, terms, scale
        tolerance = _tolerance(terms, scale, np.dtype(np.float32))
        self._low = np.nextafter((oracle - tolerance).astype(np.float32), np.float32(np.inf))
        self._high = np.nextafter((oracle + tolerance).astype(np.float32), np.float32(-np.inf))

    def check(self, actual: np.ndarray) -> None:
        """Compare a result; fast if it is right.

        Raises:
            AssertionError: as `assert_close`.
        """
        right = actual.shape == self._oracle.shape and ((actual >= self._low) & (actual <= self._high)).all()
        if not right:
            assert_close(actual, self._oracle, terms=self._terms, scale=self._scale)


def assert_rows_close(found: np.ndarray, expected: np.ndarray, op: Op, operands: Operands) -> None:
    """Check that two float32 results of an operation with one sparse operand agree in rows spread over the matrix.

    Raises:
        AssertionError: they differ, or only one of two elements is infinite or NaN; names the worst element.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"shape {found.shape} where the other has {expected.shape}")
    pattern = operands.matrix.pattern
    rows = few_rows(pattern)
    indices = pattern.nonzeros_of(rows) if op.name == "sddmm" else rows
    assert_few_close(found[indices], expected[indices], op, operands.take_rows(rows, op.name).used_columns(op.name))


def assert_few_close(
    found: np.ndarray, expected: np.ndarray, op: Op, few: Operands, *, eps: float | None = None,
) -> None:
    """Check that two results of a few rows agree, see `assert_rows_close`.

    Args:
        few: the operands of these rows.
        eps: as in `assert_close`.

    Raises:
        AssertionError: as in `assert_rows_close`.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"shape {found.shape} where the other has {expected.shape}")
    known = np.isfinite(expected)
    if not np.array_equal(known, np.isfinite(found)):
        raise AssertionError("infinite or NaN elements are at other positions")
    assert_close(np.where(known, found, 0), np.where(known, expected, 0).astype(np.float64), scale=op.scale(few),
                 terms=2 * op.terms(few.matrix.pattern, few.width), eps=eps)


def few_rows(pattern: Pattern) -> np.ndarray:
    """Choose rows, in rising order, that have few nonzeros in total; the shortest row if none has few."""
    spread = np.unique(np.linspace(0, pattern.rows - 1, MAX_ROWS).astype(np.int64))
    lengths = pattern.row_lengths()
    few = spread[np.cumsum(lengths[spread]) <= MAX_NONZEROS]
    return few if few.size else np.array([np.argmin(lengths)])


def _tolerance(
    terms: np.ndarray | int, scale: np.ndarray | float, dtype: np.dtype, eps: float | None = None,
) -> np.ndarray:
    limits = np.finfo(dtype)  # its smallest normal number is added, because subnormal ones have fewer digits
    smallest = float(limits.eps) if eps is None else eps
    return 4 * smallest * scale * (np.asarray(terms, dtype=np.float64) + 1) + float(limits.tiny)
