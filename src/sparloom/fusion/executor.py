"""Products of three matrices by a tile schedule, computed by the kernels of kernels/cpu/fused.hpp."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sparloom.fusion.bind import CsrRows, Loops, Pair, SharedCall, Variant, Workspace, fill
from sparloom.fusion.native import fused_library
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import NativeCall, address, aligned
from sparloom.measure import checked_threads
from sparloom.ops import Operands
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Executor", "check_operands", "potential_gain"]

PLAIN = Variant()  # Algorithm 1 as in the paper


@dataclass
class Executor:
    """Computes D by one schedule, for any operands on the pattern that it was made for.

    D1 and the buffers of threads are allocated by the first `bind` and stay, so calls by several threads run one after
    the other; when shapes change they are allocated anew.

    Args:
        schedule: legal for the pattern of A, see `check_schedule`; with an `order`, for the pattern in that order.
        threads: of every call.
        order: (n,) int32, iteration -> row of the matrices, which stay as they are. Not for SpMM-GeMM: its iterations
            depend on nothing but their own row.
        timed: `seconds` is filled by every call.
        workspace: D1 and the buffers; executors may share one, and take turns.
    """

    op: Pair
    schedule: TileSchedule
    threads: int
    variant: Variant = PLAIN
    order: np.ndarray | None = None
    timed: bool = False
    workspace: Workspace = field(default_factory=Workspace, repr=False)
    _columns: tuple[Pattern, np.ndarray] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.threads = checked_threads(self.threads)
        if self.op.name == "spmm_gemm" and (self.order is not None or not self.schedule.natural):
            raise ValueError("rows of spmm_gemm do not depend on each other: give a schedule in natural order, and no "
                             "order of rows")
        if self.order is not None and self.variant.blas:
            raise ValueError("a BLAS takes rows of B as they lie: give no order, or a variant without blas")
        self.seconds = np.zeros((2, self.threads))
        """What each thread worked in each wavefront of the last call."""

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return aligned((operands.matrix.pattern.rows, self.op.width(operands)), operands.matrix.dtype.type)

    def bind(self, operands: Operands, result: np.ndarray, *, changes: np.ndarray | None = None) -> NativeCall:
        """Bind the kernel to arrays; the call overwrites `result`.

        Args:
            changes: of SpMM-SpMM: (tiles of wavefront 0, width), overwritten with the sum of (D1 - C)² over the rows of
                each tile, by column; added up they are the same whichever thread ran a tile.

        Raises:
            ValueError: operands, result and schedule do not fit together; an array is not contiguous or of another type
                than the values of A.
        """
        self._check(operands.matrix.pattern)
        check_operands(self.op, operands, result)
        a = CsrRows.of(operands.matrix, self.order, self._renumbered(operands.matrix))
        loops = Loops(self.schedule, self.threads, self.variant, a, read=self.order, write=self.order)
        arguments, kept = fill(self.op, operands, result, loops, self.workspace)
        if changes is not None:
            self._check_changes(operands, changes)
            arguments.changes = address(changes, operands.matrix.dtype.type, written=True)
            kept.append(changes)
        if self.timed:
            arguments.tiles.seconds = address(self.seconds, np.float64, written=True)
        kernel = getattr(fused_library(operands.matrix.dtype), f"sparloom_{self.op.name}")
        return SharedCall(kernel, arguments, self.workspace, kept=(*kept, self.seconds))

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call of `bind` to other arrays of the same shapes, for much less than binding costs.

        The caller keeps them alive while the call runs. Not for SpMM-SpMM.

        Raises:
            ValueError: as by `bind`.
        """
        check_operands(self.op, operands, result)
        dtype, arguments = operands.matrix.dtype.type, call.arguments
        arguments.a.values = address(operands.matrix.values, dtype)
        arguments.dense_b, arguments.c = (address(operands.dense[name], dtype) for name in ("B", "C"))
        arguments.d = address(result, dtype, written=True)

    def _check(self, pattern: Pattern) -> None:
        middle = pattern.rows if self.op.name == "spmm_gemm" else pattern.cols
        if self.schedule.iterations != (middle, pattern.rows):
            raise ValueError(f"a schedule of {self.schedule.iterations} iterations for loops of {middle} and "
                             f"{pattern.rows}: schedule the pattern that is multiplied")
        if self.order is not None and self.order.shape != (pattern.rows,):
            raise ValueError(f"an order of {self.order.size} rows for {pattern.rows}")

    def _check_changes(self, operands: Operands, changes: np.ndarray) -> None:
        if self.op.name != "spmm_spmm" or operands.right.pattern.rows != operands.right.pattern.cols:
            raise ValueError("changes from C to D1: only spmm_spmm with a square B has both of one shape")
        shape = (self.schedule.tiles[0], self.op.width(operands))
        if changes.shape != shape:
            raise ValueError(f"changes have shape {changes.shape}, not {shape}: a row for each tile of wavefront 0")
        for name, array in _read(operands):
            if np.may_share_memory(array, changes):
                raise ValueError(f"changes overlap {name}: give an array of their own")
        changes.fill(0)  # tiles without rows write nothing

    def _renumbered(self, matrix: SparseMatrix) -> np.ndarray | None:
        """The columns of A as iterations of loop one; kept for the pattern seen last."""
        if self.order is None:
            return None
        if self._columns is None or self._columns[0] is not matrix.pattern:
            iteration = np.empty_like(self.order)
            iteration[self.order] = np.arange(self.order.size, dtype=np.int32)
            self._columns = matrix.pattern, iteration[matrix.pattern.indices]
        return self._columns[1]


