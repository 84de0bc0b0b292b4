"""Other ways to fuse two products, as the paper compares with; same kernels for rows, same flags.

Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.1.4 and Listing 7; how tiles are cut and
dependences kept follows arXiv 2407.00243.

The dense product of GeMM-SpMM by itself: many rows times a small matrix, by kernels/cpu/tall_gemm.hpp.
"""

from typing import Literal

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion.executor import (
    AtomicArguments,
    BoundLoops,
    CsrRows,
    Pair,
    Variant,
    Workspace,
    blas_routine,
    check_operands,
    fill,
    fused_library,
)
from sparloom.fusion.schedule import TileSchedule, unfused_schedule
from sparloom.jit import NativeCall, address
from sparloom.ops import GemmSpmm, Operands, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["atomic_tiling", "fused_gemv", "overlapped_tiling", "tall_gemm"]


def atomic_tiling(
    op: GemmSpmm | SpmmSpmm, operands: Operands, result: np.ndarray, *, threads: int, tiles: int,
) -> NativeCall:
    """Cut loop one into equal tiles; each adds its share to all rows of D that need it, atomically where others do too.

    Sparse tiling; D1 stays with the thread. Tiles are inspected here, which nobody times.

    Raises:
        Unsupported: the operation has addends.
        ValueError: operands and result do not fit together.
    """
    if op.name == "spmm_spmm" and op.addends:
        raise Unsupported("atomic tiling of a product with addends: several tiles would add them, use Executor")
    _check(op, operands, result)
    pattern = operands.matrix.pattern
    first = _equal(pattern.cols, tiles)
    tile = np.searchsorted(first, pattern.indices, side="right") - 1
    row = pattern.row_ids()
    place = np.lexsort((row, tile))  # nonzeros by tile, then by row
    begins = np.flatnonzero((np.diff(tile[place], prepend=-1) != 0) | (np.diff(row[place], prepend=-1) != 0))
    owner, entry = tile[place[begins]], row[place[begins]]
    parts = np.bincount(entry, minlength=pattern.rows)  # tiles that contribute to each row
    owner, entry, begins, ends = _with_empty_rows(owner, entry, begins, pattern, parts)
    crossing = (parts > 1)[entry].astype(np.uint8)
    order = np.lexsort((crossing, owner))
    write, crossing = np.ascontiguousarray(entry[order], dtype=np.int32), crossing[order]
    second_ptr = np.searchsorted(owner[order], np.arange(first.size)).astype(np.int64)
    schedule = TileSchedule((first.size - 1, 0), first, np.arange(write.size, dtype=np.int32), second_ptr,
                            np.zeros(pattern.cols, dtype=np.uint8))
    a = CsrRows(begins[order], ends[order], pattern.indices[place], operands.matrix.values[place])
    loops = BoundLoops(schedule, threads, Variant(local=True), a, write=write)
    pair, kept = fill(op, operands, result, loops, Workspace())
    shared = np.flatnonzero(parts > 1).astype(np.int32)
    arguments = AtomicArguments(pair=pair, crossing=address(crossing, np.uint8), shared=address(shared, np.int32),
                       shared_rows=shared.size)
    kernel = getattr(fused_library(operands.matrix.dtype), f"sparloom_{op.name}_atomic")
    return NativeCall(kernel, arguments, kept=(*kept, crossing, shared))


def overlapped_tiling(
    op: GemmSpmm | SpmmSpmm, operands: Operands, result: np.ndarray, *, threads: int, tiles: int,
) -> NativeCall:
    """Cut loop two into equal tiles; each computes all rows of D1 that it reads, also those that others compute.

    The communication-avoiding approach: no barrier and no atomics, but redundant work. Tiles are inspected here.

    Raises:
        ValueError: operands and result do not fit together.
    """
    _check(op, operands, result)
    pattern = operands.matrix.pattern
    borders = _equal(pattern.rows, tiles)
    read, columns, first = [], np.empty_like(pattern.indices), [0]
    for begin, end in zip(pattern.indptr[borders[:-1]], pattern.indptr[borders[1:]], strict=True):
        rows, place = np.unique(pattern.indices[begin:end], return_inverse=True)
        columns[begin:end] = place + first[-1]
        read.append(rows)
        first.append(first[-1] + rows.size)
    schedule = TileSchedule(
        (borders.size - 1, 0), np.array(first, dtype=np.int64), np.arange(pattern.rows, dtype=np.int32), borders,
        np.zeros(first[-1], dtype=np.uint8))
    a = CsrRows.of(operands.matrix, None, columns)
    loops = BoundLoops(schedule, threads, Variant(local=True), a, read=np.concatenate([np.empty(0, np.int32), *read]))
    arguments, kept = fill(op, operands, result, loops, Workspace())
    kernel = getattr(fused_library(operands.matrix.dtype), f"sparloom_{op.name}")
    return NativeCall(kernel, arguments, kept=kept)


