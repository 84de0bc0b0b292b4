"""Powers and polynomials of a sparse matrix times a few columns, with the matrix read once for several products.

Products with one to eight columns are as fast as the matrix comes from memory. Where the rows that a product needs lie
near each other, k products can share one reading of the matrix (`sparloom.solvers.traversal`); where they do not, as in
graphs of small diameter, plain products are as fast as it gets. `MatrixPowers` measures which.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse

from sparloom.fusion import bandwidth_order
from sparloom.measure import Caches, checked_threads
from sparloom.platforms.cpu_kernels import empty_result
from sparloom.solvers.packed_steps import (
    WIDTHS,
    PackedMatrix,
    Schedule,
    Step,
    StepArrays,
    Terms,
    bind_iterates,
    bind_steps,
    is_direct,
    width_for,
)
from sparloom.solvers.traversal import plain_schedule, schedule_steps
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import MeasurementBudget, race

Method = Literal["auto", "plain", "blocked"]
"""How k products run: one after the other, blocked, or whichever a measurement says is faster."""
Basis = Literal["monomial", "chebyshev"]
"""Of a polynomial: powers of A, or Chebyshev polynomials of the first kind."""

GUARDRAIL = 0.97  # share of the time of plain products that blocked ones must stay below
CACHED_SHARE = 0.5  # of the last-level cache; smaller matrices are not renumbered, as they are read from it anyway
THREAD_BYTES = 1 << 17  # of A for each thread; less is done before another thread is awake
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
MAX_WIDTH = WIDTHS[-1]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PowersPlan:
    """How k products with some columns run.

    Args:
        matrix: A in natural order, or in that of breadth-first levels.
        depth: products that share one reading of A; 1 for plain products.
        speedup: measured seconds of plain products over those of this plan; 1 where nothing was measured.
    """

    matrix: PackedMatrix
    schedule: Schedule
    speedup: float = 1.0

    @property
    def depth(self) -> int:
        """Products that share one reading of A; 1 for plain products."""
        return self.schedule.depth

    @property
    def renumbered(self) -> bool:
        """Whether rows are in the order of breadth-first levels, so that X and the results are permuted."""
        return self.matrix.order is not None


def powers(
    matrix: Any, x: Any, k: int, *, last: bool = False, method: Method = "auto", threads: int | None = None,
) -> np.ndarray:
    """Compute X, A X, ..., A^k X.

    Args:
        matrix: A (n, n): a SparseMatrix, a SciPy matrix, or what `prepare_powers` returns. In "auto" only the latter
            blocks products, because packing and renumbering take longer than k products.
        x: X (n, columns) or (n,), float32 or float64.
        k: highest power, at least 0.
        last: return A^k X alone.
        method: see `prepare_powers`; ignored for a prepared matrix.
        threads: default: one per processor that this process may use; ignored for a prepared matrix.

    Returns:
        (k + 1, *shape of X), or with `last` the shape of X.

    Raises:
        TypeError: A or X is of a kind or type that is not supported; k is not an integer.
        ValueError: A is not square, X has other rows than A, or k is negative.
    """
    prepared = _prepared(matrix, x, k=k, method=method, threads=threads)
    return prepared.powers(x, k, last=last)


def polynomial(
    matrix: Any, x: Any, coefficients: Sequence[float] | np.ndarray, *, basis: Basis = "monomial", scale: float = 1.0,
    shift: float = 0.0, method: Method = "auto", threads: int | None = None,
) -> np.ndarray:
    """Compute the polynomial filter sum over p of coefficients[p] P_p(scale A + shift I) X.

    Args:
        matrix, x, method, threads: as for `powers`.
        coefficients: (k + 1,), of the terms of degree 0 to k.
        basis: P_p is the p-th power, or the p-th Chebyshev polynomial of the first kind, whose argument should have
            eigenvalues between -1 and 1.
        scale, shift: of the argument. For a Laplacian with eigenvalues in [0, m], 2 / m and -1 bring them there.

    Returns:
        The shape of X.

    Raises:
        TypeError: as for `powers`.
        ValueError: as for `powers`; there is no coefficient, or one is not finite.
    """
    terms = _coefficients(coefficients)
    prepared = _prepared(matrix, x, k=terms.size - 1, method=method, threads=threads)
    return prepared.polynomial(x, terms, basis=basis, scale=scale, shift=shift)


def prepare_powers(
    matrix: Any, *, k: int = 8, columns: int = 1, method: Method = "auto", threads: int | None = None,
) -> MatrixPowers:
    """Prepare a matrix for many calls of `powers` and `polynomial`.

    Args:
        matrix: A (n, n), a SparseMatrix or a SciPy matrix, float32 or float64. It is copied: later changes in place
            have no effect.
        k, columns: products and columns of typical calls; others are decided when they come.
        method: "plain": one product after the other. "blocked": products share a reading of A where its rows allow
            that. "auto": blocked if a measurement finds it faster.
        threads: default: one per processor that this process may use.

    Raises:
        TypeError, ValueError: as for `powers`.
    """
    return MatrixPowers(matrix, k=k, columns=columns, method=method, threads=threads)


class MatrixPowers:
    """A square matrix packed for products with few columns, with the decisions how to order them.

    Args:
        matrix, k, columns, method, threads: see `prepare_powers`.
    """

    def __init__(
        self, matrix: Any, *, k: int = 8, columns: int = 1, method: Method = "auto", threads: int | None = None,
    ) -> None:
        if method not in get_args(Method):
            raise ValueError(f"method {method!r}: give one of {', '.join(get_args(Method))}")
        self._method: Method = method
        a = _square(matrix)
        self._threads = _useful_threads(a, threads)
        self._natural = PackedMatrix.of(a, threads=self._threads, pack=True)
        if self._natural.csr is not None:
            self._natural = PackedMatrix.of(_copied(a), threads=self._threads, pack=False)
        self._levels: PackedMatrix | None = None
        self._plans: dict[tuple[int, int, bool, bool], PowersPlan] = {}
        k, columns = _checked_count(k, "k", 0), _checked_count(columns, "columns", 1)
        if method != "plain" and self._natural.rows and k > 1:
            self._number_by_levels(a, k, columns)
            self.plan(k, columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of A."""
        return self._natural.rows, self._natural.rows

    @property
    def dtype(self) -> np.dtype:
        """Type of A and of the results."""
        return self._natural.dtype

    @property
    def threads(self) -> int:
        """Threads of every call: fewer than were asked for where A is small."""
        return self._threads

    def powers(self, x: Any, k: int, *, last: bool = False) -> np.ndarray:
        """Compute X, A X, ..., A^k X; see `powers`."""
        return self._iterates(x, k, last, Terms())

    def iterate(
        self, x: Any, k: int, addend: Any, *, weight: float = 1.0, scale: float = 1.0, shift: float = 0.0,
        last: bool = False,
    ) -> np.ndarray:
        """Compute y_0 = X, ..., y_k of the iteration y_p = scale A y_{p-1} + shift y_{p-1} + weight B.

        Stationary methods such as Jacobi's, and personalised PageRank, are of this form.

        Args:
            x, k, last: as for `powers`.
            addend: B, of the shape of X.

        Returns:
            (k + 1, *shape of X), or with `last` the shape of X.

        Raises:
            TypeError, ValueError: as for `powers`; B has another shape than X, or a factor is not finite.
        """
        given = self._columns_of(addend, "B")
        if np.shape(addend) != np.shape(x):
            raise ValueError(f"B has shape {np.shape(addend)}: it must have that of X, {np.shape(x)}")
        factors = {"weight": weight, "scale": scale, "shift": shift}
        for name, factor in factors.items():
            if not math.isfinite(factor):
                raise ValueError(f"{name} {factor}: give a finite number")
        return self._iterates(x, k, last, Terms(scale, shift, given, weight))

    def polynomial(
        self, x: Any, coefficients: Sequence[float] | np.ndarray, *, basis: Basis = "monomial", scale: float = 1.0,
        shift: float = 0.0,
    ) -> np.ndarray:
        """Compute a polynomial of A times X; see `polynomial`."""
        terms = _coefficients(coefficients)
        if basis not in get_args(Basis):
            raise ValueError(f"basis {basis!r}: give one of {', '.join(get_args(Basis))}")
        if not (math.isfinite(scale) and math.isfinite(shift)):
            raise ValueError(f"scale {scale} and shift {shift}: give finite numbers")
        dense = self._columns_of(x)
        if terms.size == 1 or not dense.size:
            return (dense * self.dtype.type(terms[0])).reshape(np.shape(x))
        result = empty_result(dense.shape, self.dtype.type)
        for part in _groups(dense.shape[1]):
            self._run_polynomial(dense[:, part], result[:, part], terms, basis, (scale, shift))
        return result.reshape(np.shape(x))

    def plan(self, k: int, columns: int, *, last: bool = True) -> PowersPlan:
        """Return how k products with so many columns run; measured the first time in "auto".

        Args:
            last: whether only the last product is kept; otherwise all are written to memory.
        """
        columns = _checked_count(columns, "columns", 1)
        return self._plan(_checked_count(k, "k", 1), width_for(min(columns, MAX_WIDTH)), last, columns not in WIDTHS)

    def _plan(self, k: int, width: int, last: bool, copies: bool) -> PowersPlan:
        key = k, width, last, copies
        if key not in self._plans:
            self._plans[key] = self._decide(*key)
        return self._plans[key]

    def _number_by_levels(self, matrix: SparseMatrix, k: int, columns: int) -> None:
        """Keep a copy of A in the order of breadth-first levels if more of its products can share a reading then."""
        if self._method == "auto" and self._natural.nbytes < CACHED_SHARE * Caches.here(self._threads).far_bytes:
            return
        width = width_for(min(columns, MAX_WIDTH))
        natural = self._blocked(self._natural, k, width, last=True, copies=False)
        if natural is not None and natural.depth == k:
            return
        order = bandwidth_order(matrix.pattern)
        levels = PackedMatrix.of(_permuted(matrix, order), order=order, threads=self._threads, pack=True)
        numbered = self._blocked(levels, k, width, last=True, copies=True)
        if numbered is not None and (natural is None or numbered.depth > natural.depth):
            self._levels = levels

    def _blocked(self, matrix: PackedMatrix, k: int, width: int, *, last: bool, copies: bool) -> Schedule | None:
        arrays = 3 if last or copies else k + 1
        return schedule_steps(matrix, k, threads=self._threads, copies=copies,
                              row_bytes=arrays * width * self.dtype.itemsize)

    def _decide(self, k: int, width: int, last: bool, copies: bool) -> PowersPlan:
        """Make the candidates and, in "auto", race them.

        Args:
            copies: whether X does not have the width of the kernels and must be copied, also in natural order.
        """
        plain = PowersPlan(self._natural, plain_schedule(self._natural, k, threads=self._threads, copies=copies))
        if self._method == "plain" or k < 2:
            return plain
        found = [plain]
        for matrix in (self._natural, self._levels):
            if matrix is None:
                continue
            schedule = self._blocked(matrix, k, width, last=last, copies=copies or matrix.order is not None)
            if schedule is not None:
                found.append(PowersPlan(matrix, schedule))
        if len(found) == 1:
            return plain
        if self._method == "blocked":
            return max(found[1:], key=lambda plan: plan.depth)
        x = np.random.default_rng(0).standard_normal((self._natural.rows, width + copies)).astype(self.dtype)
        calls = []
        for plan in found:
            result = empty_result((1 if last else k + 1, *x.shape), self.dtype.type)
            calls.append(bind_iterates(plan.matrix, plan.schedule, x[:, :width], result[:, :, :width], k=k, last=last,
                                       threads=self._threads))
        run = race(calls, effort=MeasurementBudget(), clock=time.perf_counter)
        best = [min(seconds, default=math.inf) for seconds in run.seconds]
        winner = int(np.argmin(best))
        if best[winner] >= GUARDRAIL * best[0]:
            winner = 0
        log.debug("%d products with %d columns: %s", k, width, ", ".join(
            f"depth {plan.depth}{' renumbered' if plan.renumbered else ''} {seconds:.2e} s"
            for plan, seconds in zip(found, best, strict=True)))
        return PowersPlan(found[winner].matrix, found[winner].schedule, best[0] / best[winner])

    def _columns_of(self, x: Any, name: str = "X") -> np.ndarray:
        """Check X or B and return it with two axes."""
        dense = _dense(x, self._natural.rows, name)
        if dense.dtype == np.float64 and self.dtype == np.float32:
            raise TypeError(f"{name} is float64 and the prepared matrix is float32: prepare it from float64 values, or "
                            f"pass {name}.astype(numpy.float32)")
        return np.require(dense, self.dtype, ["C", "A"])

    def _iterates(self, x: Any, k: int, last: bool, terms: Terms) -> np.ndarray:
        """Compute the iterates of X, group by group of columns."""
        k = _checked_count(k, "k", 0)
        dense = self._columns_of(x)
        result = empty_result((1 if last else k + 1, *dense.shape), self.dtype.type)
        if not last or k == 0:
            result[0] = dense
        for part in _groups(dense.shape[1]) if k > 0 and result.size else ():
            columns = dense[:, part]
            width = width_for(columns.shape[1])
            plan = self._plan(k, width, last, not is_direct(columns, width))
            bind_iterates(plan.matrix, plan.schedule, columns, result[:, :, part], k=k, last=last,
                          threads=self._threads, terms=terms.of(part))()
        return result[0].reshape(np.shape(x)) if last else result.reshape(len(result), *np.shape(x))

    def _run_polynomial(
        self, x: np.ndarray, result: np.ndarray, terms: np.ndarray, basis: Basis, argument: tuple[float, float],
    ) -> None:
        k, width = terms.size - 1, width_for(x.shape[1])
        plan = self._plan(k, width, True, not is_direct(x, width))
        arrays = StepArrays.of(plan.matrix, x, width)
        total = result if arrays.direct else empty_result((self._natural.rows, width), self.dtype.type)
        scale, shift = argument
        steps = [Step(y=arrays.start)]
        for p in range(1, k + 1):
            doubled = 2.0 if basis == "chebyshev" and p > 1 else 1.0
            steps.append(Step(
                y=arrays.ring(p), x=arrays.ring(p - 1), alpha=doubled * scale, beta=doubled * shift, sum=total,
                previous=arrays.ring(p - 2) if doubled > 1 else None, gamma=-1.0, start=terms[0] if p == 1 else None,
                weight=terms[p], out=result if p == k and not arrays.direct else None))
        bind_steps(plan.matrix, plan.schedule, steps, width=width, source=x, threads=self._threads)()


