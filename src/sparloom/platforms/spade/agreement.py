"""How well the fast level T1 stands for the line-accurate level T0."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.platforms.spade.machine import LINE_BYTES, Machine
from sparloom.platforms.spade.plan import Plan, plan
from sparloom.platforms.spade.simulate import simulate_counts, simulate_many
from sparloom.platforms.spade.t0 import simulate_lines
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["Agreement", "Pair", "both_levels", "stratified"]


@dataclass(frozen=True)
class Pair:
    """One configuration on both levels.

    Args:
        fast, reference: simulated seconds of T1 and T0.
        fast_lines, reference_lines: lines that cross the DRAM border in a pass, final flush included.
    """

    config: Config
    fast: float
    reference: float
    fast_lines: float
    reference_lines: float


@dataclass(frozen=True)
class Agreement:
    """The pairs of one matrix and operation.

    Args:
        error: median over configurations of |log(T1 / T0)|.
        low, high: least and greatest log(T1 / T0).
        spearman: rank correlation of the times.
        traffic, traffic_worst: median and greatest of |DRAM lines of T1 / those of T0 - 1| over configurations.
        regret: T0 time of the configuration that is fastest on T1, over the least T0 time.
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
    """64 of the 256 configurations: every tile size, split and barrier, with bypass and reorder in turn."""
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
    """Simulate every configuration on both levels; equal programs are simulated once and counted as often as asked.

    Raises:
        Unsupported: the matrix is too large for level T0.
    """
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
