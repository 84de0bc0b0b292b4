"""Bind every method that computes a product of three matrices: ours, other ways to fuse, and other libraries."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion import (
    Executor,
    Pair,
    Reordered,
    TileSchedule,
    Variant,
    Workspace,
    atomic_tiling,
    fused_gemv,
    overlapped_tiling,
    rescue_order,
    schedule_tiles,
    separated,
)
from sparloom.measure import cache_bytes_per_core
from sparloom.ops import Operands
from sparloom.platforms import reallocated
from sparloom.sparse import SparseMatrix
from sparloom.tuning import PairPlan, Problem

__all__ = ["SERIAL", "Method", "Methods", "reuse"]

SERIAL = ("sequential", "scipy")  # on one thread, or partly
CT_SIZE, LARGE_CT_SIZE = 2048, 8192  # the paper's; what suits a core with 16 MiB of last-level cache
BUILDS = 3  # of which the median counts
UNLIMITED = 1 << 60  # bytes: step two splits nothing
ROWS_PER_TILE = 2048  # of atomic and overlapped tiling, if that is faster than one tile per thread
GEMV = ("gemv", "blas_gemv", "listing")

Call = Callable[[], None]


@dataclass(frozen=True)
class Method:
    """A way to compute the product, ready to run.

    Args:
        call: overwrites the result that all methods of a case share.
        executor: of ours: its schedule says what was fused.
        operands: of the executor.
        order: (rows,) int32, rows of the result are old rows in this order; None: as they were.
        facts: columns of its row in the results.
    """

    call: Call
    executor: Executor | None = None
    operands: Operands | None = None
    order: np.ndarray | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def in_place(self, result: np.ndarray) -> np.ndarray:
        """Put the rows of the result where they belong."""
        if self.order is None:
            return result
        placed = np.empty_like(result)
        placed[self.order] = result
        return placed


class Methods:
    """Makes the methods of one problem; schedules that several share are made once.

    Args:
        plans: of "auto" and "unfused", by name, as they were decided before.
        gemv_flops: a fused GeMV that takes more is left out: it would take most of the time of all.
    """

    def __init__(
        self, op: Pair, operands: Operands, result: np.ndarray, *, threads: int, plans: dict[str, PairPlan],
        gemv_flops: float,
    ) -> None:
        self.op, self.operands, self.result, self.threads = op, operands, result, threads
        self.plans = plans
        self.gemv_flops = gemv_flops
        self._workspace = Workspace()

    def make(self, name: str) -> Method:
        """Make a method by its name.

        Raises:
            Unsupported: it does not exist for this problem, or its library is not installed.
        """
        if name in ("auto", "unfused"):
            return self._planned(name)
        if name in GEMV:
            return self._gemv(name)
        return getattr(self, f"_{name}")()

    def _planned(self, name: str) -> Method:
        return self._bound(self.plans[name].executor, self.operands, None)

    def _fused(self) -> Method:
        """Algorithm 1 with the paper's tile size and all caches of a core; row kernels as the best unfused ones."""
        again = [self._schedule(cache_bytes_per_core(), CT_SIZE).build_seconds for _ in range(BUILDS)]
        method = self._ours(self._paper, self._kernels)
        return replace(method, facts=method.facts | {"build_seconds": float(np.median(again))})

    def _local(self) -> Method:
        """D1 stays with its thread, D is streamed; larger tiles."""
        schedule = self._schedule(cache_bytes_per_core(), LARGE_CT_SIZE)
        return self._ours(schedule, replace(self._kernels, local=True, stream=True))

    def _separated(self) -> Method:
        """The tiles of `fused`, but loop two waits for all of loop one."""
        return self._ours(separated(self._paper, self._problem.graph), self._kernels)

    def _coarse(self) -> Method:
        """Step one of the scheduler alone; what its tiles could reuse is in the facts."""
        schedule = self._schedule(UNLIMITED, CT_SIZE)
        method = self._ours(schedule, self._kernels)
        return replace(method, facts=method.facts | reuse(schedule, self._problem))

    def _sequential(self) -> Method:
        """The unfused loops on one thread."""
        unfused = self.plans["unfused"].executor
        return self._bound(Executor(self.op, unfused.schedule, 1, unfused.variant), self.operands, None)

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
        return self._best_of_tilings(overlapped_tiling)

    def _atomic(self) -> Method:
        return self._best_of_tilings(atomic_tiling)

    def _gemv(self, name: str) -> Method:
        flops = 2 * self.operands.matrix.pattern.nnz * self.operands.dense["C"].size
        if flops > self.gemv_flops:
            raise Unsupported(f"{flops:.1e} flops: above {self.gemv_flops:.1e} a fused GeMV is not timed")
        return Method(fused_gemv(self.op, self.operands, self.result, threads=self.threads, kind=name))

    def _best_of_tilings(self, tiling: Callable[..., Call]) -> Method:
        """Tile in two sizes and keep what runs faster."""
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
    def _kernels(self) -> Variant:
        """Those of the best unfused program, but D1 stays in the caches."""
        return replace(self.plans["unfused"].executor.variant, stream_first=False)

    def _ours(self, schedule: TileSchedule, variant: Variant) -> Method:
        order, operands = self._reordered
        return self._bound(Executor(self.op, schedule, self.threads, variant), operands, order)

    def _bound(self, planned: Executor, operands: Operands, order: np.ndarray | None) -> Method:
        executor = replace(planned, workspace=self._workspace)  # all of ours find D1 at one place
        schedule = executor.schedule
        facts = {"fused_ratio": schedule.fused_ratio, "fused_rows": schedule.fused_rows, "tiles_0": schedule.tiles[0],
                 "tiles_1": schedule.tiles[1], "build_seconds": schedule.build_seconds,
                 "reordered": order is not None or executor.order is not None}
        return Method(executor.bind(operands, self.result), executor, operands, order, facts)

    @cached_property
    def _reordered(self) -> tuple[np.ndarray | None, Operands]:
        """As the paper: rows and columns by Cuthill-McKee where next to nothing fuses; the data move, untimed."""
        operands, pattern = self.operands, self.operands.matrix.pattern
        order = None if self.op.name == "spmm_gemm" else rescue_order(self._natural, pattern)
        return order, operands if order is None else _moved(operands, order)

    @cached_property
    def _natural(self) -> TileSchedule:
        return self._inspected(Problem.of(self.op, self.operands), cache_bytes_per_core(), CT_SIZE)

    @cached_property
    def _paper(self) -> TileSchedule:
        return self._natural if self._reordered[0] is None else self._schedule(cache_bytes_per_core(), CT_SIZE)

    @cached_property
    def _problem(self) -> Problem:
        """In the order of the iterations."""
        return Problem.of(self.op, self._reordered[1])

    def _schedule(self, cache_bytes: int, ct_size: int) -> TileSchedule:
        return self._inspected(self._problem, cache_bytes, ct_size)

    def _inspected(self, problem: Problem, cache_bytes: int, ct_size: int) -> TileSchedule:
        return schedule_tiles(problem.loops(), threads=self.threads, cache_bytes=cache_bytes, ct_size=ct_size)


def _moved(operands: Operands, order: np.ndarray) -> Operands:
    """Bring rows and columns of A, and of B = A, into another order, and the rows of what they meet."""
    reordered = Reordered.of(operands.matrix.pattern, order)
    matrix = SparseMatrix(reordered.pattern, reordered.values(operands.matrix.values), operands.matrix.dtype)
    name = "C" if operands.right is not None else "B"
    moved = Operands(matrix, {**operands.dense, name: operands.dense[name][order]},
                     right=None if operands.right is None else matrix)
    return reallocated(moved)


def reuse(schedule: TileSchedule, problem: Problem) -> dict[str, float]:
    """Say how much of two loops shares its data in a tile.

    Args:
        problem: in the order of the iterations.

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
    """Seconds of the better of two runs, after one that is not timed."""
    call()
    least = np.inf
    for _ in range(2):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least
