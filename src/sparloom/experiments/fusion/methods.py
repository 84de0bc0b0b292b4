"""Bind every method that computes a product of three matrices: ours, other ways to fuse, and other libraries."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparloom import fusion
from sparloom.errors import Unsupported
from sparloom.measure import cache_bytes_per_core
from sparloom.ops import Operands
from sparloom.platforms import reallocated
from sparloom.sparse import SparseMatrix
from sparloom.tuning import PairPlan, Problem

SERIAL = ("sequential", "scipy")  # on one thread, or partly
CT_SIZE, LARGE_CT_SIZE = 2048, 8192  # of the paper; for a core with 16 MiB of last-level cache
BUILDS = 3  # the median counts
UNLIMITED = 1 << 60  # bytes of cache with which step two splits nothing
ROWS_PER_TILE = 2048  # of atomic and overlapped tiling, if that is faster than one tile per thread
GEMV = ("gemv", "blas_gemv", "listing")

Call = Callable[[], None]


@dataclass(frozen=True)
class Method:
    """A bound method of a case.

    Args:
        call: overwrites the result, which all methods of a case share.
        executor: executor of our methods, whose schedule says what was fused.
        order: (rows,) int32: rows of the result are rows of the matrix in this order; None: unchanged order.
        facts: further columns of its row in the results.
    """

    call: Call
    executor: fusion.Executor | None = None
    operands: Operands | None = None
    order: np.ndarray | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def in_place(self, result: np.ndarray) -> np.ndarray:
        """Return the result with its rows in the order of the matrix."""
        if self.order is None:
            return result
        restored = np.empty_like(result)
        restored[self.order] = result
        return restored


class Methods:
    """Bind the methods of one problem; shared schedules are built once.

    Args:
        plans: decided plans of "auto" and "unfused".
        gemv_flops: fused GeMV with more flops is left out, because it would dominate the run time.
    """

    def __init__(
        self, op: fusion.Pair, operands: Operands, result: np.ndarray, *, threads: int, plans: dict[str, PairPlan],
        gemv_flops: float,
    ) -> None:
        self.op, self.operands, self.result, self.threads = op, operands, result, threads
        self.plans = plans
        self.gemv_flops = gemv_flops
        self._workspace = fusion.Workspace()

    def make(self, name: str) -> Method:
        """Bind a method by its name.

        Raises:
            Unsupported: the method does not support this problem, or its library is not installed.
        """
        if name in ("auto", "unfused"):
            return self._planned(name)
        if name in GEMV:
            return self._gemv(name)
        return getattr(self, f"_{name}")()

    def _planned(self, name: str) -> Method:
        return self._bound(self.plans[name].executor, self.operands, None)

    def _fused(self) -> Method:
        """Bind algorithm 1 with the paper's tile size and all caches of a core, and the best unfused row kernels."""
        again = [self._schedule(cache_bytes_per_core(), CT_SIZE).build_seconds for _ in range(BUILDS)]
        method = self._ours(self._paper, self._kernels)
        return replace(method, facts=method.facts | {"build_seconds": float(np.median(again))})

    def _local(self) -> Method:
        """Bind larger tiles with thread-local D1 and streamed D."""
        schedule = self._schedule(cache_bytes_per_core(), LARGE_CT_SIZE)
        return self._ours(schedule, replace(self._kernels, local=True, stream=True))

    def _separated(self) -> Method:
        """Bind the tiles of `fused`, with a barrier between the loops."""
        return self._ours(fusion.separated(self._paper, self._problem.graph), self._kernels)

    def _coarse(self) -> Method:
        """Bind step one of the scheduler alone; the facts say how much data its tiles could reuse."""
        schedule = self._schedule(UNLIMITED, CT_SIZE)
        method = self._ours(schedule, self._kernels)
        return replace(method, facts=method.facts | reuse(schedule, self._problem))

    def _sequential(self) -> Method:
        """Bind the unfused loops on one thread."""
        unfused = self.plans["unfused"].executor
        return self._bound(fusion.Executor(self.op, unfused.schedule, 1, unfused.variant), self.operands, None)

    def _torch(self) -> Method:
        from sparloom.baselines import torch_pair

        return Method(torch_pair(self.op, self.operands, self.result, threads=self.threads))

    def _mkl(self) -> Method:
        from sparloom.baselines import mkl_pair

        return Method(mkl_pair(self.op, self.operands, self.result, threads=self.threads))

    def _scipy(self) -> Method:
        from sparloom.baselines import scipy_pair

        return Method(scipy_pair(self.op, self.operands, self.result))

    def _overlapped(self) -> Method:
        return self._best_of_tilings(fusion.overlapped_tiling)

    def _atomic(self) -> Method:
        return self._best_of_tilings(fusion.atomic_tiling)

    def _gemv(self, name: str) -> Method:
        flops = 2 * self.operands.matrix.pattern.nnz * self.operands.dense["C"].size
        if flops > self.gemv_flops:
            raise Unsupported(f"{flops:.1e} flops: above {self.gemv_flops:.1e} a fused GeMV is not timed")
        return Method(fusion.fused_gemv(self.op, self.operands, self.result, threads=self.threads, kind=name))

    def _best_of_tilings(self, tiling: Callable[..., Call]) -> Method:
        """Bind the faster of two tile sizes."""
        rows = self.operands.matrix.pattern.rows
        counts = sorted({self.threads, max(self.threads, rows // ROWS_PER_TILE)})
        best, least = None, np.inf
        for tiles in counts:
            call = tiling(self.op, self.operands, self.result, threads=self.threads, tiles=tiles)
            seconds = _quickest(call)
            if seconds < least:
                best, least = Method(call, facts={"tiles_0": tiles}), seconds
        return best

    @property
    def _kernels(self) -> fusion.Variant:
        """Kernels of the best unfused program, with D1 in the caches."""
        return replace(self.plans["unfused"].executor.variant, stream_first=False)

    def _ours(self, schedule: fusion.TileSchedule, variant: fusion.Variant) -> Method:
        order, operands = self._reordered
        return self._bound(fusion.Executor(self.op, schedule, self.threads, variant), operands, order)

    def _bound(self, planned: fusion.Executor, operands: Operands, order: np.ndarray | None) -> Method:
        executor = replace(planned, workspace=self._workspace)  # all of ours share the memory of D1
        schedule = executor.schedule
        facts = {"fused_ratio": schedule.fused_ratio, "fused_rows": schedule.fused_rows, "tiles_0": schedule.tiles[0],
                 "tiles_1": schedule.tiles[1], "build_seconds": schedule.build_seconds,
                 "reordered": order is not None}
        return Method(executor.bind(operands, self.result), executor, operands, order, facts)

    @cached_property
    def _reordered(self) -> tuple[np.ndarray | None, Operands]:
        """As in the paper, reorder by Cuthill-McKee if almost nothing fuses; moving the data is not timed."""
        operands, pattern = self.operands, self.operands.matrix.pattern
        order = None if self.op.name == "spmm_gemm" else fusion.rescue_order(self._natural, pattern)
        return order, operands if order is None else _moved(operands, order)

    @cached_property
    def _natural(self) -> fusion.TileSchedule:
        return self._inspected(Problem.of(self.op, self.operands), cache_bytes_per_core(), CT_SIZE)

    @cached_property
    def _paper(self) -> fusion.TileSchedule:
        return self._natural if self._reordered[0] is None else self._schedule(cache_bytes_per_core(), CT_SIZE)

    @cached_property
    def _problem(self) -> Problem:
        """The problem in the order of the iterations."""
        return Problem.of(self.op, self._reordered[1])

    def _schedule(self, cache_bytes: int, ct_size: int) -> fusion.TileSchedule:
        return self._inspected(self._problem, cache_bytes, ct_size)

    def _inspected(self, problem: Problem, cache_bytes: int, ct_size: int) -> fusion.TileSchedule:
        return fusion.schedule_tiles(problem.loops(), threads=self.threads, cache_bytes=cache_bytes, ct_size=ct_size)


def _moved(operands: Operands, order: np.ndarray) -> Operands:
    """Permute rows and columns of A, and of B = A, and the rows of the dense operand."""
    reordered = fusion.Reordered.of(operands.matrix.pattern, order)
    matrix = SparseMatrix(reordered.pattern, reordered.values(operands.matrix.values), operands.matrix.dtype)
    name = "C" if operands.right is not None else "B"
    moved = Operands(matrix, {**operands.dense, name: operands.dense[name][order]},
                     right=None if operands.right is None else matrix)
    return reallocated(moved)


def reuse(schedule: fusion.TileSchedule, problem: Problem) -> dict[str, float]:
    """Return how much of two loops shares data in a tile.

    Returns:
        reused_flops, the share of all computation that is done by fused iterations of loop two and those of loop one
        that they read; kept_rows, the share of rows of D1 that no other tile reads.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, Figure 2, which does not say how it counts.
    """
    pattern, inner = problem.graph, problem.inner
    lengths = pattern.row_lengths()
    fused = np.zeros(pattern.rows, dtype=bool)
    fused[schedule.second[: schedule.fused]] = True
    read = np.zeros(pattern.cols, dtype=bool)
    read[pattern.indices[np.repeat(fused, lengths)]] = True
    work = np.full(pattern.cols, inner) if inner else lengths
    total = int(work.sum() + pattern.nnz)
    return {"reused_flops": float((work[read].sum() + lengths[fused].sum()) / max(1, total)),
            "kept_rows": float(1 - schedule.needed.mean()) if schedule.needed.size else 0.0}


def _quickest(call: Call) -> float:
    """Return the seconds of the faster of two runs, after a warm-up."""
    call()
    least = np.inf
    for _ in range(2):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least
