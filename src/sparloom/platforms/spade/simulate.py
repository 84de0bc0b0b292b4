"""Level T1 of the simulator: row-granular traces, shared by configurations and machines.

A configuration becomes a `Plan`; a matrix is cut into tiles (`Tiling`), which are dealt to processing elements
(`Schedule`); one trace gives `Counts`, and counts give seconds on any machine of the same geometry. The compiled part
is under kernels/spade/.
"""

import ctypes
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache, partial
from typing import TypeVar

import numpy as np

from sparloom.jit import compile_cpp, kernel_folder, sources_digest
from sparloom.platforms.spade.machine import LINE_BYTES, Geometry, Machine
from sparloom.space import Config
from sparloom.sparse import Pattern, locality_order, reorder

SOURCES = ("spade/tiling.cpp", "spade/trace.cpp", "spade/timing.cpp", "spade/execute.cpp", "spade/event.cpp")

CYCLIC = (0, 0)
"""Assignment of tiles to workers in turn."""

WORK = ("nonzeros", "runs", "tiles", "chain", "sparse_lines", "output_lines")
"""Counters of the workers that a simulation returns."""
SERVED = (
    "l1", "l2", "llc", "dram", "victim", "writes", "windows_l2", "windows_llc", "windows_dram",
    "nonzeros_l2", "nonzeros_llc", "nonzeros_dram",
)
"""Counters of the memory system that a simulation returns."""

