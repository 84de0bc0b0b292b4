"""Jacobi's method as repeated x -> M x + g.

How far a step of Jacobi's method may go.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse.linalg
from numpy.typing import DTypeLike

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["JacobiIteration", "converging_relaxation", "positive", "real_numbers", "solvable"]

LARGE = 2.0 ** 900  # the reciprocal is the least size of a column of g whose large entries are surely not subnormal


@dataclass(frozen=True)
class JacobiIteration:
    """M = I - w / D A and g = w / D b, D being the diagonal of A and w the relaxation.

    Args:
        matrix: M (n, n); its diagonal is not stored where w = 1.
        diagonal: D (n,) float64.
        relaxation: w.
    """

    matrix: SparseMatrix
    diagonal: np.ndarray
    relaxation: float

    @classmethod
    def of(cls, matrix: SparseMatrix, *, relaxation: float, dtype: DTypeLike) -> "JacobiIteration":
        """Split A, in double precision until M is rounded to its type.

        Args:
            relaxation: 1 is Jacobi's method itself; a smaller one makes more matrices converge: for a symmetric
                positive definite A everything below 2 / (largest eigenvalue of A / D).
            dtype: of M.

        Raises:
            TypeError: A is no `SparseMatrix`, or the relaxation no number.
            ValueError: A is not square or holds an infinity or NaN, its diagonal holds a zero or nothing, M does not
                fit into its type, or the relaxation is not a finite number above 0.
        """
        diagonal = solvable(matrix)
        if not positive(relaxation, "relaxation"):
            raise ValueError(f"relaxation {relaxation}: give a finite number above 0, 1 for Jacobi's method itself")
        pattern, dtype = matrix.pattern, np.dtype(dtype)
        rows = pattern.row_ids()
        on_diagonal = rows == pattern.indices
        with np.errstate(over="ignore"):
            values = matrix.values / diagonal[rows]
            values *= -relaxation
        values[on_diagonal] = 1 - relaxation
        _check_range(values, rows, dtype)
        if relaxation == 1:
            kept, indptr = ~on_diagonal, pattern.indptr - np.arange(pattern.rows + 1)  # one less in every row
            pattern, values = Pattern(pattern.shape, indptr, pattern.indices[kept]), values[kept]
        return cls(SparseMatrix(pattern, values, dtype), diagonal, relaxation)

    @property
    def scale(self) -> np.ndarray:
        """(n,), w / D."""
        with np.errstate(over="ignore"):
            return self.relaxation / self.diagonal

    def constant(self, right_hand_sides: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
        """Give g (n, columns) for right-hand sides of that shape, in double precision or a wider type."""
        with np.errstate(over="ignore"):
            found = right_hand_sides / self.diagonal.astype(dtype)[:, None]
            if self.relaxation != 1:
                found *= self.relaxation
        return found

    def scaled_constant(
        self, right_hand_sides: np.ndarray, dtype: DTypeLike = np.float64,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give g in units of its own size, so that squares of residuals neither over- nor underflow.

        Powers of two change no digit: iterates of scaled columns are those of g, scaled.

        Args:
            right_hand_sides: B (n, columns), real and finite.
            dtype: as of `constant`.

        Returns:
            (n, columns), every column g / 2^e with its largest magnitude in [0.5, 1), or 0; (columns,) e.
        """
        found = self.constant(right_hand_sides, dtype)
        largest = _largest(found)
        units = np.frexp(largest)[1]
        extreme = np.flatnonzero(~((largest > 1 / LARGE) & (largest < LARGE)))
        units[extreme] = 0
        found *= np.ldexp(1.0, -units)
        extreme = extreme[right_hand_sides[:, extreme].any(axis=0)]
        if extreme.size:  # g itself would over- or underflow
            found[:, extreme], units[extreme] = self._scaled_apart(right_hand_sides[:, extreme], dtype)
        return found, units

    def _scaled_apart(self, right_hand_sides: np.ndarray, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
        """Give the same by fractions and exponents apart, for columns that are not 0."""
        b, b_powers = np.frexp(right_hand_sides.astype(dtype))
        d, d_powers = np.frexp(self.diagonal.astype(dtype))
        parts, powers = np.frexp(b / d[:, None] * self.relaxation)
        powers += b_powers - d_powers[:, None]
        tops = np.where(parts != 0, powers, np.iinfo(powers.dtype).min).max(axis=0)
        return np.ldexp(parts, np.where(parts != 0, powers - tops, 0)), tops


def solvable(matrix: SparseMatrix) -> np.ndarray:
    """Check a matrix that a system is solved with.

    Returns:
        Its diagonal (n,) float64, without zeros.

    Raises:
        TypeError: it is no `SparseMatrix`.
        ValueError: it is not square, holds an infinity or NaN, or has a zero on its diagonal.
    """
    if not isinstance(matrix, SparseMatrix):
        remedy = "make one by SparseMatrix(Pattern(shape, indptr, indices), values, dtype)"
        if scipy.sparse.issparse(matrix):
            remedy = ("after A = scipy.sparse.csr_array(A) and A.sum_duplicates(), SparseMatrix(Pattern(A.shape, "
                      "A.indptr, A.indices), A.data, A.dtype) is one")
        raise TypeError(f"the matrix is a {type(matrix).__name__}, not a sparloom.sparse.SparseMatrix: {remedy}")
    pattern, values = matrix.pattern, matrix.values
    if pattern.rows != pattern.cols:
        raise ValueError(f"a {pattern.rows} x {pattern.cols} matrix: Jacobi's method solves square systems")
    finite = np.isfinite(values)
    if not finite.all():
        place = int(np.argmin(finite))
        row = int(np.searchsorted(pattern.indptr, place, side="right")) - 1
        raise ValueError(f"{values.size - np.count_nonzero(finite)} values of the matrix are not finite, the first is "
                         f"{values[place]} in row {row}, column {pattern.indices[place]}: a system has none")
    on_diagonal = pattern.row_ids() == pattern.indices
    diagonal = np.zeros(pattern.rows)
    diagonal[pattern.indices[on_diagonal]] = values[on_diagonal]
    zero = np.flatnonzero(diagonal == 0)
    if zero.size:
        raise ValueError(f"{zero.size} zeros on the diagonal, the first in row {zero[0]}: Jacobi's method divides "
                         "by it; reorder the rows, or take another method")
    return diagonal


def real_numbers(right_hand_sides: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Check B.

    Returns:
        B (n, columns) as an array of floats; float32 stays as it is.

    Raises:
        TypeError: B holds complex numbers, objects or strings, is sparse, or has masked entries.
        ValueError: B has another shape, holds an infinity or NaN, or a number that is 0 in float64.
    """
    if scipy.sparse.issparse(right_hand_sides):
        raise TypeError(f"the right-hand sides are a {type(right_hand_sides).__name__}: give a dense array, .toarray()")
    if np.ma.is_masked(right_hand_sides):
        raise TypeError("the right-hand sides have masked entries: fill them first")
    b = np.asarray(right_hand_sides)
    if b.dtype.kind == "c":
        raise TypeError("complex right-hand sides: only real systems are solved; solve for B.real and B.imag side by "
                        "side")
    if b.dtype.kind not in "fiub":
        raise TypeError(f"right-hand sides of type {b.dtype}: give real numbers, float64 or float32")
    if b.shape != shape:
        raise ValueError(f"right-hand sides of shape {b.shape}: this solver is for {shape}")
    if b.dtype not in (np.float32, np.float64):
        with np.errstate(over="ignore", under="ignore"):
            wide, b = b, b.astype(np.float64)
        vanished = ((b == 0) & (wide != 0)).any(axis=0)
        if vanished.any():
            raise ValueError(f"right-hand side {int(np.argmax(vanished))} holds a value that is too small for float64: "
                             "scale it")
    finite = np.isfinite(b).all(axis=0)
    if not finite.all():
        raise ValueError(f"right-hand side {int(np.argmin(finite))} holds a value that is no finite number")
    return b


def positive(value: float, name: str) -> bool:
    """Tell whether a number is finite, as float64 too, and above 0.

    Raises:
        TypeError: it is no real number.
    """
    try:
        return bool(0 < value < np.inf and float(value) < np.inf)
    except OverflowError:  # an integer
        return False
    except (TypeError, ValueError):
        raise TypeError(f"{name} {value!r}: give one real number above 0") from None


def _largest(columns: np.ndarray) -> np.ndarray:
    """Give the largest magnitude of every column, 0 where there are no rows; without a copy of the array."""
    return np.maximum(columns.max(axis=0, initial=0), -columns.min(axis=0, initial=0))


def _check_range(values: np.ndarray, rows: np.ndarray, dtype: np.dtype) -> None:
    if dtype.kind != "f":
        return  # which SparseMatrix refuses
    beyond = ~(np.abs(values) <= np.finfo(dtype).max)
    if beyond.any():
        remedy = "give dtype=\"float64\"" if dtype.itemsize < 8 else "scale the unknowns, or take another method"
        raise ValueError(f"row {rows[np.argmax(beyond)]} holds a value so much larger than its diagonal that {dtype} "
                         f"does not hold their ratio: {remedy}")


ITSELF = 1.99  # largest eigenvalue of A / D below which the method needs no relaxation: 2 less what the estimate is off
SHARE = 0.95   # of the largest relaxation that converges


def converging_relaxation(matrix: SparseMatrix) -> float:
    """Give 1 where Jacobi's method converges by itself, else what makes it converge.

    Args:
        matrix: A, symmetric positive definite: only then does the answer hold.

    Returns:
        The relaxation w of `JacobiIteration`; below 2 / (largest eigenvalue of A / D), which Lanczos estimates.

    Raises:
        TypeError: A is no `SparseMatrix`.
        ValueError: A is not square, holds an infinity or NaN, or its diagonal is not positive.
    """
    diagonal = solvable(matrix)
    if (diagonal < 0).any():
        raise ValueError(f"the diagonal is negative in row {int(np.argmax(diagonal < 0))}: the matrix is not positive "
                         "definite, and nothing is known of its relaxation")
    a, roots = matrix.to_scipy().astype(np.float64), np.sqrt(diagonal)
    a.data = a.data / roots[matrix.pattern.row_ids()] / roots[matrix.pattern.indices]
    if a.shape[0] < 3:  # too small for Lanczos
        largest = np.linalg.eigvalsh(a.toarray()).max(initial=0)
    else:
        start = np.random.default_rng(0).normal(size=a.shape[0])
        largest = scipy.sparse.linalg.eigsh(a, k=1, which="LA", tol=1e-3, v0=start, return_eigenvectors=False)[0]
    return 1.0 if largest < ITSELF else float(SHARE * 2 / largest)
