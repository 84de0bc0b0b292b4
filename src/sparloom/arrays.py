"""Sparse arrays of SciPy whose products with dense arrays run on the kernels of this package.

`SparseArray` is a `scipy.sparse.csr_array`, so solvers of SciPy, estimators of scikit-learn and scanpy take it.
Products with dense arrays, A X, X A and AT Y, run on all threads, on the kernel that is fastest here; all else is
SciPy's. `as_linear_operator` does the same for any sparse matrix and solvers that take operators.

Randomised decompositions and least squares also multiply by the transposed matrix. The first such products scatter rows
of Y to rows of the result. If there are more, and A has many nonzeros in every column, an order of the nonzeros by
column within tiles of rows is made, so that a row of the result is read and written once for each tile (kernels/cpu/
transposed.cpp). Otherwise, if the result exceeds the caches, a transposed copy is made and timed beside the scatter in
turn; its values are permuted in every product, as they may have changed.
"""

from __future__ import annotations

import ctypes
from functools import cache
from statistics import median
from threading import RLock
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from sparloom.forks import forkable
from sparloom.jit import RESULT_POOL, ChangeDetector, address, aligned, compile_cpp
from sparloom.measure import checked_threads
from sparloom.tuning.sparse import spmm
from sparloom.tuning.sparse.fallback import kernels_available

__all__ = ["SparseArray", "TransposedSparseArray", "as_linear_operator"]

TYPES = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
LINE = 64  # bytes of a cache line
NO_MEMORY = 2  # status of kernels/cpu/transposed.cpp
INDICES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
TINY_WORK = 1 << 13  # multiplications that SciPy has done before a kernel of ours is called
SERIAL_WORK = 1 << 15  # multiplications below which one thread is faster than several
COPY_BYTES = 1 << 24  # of the copies of a result, one for each thread but the first
NEAR_BYTES = 1 << 20  # of a result that stays in a thread's caches: no transposed copy is faster
TILE = 1024  # rows, as in kernels/cpu/transposed.cpp
TILE_NONZEROS = 2  # in each column of a tile, on average, from which on sorting them pays
FIRST_CALLS = 2  # that scatter in any case: many programs make no more
PAIRS = 3  # of timed products before the scatter or the copy is chosen


class _Products:
    """Products with dense arrays, of both classes below; those of other operands are SciPy's."""

    def __init__(
        self, arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, threads: int | None = None,
        **options: Any,
    ) -> None:
        self.threads = None if threads is None else checked_threads(threads)
        self._transposition = _Transposition()
        self._known_version = 0
        super().__init__(arg1, shape=shape, dtype=dtype, copy=copy, **options)

    def dot(self, other: Any, *, threads: int | None = None, out: np.ndarray | None = None) -> Any:
        """Multiply: A X.

        Args:
            other: X (cols, width) or (cols,), or whatever SciPy multiplies with.
            threads: of this product (default: those of the array, else all processors that this process may use).
            out: (rows, width) of the common type, for the result (default: a new array).

        Raises:
            TypeError: `threads` or `out` is given, and X is no array that the kernels multiply with.
            ValueError: X or `out` does not fit.
        """
        if self._takes(other):
            return self._times(other, threads, out)
        if threads is not None or out is not None:
            raise TypeError(f"threads and out go with float32 and float64: A is {self.dtype} and X is {_kind(other)}; "
                            "convert them, or leave threads and out away")
        return super().dot(other)

    def __matmul__(self, other: Any) -> Any:
        return self._times(other) if self._takes(other, TINY_WORK) else super().__matmul__(other)

    def __rmatmul__(self, other: Any) -> Any:
        fits = self._takes(other, TINY_WORK) and other.shape[-1] == self.shape[0]
        return self.T._times(other.T).T if fits else super().__rmatmul__(other)

    def _takes(self, other: Any, least_work: int = 0) -> bool:
        """Tell whether the kernels multiply with this: a dense array, and the common type is theirs.

        Args:
            least_work: multiplications, at least.
        """
        return (type(other) is np.ndarray and self.ndim == 2 and other.ndim in (1, 2)
                and self.data.size * other.size >= least_work * max(self.shape) and self.dtype in TYPES
                and np.result_type(self.dtype, other.dtype) in TYPES)

    def _times(self, other: np.ndarray, threads: int | None = None, out: np.ndarray | None = None) -> np.ndarray:
        if other.shape[0] != self.shape[1]:
            raise ValueError(f"X has {other.shape[0]} rows and A {self.shape[1]} columns: they must be as many")
        if out is not None and other.ndim == 1:
            raise ValueError("out goes with an X of two axes: pass X[:, None]")
        dtype = np.result_type(self.dtype, other.dtype)
        dense = np.require(other if other.ndim == 2 else other[:, None], dtype, ["A"])
        threads = self.threads if threads is None else checked_threads(threads)
        result = self._product(self.data.astype(dtype, copy=False), dense, threads, out)
        return result[:, 0] if other.ndim == 1 else result

    def _was_changed(self) -> bool:
        """Tell whether a method has changed the pattern since this was called last."""
        known, self._known_version = self._known_version, self._transposition.version
        return known != self._known_version

    def _transposed_as(self, kind: type[_Products], copy: bool) -> Any:
        made = kind((self.data, self.indices, self.indptr), shape=self.shape[::-1], copy=copy)
        made.threads = self.threads
        if not copy:  # the very arrays, by which products find what was prepared; SciPy makes views of them
            made.data, made.indices, made.indptr = self.data, self.indices, self.indptr
            made._transposition, made._known_version = self._transposition, self._known_version
        return made


