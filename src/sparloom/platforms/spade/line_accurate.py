"""Level T0 of the simulator: line-accurate, event-driven reference for small matrices, and how well T1 agrees with
it."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from sparloom.errors import Unsupported
from sparloom.platforms.spade.machine import LINE_BYTES, VALUE_BYTES, Machine
from sparloom.platforms.spade.simulate import Plan, call, dealt, plan, simulate_counts, simulate_many
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

MAX_NONZEROS = 200_000
"""More would take minutes."""

LINES = ("operations", "register_hits", "loads", "sparse_lines", "output_lines", "tiles")
SERVED = ("l1", "l2", "llc", "dram", "victim", "writes")
TILE_QUEUE = 16  # ISCA'23 table 1
DIRTY_HIGH, DIRTY_LOW = 0.25, 0.15  # write-back starts and stops, share of the vector registers (ISCA'23 table 1)
PORT_CYCLES = 0.25  # caches run at the clock of the host, taken as four times that of a PE: a line per cycle and port


@dataclass(frozen=True)
class LineRun:
    """Result of a line-accurate run; counts are those of one pass.

    Args:
        seconds: of all passes, including start and flush.
        counts: see LINES and SERVED.
        flush: dirty lines left at the end of the pass.
        busy, waiting: (pes,) seconds of one pass, working and at barriers or the end.
    """

    seconds: float
    counts: dict[str, int]
    flush: int
    busy: np.ndarray
    waiting: np.ndarray

    @property
    def dram_lines(self) -> int:
        """Count the lines moved to and from DRAM in a pass, including the final flush."""
        names = ("dram", "writes", "sparse_lines", "output_lines")
        return sum(self.counts[name] for name in names) + self.flush


def simulate_lines(pattern: Pattern, op: str, config: Config, *, width: int, machine: Machine) -> LineRun:
    """Simulate one configuration, whose slices of dense rows are each stored contiguously.

    Raises:
        Unsupported: the matrix has more than MAX_NONZEROS nonzeros.
    """
    if pattern.nnz > MAX_NONZEROS:
        raise Unsupported(f"{pattern.nnz} nonzeros at level t0, which takes at most {MAX_NONZEROS}: use level t1")
    chosen, tiling, schedule = dealt(pattern, op, config, width=width, machine=machine)
    row_lines = chosen.slice_width * VALUE_BYTES // LINE_BYTES
    geometry = machine.geometry(LINE_BYTES // VALUE_BYTES)
    shape = [  # in the order of struct LineShape in kernels/spade/event.cpp
        row_lines, row_lines, machine.vector_registers,
        machine.reservation_stations, machine.dense_loads, machine.sparse_loads, machine.store_queue, TILE_QUEUE,
        int(op == "spmm"), chosen.bypass, int(DIRTY_HIGH * machine.vector_registers),
        int(DIRTY_LOW * machine.vector_registers),
    ]
    busy, waiting = np.zeros(machine.pes), np.zeros(machine.pes)
    served, lines = np.zeros(len(SERVED), dtype=np.int64), np.zeros(len(LINES), dtype=np.int64)
    result = np.zeros(2)
    call("spade_lines", [
        np.array(astuple(geometry), dtype=np.int64), np.array(shape, dtype=np.int64),
        _rates(machine, barrier=bool(config["barrier"])), *pattern.shape,
        tiling.count, tiling.row, tiling.column, tiling.begin, schedule.phases, schedule.order, schedule.start,
        busy, waiting, served, lines, result,
    ])
    flush_seconds = result[1] * LINE_BYTES / machine.bandwidth if op == "spmm" else 0.0
    total = (result[0] * 1e-9 + flush_seconds) * (width // chosen.slice_width)
    counts = dict(zip((*LINES, *SERVED), (int(value) for value in (*lines, *served)), strict=True))
    return LineRun(
        seconds=total + machine.pes * machine.instruction_ns * 1e-9, counts=counts, flush=int(result[1]),
        busy=busy * 1e-9, waiting=waiting * 1e-9,
    )


def simulate_each(
    pattern: Pattern, op: str, *, width: int, configs: Sequence[Config], machines: Sequence[Machine],
) -> np.ndarray:
    """Simulate each configuration on each machine: seconds (machines, configs); equal programs run once."""
    result = np.empty((len(machines), len(configs)))
    for row, machine in enumerate(machines):
        known: dict[tuple[Plan, bool], float] = {}
        for column, config in enumerate(configs):
            program = plan(config, pattern.shape, width), bool(config["barrier"])
            if program not in known:
                known[program] = simulate_lines(pattern, op, config, width=width, machine=machine).seconds
            result[row, column] = known[program]
    return result


@dataclass(frozen=True)
class Pair:
    """One configuration on both levels.

    Args:
        fast, reference: simulated seconds of T1 and T0.
        fast_lines, reference_lines: lines moved to and from DRAM in a pass, including the final flush.
    """

    config: Config
    fast: float
    reference: float
    fast_lines: float
    reference_lines: float


@dataclass(frozen=True)
class Agreement:
    """Agreement of both levels over the configurations of one matrix and operation.

    Args:
        error: median over configurations of |log(T1 / T0)|.
        low, high: smallest and largest log(T1 / T0).
        spearman: rank correlation of the times.
        traffic, traffic_worst: median and largest |DRAM lines of T1 / those of T0 - 1| over configurations.
        regret: T0 time of the configuration that is fastest on T1, divided by the shortest T0 time.
    """

    error: float
    low: float
    high: float
    spearman: float
    traffic: float
    traffic_worst: float
    regret: float

    @staticmethod
    def of(pairs: Sequence[Pair]) -> "Agreement":
        """Summarise the pairs of one matrix and operation."""
        from scipy.stats import spearmanr  # takes as long to import as the whole platform

        fast, reference = (np.array([getattr(pair, name) for pair in pairs]) for name in ("fast", "reference"))
        ratio = np.log(fast / reference)
        traffic = np.array([abs(pair.fast_lines / pair.reference_lines - 1) for pair in pairs])
        return Agreement(
            error=float(np.median(np.abs(ratio))), low=float(ratio.min()), high=float(ratio.max()),
            spearman=float(spearmanr(fast, reference).statistic), traffic=float(np.median(traffic)),
            traffic_worst=float(traffic.max()), regret=float(reference[np.argmin(fast)] / reference.min()),
        )


def stratified(space: ConfigSpace) -> list[Config]:
    """Choose 64 of the 256 configurations: every tile size, split and barrier, with bypass and reorder in turn."""
    chosen = []
    panels = {name: values for name, values in ((each.name, each.values) for each in space.parameters)}
    for config in space:
        i, j, k = (panels[name].index(config[name]) for name in ("row_panel", "column_panel", "split"))
        bypass, reorder = (i + j + k) % 2, (i + int(config["barrier"]) + j // 2) % 2
        if (config["bypass"], config["reorder"]) == (bypass, reorder):
            chosen.append(config)
    return chosen


def both_levels(
    pattern: Pattern, op: str, *, width: int, configs: Sequence[Config], machine: Machine,
) -> list[Pair]:
    """Simulate every configuration on both levels, equal programs once; raises Unsupported as T0 does."""
    fast = simulate_many(pattern, op, width=width, configs=configs, machines=[machine])[0]
    known: dict[tuple[Plan, bool], tuple[float, float, float]] = {}
    pairs = []
    for config, seconds in zip(configs, fast, strict=True):
        program = plan(config, pattern.shape, width), bool(config["barrier"])
        if program not in known:
            run = simulate_lines(pattern, op, config, width=width, machine=machine)
            lines = simulate_counts(pattern, op, config, width=width, machine=machine).dram_bytes(op) / LINE_BYTES
            known[program] = run.seconds, lines, run.dram_lines
        reference, fast_lines, reference_lines = known[program]
        pairs.append(Pair(config, float(seconds), reference, fast_lines, reference_lines))
    return pairs


def _rates(machine: Machine, *, barrier: bool) -> np.ndarray:
    """In the order of struct LineRates in kernels/spade/event.cpp: nanoseconds, bytes per nanosecond."""
    cycle = 1 / machine.clock_ghz
    return np.array([
        cycle, machine.forwarding_cycles * cycle, machine.l1_ns, machine.l2_ns, machine.llc_ns,
        machine.dram_ns + machine.link_ns, machine.dram_channels, machine.bandwidth * 1e-9, PORT_CYCLES * cycle,
        machine.instruction_ns, machine.barrier_ns if barrier else 0.0,
    ])