def fused_gemv(
    op: GemmSpmm, operands: Operands, result: np.ndarray, *, threads: int,
    kind: Literal["listing", "gemv", "blas_gemv"],
) -> NativeCall:
    """Multiply a row of B by C for every nonzero of A, as tensor compilers fuse GeMM-SpMM (Listing 7).

    Args:
        kind: "listing", the loops as they are generated; "gemv", with the row of D in registers; "blas_gemv", a BLAS
            for the two inner loops.

    Raises:
        Unsupported: C is transposed.
        ValueError: operands and result do not fit together.
    """
    if op.name != "gemm_spmm" or op.c_transposed:
        raise Unsupported(f"fused GeMV of {op}: it is for gemm_spmm with C as it is")
    _check(op, operands, result)
    pattern = operands.matrix.pattern
    schedule = TileSchedule((0, 0), np.zeros(1, np.int64), np.empty(0, np.int32), np.zeros(1, np.int64),
                            np.empty(0, np.uint8))
    loops = BoundLoops(schedule, threads, Variant(), CsrRows.of(operands.matrix))
    arguments, kept = fill(op, operands, result, loops, Workspace())
    assert arguments.rows == pattern.rows
    if kind == "blas_gemv":
        arguments.blas = blas_routine("gemv", operands.matrix.dtype)
    kernel = getattr(fused_library(operands.matrix.dtype), f"sparloom_gemm_spmm_{kind}")
    return NativeCall(kernel, arguments, kept=kept)


def _check(op: Pair, operands: Operands, result: np.ndarray) -> None:
    if op.name == "spmm_gemm":
        raise Unsupported("spmm_gemm: its loops fuse without overlap and without atomics, use Executor")
    check_operands(op, operands, result)


def _equal(extent: int, tiles: int) -> np.ndarray:
    """Cut an extent into at most `tiles` equal parts: borders, int64."""
    return np.linspace(0, extent, max(1, min(tiles, extent)) + 1).astype(np.int64)


def _with_empty_rows(
    owner: np.ndarray, entry: np.ndarray, begins: np.ndarray, pattern: Pattern, parts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Give rows without nonzeros to tile 0, which writes zeros; returns owner, row, begin and end of all entries."""
    empty = np.flatnonzero(parts == 0)
    ends = np.append(begins[1:], pattern.nnz) if begins.size else begins
    nothing = np.zeros(empty.size, dtype=np.int64)
    joined = ((nothing, owner), (empty, entry), (nothing, begins), (nothing, ends))
    owner, entry, begins, ends = (np.concatenate(pair).astype(np.int64) for pair in joined)
    return owner, entry, begins, ends


def tall_gemm(
    left: np.ndarray, right: np.ndarray, *, threads: int, variant: Variant,
) -> tuple[NativeCall, np.ndarray]:
    """Bind left right; gives the call and the array (rows, width) that it overwrites.

    It is loop one of GeMM-SpMM with an A of one empty row, so what is timed here is what unfused products execute.

    Args:
        left: (rows, inner).
        right: (inner, width), of the same type.
        variant: `stream_first` and `blas` matter.

    Raises:
        ValueError: the shapes do not fit together.
    """
    (rows, inner), (depth, width) = left.shape, right.shape
    if inner != depth:
        raise ValueError(f"{rows} x {inner} times {depth} x {width}: give as many rows of right as columns of left")
    pattern = Pattern((1, rows), np.zeros(2, np.int64), np.empty(0, np.int32))
    matrix = SparseMatrix(pattern, np.empty(0, left.dtype), left.dtype.name)
    operands, workspace = Operands(matrix, {"B": left, "C": right}), Workspace()
    schedule = unfused_schedule(pattern, threads=threads)
    loops = BoundLoops(schedule, threads, variant, CsrRows.of(matrix))
    empty = np.empty((1, width), left.dtype)
    arguments, kept = fill(GemmSpmm(inner=inner, dtype=left.dtype.name), operands, empty, loops, workspace)
    call = NativeCall(fused_library(left.dtype).sparloom_gemm_spmm, arguments, kept=kept)
    return call, workspace.array("d1", (rows, width), left.dtype)
