"""Simulate many configurations of one matrix at level T1, sharing tilings and traces."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from sparloom.jit import kernel_folder, sources_digest
from sparloom.platforms.spade.machine import Geometry, Machine
from sparloom.platforms.spade.plan import Plan, plan
from sparloom.platforms.spade.t1 import Counts, seconds, trace
from sparloom.platforms.spade.tiling import Tiling, deal, tile
from sparloom.space import Config
from sparloom.sparse import Pattern, locality_order, reorder

__all__ = ["simulate_counts", "simulate_many", "simulate_ops", "simulator_digest"]

VERSION = 1
"""Of what this package does in Python: raise it with every change after which simulated seconds differ."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def simulator_digest() -> str:
    """Identify the simulator: other sources under kernels/spade, or another version, may give other seconds."""
    sources = sorted(f"spade/{path.name}" for path in (kernel_folder() / "spade").glob("*.cpp"))
    return f"{VERSION}-{sources_digest(sources)}"


def simulate_many(
    pattern: Pattern, op: str, *, width: int, configs: Sequence[Config], machines: Sequence[Machine],
) -> np.ndarray:
    """Simulated seconds of each configuration on each machine, (machines, configs).

    Results do not depend on what else is in `configs` or `machines`, and are the same bits every time.
    """
    return simulate_ops(pattern, {op: configs}, width=width, machines=machines)[op]


def simulate_ops(
    pattern: Pattern, configs: Mapping[str, Sequence[Config]], *, width: int, machines: Sequence[Machine],
) -> dict[str, np.ndarray]:
    """As `simulate_many` for several operations: op -> (machines, configs). Tilings and equal schedules are shared."""
    result = {op: np.empty((len(machines), len(chosen))) for op, chosen in configs.items()}
    asks = [
        _Ask(plan(config, pattern.shape, width), op, column, barrier=bool(config["barrier"]))
        for op, chosen in configs.items() for column, config in enumerate(chosen)
    ]
    orders = {0: pattern}
    if any(ask.plan.reorder for ask in asks):
        orders[1] = reorder(pattern, *locality_order(pattern))
    for (number, row_panel, column_panel), group in _grouped(asks, _Ask.tiling).items():
        tiling = tile(orders[number], row_panel, column_panel)
        for job, same in _grouped(group, partial(_Ask.job, tiling=tiling)).items():
            traced_as = partial(_traced_as, machines, job.slice_width)
            for (geometry, costs), places in _grouped(range(len(machines)), traced_as).items():
                schedule = deal(tiling, job.op, pes=geometry.pes, barrier=job.phased, costs=costs)
                counts = trace(tiling, schedule, geometry, bypass={ask.plan.bypass for ask in same})
                for ask in same:
                    result[ask.op][places, ask.column] = seconds(
                        counts[ask.plan.bypass], ask.op, [machines[place] for place in places],
                        passes=width // job.slice_width, barrier=ask.barrier,
                    )
    return result


def simulate_counts(pattern: Pattern, op: str, config: Config, *, width: int, machine: Machine) -> Counts:
    """What one pass of one configuration does, for a look inside."""
    chosen = plan(config, pattern.shape, width)
    if chosen.reorder:
        pattern = reorder(pattern, *locality_order(pattern))
    tiling = tile(pattern, chosen.row_panel, chosen.column_panel)
    costs = machine.dealing_costs(chosen.slice_width)
    schedule = deal(tiling, op, pes=machine.pes, barrier=chosen.phased, costs=costs)
    return trace(tiling, schedule, machine.geometry(chosen.slice_width), bypass={chosen.bypass})[chosen.bypass]


@dataclass(frozen=True)
class _Job:
    """What decides a trace within a tiling: for which operation tiles are dealt, phases, slice width."""

    op: str
    phased: bool
    slice_width: int


@dataclass(frozen=True)
class _Ask:
    """One point of the result."""

    plan: Plan
    op: str
    column: int
    barrier: bool

    def tiling(self) -> tuple[int, int, int]:
        return self.plan.reorder, self.plan.row_panel, self.plan.column_panel

    def job(self, tiling: Tiling) -> _Job:
        """With one tile per row panel and no row panel empty both operations deal alike."""
        alike = tiling.column_panels == 1 and tiling.count == -(-tiling.shape[0] // tiling.row_panel)
        return _Job("spmm" if alike else self.op, self.plan.phased, self.plan.slice_width)


def _traced_as(machines: Sequence[Machine], slice_width: int, place: int) -> tuple[Geometry, tuple[int, int]]:
    """Machines that agree in this share a trace."""
    return machines[place].geometry(slice_width), machines[place].dealing_costs(slice_width)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, keys in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
