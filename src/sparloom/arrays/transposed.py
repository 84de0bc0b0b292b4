"""Products with the transposed matrix, for arrays of SciPy: AT Y, which needs no transposed copy of A.

The first products scatter rows of Y to rows of the result. If there are more, and A has many nonzeros in every column,
an order of the nonzeros by column within tiles of rows is made, so that a row of the result is read and written once
for each tile (kernels/cpu/transposed.cpp). Otherwise, if the result exceeds the caches, a transposed copy is made; its
values are permuted in every product, as they may have changed.
"""

from __future__ import annotations

import ctypes
from functools import cache
from threading import RLock
from typing import Any

import numpy as np
import scipy.sparse

from sparloom.forks import forkable
from sparloom.jit import ChangeDetector, address, aligned, compile_cpp
from sparloom.platforms.cpu_kernels import empty_result
from sparloom.tuning.sparse import kernels_available, spmm

TYPES = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
LINE = 64  # bytes of a cache line
NO_MEMORY = 2  # status of kernels/cpu/transposed.cpp
INDICES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
SERIAL_WORK = 1 << 15  # multiplications below which one thread is faster than several
COPY_BYTES = 1 << 24  # of the copies of a result, one for each thread but the first
NEAR_BYTES = 1 << 20  # of a result that stays in a thread's caches: no transposed copy is faster
TILE = 1024  # rows, as in kernels/cpu/transposed.cpp
TILE_NONZEROS = 2  # in each column of a tile, on average, from which on sorting them pays
FIRST_CALLS = 2  # that scatter in any case: many programs make no more


class Rows:
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


class Transposition:
    """How products with the transposed matrix are computed, for one matrix; threads may share it."""

    def __init__(self) -> None:
        self.version = 0
        """Number of calls that may have changed the pattern."""
        self._lock = forkable(RLock())
        self._forget()

    def __reduce__(self) -> tuple[type[Transposition], tuple[()]]:
        """Copies and pickles of a matrix prepare anew."""
        return Transposition, ()

    def _forget(self) -> None:
        self._prepared: dict[type[_Prepared], Any] = {}
        self._calls = 0

    def product(
        self, rows: Rows, dense: np.ndarray, threads: int, out: np.ndarray | None, *, changed: bool,
    ) -> np.ndarray:
        """Compute AT Y, (cols, width)."""
        with self._lock:
            if changed or not all(each.fits(rows) for each in self._prepared.values()):
                self._forget()
            self._calls += 1
            if self._calls <= FIRST_CALLS or not dense.shape[1]:
                return _scatter(rows, dense, threads, out)
            if dense.shape[1] > 1 and rows.values.size * TILE >= TILE_NONZEROS * rows.cols * max(TILE, rows.rows):
                return _scatter(rows, dense, threads, out, self._made(_Tiles, rows))
            if rows.cols * dense.shape[1] * dense.itemsize <= NEAR_BYTES:
                return _scatter(rows, dense, threads, out)
            return self._made(_TransposedCopy, rows).product(rows, dense, threads, out)

    def _made(self, kind: type[_Prepared], rows: Rows) -> Any:
        """Look up what is prepared of the pattern, or prepare it."""
        if kind not in self._prepared:
            self._prepared[kind] = kind(rows)
        return self._prepared[kind]


class _Prepared:
    """What was made of index arrays that must not change."""

    def __init__(self, rows: Rows) -> None:
        self._of = rows.indptr, rows.indices
        self._watch = ChangeDetector({"indptr": rows.indptr, "indices": rows.indices})

    def fits(self, rows: Rows) -> bool:
        """Tell whether it was made of these very arrays, and they have not changed."""
        return self._of[0] is rows.indptr and self._of[1] is rows.indices and not self._watch.changed()


class _TransposedCopy(_Prepared):
    """The transposed matrix in CSR, but for its values, which every product permutes."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        positions = scipy.sparse.csr_array(
            (np.arange(rows.values.size), rows.indices, rows.indptr), shape=(rows.rows, rows.cols)).T.tocsr()
        self._order, self._arrays = positions.data, (positions.indptr, positions.indices)
        self._shape = positions.shape

    def product(self, rows: Rows, dense: np.ndarray, threads: int, out: np.ndarray | None) -> np.ndarray:
        """Compute AT Y for the values of A."""
        values = np.take(rows.values, self._order, mode="clip",
                         out=empty_result(rows.values.shape, rows.values.dtype.type))
        return spmm((*self._arrays, values, self._shape), dense, threads=threads, out=out)


class _Tiles(_Prepared):
    """The nonzeros of every tile of rows in the order of their columns."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        self.ends = np.empty((-(-rows.rows // TILE), rows.cols), np.int32)
        self.order, self.tile_rows = np.empty(rows.values.size, np.int32), np.empty(rows.values.size, np.uint16)
        arguments = _TileArguments(
            **rows.addresses(), ends=address(self.ends, np.int32), order=address(self.order, np.int32),
            tile_rows=address(self.tile_rows, np.uint16), rows=rows.rows, cols=rows.cols, nnz=rows.values.size)
        getattr(_library(), f"sparloom_sort_tiles_{rows.index}")(ctypes.byref(arguments))
        rows.check(arguments.status)


def _scatter(
    rows: Rows, dense: np.ndarray, threads: int, out: np.ndarray | None, tiles: _Tiles | None = None,
) -> np.ndarray:
    """Compute AT Y without a transposed copy, see kernels/cpu/transposed.cpp.

    Raises:
        ValueError: the arrays are no matrix, or `out` does not fit.
        MemoryError: Y has gaps between its elements, and there is no memory to copy a tile of it.
    """
    width, dtype = dense.shape[1], dense.dtype.type
    shape = (rows.cols, width)
    result = empty_result(shape, dtype) if out is None else _checked_out(out, shape, dense, rows)
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


def _checked_out(out: Any, shape: tuple[int, int], dense: np.ndarray, rows: Rows) -> np.ndarray:
    if type(out) is not np.ndarray or out.shape != shape or out.dtype != dense.dtype:
        given = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out is {given}: it must be an array of {dense.dtype} {shape}")
    address(out, dense.dtype.type, written=True)
    if any(np.may_share_memory(out, each) for each in (dense, rows.values, rows.indices, rows.indptr)):
        raise ValueError("out lies in the memory of an operand: give another array")
    return out


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