def _changing(name: str) -> Any:
    """Make a method of SciPy also note that the pattern may have changed."""
    def method(self: _Products, *arguments: Any, **options: Any) -> Any:
        self._transposition.version += 1
        return getattr(super(_Products, self), name)(*arguments, **options)

    method.__name__ = name
    method.__doc__ = f"Call `{name}` of SciPy's class, which may change the pattern in place."
    return method


for _name in ("__setitem__", "eliminate_zeros", "resize", "setdiag", "sort_indices", "sum_duplicates"):
    setattr(_Products, _name, _changing(_name))


class SparseArray(_Products, scipy.sparse.csr_array):
    """A `scipy.sparse.csr_array` that multiplies dense arrays with the kernels of this package.

    Operands of float32 and float64 are multiplied in their common type; those of other types by SciPy. What is computed
    from it, such as A[rows], A * 2 and abs(A), is of this class, and A.T a `TransposedSparseArray`. Values may be
    changed in place between products, and the pattern by methods. Index arrays that are changed in place otherwise are
    noticed as by `sparloom.spmm`.

    Args:
        arg1, shape, dtype, copy, options: of `scipy.sparse.csr_array`; a CSR array shares its memory.
        threads: of every product (default: all processors that this process may use); A.T has the same, but nothing
            else that is computed from A.

    Raises:
        TypeError, ValueError: as by `scipy.sparse.csr_array`; or `threads` is too large or no number.
    """

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return AT, which shares the memory of A unless `copy`."""
        plain = axes is None and self.ndim == 2
        return self._transposed_as(TransposedSparseArray, copy) if plain else super().transpose(axes, copy)

    def _product(
        self, values: np.ndarray, dense: np.ndarray, threads: int | None, out: np.ndarray | None,
    ) -> np.ndarray:
        rows = self.indptr, self.indices, values, self.shape
        return spmm(rows, dense, threads=threads, out=out, changed=self._was_changed())


class TransposedSparseArray(_Products, scipy.sparse.csc_array):
    """The transposed matrix of a `SparseArray`, on the same arrays: a `scipy.sparse.csc_array`.

    Args:
        arg1, shape, dtype, copy, threads, options: as of `SparseArray`; a CSC array shares its memory.

    Raises:
        TypeError, ValueError: as by `SparseArray`.
    """

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return the matrix that this is the transposed one of, which shares its memory unless `copy`."""
        plain = axes is None and self.ndim == 2
        return self._transposed_as(SparseArray, copy) if plain else super().transpose(axes, copy)

    def _product(
        self, values: np.ndarray, dense: np.ndarray, threads: int | None, out: np.ndarray | None,
    ) -> np.ndarray:
        rows = _Rows(self.indptr, self.indices, values, self.shape[0])
        return self._transposition.product(rows, dense, checked_threads(threads), out, changed=self._was_changed())


