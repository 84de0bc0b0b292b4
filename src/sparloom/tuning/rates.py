"""How fast this machine computes and moves, measured with the kernels that the estimates are about."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.fusion import Executor, Variant, unfused_schedule
from sparloom.ops import GemmSpmm, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.caches import Caches
from sparloom.tuning.rate_numbers import check_rates, read_rates

__all__ = ["Rates", "measure_rates"]

WIDTH, READS = 64, 32
DENSE_ROWS, NEAR_ROWS, FAR_ROWS, STREAMED_ROWS = 1 << 10, 1 << 13, 1 << 15, 1 << 18  # a dense row of 64 is 256 bytes
RUNS = 5


@dataclass(frozen=True)
class Rates:
    """Of all threads together, and the caches that they have.

    Args:
        flops: per second, of a product of dense matrices in cache.
        near: bytes per second of rows gathered from the cache of a core.
        far: of rows gathered from the cache that cores share.
        memory: of what streams through memory.
        near_bytes: of the cache of one core.
        far_bytes: of the shared cache, all threads together.
    """

    flops: float
    near: float
    far: float
    memory: float
    near_bytes: float
    far_bytes: float

    def __post_init__(self) -> None:
        check_rates(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Rates":
        """Read what `dataclasses.asdict` wrote, as `read_rates`."""
        return read_rates(cls, value, of="a machine")


def measure_rates(*, threads: int, clock: Callable[[], float] = time.perf_counter) -> Rates:
    """Measure; takes some tenths of a second.

    Args:
        clock: wall seconds.
    """
    nothing = Pattern((DENSE_ROWS, DENSE_ROWS), np.zeros(DENSE_ROWS + 1, np.int64), np.empty(0, np.int32))
    dense = _seconds(GemmSpmm(inner=128), nothing, 128, threads, clock)
    near, far, memory = (_seconds(SpmmSpmm(), pattern, WIDTH, threads, clock) for pattern in (
        _gathers(NEAR_ROWS, 128, READS), _gathers(FAR_ROWS, FAR_ROWS, READS), _gathers(STREAMED_ROWS, 1, 1)))
    row, caches = 4 * WIDTH, Caches.here(threads)
    return Rates(
        flops=2 * DENSE_ROWS * 128 * 128 / dense, near=2 * NEAR_ROWS * READS * row / near,
        far=2 * FAR_ROWS * READS * row / far, memory=6 * STREAMED_ROWS * row / memory,  # C, D1 thrice, D twice
        near_bytes=caches.near_bytes, far_bytes=caches.far_bytes)


def _gathers(rows: int, reach: int, reads: int) -> Pattern:
    """Rows that read so many columns of the block of `reach` columns around them, one from each equal part of it."""
    part = reach // reads
    within = np.random.default_rng(0).integers(0, part, (rows, reads)) + part * np.arange(reads)
    columns = np.arange(rows)[:, None] // reach * reach + within
    return Pattern((rows, rows), reads * np.arange(rows + 1), columns.ravel())


def _seconds(op: GemmSpmm | SpmmSpmm, pattern: Pattern, width: int, threads: int, clock: Callable[[], float]) -> float:
    operands = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), width, seed=0)
    executor = Executor(op, unfused_schedule(pattern, threads=threads), threads=threads, variant=Variant())
    call = executor.bind(operands, executor.result(operands))
    call()
    spent = []
    for _ in range(RUNS):
        start = clock()
        call()
        spent.append(clock() - start)
    return min(spent)
