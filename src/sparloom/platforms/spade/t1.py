"""Level T1: one row-granular trace gives counts, counts give seconds on any machine of the same geometry."""

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from sparloom.platforms.spade.machine import LINE_BYTES, Geometry, Machine
from sparloom.platforms.spade.native import call
from sparloom.platforms.spade.tiling import Schedule, Tiling

__all__ = ["SERVED", "WORK", "Counts", "seconds", "trace"]

WORK = ("nonzeros", "runs", "tiles", "chain", "sparse_lines", "output_lines")
SERVED = (
    "l1", "l2", "llc", "dram", "victim", "writes", "windows_l2", "windows_llc", "windows_dram",
    "nonzeros_l2", "nonzeros_llc", "nonzeros_dram",
)


@dataclass(frozen=True)
class Counts:
    """What one pass did, per phase and processing element.

    Args:
        geometry: of the machine that was traced.
        work: (phases, pes, 6) int64, see WORK: nonzeros; changes of row; tiles; sum over runs of nonzeros in the same
            row of length * min(reservation stations, length * row lines), the serial part of accumulation; lines of
            the coordinate arrays read; lines of SDDMM output.
        served: (phases, pes, 12) int64, see SERVED: row slices read from each level; dirty ones written to DRAM;
            windows of the reservation stations and load queue by the level of their slowest load; nonzeros in these.
        flush: dirty row slices left in all caches at the end of the pass.
    """

    geometry: Geometry
    work: np.ndarray
    served: np.ndarray
    flush: int

    def total(self, name: str) -> int:
        """Sum of one count over phases and PEs."""
        source, names = (self.work, WORK) if name in WORK else (self.served, SERVED)
        return int(source[..., names.index(name)].sum())

    def dram_bytes(self, op: str) -> int:
        """Bytes that cross the DRAM border in the pass, final flush included."""
        rows = self.total("dram") + (self.total("writes") + self.flush if op == "spmm" else 0)
        lines = rows * self.geometry.row_lines + self.total("sparse_lines")
        return LINE_BYTES * (lines + (self.total("output_lines") if op == "sddmm" else 0))


def trace(tiling: Tiling, schedule: Schedule, geometry: Geometry, *, bypass: Collection[int]) -> dict[int, Counts]:
    """Run one pass through registers and caches, for each setting of rMatrix bypass in `bypass`.

    The counts hold for both operations: SDDMM only leaves out `writes` and `flush`.
    """
    work = np.zeros((schedule.phases, schedule.pes, len(WORK)), dtype=np.int64)
    served = [np.zeros((schedule.phases, schedule.pes, len(SERVED)), dtype=np.int64) for _ in range(2)]
    flush = np.zeros(2, dtype=np.int64)
    which = sum(1 << setting for setting in set(bypass))
    call("spade_trace", [
        np.array(astuple(geometry), dtype=np.int64), tiling.shape[1], tiling.count, tiling.row, tiling.column,
        tiling.begin, schedule.phases, schedule.order, schedule.start, which, work, served[0], served[1], flush,
    ])
    return {setting: Counts(geometry, work, served[setting], int(flush[setting])) for setting in set(bypass)}


def seconds(counts: Counts, op: str, machines: Sequence[Machine], *, passes: int, barrier: bool) -> np.ndarray:
    """Turn the counts of one pass into seconds of all passes on each machine, (machines,)."""
    phases, pes, _ = counts.work.shape
    shape = np.array([
        phases, pes, counts.geometry.row_lines, counts.geometry.reservation_stations, passes, op == "spmm", barrier,
    ], dtype=np.int64)
    rates = np.array([machine.rates for machine in machines], dtype=np.float64)
    result = np.empty(len(machines), dtype=np.float64)
    call("spade_time", [shape, len(machines), rates, counts.work, counts.served, counts.flush, result])
    return result