def as_linear_operator(matrix: Any, *, center: Any = None, threads: int | None = None) -> LinearOperator:
    """Make a linear operator of a sparse matrix, for the solvers of SciPy and others that take operators.

    Args:
        matrix: A (rows, cols), a SciPy matrix of any format, or what `SparseArray` takes; a CSR array of float32 or
            float64 shares its memory, numbers of other real types become float64.
        center: (cols,), subtracted from every row without making A dense: the operator is A - 1 centerT. With the means
            of the columns, a truncated decomposition of it is a principal component analysis.
        threads: of every product (default: all processors that this process may use).

    Returns:
        Operator of the type of A with matvec, matmat, rmatvec and rmatmat.

    Raises:
        TypeError: A is complex, or no matrix of numbers.
        ValueError: A does not have two axes, or `center` does not have one number for each column.
    """
    return _SparseOperator(matrix, center, threads)


class _SparseOperator(LinearOperator):
    """The operator that `as_linear_operator` makes."""

    def __init__(self, matrix: Any, center: Any, threads: int | None) -> None:
        if getattr(matrix, "ndim", 2) != 2:
            raise ValueError(f"A has shape {matrix.shape}: it must have two axes")
        kind = TransposedSparseArray if getattr(matrix, "format", "") == "csc" else SparseArray
        made = kind(matrix, threads=threads)
        if made.dtype.kind not in "biuf":
            raise TypeError(f"values of A are {made.dtype}: give real numbers; of complex ones, the real and the "
                            "imaginary part one after the other")
        self._array = made if made.dtype in TYPES else made.astype(np.float64)
        self._array.threads = made.threads
        self._center = None if center is None else np.asarray(center, self._array.dtype).reshape(-1)
        if self._center is not None and self._center.size != made.shape[1]:
            raise ValueError(f"center has {self._center.size} numbers, and A {made.shape[1]} columns: give as many")
        super().__init__(self._array.dtype, made.shape)

    def _matmat(self, dense: np.ndarray) -> np.ndarray:
        product = self._array @ np.asarray(dense)
        return product if self._center is None else product - self._center @ dense

    def _rmatmat(self, dense: np.ndarray) -> np.ndarray:
        product = self._array.T @ np.asarray(dense)
        if self._center is None:
            return product
        return product - np.multiply.outer(self._center, np.asarray(dense).sum(axis=0))

    def _matvec(self, vector: np.ndarray) -> np.ndarray:
        return self._matmat(vector)

    def _rmatvec(self, vector: np.ndarray) -> np.ndarray:
        return self._rmatmat(vector)