def check_operands(op: Pair, operands: Operands, result: np.ndarray) -> None:
    """Check that shapes fit together and that the result is an array of its own.

    Raises:
        ValueError: names the first array that does not fit.
    """
    pattern, dtype, width = operands.matrix.pattern, operands.matrix.dtype, op.width(operands)
    for name, shape in _shapes(op, operands).items():
        if operands.dense[name].shape != shape:
            raise ValueError(f"{name} has shape {operands.dense[name].shape}, not {shape}")
    if result.shape != (pattern.rows, width) or result.dtype != dtype:
        raise ValueError(f"the result is {result.dtype} of shape {result.shape}, not {dtype} of "
                         f"{(pattern.rows, width)}")
    for name, array in _read(operands):
        if np.may_share_memory(array, result):
            raise ValueError(f"the result overlaps {name}: give an array of its own")


def _read(operands: Operands) -> Iterator[tuple[str, np.ndarray]]:
    """Name all arrays that a product reads."""
    yield from operands.dense.items()
    for side, matrix in (("A", operands.matrix), ("B", operands.right)):
        if matrix is not None and (side == "A" or matrix is not operands.matrix):
            yield from ((f"values of {side}", matrix.values), (f"indptr of {side}", matrix.pattern.indptr),
                        (f"indices of {side}", matrix.pattern.indices))


def potential_gain(seconds: np.ndarray) -> float:
    """Give the seconds that a call would save if the work of each wavefront were shared evenly.

    Args:
        seconds: (wavefronts, threads), see `Executor.seconds`.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.2.2: the mean difference between the
    slowest thread and each.
    """
    return float((seconds.max(axis=1, keepdims=True) - seconds).mean(axis=1).sum())


def _shapes(op: Pair, operands: Operands) -> dict[str, tuple[int, int]]:
    """What the dense operands must look like for A, and B where it is sparse."""
    cols, width = operands.matrix.pattern.cols, op.width(operands)
    if op.name == "spmm_spmm":
        if operands.right is None or operands.right.pattern.rows != cols:
            raise ValueError(f"A has {cols} columns: B must be sparse with as many rows")
        if operands.right.dtype != operands.matrix.dtype:
            raise ValueError(f"B has values of {operands.right.dtype}, A of {operands.matrix.dtype}: use astype")
        addends = {"F": (cols, width), "G": (operands.matrix.pattern.rows, width)} if op.addends else {}
        return {"C": (operands.right.pattern.cols, width), **addends}
    inner = operands.dense["B"].shape[1]
    transposed = op.name == "gemm_spmm" and op.c_transposed
    return {"B": (cols, inner), "C": (width, inner) if transposed else (inner, width)}
