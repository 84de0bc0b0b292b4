"""Jacobi's method as the iteration x -> M x + g, checks of its inputs, and the relaxation that makes it converge."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse.linalg
from numpy.typing import DTypeLike

from sparloom.sparse import Pattern, SparseMatrix

LARGE = 2.0 ** 900  # a column of g with a maximum between 1 / LARGE and LARGE neither over- nor underflows
MAX_EIGENVALUE = 1.99  # of A / D, up to which no relaxation is needed: 2, less the error of the estimate
RELAXATION_SHARE = 0.95  # of the largest relaxation that converges


@dataclass(frozen=True)
class JacobiIteration:
    """M = I - w D⁻¹ A and g = w D⁻¹ b, where D is the diagonal of A and w the relaxation.

    Args:
        matrix: M (n, n), without its diagonal if w = 1.
        diagonal: D (n,) float64.
        relaxation: w.
    """

    matrix: SparseMatrix
    diagonal: np.ndarray
    relaxation: float

    @classmethod
    def of(cls, matrix: SparseMatrix, *, relaxation: float, dtype: DTypeLike) -> "JacobiIteration":
        """Split A. The computation is in double precision, and M is rounded at the end.

        Args:
            relaxation: 1 is Jacobi's method itself; smaller values converge for more matrices. For a symmetric positive
                definite A, all values below 2 / (largest eigenvalue of D⁻¹ A) converge.
            dtype: type of M.

        Raises:
            TypeError: A is not a `SparseMatrix`, or the relaxation is not a number.
            ValueError: A is not square or holds an infinity or NaN, its diagonal holds a zero or a gap, a value of M
                overflows its type, or the relaxation is not a finite number above 0.
        """
        diagonal = system_diagonal(matrix)
        if not is_positive(relaxation, "relaxation"):
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
        """w D⁻¹, (n,)."""
        with np.errstate(over="ignore"):
            return self.relaxation / self.diagonal

    def constant(self, right_hand_sides: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
        """Compute g (n, columns) for right-hand sides of that shape, in double precision or a wider type."""
        with np.errstate(over="ignore"):
            found = right_hand_sides / self.diagonal.astype(dtype)[:, None]
            if self.relaxation != 1:
                found *= self.relaxation
        return found

    def scaled_constant(
        self, right_hand_sides: np.ndarray, dtype: DTypeLike = np.float64,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute g with scaled columns, so that squares of residuals neither over- nor underflow.

        Scaling by powers of two is exact: the iterates of scaled columns are the scaled iterates.

        Args:
            right_hand_sides: B (n, columns), real and finite.
            dtype: as for `constant`.

        Returns:
            (n, columns), columns g / 2^e whose largest magnitude is in [0.5, 1), or 0; and the exponents e (columns,).
        """
        found = self.constant(right_hand_sides, dtype)
        largest = _largest(found)
        exponents = np.frexp(largest)[1]
        extreme = np.flatnonzero(~((largest > 1 / LARGE) & (largest < LARGE)))
        exponents[extreme] = 0
        found *= np.ldexp(1.0, -exponents)
        extreme = extreme[right_hand_sides[:, extreme].any(axis=0)]
        if extreme.size:  # g itself would over- or underflow
            found[:, extreme], exponents[extreme] = self._scaled_by_parts(right_hand_sides[:, extreme], dtype)
        return found, exponents

    def _scaled_by_parts(self, right_hand_sides: np.ndarray, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
        """Do the same with separate fractions and exponents, for columns that are not 0."""
        b, b_powers = np.frexp(right_hand_sides.astype(dtype))
        d, d_powers = np.frexp(self.diagonal.astype(dtype))
        parts, powers = np.frexp(b / d[:, None] * self.relaxation)
        powers += b_powers - d_powers[:, None]
        tops = np.where(parts != 0, powers, np.iinfo(powers.dtype).min).max(axis=0)
        return np.ldexp(parts, np.where(parts != 0, powers - tops, 0)), tops


def system_diagonal(matrix: SparseMatrix) -> np.ndarray:
    """Check the matrix of a system of equations.

    Returns:
        Its diagonal (n,) float64, which holds no zero.

    Raises:
        TypeError: it is not a `SparseMatrix`.
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
        index = int(np.argmin(finite))
        row = int(np.searchsorted(pattern.indptr, index, side="right")) - 1
        raise ValueError(f"{values.size - np.count_nonzero(finite)} values of the matrix are not finite, the first is "
                         f"{values[index]} in row {row}, column {pattern.indices[index]}: give finite values")
    on_diagonal = pattern.row_ids() == pattern.indices
    diagonal = np.zeros(pattern.rows)
    diagonal[pattern.indices[on_diagonal]] = values[on_diagonal]
    zero = np.flatnonzero(diagonal == 0)
    if zero.size:
        raise ValueError(f"{zero.size} zeros on the diagonal, the first in row {zero[0]}: Jacobi's method divides "
                         "by it; reorder the rows, or take another method")
    return diagonal


def checked_right_hand_sides(right_hand_sides: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Check B.

    Returns:
        B (n, columns), as float64 unless it is float32.

    Raises:
        TypeError: B holds complex numbers, objects or strings, is sparse, or has masked entries.
        ValueError: B has another shape, holds an infinity or NaN, or a nonzero number that is 0 in float64.
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
        raise ValueError(f"right-hand side {int(np.argmin(finite))} holds a value that is not finite")
    return b


def is_positive(value: float, name: str) -> bool:
    """Tell whether a number is above 0 and finite, also as float64.

    Raises:
        TypeError: it is not a real number.
    """
    try:
        return bool(0 < value < np.inf and float(value) < np.inf)
    except OverflowError:  # a large integer
        return False
    except (TypeError, ValueError):
        raise TypeError(f"{name} {value!r}: give one real number above 0") from None


def _largest(columns: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each column, 0 if there are no rows, without a copy of the array."""
    return np.maximum(columns.max(axis=0, initial=0), -columns.min(axis=0, initial=0))


def _check_range(values: np.ndarray, rows: np.ndarray, dtype: np.dtype) -> None:
    if dtype.kind != "f":
        return  # SparseMatrix rejects it
    beyond = ~(np.abs(values) <= np.finfo(dtype).max)
    if beyond.any():
        remedy = "give dtype=\"float64\"" if dtype.itemsize < 8 else "scale the unknowns, or take another method"
        raise ValueError(f"row {rows[np.argmax(beyond)]} holds a value so much larger than its diagonal that {dtype} "
                         f"does not hold their ratio: {remedy}")


def converging_relaxation(matrix: SparseMatrix) -> float:
    """Return a relaxation for which Jacobi's method converges, which is 1 if no relaxation is needed.

    Args:
        matrix: A, symmetric positive definite, or the result is not valid.

    Returns:
        The relaxation w of `JacobiIteration`, below 2 / (largest eigenvalue of D⁻¹ A), as estimated by Lanczos.

    Raises:
        TypeError: A is not a `SparseMatrix`.
        ValueError: A is not square, holds an infinity or NaN, or its diagonal is not positive.
    """
    diagonal = system_diagonal(matrix)
    if (diagonal < 0).any():
        raise ValueError(f"the diagonal is negative in row {int(np.argmax(diagonal < 0))}: the matrix is not positive "
                         "definite, so that no relaxation can be computed")
    a, roots = matrix.to_scipy().astype(np.float64), np.sqrt(diagonal)
    a.data = a.data / roots[matrix.pattern.row_ids()] / roots[matrix.pattern.indices]
    if a.shape[0] < 3:  # too small for Lanczos
        largest = np.linalg.eigvalsh(a.toarray()).max(initial=0)
    else:
        start = np.random.default_rng(0).normal(size=a.shape[0])
        largest = scipy.sparse.linalg.eigsh(a, k=1, which="LA", tol=1e-3, v0=start, return_eigenvectors=False)[0]
    return 1.0 if largest < MAX_EIGENVALUE else float(RELAXATION_SHARE * 2 / largest)