def _prepared(matrix: Any, x: Any, *, k: Any, method: Method, threads: int | None) -> MatrixPowers:
    """Return a prepared matrix, or wrap one for a single call, for which nothing is packed in "auto"."""
    if isinstance(matrix, MatrixPowers):
        return matrix
    a = _square(matrix)
    if _dense(x, a.pattern.rows).dtype == np.float64:
        a = a.astype(np.float64)
    if method == "auto":
        return _SingleCall(a, _useful_threads(a, threads))
    return MatrixPowers(a, k=k, columns=1 if np.ndim(x) < 2 else max(1, np.shape(x)[1]), method=method, threads=threads)


class _SingleCall(MatrixPowers):
    """A matrix for one call: plain products with its own arrays in CSR."""

    def __init__(self, matrix: SparseMatrix, threads: int) -> None:
        self._method = "plain"
        self._threads = threads
        self._natural = PackedMatrix.of(matrix, threads=threads, pack=False)
        self._levels = None
        self._plans = {}


def _useful_threads(matrix: SparseMatrix, threads: int | None) -> int:
    """Return the number of threads that a product keeps busy."""
    entry = matrix.dtype.itemsize + matrix.pattern.indices.itemsize
    return max(1, min(checked_threads(threads), entry * matrix.pattern.nnz // max(1, THREAD_BYTES)))


def _groups(columns: int) -> list[slice]:
    """Split columns into groups that kernels take at a time."""
    return [slice(begin, min(begin + MAX_WIDTH, columns)) for begin in range(0, columns, MAX_WIDTH)]


def _square(matrix: Any) -> SparseMatrix:
    """Convert a square matrix of SciPy or of this package."""
    if scipy.sparse.issparse(matrix):
        if matrix.dtype.kind == "c":
            raise TypeError("A is complex: only real matrices are supported; give its real and imaginary part apart")
        if matrix.dtype not in FLOATS:
            raise TypeError(f"A is {matrix.dtype}: give float32 or float64, A.astype(numpy.float64)")
        csr = scipy.sparse.csr_array(matrix)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        matrix = SparseMatrix(Pattern(csr.shape, csr.indptr, csr.indices), csr.data, csr.dtype)
    if not isinstance(matrix, SparseMatrix):
        raise TypeError(f"A is {type(matrix).__name__}: give a SparseMatrix, a SciPy matrix, or what prepare_powers "
                        "returns")
    rows, cols = matrix.pattern.shape
    if rows != cols:
        raise ValueError(f"A is {rows} x {cols}: only a square matrix has powers")
    return matrix


def _dense(x: Any, rows: int, name: str = "X") -> np.ndarray:
    """Check X or B, and return a view with two axes."""
    if scipy.sparse.issparse(x):
        raise TypeError(f"{name} is sparse: give a dense array, {name}.toarray()")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: pass {name}.filled(0), or another fill value")
    dense = np.asarray(x)
    if dense.dtype not in FLOATS:
        raise TypeError(f"{name} is {dense.dtype}: give float32 or float64")
    if dense.ndim not in (1, 2) or dense.shape[0] != rows:
        raise ValueError(f"{name} has shape {dense.shape}: it must be ({rows},) or ({rows}, columns)")
    return dense[:, None] if dense.ndim == 1 else dense


def _coefficients(coefficients: Any) -> np.ndarray:
    """Check the coefficients of a polynomial."""
    try:
        terms = np.asarray(coefficients, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"coefficients {coefficients!r}: give real numbers") from error
    if terms.ndim != 1 or terms.size == 0:
        raise ValueError(f"coefficients of shape {terms.shape}: give one for each term, at least that of degree 0")
    if not np.isfinite(terms).all():
        raise ValueError(f"coefficient {int(np.argmin(np.isfinite(terms)))} is not finite")
    return terms


def _checked_count(value: Any, name: str, least: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError("a bool")
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name}={value!r}: give a whole number, at least {least}") from error
    if count < least:
        raise ValueError(f"{name}={count}: give at least {least}")
    return count


def _permuted(matrix: SparseMatrix, order: np.ndarray) -> SparseMatrix:
    """Reorder rows and columns: row i becomes row order[i] of A."""
    pattern, number = matrix.pattern, np.empty(order.size, np.int32)
    number[order] = np.arange(order.size, dtype=np.int32)
    rows = matrix.to_scipy()[order]
    moved = scipy.sparse.csr_array((rows.data, number[rows.indices], rows.indptr), shape=pattern.shape)
    moved.sort_indices()
    return SparseMatrix(Pattern(pattern.shape, moved.indptr, moved.indices), moved.data, matrix.dtype)


def _copied(matrix: SparseMatrix) -> SparseMatrix:
    pattern = matrix.pattern
    return SparseMatrix(Pattern(pattern.shape, pattern.indptr.copy(), pattern.indices.copy()), matrix.values.copy(),
                        matrix.dtype)
