"""A square matrix packed for products with few columns, and kernels bound to the arrays of several steps with it.

Step p computes y_p = alpha A y_{p-1} + beta y_{p-1} + gamma y_{p-2} + delta g. Its arrays are in the order of A's rows
and as wide as a kernel; users' arrays in another order or width are copied within the steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sparloom.jit import NativeCall, aligned, check_memory, compile_cpp
from sparloom.platforms.cpu_kernels import empty_result
from sparloom.sparse import SparseMatrix

WIDTHS = (1, 2, 4, 8)
"""Columns of the dense arrays that kernels have."""
CHUNK_BYTES = 64  # of values: one vector holds a value of every row of a chunk
SLACK_BYTES = 64  # that kernels may read after the last chunk
PAGE_BYTES = 4096  # loads wait for earlier stores to addresses that are equal modulo this


@dataclass(frozen=True)
class PackedMatrix:
    """A square matrix as kernels read it: packed by chunks of rows, or in CSR.

    Args:
        order: (rows,) int32, the row of the user's arrays for each row of A; None: the same.
        chunks: (chunks + 1,) int64, bytes of A before each chunk.
        first, last: (chunks,) int64, the first and the last row among those of a chunk and those that it reads.
        stream: the packed chunks; None: CSR.
        csr: the matrix in the order of the steps; None if it is packed.
    """

    rows: int
    dtype: np.dtype
    order: np.ndarray | None
    chunks: np.ndarray
    first: np.ndarray
    last: np.ndarray
    stream: np.ndarray | None
    csr: SparseMatrix | None

    @classmethod
    def of(cls, matrix: SparseMatrix, *, order: np.ndarray | None = None, threads: int, pack: bool) -> PackedMatrix:
        """Pack a matrix if this processor has kernels for that, and `pack`; in CSR it shares the arrays.

        Args:
            matrix: A, its rows and columns already in the given order.
        """
        pattern, dtype = matrix.pattern, matrix.dtype
        chunk = CHUNK_BYTES // dtype.itemsize
        chunks = np.zeros(-(-pattern.rows // chunk) + 1, np.int64)
        stream = None
        if pack and can_pack():
            problem = _PackProblem(
                pattern.indptr.ctypes.data, pattern.indices.ctypes.data, matrix.values.ctypes.data, chunks.ctypes.data,
                None, pattern.rows, threads, dtype.itemsize == 8)
            wanted = (dtype.itemsize + 4) * pattern.nnz
            check_memory(_library().sparloom_powers_pack(ctypes.byref(problem)), f"size {pattern.rows} rows", wanted)
            stream = aligned((int(chunks[-1]) + SLACK_BYTES,), np.uint8)
            problem.stream = stream.ctypes.data
            check_memory(_library().sparloom_powers_pack(ctypes.byref(problem)), f"pack {pattern.rows} rows", wanted)
        else:
            ends = np.minimum(chunk * np.arange(chunks.size), pattern.rows)
            entry = dtype.itemsize + pattern.indices.itemsize
            chunks[:] = pattern.indptr[ends] * entry + ends * pattern.indptr.itemsize
        first, last = _extents(matrix, chunk)
        return cls(pattern.rows, dtype, order, chunks, first, last, stream, matrix if stream is None else None)

    @property
    def nbytes(self) -> int:
        """Bytes that one step reads of A."""
        return int(self.chunks[-1])

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return CHUNK_BYTES // self.dtype.itemsize


def _extents(matrix: SparseMatrix, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last row, for each chunk, among its own and those that it reads."""
    pattern = matrix.pattern
    first, last = np.arange(pattern.rows), np.arange(pattern.rows)
    filled = np.flatnonzero(pattern.indptr[1:] > pattern.indptr[:-1])
    first[filled] = np.minimum(filled, pattern.indices[pattern.indptr[filled]])
    last[filled] = np.maximum(filled, pattern.indices[pattern.indptr[filled + 1] - 1])
    starts = np.arange(0, pattern.rows, chunk)
    return np.minimum.reduceat(first, starts), np.maximum.reduceat(last, starts)