class _Rows:
    """Arrays of a matrix in CSR, as SciPy has them.

    Raises:
        ValueError: their types or sizes do not go together.
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, cols: int) -> None:
        self.indptr, self.indices, self.values = (
            np.require(each, requirements=["C", "A"]) for each in (indptr, indices, values))
        self.rows, self.cols = indptr.size - 1, cols
        if indices.dtype != indptr.dtype or indptr.dtype not in INDICES or values.size != indices.size:
            raise ValueError(f"A has indptr of {indptr.dtype}, {indices.size} indices of {indices.dtype} and "
                             f"{values.size} values: make it anew")
        self.index = INDICES[indptr.dtype]

    def addresses(self) -> dict[str, int]:
        """Addresses of the index arrays."""
        dtype = self.indptr.dtype.type
        return {"indptr": address(self.indptr, dtype), "indices": address(self.indices, dtype)}

    def check(self, status: int) -> None:
        """Raise what a compiled function reports.

        Raises:
            ValueError, MemoryError: see `_scatter`.
        """
        if status == NO_MEMORY:
            raise MemoryError(f"no memory to copy {TILE} rows of Y: free some, or pass a contiguous Y")
        if status:
            raise ValueError(f"indptr or indices of A are not those of a matrix of shape {self.rows, self.cols} with "
                             f"{self.values.size} nonzeros: make A anew")

    def matrix(self) -> scipy.sparse.csr_array:
        """Make a matrix of SciPy."""
        return scipy.sparse.csr_array((self.values, self.indices, self.indptr), shape=(self.rows, self.cols))


class _Transposition:
    """How products with the transposed matrix are computed, for one matrix; threads may share it."""

    def __init__(self) -> None:
        self.version = 0
        """Number of calls that may have changed the pattern."""
        self._lock = forkable(RLock())
        self._forget()

    def __reduce__(self) -> tuple[type[_Transposition], tuple[()]]:
        """Copies and pickles of a matrix prepare anew."""
        return _Transposition, ()

    def _forget(self) -> None:
        self._prepared: _Tiles | _TransposedCopy | None = None
        self._calls = 0
        self._seconds: dict[tuple[int, int, str], tuple[list[float], list[float]]] = {}

    def product(
        self, rows: _Rows, dense: np.ndarray, threads: int, out: np.ndarray | None, *, changed: bool,
    ) -> np.ndarray:
        """Compute AT Y, (cols, width), by the way that is the fastest for this width and so many threads."""
        with self._lock:
            if changed or (self._prepared is not None and not self._prepared.fits(rows)):
                self._forget()
            self._calls += 1
            if self._calls <= FIRST_CALLS or not dense.shape[1]:
                return _scatter(rows, dense, threads, out)
            if dense.shape[1] > 1 and rows.values.size * TILE >= TILE_NONZEROS * rows.cols * max(TILE, rows.rows):
                if self._prepared is None:
                    self._prepared = _Tiles(rows)
                return _scatter(rows, dense, threads, out, self._prepared)
            return self._faster(rows, dense, threads, out)

    def _faster(self, rows: _Rows, dense: np.ndarray, threads: int, out: np.ndarray | None) -> np.ndarray:
        """Scatter, or multiply by a transposed copy: each in turn, then the one that was faster."""
        scattered, copied = self._seconds.setdefault((dense.shape[1], threads, dense.dtype.name), ([], []))
        if rows.cols * dense.shape[1] * dense.itemsize <= NEAR_BYTES:
            copies = False
        elif len(copied) < PAIRS:
            copies = len(copied) < len(scattered)
        else:
            copies = median(copied) < median(scattered)
        if copies and self._prepared is None:
            self._prepared = _TransposedCopy(rows)
        start = perf_counter()
        result = (self._prepared.product if copies else _scatter)(rows, dense, threads, out)
        taken = copied if copies else scattered
        if len(taken) < PAIRS:
            taken.append(perf_counter() - start)
        return result


class _Prepared:
    """What was made of index arrays that must not change."""

    def __init__(self, rows: _Rows) -> None:
        self._of = rows.indptr, rows.indices
        self._watch = ChangeDetector({"indptr": rows.indptr, "indices": rows.indices})

    def fits(self, rows: _Rows) -> bool:
        """Tell whether it was made of these very arrays, and they have not changed."""
        return self._of[0] is rows.indptr and self._of[1] is rows.indices and not self._watch.changed()


class _TransposedCopy(_Prepared):
    """The transposed matrix in CSR, but for its values, which every product permutes."""

    def __init__(self, rows: _Rows) -> None:
        super().__init__(rows)
        positions = scipy.sparse.csr_array(
            (np.arange(rows.values.size), rows.indices, rows.indptr), shape=(rows.rows, rows.cols)).T.tocsr()
        self._order, self._arrays = positions.data, (positions.indptr, positions.indices)
        self._shape = positions.shape

    def product(self, rows: _Rows, dense: np.ndarray, threads: int, out: np.ndarray | None) -> np.ndarray:
        """Compute AT Y for the values of A."""
        values = np.take(rows.values, self._order, mode="clip",
                         out=RESULT_POOL.empty(rows.values.shape, rows.values.dtype.type))
        return spmm((*self._arrays, values, self._shape), dense, threads=threads, out=out)


class _Tiles(_Prepared):
    """The nonzeros of every tile of rows in the order of their columns."""

    def __init__(self, rows: _Rows) -> None:
        super().__init__(rows)
        self.ends = np.empty((-(-rows.rows // TILE), rows.cols), np.int32)
        self.order, self.tile_rows = np.empty(rows.values.size, np.int32), np.empty(rows.values.size, np.uint16)
        arguments = _TileArguments(
            **rows.addresses(), ends=address(self.ends, np.int32), order=address(self.order, np.int32),
            tile_rows=address(self.tile_rows, np.uint16), rows=rows.rows, cols=rows.cols, nnz=rows.values.size)
        getattr(_library(), f"sparloom_sort_tiles_{rows.index}")(ctypes.byref(arguments))
        rows.check(arguments.status)


def _scatter(
    rows: _Rows, dense: np.ndarray, threads: int, out: np.ndarray | None, tiles: _Tiles | None = None,
) -> np.ndarray:
    """Compute AT Y without a transposed copy, see kernels/cpu/transposed.cpp.

    Raises:
        ValueError: the arrays are no matrix, or `out` does not fit.
        MemoryError: Y has gaps between its elements, and there is no memory to copy a tile of it.
    """
    width, dtype = dense.shape[1], dense.dtype.type
    shape = (rows.cols, width)
    result = RESULT_POOL.empty(shape, dtype) if out is None else _checked_out(out, shape, dense, rows)
    if not kernels_available("transposed"):
        np.copyto(result, rows.matrix().T @ dense)
        return result
    items = threads if rows.values.size * width > SERIAL_WORK else 1
    by_rows = (items - 1) * result.nbytes <= min(COPY_BYTES, 2 * rows.values.nbytes)
    if not by_rows:
        items = max(1, min(items, width * dense.itemsize // LINE))
    copies = aligned(((items - 1) * result.size if by_rows else 0,), dtype)
    order = {} if tiles is None else {
        "ends": address(tiles.ends, np.int32), "order": address(tiles.order, np.int32),
        "tile_rows": address(tiles.tile_rows, np.uint16)}
    arguments = _Arguments(
        **rows.addresses(), **order, values=address(rows.values, dtype), dense=dense.ctypes.data,
        result=address(result, dtype, written=True), copies=address(copies, dtype), rows=rows.rows, cols=rows.cols,
        width=width, nnz=rows.values.size, row_stride=dense.strides[0] // dense.itemsize,
        column_stride=dense.strides[1] // dense.itemsize, items=items, by_rows=by_rows)
    if width:
        getattr(_library(), f"sparloom_transposed_{TYPES[dense.dtype]}_{rows.index}")(ctypes.byref(arguments))
    rows.check(arguments.status)
    return result


def _checked_out(out: Any, shape: tuple[int, int], dense: np.ndarray, rows: _Rows) -> np.ndarray:
    if type(out) is not np.ndarray or out.shape != shape or out.dtype != dense.dtype:
        given = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out is {given}: it must be an array of {dense.dtype} {shape}")
    address(out, dense.dtype.type, written=True)
    if any(np.may_share_memory(out, each) for each in (dense, rows.values, rows.indices, rows.indptr)):
        raise ValueError("out lies in the memory of an operand: give another array")
    return out


def _kind(other: Any) -> str:
    return str(other.dtype) if isinstance(other, np.ndarray) else type(other).__name__


class _Arguments(ctypes.Structure):
    """The struct Transposed of kernels/cpu/transposed.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values", "dense", "result", "copies")),
        *((name, ctypes.c_int64) for name in ("rows", "cols", "width", "nnz", "row_stride", "column_stride")),
        *((name, ctypes.c_void_p) for name in ("ends", "order", "tile_rows")),
        *((name, ctypes.c_int32) for name in ("items", "by_rows", "status")),
    )


class _TileArguments(ctypes.Structure):
    """The struct Tiles of kernels/cpu/transposed.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "ends", "order", "tile_rows")),
        *((name, ctypes.c_int64) for name in ("rows", "cols", "nnz")),
        ("status", ctypes.c_int32),
    )


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/transposed.cpp"])