VERSION = 1
"""Version of the Python part of the simulator: raise it with every change that alters simulated seconds."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@cache
def library() -> ctypes.CDLL:
    """Compile the sources, or load them from the cache on disk."""
    return compile_cpp(SOURCES)


def call(name: str, arguments: Sequence[np.ndarray | int | None]) -> int:
    """Call a C function of int64 values and pointers; None is a null pointer.

    Arrays must be C-contiguous and have the element types that the source file documents.

    Raises:
        MemoryError: there is no memory for the function's own data.
    """
    function = getattr(library(), name)
    function.restype = ctypes.c_int64
    converted = []
    for argument in arguments:
        if argument is None:
            converted.append(ctypes.c_void_p())
        elif isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous, f"{name}: an array is not contiguous"
            converted.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            converted.append(ctypes.c_int64(argument))
    found = function(*converted)
    if found < 0:
        raise MemoryError(f"no memory to simulate {name.removeprefix('spade_')} on arrays of "
                          f"{sum(each.nbytes for each in arguments if isinstance(each, np.ndarray)) / 2**20:.1f} MiB: "
                          f"free some, or raise the limit of this process")
    return found


@dataclass(frozen=True)
class Plan:
    """Part of a configuration that decides a simulation: equal plans are equal programs except for the barrier cost.

    Args:
        column_panel: columns of a tile; at most the columns of the matrix, so that all larger values are equal.
        phased: there are barriers and more than one column panel.
        slice_width: dense columns per pass.
    """

    reorder: int
    row_panel: int
    column_panel: int
    phased: bool
    slice_width: int
    bypass: int


def plan(config: Config, shape: tuple[int, int], width: int) -> Plan:
    """Resolve a configuration for a shape and a width, which its split must divide."""
    rows, cols = max(1, shape[0]), max(1, shape[1])
    panel = cols if config["column_panel"] == "all" else min(cols, int(config["column_panel"]))
    slice_width = min(int(config["split"]), width)
    if width % slice_width:
        raise ValueError(f"split {slice_width} does not divide the width {width}: choose a width that is a multiple")
    return Plan(
        reorder=int(config["reorder"]), row_panel=min(rows, int(config["row_panel"])), column_panel=panel,
        phased=bool(config["barrier"]) and panel < cols, slice_width=slice_width, bypass=int(config["bypass"]),
    )


@dataclass(frozen=True)
class Tiling:
    """The non-empty tiles of a pattern, row panel by row panel, each from left to right.

    Args:
        shape: of the pattern.
        row_panel, column_panel: rows and columns of a tile.
        row, column: (nnz,) int32, the nonzeros tile by tile, within a tile row by row.
        source: (nnz,) int64, index of each nonzero in the CSR arrays; None unless requested.
        tile_row, tile_column: (tiles,) int32, panel numbers of each tile.
        begin: (tiles + 1,) int64, first nonzero of each tile.
    """

    shape: tuple[int, int]
    row_panel: int
    column_panel: int
    row: np.ndarray
    column: np.ndarray
    source: np.ndarray | None
    tile_row: np.ndarray
    tile_column: np.ndarray
    begin: np.ndarray

    @property
    def count(self) -> int:
        """Number of non-empty tiles."""
        return len(self.tile_row)

    @property
    def column_panels(self) -> int:
        """Number of column panels, including empty ones."""
        return max(1, -(-self.shape[1] // self.column_panel))


@dataclass(frozen=True)
class Schedule:
    """The tiles of each processing element (PE), in order, phase by phase; all PEs wait for each other between phases.

    Args:
        order: (tiles,) int32; PE p in phase f takes tiles order[start[f * pes + p] : start[f * pes + p + 1]].
        start: (phases * pes + 1,) int64.
    """

    phases: int
    pes: int
    order: np.ndarray
    start: np.ndarray

    def tiles_of(self, phase: int, pe: int) -> np.ndarray:
        """List the tiles of a PE in a phase, in order."""
        slot = phase * self.pes + pe
        return self.order[self.start[slot] : self.start[slot + 1]]


def tile(pattern: Pattern, row_panel: int, column_panel: int, *, with_source: bool = False) -> Tiling:
    """Sort the nonzeros into tiles of `row_panel` rows and `column_panel` columns (ISCA'23 §4.2: sizes, not counts)."""
    if row_panel < 1 or column_panel < 1:
        raise ValueError(f"tile of {row_panel} rows and {column_panel} columns: both must be at least 1")
    nnz = pattern.nnz
    row, column, tile_row, tile_column = (np.empty(nnz, dtype=np.int32) for _ in range(4))
    begin = np.empty(nnz + 1, dtype=np.int64)
    source = np.empty(nnz, dtype=np.int64) if with_source else None
    count = call("spade_tile", [
        pattern.rows, pattern.cols, pattern.indptr, pattern.indices, row_panel, column_panel,
        row, column, source, tile_row, tile_column, begin,
    ])
    return Tiling(
        shape=pattern.shape, row_panel=row_panel, column_panel=column_panel, row=row, column=column, source=source,
        tile_row=tile_row[:count].copy(), tile_column=tile_column[:count].copy(), begin=begin[: count + 1].copy(),
    )


def deal(tiling: Tiling, op: str, *, pes: int, barrier: bool, costs: tuple[int, int] = CYCLIC) -> Schedule:
    """Deal row panels (SpMM) or single tiles (SDDMM) to PEs, in order; a row panel of SpMM stays on its PE.

    Without barriers there is one phase, row panel by row panel; with barriers one phase per non-empty column panel
    (ISCA'23 figure 5, with groups of one column panel).

    Args:
        costs: of a nonzero and of a tile; the next one goes to the PE with the least cost so far in the phase. CYCLIC:
            deal in turn instead, row panel or running tile number modulo `pes`.
    """
    if op not in ("spmm", "sddmm"):
        raise ValueError(f"op {op!r} has no schedule on SPADE: use 'spmm' or 'sddmm'")
    panels = tiling.column_panels if barrier else 1
    order = np.empty(tiling.count, dtype=np.int32)
    start = np.zeros(panels * pes + 1, dtype=np.int64)
    phases = call("spade_schedule", [
        tiling.count, tiling.tile_row, tiling.tile_column, tiling.begin, tiling.column_panels, pes, int(op == "spmm"),
        int(barrier), *costs, order, start,
    ])
    return Schedule(phases=phases, pes=pes, order=order, start=start[: phases * pes + 1].copy())


@dataclass(frozen=True)
class Counts:
    """Counts of one pass, per phase and processing element.

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
        """Count the bytes moved to and from DRAM in the pass, including the final flush."""
        rows = self.total("dram") + (self.total("writes") + self.flush if op == "spmm" else 0)
        lines = rows * self.geometry.row_lines + self.total("sparse_lines")
        return LINE_BYTES * (lines + (self.total("output_lines") if op == "sddmm" else 0))


def trace(tiling: Tiling, schedule: Schedule, geometry: Geometry, *, bypass: Collection[int]) -> dict[int, Counts]:
    """Run one pass through registers and caches, for each setting of rMatrix bypass in `bypass`.

    The counts are valid for both operations; SDDMM ignores `writes` and `flush`.
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


def simulator_digest() -> str:
    """Identify the simulator by its version and the sources under kernels/spade; another one may give other seconds."""
    sources = sorted(f"spade/{path.name}" for path in (kernel_folder() / "spade").glob("*.cpp"))
    return f"{VERSION}-{sources_digest(sources)}"


def simulate_many(
    pattern: Pattern, op: str, *, width: int, configs: Sequence[Config], machines: Sequence[Machine],
) -> np.ndarray:
    """Simulate each configuration on each machine: seconds (machines, configs).

    A result depends on nothing else in `configs` and `machines`, and is reproduced bit by bit.
    """
    return simulate_ops(pattern, {op: configs}, width=width, machines=machines)[op]


def simulate_ops(
    pattern: Pattern, configs: Mapping[str, Sequence[Config]], *, width: int, machines: Sequence[Machine],
) -> dict[str, np.ndarray]:
    """Simulate several operations as `simulate_many` does one: op -> (machines, configs); they share tilings."""
    result = {op: np.empty((len(machines), len(chosen))) for op, chosen in configs.items()}
    requests = [
        _Request(plan(config, pattern.shape, width), op, column, barrier=bool(config["barrier"]))
        for op, chosen in configs.items() for column, config in enumerate(chosen)
    ]
    orders = {0: pattern}
    if any(request.plan.reorder for request in requests):
        orders[1] = reorder(pattern, *locality_order(pattern))
    for (number, row_panel, column_panel), group in _grouped(requests, _Request.tiling).items():
        tiling = tile(orders[number], row_panel, column_panel)
        for job, same in _grouped(group, partial(_Request.job, tiling=tiling)).items():
            trace_key = partial(_trace_key, machines, job.slice_width)
            for (geometry, costs), chosen in _grouped(range(len(machines)), trace_key).items():
                schedule = deal(tiling, job.op, pes=geometry.pes, barrier=job.phased, costs=costs)
                counts = trace(tiling, schedule, geometry, bypass={request.plan.bypass for request in same})
                for request in same:
                    result[request.op][chosen, request.column] = seconds(
                        counts[request.plan.bypass], request.op, [machines[index] for index in chosen],
                        passes=width // job.slice_width, barrier=request.barrier)
    return result


def simulate_counts(pattern: Pattern, op: str, config: Config, *, width: int, machine: Machine) -> Counts:
    """Count what one pass of one configuration does."""
    chosen, tiling, schedule = dealt(pattern, op, config, width=width, machine=machine)
    return trace(tiling, schedule, machine.geometry(chosen.slice_width), bypass={chosen.bypass})[chosen.bypass]


def dealt(
    pattern: Pattern, op: str, config: Config, *, width: int, machine: Machine,
) -> tuple[Plan, Tiling, Schedule]:
    """Plan a configuration, cut the matrix, reordered if it says so, into tiles, and deal them."""
    chosen = plan(config, pattern.shape, width)
    if chosen.reorder:
        pattern = reorder(pattern, *locality_order(pattern))
    tiling = tile(pattern, chosen.row_panel, chosen.column_panel)
    costs = machine.dealing_costs(chosen.slice_width)
    return chosen, tiling, deal(tiling, op, pes=machine.pes, barrier=chosen.phased, costs=costs)


@dataclass(frozen=True)
class _Job:
    """Key of a trace within a tiling: the operation for which tiles are dealt, phases, slice width."""

    op: str
    phased: bool
    slice_width: int


@dataclass(frozen=True)
class _Request:
    """One element of the result."""

    plan: Plan
    op: str
    column: int
    barrier: bool

    def tiling(self) -> tuple[int, int, int]:
        return self.plan.reorder, self.plan.row_panel, self.plan.column_panel

    def job(self, tiling: Tiling) -> _Job:
        """Group by trace: with one tile per row panel and no empty row panel, both operations deal alike."""
        alike = tiling.column_panels == 1 and tiling.count == -(-tiling.shape[0] // tiling.row_panel)
        return _Job("spmm" if alike else self.op, self.plan.phased, self.plan.slice_width)


def _trace_key(machines: Sequence[Machine], slice_width: int, index: int) -> tuple[Geometry, tuple[int, int]]:
    """Key by which machines share a trace."""
    return machines[index].geometry(slice_width), machines[index].dealing_costs(slice_width)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by key, keys in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
