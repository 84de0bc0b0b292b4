"""Recommend configurations for a user's own matrix, or for a shape of GEMM."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.table import Table

from sparloom import log
from sparloom.experiments.adviser import Adviser
from sparloom.experiments.measuring import measure_missing
from sparloom.experiments.recommend_shape import RecommendShape
from sparloom.experiments.recommender import SHOWN, Recommender
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.ops import Op
from sparloom.space import Config
from sparloom.sparse import SparseMatrix

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Recommend"]


@dataclass(frozen=True)
class Recommend:
    """Rank all configurations of a platform for one matrix.

    Args:
        matrix: path of a matrix file.
        shape: m, n and k of a GEMM, in place of a matrix.
        dense: answers for a shape.
        adviser: ranks configurations of this platform and operation.
        verify: measure or simulate nothing, the first five and the default ("top"), or the whole space ("all").
    """

    matrix: str | None
    shape: Sequence[int] | None
    dense: RecommendShape
    op: Op
    platform: "Platform"
    adviser: Adviser
    verify: Literal["none", "top", "all"]
    timing: TimingProtocol
    width: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Print the first five, the lead of the first and the familiarity of the matrix; draw the tiling."""
        if self.verify not in ("none", "top", "all"):
            raise ValueError(f"verify={self.verify!r} is not one of none, top, all")
        if self.shape is not None and self.matrix is not None:
            raise ValueError(f"matrix={self.matrix} and shape={self.shape}: give one of them")
        if self.shape is not None:
            return self.dense.run(self.shape, out)
        recommender = Recommender(self.op, self.platform, self.adviser)
        ranking = recommender.rank(self.matrix)
        began = time.perf_counter()
        recommender.draw(ranking, out / "spy")
        drawing = time.perf_counter() - began
        chosen, behind, familiar = ranking.programs[:SHOWN], ranking.behind[:SHOWN].tolist(), ranking.familiarity
        metrics = {"lead": behind[1] if len(behind) > 1 else 0.0, "familiarity_percentile": familiar.percentile,
                   "rows": ranking.view.shape[0], "cols": ranking.view.shape[1], "nnz": ranking.view.nnz,
                   "seconds": ranking.read_seconds + ranking.rank_seconds + drawing}
        default = recommender.space.default()
        times = self._verified(ranking.matrix, chosen, list(recommender.space))
        log.console.print(_table(chosen, behind, times, default), soft_wrap=False)
        log.console.print(f"lead of the first: {metrics['lead']:.2f} standard deviations of all scores")
        log.console.print(f"familiarity: nearest training matrix {familiar.nearest}, farther than "
                          f"{familiar.percentile:.0f} % of the training matrices are from each other")
        metrics |= _regrets(chosen, times, default, whole=self.verify == "all")
        write_json(out / "recommendation.json", {
            "matrix": str(self.matrix), "op": self.op.name, "platform": self.platform.name,
            "preset": self.platform.preset, "adviser": self.adviser.origin, "nearest": familiar.nearest,
            "configurations": [{"config": config.key, "behind": gap, "seconds": times.get(config)}
                               for config, gap in zip(chosen, behind, strict=True)]})
        return metrics

    def _verified(
        self, matrix: SparseMatrix, chosen: Sequence[Config], configs: Sequence[Config]
    ) -> dict[Config, float]:
        """Seconds of what is to be verified; the default is always among it."""
        if self.verify == "none":
            return {}
        default = self.platform.baseline(self.op, matrix.pattern)
        asked = list(configs) if self.verify == "all" else list(dict.fromkeys([*chosen, default]))
        width = getattr(self.platform, "width", self.width)  # target.width alone may have been given
        operands = self.op.operands(matrix, width, self.timing.seed)
        rounds = [asked] * self.timing.rounds
        seconds: dict[Config, list[float]] = {}
        for config, _, measurement in measure_missing(self.platform, self.op, operands, missing=rounds,
                                                      timing=self.timing):
            if measurement.failure is None:
                seconds.setdefault(config, []).append(measurement.best)
        return {config: float(np.median(values)) for config, values in seconds.items()}


def _table(chosen: Sequence[Config], behind: Sequence[float], times: Mapping[Config, float], default: Config) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("rank", *default.names, "behind", *(("ms", "speedup") if times else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, (config, gap) in enumerate(zip(chosen, behind, strict=True), start=1):
        table.add_row(str(rank), *_cells(config), f"{gap:.2f}", *_timed(config, times, default))
    if times:
        table.add_row("default", *_cells(default), "", *_timed(default, times, default))
    return table


def _cells(config: Config) -> list[str]:
    return [str(value) for _, value in config.values]


def _timed(config: Config, times: Mapping[Config, float], default: Config) -> tuple[str, ...]:
    if not times:
        return ()
    if config not in times:
        return ("failed", "")
    speedup = f"{times[default] / times[config]:.2f}" if default in times else ""
    return (f"{times[config] * 1e3:.4g}", speedup)


def _regrets(
    chosen: Sequence[Config], times: Mapping[Config, float], default: Config, *, whole: bool
) -> dict[str, float]:
    """Time of the first choice over the best of what was verified, printed and returned."""
    if chosen[0] not in times:
        return {}
    first = times[chosen[0]]
    name, best = ("regret", min(times.values())) if whole else (
        "regret_top5", min(times[config] for config in chosen if config in times))
    found = {name: first / best}
    if whole:
        found["regret_top5"] = first / min(times[config] for config in chosen if config in times)
    if default in times:
        found["speedup"] = times[default] / first
    for key in ("regret_top5", "regret"):
        if key in found:
            log.console.print(f"{key} {found[key]:.4f}")
    return found
