"""Recommend configurations for a user's own matrix with a network that was fine-tuned before."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.table import Table

from sparloom import log
from sparloom.data import SampleSource
from sparloom.errors import Unsupported
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.models import Cognate, CognateModel, MatrixView
from sparloom.ops import Op
from sparloom.report import draw_spy
from sparloom.space import Config
from sparloom.sparse import MATRIX_ENDINGS, Pattern, SparseMatrix, locality_order, read_matrix, reorder
from sparloom.tasks.checkpoints import Checkpoints
from sparloom.tasks.finetune import finetuned_name
from sparloom.tasks.measuring import measure_missing

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Recommend"]

SHOWN = 5
LARGEST_SPACE = 4096  # configurations that are scored one by one
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recommend:
    """Rank all configurations of a platform for one matrix; nothing is trained.

    Args:
        matrix: path of a matrix file.
        net: as it was fine-tuned.
        samples: kind of samples the checkpoint is filed under.
        verify: measure or simulate nothing, the first five and the default ("top"), or the whole space ("all").
    """

    matrix: str | None
    op: Op
    platform: "Platform"
    net: Cognate
    samples: SampleSource
    checkpoints: Checkpoints
    verify: Literal["none", "top", "all"]
    timing: TimingProtocol
    width: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Print the first five, the lead of the first and the familiarity of the matrix; draw the tiling."""
        if self.verify not in ("none", "top", "all"):
            raise ValueError(f"verify={self.verify!r} is not one of none, top, all")
        space = self.platform.space(self.op)
        if len(space) > LARGEST_SPACE:
            raise Unsupported(f"platform {self.platform.name} has {len(space)} configurations and no fine-tuned model: "
                              "choose a target such as platform@target=spade")
        began = time.monotonic()
        matrix = _read(self.matrix)
        reading = time.monotonic() - began
        name = finetuned_name(self.platform, self.op)
        path = self.checkpoints.find(name, self.samples, experiment=f"finetune_{self.platform.name}",
                                     overrides=(f"op={self.op.name}",))
        model = CognateModel.load(path, net=self.net, space=space)
        began = time.monotonic()
        view = MatrixView.of(matrix.pattern, Path(str(self.matrix)).name)
        bound = space.bind(view.shape)
        configs = list(bound)
        scores = model.score(view, configs)
        programs = [bound.canonical(config) for config in configs]
        order = _distinct(np.argsort(scores, kind="stable"), programs)[:SHOWN]
        chosen = [programs[place] for place in order]
        behind = [float(scores[place] - scores[order[0]]) / (float(scores.std()) or 1.0) for place in order]
        nearest, percentile = _familiarity(model, view)
        metrics = {"lead": behind[1] if len(behind) > 1 else 0.0, "familiarity_percentile": percentile,
                   "rows": view.shape[0], "cols": view.shape[1], "nnz": view.nnz}
        self._draw(matrix.pattern, chosen[0], out)
        metrics["seconds"] = reading + time.monotonic() - began
        times = self._verified(matrix, chosen, configs)
        log.console.print(_table(chosen, behind, times, space.default()), soft_wrap=False)
        log.console.print(f"lead of the first: {metrics['lead']:.2f} standard deviations of all scores")
        log.console.print(f"familiarity: nearest training matrix {nearest}, farther than {percentile:.0f} % of the "
                          "training matrices are from each other")
        metrics |= _regrets(chosen, times, space.default(), whole=self.verify == "all")
        write_json(out / "recommendation.json", {
            "matrix": str(self.matrix), "op": self.op.name, "platform": self.platform.name,
            "preset": self.platform.preset, "checkpoint": path.name, "nearest": nearest,
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
        operands = self.op.operands(matrix, self.width, self.timing.seed)
        rounds = [asked] * self.timing.rounds
        seconds: dict[Config, list[float]] = {}
        for config, _, measurement in measure_missing(self.platform, self.op, operands, missing=rounds,
                                                      timing=self.timing):
            if measurement.failure is None:
                seconds.setdefault(config, []).append(measurement.best)
        return {config: float(np.median(values)) for config, values in seconds.items()}

    def _draw(self, pattern: Pattern, config: Config, out: Path) -> None:
        """Draw the tiles of the first choice, in the order of rows and columns that it asks for."""
        shared = self.platform.space(self.op).bind(pattern.shape).shared(config)
        if "reorder" in config.names and config["reorder"]:
            pattern = reorder(pattern, *locality_order(pattern))
        title = f"{Path(str(self.matrix)).name}\n{config}"
        draw_spy(pattern, out / "spy", rows_step=shared.I, cols_step=shared.J, title=title)


def _read(path: str | None) -> SparseMatrix:
    if not path:
        raise ValueError(f"no matrix given: add matrix=<path of a file that ends in {', '.join(MATRIX_ENDINGS)}>")
    matrix = read_matrix(Path(path).expanduser())
    if matrix.pattern.nnz == 0:
        raise ValueError(f"{path} has no nonzeros, so every configuration is as good: choose another matrix")
    return matrix


def _distinct(order: np.ndarray, programs: Sequence[Config]) -> list[int]:
    """Drop places whose configuration is the same program on this matrix as an earlier one."""
    seen: dict[Config, int] = {}
    for place in order.tolist():
        seen.setdefault(programs[place], place)
    return list(seen.values())


def _familiarity(model: CognateModel, view: MatrixView) -> tuple[str, float]:
    """Nearest training matrix, and the share of training matrices that have a nearer one of their own, in percent."""
    names, points = list(model.anchors), np.stack(list(model.anchors.values()))
    between = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(between, np.inf)
    distances = np.linalg.norm(points - model.embedding(view), axis=1)
    return names[int(distances.argmin())], float((between.min(axis=1) < distances.min()).mean() * 100)


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