@dataclass(frozen=True)
class Schedule:
    """Tasks (chunks, step) in the order in which they run.

    Args:
        tasks: (tasks, 3) int32, first chunk, end, and step.
        bounds: (phases * lists + 1,) int64, where the tasks of each list begin; the lists of a phase run in parallel.
        lists: of each phase.
        window_bytes: of A, most that lies between the first and the last step of a pass at any time, of all lists.
        depth: steps that share one reading of A; 1 for plain steps.
    """

    tasks: np.ndarray
    bounds: np.ndarray
    lists: int
    window_bytes: int
    depth: int


@dataclass(frozen=True)
class Step:
    """y = alpha A x + beta x + gamma previous + delta addend, and sum = (start x or sum) + weight y.

    Args:
        x: None: this step copies the input.
        start: weight of x in a sum that begins here; None: the sum is continued.
        out: array that gets the rows of y, or of the sum, in the user's order and width.
    """

    y: np.ndarray
    x: np.ndarray | None = None
    previous: np.ndarray | None = None
    addend: np.ndarray | None = None
    sum: np.ndarray | None = None
    out: np.ndarray | None = None
    alpha: float = 1.0
    beta: float = 0.0
    gamma: float = 0.0
    delta: float = 0.0
    start: float | None = None
    weight: float = 0.0

    def arguments(self, source: np.ndarray) -> _Step:
        """Fill in the struct of kernels; `source` is the input of a step without x."""
        arrays = (self.x, self.previous, self.addend, self.y, self.sum, source, self.out)
        return _Step(
            *(None if array is None else array.ctypes.data for array in arrays), self.alpha, self.beta, self.gamma,
            self.delta, self.start or 0.0, self.weight, self.start is not None, self.sum is not None)


