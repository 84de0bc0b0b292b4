"""How well the fast level T1 stands for the line-accurate level T0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from sparloom.platforms.spade.machine import LINE_BYTES, Machine
from sparloom.platforms.spade.plan import Plan, plan
from sparloom.platforms.spade.simulate import simulate_counts, simulate_many
from sparloom.platforms.spade.t0 import simulate_lines
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["Agreement", "agree", "stratified"]


@dataclass(frozen=True)
class Agreement:
    """One matrix and operation.

    Args:
        error: median over configurations of |log(T1 / T0)|.
        low, high: least and greatest log(T1 / T0).
        spearman: rank correlation of the times.
        traffic: median over configurations of |DRAM lines of T1 / those of T0 - 1|.
        regret: T0 time of the configuration that is fastest on T1, over the least T0 time.
    """

    matrix: str
    op: str
    nnz: int
    error: float
    low: float
    high: float
    spearman: float
    traffic: float
    regret: float


def stratified(space: ConfigSpace) -> list[Config]:
    """64 of the 256 configurations: every tile size, split and barrier, with bypass and reorder in turn."""
    chosen = []
    panels = {name: values for name, values in ((each.name, each.values) for each in space.parameters)}
    for config in space:
        i, j, k = (panels[name].index(config[name]) for name in ("row_panel", "column_panel", "split"))
        bypass, reorder = (i + j + k) % 2, (i + int(config["barrier"]) + j // 2) % 2
        if (config["bypass"], config["reorder"]) == (bypass, reorder):
            chosen.append(config)
    return chosen


def agree(
    patterns: Mapping[str, Pattern], op: str, *, width: int, configs: Sequence[Config], machine: Machine,
) -> list[Agreement]:
    """Simulate every configuration on both levels; equal programs are simulated once and counted as often as asked."""
    return [_compared(name, pattern, op, width, configs, machine) for name, pattern in patterns.items()]


def _compared(
    name: str, pattern: Pattern, op: str, width: int, configs: Sequence[Config], machine: Machine,
) -> Agreement:
    fast = simulate_many(pattern, op, width=width, configs=configs, machines=[machine])[0]
    known: dict[tuple[Plan, bool], tuple[float, float]] = {}
    for config in configs:
        program = plan(config, pattern.shape, width), bool(config["barrier"])
        if program not in known:
            run = simulate_lines(pattern, op, config, width=width, machine=machine)
            lines = simulate_counts(pattern, op, config, width=width, machine=machine).dram_bytes(op) / LINE_BYTES
            known[program] = run.seconds, lines / run.dram_lines
    both = np.array([known[plan(config, pattern.shape, width), bool(config["barrier"])] for config in configs])
    ratio = np.log(fast / both[:, 0])
    return Agreement(
        matrix=name, op=op, nnz=pattern.nnz, error=float(np.median(np.abs(ratio))), low=float(ratio.min()),
        high=float(ratio.max()), spearman=float(spearmanr(fast, both[:, 0]).statistic),
        traffic=float(np.median(np.abs(both[:, 1] - 1))), regret=float(both[np.argmin(fast), 0] / both[:, 0].min()),
    )
