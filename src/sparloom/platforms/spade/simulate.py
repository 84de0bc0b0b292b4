"""Simulate many configurations of one matrix at level T1, sharing tilings and traces."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sparloom.platforms.spade.machine import Machine
from sparloom.platforms.spade.t1 import seconds, trace
from sparloom.platforms.spade.tiling import Tiling, deal, tile
from sparloom.space import Config
from sparloom.sparse import Pattern, locality_order, reorder

__all__ = ["Plan", "plan", "simulate_many", "simulate_ops"]

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Plan:
    """A configuration in the form that decides the simulation: equal plans are equal programs but for the barrier cost.

    Args:
        column_panel: columns of a tile; at most the columns of the matrix, so that all larger values are one.
        phased: there are barriers and more than one column panel.
        slice_width: dense columns per pass.
    """

    reorder: int
    row_panel: int
    column_panel: int
    phased: bool
    slice_width: int
    bypass: int

    @property
    def tiling(self) -> tuple[int, int, int]:
        """What decides the tiles."""
        return self.reorder, self.row_panel, self.column_panel


def plan(config: Config, shape: tuple[int, int], width: int) -> Plan:
    """Resolve a configuration for a matrix of `shape` and dense operands of `width` columns.

    Raises:
        ValueError: the split does not divide the width.
    """
    rows, cols = max(1, shape[0]), max(1, shape[1])
    panel = cols if config["column_panel"] == "all" else min(cols, int(config["column_panel"]))
    slice_width = min(int(config["split"]), width)
    if width % slice_width:
        raise ValueError(f"split {slice_width} does not divide the width {width}: choose a width that is a multiple")
    return Plan(
        reorder=int(config["reorder"]), row_panel=min(rows, int(config["row_panel"])), column_panel=panel,
        phased=bool(config["barrier"]) and panel < cols, slice_width=slice_width, bypass=int(config["bypass"]),
    )


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
    for (number, row_panel, column_panel), group in _grouped(asks, lambda ask: ask.plan.tiling).items():
        tiling = tile(orders[number], row_panel, column_panel)
        for (order, phased, slice_width), same in _grouped(group, lambda ask: ask.trace_in(tiling)).items():
            for geometry, places in _grouped(range(len(machines)), lambda m: machines[m].geometry(slice_width)).items():
                schedule = deal(tiling, order, pes=geometry.pes, barrier=phased)
                counts = trace(tiling, schedule, geometry, bypass={ask.plan.bypass for ask in same})
                for ask in same:
                    result[ask.op][places, ask.column] = seconds(
                        counts[ask.plan.bypass], ask.op, [machines[place] for place in places],
                        passes=width // slice_width, barrier=ask.barrier,
                    )
    return result


@dataclass(frozen=True)
class _Ask:
    """One point of the result."""

    plan: Plan
    op: str
    column: int
    barrier: bool

    def trace_in(self, tiling: Tiling) -> tuple[str, bool, int]:
        """What decides the trace within a tiling: how tiles are dealt (for which operation), phases, slice width."""
        alike = tiling.column_panels == 1 and tiling.count == -(-tiling.shape[0] // tiling.row_panel)
        return "spmm" if alike else self.op, self.plan.phased, self.plan.slice_width


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, keys in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