def bind_steps(
    matrix: PackedMatrix, schedule: Schedule, steps: Sequence[Step], *, width: int, source: np.ndarray, threads: int,
) -> NativeCall:
    """Bind the kernel to arrays.

    Args:
        steps: step 0, which is not run unless the schedule holds it, and steps 1 .. k.
        width: columns of all arrays of the steps but `out`; one of `WIDTHS`.
        source: (rows, columns) input of step 0, of the shape and strides of every `out`; columns may be fewer than
            `width`, and its rows lie `source.strides[0]` bytes apart.
    """
    size, steps = matrix.dtype.itemsize, tuple(steps)
    filled = (_Step * len(steps))(*(step.arguments(source) for step in steps))
    arguments = _Powers(
        chunks=matrix.chunks.ctypes.data, steps=ctypes.addressof(filled), tasks=schedule.tasks.ctypes.data,
        bounds=schedule.bounds.ctypes.data, rows=matrix.rows, phases=(schedule.bounds.size - 1) // schedule.lists,
        lists=schedule.lists, columns=source.shape[1], lead=source.strides[0] // size, threads=threads, width=width)
    if matrix.order is not None:
        arguments.place = matrix.order.ctypes.data
    if matrix.stream is not None:
        arguments.stream = matrix.stream.ctypes.data
    else:
        pattern = matrix.csr.pattern
        arguments.indptr, arguments.indices = pattern.indptr.ctypes.data, pattern.indices.ctypes.data
        arguments.values = matrix.csr.values.ctypes.data
    run = getattr(_library(), f"sparloom_powers_f{8 * size}")
    return NativeCall(run, arguments, kept=[filled, matrix, schedule, source, *steps])


@dataclass(frozen=True)
class StepArrays:
    """The input and two arrays for the results of steps, in the order of A and the width of kernels.

    Args:
        start: the input; `direct` if it is the user's own array, in its order.
    """

    start: np.ndarray
    even: np.ndarray
    odd: np.ndarray
    direct: bool

    @classmethod
    def of(cls, matrix: PackedMatrix, x: np.ndarray, width: int) -> StepArrays:
        direct = matrix.order is None and is_direct(x, width)
        kind, size = matrix.dtype.type, x.shape[0] * width
        start = x if direct else empty_result((x.shape[0], width), kind)
        offset = -(-size * matrix.dtype.itemsize // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES // 2
        both = empty_result((offset // matrix.dtype.itemsize + size,), kind)
        even, odd = both[:size], both[both.size - size:]
        return cls(start, even.reshape(-1, width), odd.reshape(-1, width), direct)

    def ring(self, step: int) -> np.ndarray:
        """Return the array of a step; a step overwrites that of the step before the previous one."""
        return self.start if step == 0 else self.odd if step % 2 else self.even


def is_direct(x: np.ndarray, width: int) -> bool:
    """Tell whether kernels for `width` columns can read X where it is."""
    return x.shape[1] == width and x.flags.c_contiguous


@dataclass(frozen=True)
class Terms:
    """Factors of A y and of y, and what is added in every step: `addend` (rows, columns) times `weight`."""

    scale: float = 1.0
    shift: float = 0.0
    addend: np.ndarray | None = None
    weight: float = 0.0

    def of(self, columns: slice) -> Terms:
        """Take some columns."""
        return self if self.addend is None else replace(self, addend=self.addend[:, columns])

    def arguments(self, matrix: PackedMatrix, width: int, *, direct: bool) -> dict[str, Any]:
        """Return arguments of `Step`, with the addend in the order of A and the width of kernels."""
        addend = self.addend
        if addend is not None and not direct:
            rows = addend if matrix.order is None else addend[matrix.order]
            addend = np.zeros((rows.shape[0], width), matrix.dtype)
            addend[:, :rows.shape[1]] = rows
        return {"alpha": self.scale, "beta": self.shift, "addend": addend, "delta": self.weight}


def bind_iterates(
    matrix: PackedMatrix, schedule: Schedule, x: np.ndarray, result: np.ndarray, *, k: int, last: bool, threads: int,
    terms: Terms | None = None,
) -> NativeCall:
    """Bind k steps that fill `result`: its last item with `last`, else its items 1 .. k."""
    width = width_for(x.shape[1])
    arrays = StepArrays.of(matrix, x, width)
    extra = {} if terms is None else terms.arguments(matrix, width, direct=arrays.direct)
    steps = [Step(y=arrays.start)]
    for p in range(1, k + 1):
        kept = result[0] if last and p == k else None if last else result[p]
        if arrays.direct:
            y = arrays.ring(p) if kept is None else kept
            steps.append(Step(y=y, x=steps[-1].y, **extra))
        else:
            steps.append(Step(y=arrays.ring(p), x=steps[-1].y, out=kept, **extra))
    return bind_steps(matrix, schedule, steps, width=width, source=x, threads=threads)


def width_for(columns: int) -> int:
    """Return the number of columns of the kernel for so many."""
    return next(width for width in WIDTHS if width >= columns)


class _Step(ctypes.Structure):
    """The struct PowersStep of kernels/cpu/powers.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "previous", "addend", "y", "sum", "in_", "out")),
        *((name, ctypes.c_double) for name in ("alpha", "beta", "gamma", "delta", "start", "weight")),
        *((name, ctypes.c_int32) for name in ("first", "out_is_sum")),
    )


class _Powers(ctypes.Structure):
    """The struct Powers of kernels/cpu/powers.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "indptr", "indices", "values", "chunks", "stream", "place", "steps", "tasks", "bounds")),
        *((name, ctypes.c_int64) for name in ("rows", "phases", "lists", "columns", "lead")),
        *((name, ctypes.c_int32) for name in ("threads", "width")),
    )


class _PackProblem(ctypes.Structure):
    """The struct PackProblem of kernels/cpu/powers.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values", "chunks", "stream")),
        ("rows", ctypes.c_int64), ("threads", ctypes.c_int32), ("doubles", ctypes.c_int32),
    )


def can_pack() -> bool:
    """Tell whether there are kernels for packed rows on this processor."""
    return bool(_library().sparloom_powers_packs())


@cache
def _library() -> ctypes.CDLL:
    library = compile_cpp(["cpu/powers.cpp"])
    library.sparloom_powers_packs.restype = ctypes.c_int32
    library.sparloom_powers_pack.restype = ctypes.c_int32
    library.sparloom_powers_pack.argtypes = [ctypes.c_void_p]
    return library
