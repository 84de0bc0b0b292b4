"""Recommend GEMM kernels for a shape, by the performance model that experiment=fit_trees saved."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.table import Table

from sparloom import log
from sparloom.data import SampleSource
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.models.performance import GEMM_FEATURES, gemm_problems, load_interval, load_performance
from sparloom.ops import GEMM, GemmShape
from sparloom.search import Evolution, best
from sparloom.space import Config, GridSpace
from sparloom.tasks.recommender import SHOWN
from sparloom.tasks.tree_models import FULL, INTERVAL, TreeModels

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels

__all__ = ["RecommendShape"]

GIGA = 1e9


@dataclass(frozen=True)
class RecommendShape:
    """Rank all kernels for one shape; nothing is trained.

    Args:
        evolution: for a space that is too large to be scored whole.
        verify: measure nothing, the first five and the default ("top"), or all kernels ("all").
        threads: of the prediction.
    """

    op: GEMM
    platform: "CpuKernels"
    samples: SampleSource
    models: TreeModels
    evolution: Evolution
    verify: Literal["none", "top", "all"]
    timing: TimingProtocol
    threads: int

    def run(self, shape: Sequence[int], out: Path) -> Mapping[str, float]:
        """Print the first five with the rates that are predicted and the interval in which they are expected."""
        asked, space = _read(shape), self.platform.space(self.op)
        folder = self.models.find(self.platform, self.op, self.samples)
        model = load_performance(folder / FULL, spec=GEMM_FEATURES, space=space.digest(), threads=self.threads)
        interval = load_interval(folder / INTERVAL, spec=GEMM_FEATURES, threads=self.threads)
        problem = gemm_problems([asked])
        if model.falls_back(problem)[0]:
            log.console.print(f"{asked.m} x {asked.n} x {asked.k}: kernels are tiled for products of matrices, so no "
                              f"model is asked, take {space.default()}")
            write_json(out / "recommendation.json", {"shape": list(shape), "fallback": space.default().key})
            return {"fallback": 1}
        began = time.perf_counter()
        ranked = best(lambda configs: model.over(configs).score(problem)[0], space, SHOWN, evolution=self.evolution)
        seconds = time.perf_counter() - began
        chosen = [entry.config for entry in ranked]
        rates = model.predict(problem, chosen)[0]
        low, high = (bound[0] for bound in interval.predict(problem, chosen))
        times = self._verified(asked, chosen, space)
        log.console.print(_table(chosen, list(zip(rates, low, high, strict=True)), times, asked,
                                 coverage=interval.coverage), soft_wrap=False)
        write_json(out / "recommendation.json", {
            "shape": list(shape), "platform": self.platform.name, "preset": self.platform.preset,
            "configurations": [{"config": config.key, "gflops": float(rates[place]), "low": float(low[place]),
                                "high": float(high[place]), "seconds": times.get(config)}
                               for place, config in enumerate(chosen)]})
        return {"fallback": 0, "gflops": float(rates[0]), "seconds": seconds} | _regrets(chosen, times, asked)

    def _verified(self, shape: GemmShape, chosen: Sequence[Config], space: GridSpace) -> dict[Config, float]:
        """Least seconds of what is to be verified; the default is always among it."""
        if self.verify not in ("none", "top", "all"):
            raise ValueError(f"verify={self.verify!r} is not one of none, top, all")
        if self.verify == "none":
            return {}
        asked = list(space) if self.verify == "all" else list(dict.fromkeys([*chosen, space.default()]))
        operands = self.op.operands(shape, seed=self.timing.seed)
        times: dict[Config, float] = {}
        for config, _, measurement in self.platform.measure_many(self.op, operands, asked, self.timing):
            if measurement.failure is None:
                times[config] = min(measurement.best, times.get(config, np.inf))
        return times


def _read(shape: Sequence[int]) -> GemmShape:
    if len(shape) != 3:
        raise ValueError(f"shape={list(shape)} is not [m,n,k]: rows and columns of the result, length of the sums")
    return GemmShape(*(int(extent) for extent in shape))


def _table(
    chosen: Sequence[Config], rates: Sequence[tuple[float, float, float]], times: Mapping[Config, float],
    shape: GemmShape, *, coverage: float,
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("rank", *chosen[0].names, "GFLOP/s", f"{coverage:.0%} interval", *(("measured",) if times else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, (config, (rate, low, high)) in enumerate(zip(chosen, rates, strict=True), start=1):
        cells = [str(value) for _, value in config.values]
        measured = [f"{shape.flops / times[config] / GIGA:.1f}" if config in times else "failed"] if times else []
        table.add_row(str(rank), *cells, f"{rate:.1f}", f"{low:.1f}–{high:.1f}", *measured)
    return table


def _regrets(chosen: Sequence[Config], times: Mapping[Config, float], shape: GemmShape) -> dict[str, float]:
    """Rate of the first choice, and its time over the least of what was verified."""
    if chosen[0] not in times:
        return {}
    first = times[chosen[0]]
    return {"measured_gflops": shape.flops / first / GIGA, "regret": first / min(times.values())}
