"""Recommend configurations for a matrix file, or kernels for a GEMM shape."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.table import Table

from sparloom import log
from sparloom.data import SampleSource, SampleTable
from sparloom.errors import MissingArtifact, SchemaError, Unsupported
from sparloom.experiments.cognate.calibration import COVERAGE, LEAST_MATRICES, Calibration, ExpectedLoss
from sparloom.experiments.cognate.recommender import TOP_K, Recommender, draw_ranking
from sparloom.experiments.harness import INTERVAL, TreeModels, best_in, measure_missing, operands_for
from sparloom.files import write_json
from sparloom.measure import TimingProtocol, describe_machine
from sparloom.models.performance import (
    GEMM_SPECS,
    Origin,
    gemm_problems,
    load_interval,
    load_performance,
    machine_constants,
)
from sparloom.ops import GEMM, LAYOUTS, GemmShape, Op, Operands
from sparloom.report import report_table
from sparloom.space import Config, gemm_program
from sparloom.tuning import Evolution, best

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels, CudaPlatform, Platform

GIGA = 1e9
logger = logging.getLogger(__name__)
LARGEST_EXTENT = 2**31 - 1  # kernels count in int32


@dataclass(frozen=True)
class RecommendShape:
    """Rank all kernels for one shape by a saved model.

    The model is the full one if experiment=fit_trees ran here, else the distilled one of the data store, which has no
    prediction intervals.

    Args:
        evolution: search for spaces that are too large to score every configuration.
        verify: measure nothing, the first five and the default ("top"), or all kernels ("all").
    """

    op: GEMM
    platform: "CpuKernels | CudaPlatform"
    samples: SampleSource
    models: TreeModels
    evolution: Evolution
    verify: Literal["none", "top", "all"]
    timing: TimingProtocol
    threads: int

    def run(self, shape: Sequence[int], out: Path) -> Mapping[str, float]:
        """Print the first five kernels with predicted rates and prediction intervals."""
        asked, space, spec = read_shape(shape), self.platform.space(self.op), GEMM_SPECS[self.platform.name]
        if self.platform.kind == "device" and asked.layout != "nn":
            raise Unsupported(f"shape={list(shape)}: the kernels of {self.platform.name} read A and B as they are "
                              "multiplied, give [m,n,k] and copy what is stored transposed")
        folder = self.models.find(self.platform, self.op, self.samples)
        model = load_performance(best_in(folder), spec=spec, space=space.digest(), threads=self.threads)
        self._warn_of_another_processor(model.origin)
        problem = gemm_problems([asked])
        if model.falls_back(problem)[0]:
            log.console.print(f"{asked.m} x {asked.n} x {asked.k}: kernels are tiled for products of matrices, so no "
                              f"model is asked, take {space.default()}")
            write_json(out / "recommendation.json", {"shape": list(shape), "fallback": space.default().key})
            return {"fallback": 1}
        began = time.perf_counter()
        ranked = best(lambda configs: model.over(configs).score(problem)[0], space, len(space),
                      evolution=self.evolution)
        seconds = time.perf_counter() - began
        chosen = list(dict.fromkeys(gemm_program(entry.config, asked.layout) for entry in ranked))[:TOP_K]
        predicted, coverage = {"gflops": model.predict(problem, chosen)[0]}, None
        if (folder / INTERVAL).exists():
            interval = load_interval(folder / INTERVAL, spec=spec, threads=self.threads)
            coverage = interval.coverage
            predicted |= zip(("low", "high"), (bound[0] for bound in interval.predict(problem, chosen)), strict=True)
        times = {}
        if self.verify != "none":
            operands = self.op.operands(asked, seed=self.timing.seed)
            configs = space if self.verify == "all" else [*chosen, space.default()]
            times = verified(self.platform, self.op, operands, configs, self.timing)
        log.console.print(_shape_table(chosen, predicted, times, asked, coverage=coverage), soft_wrap=False)
        write_json(out / "recommendation.json", {
            "shape": list(shape), "platform": self.platform.name, "preset": self.platform.preset,
            "configurations": [{"config": config.key, "seconds": times.get(config)}
                               | {name: float(values[rank]) for name, values in predicted.items()}
                               for rank, config in enumerate(chosen)]})
        metrics = {"fallback": 0, "gflops": float(predicted["gflops"][0]), "seconds": seconds}
        return metrics | _shape_regrets(chosen, times, asked)

    def _warn_of_another_processor(self, origin: Origin) -> None:
        """Say so if the model has learned from measurements on another processor; the preset of a GPU names it."""
        if self.platform.kind == "device":
            return
        here, measured = describe_machine(), None
        with suppress(MissingArtifact, SchemaError, OSError):  # the samples are not there: compare the caches
            measured = processor_of(self.samples.table(self.platform.name, self.platform.preset, self.op.name))
        constants = machine_constants(here, threads=int(origin.machine.get("threads", self.platform.threads)))
        if measured == here["processor"] if measured else dict(origin.machine) == constants:
            return
        logger.warning("the model has learned from measurements on %s, this is %s: the predicted rates are those of "
                       "the other one, and the best kernels may differ; verify=top measures the first five here",
                       measured or "another processor", here["processor"])


def processor_of(table: SampleTable) -> str | None:
    """Return the processor on which the latest samples of a table were measured, if they record it."""
    machines = [entry["machine"] for entry in table.provenance if isinstance(entry.get("machine"), dict)]
    return str(machines[-1]["processor"]) if machines and machines[-1].get("processor") else None


def verified(
    platform: "Platform", op: Op, operands: Operands, configs: Iterable[Config], timing: TimingProtocol,
) -> dict[Config, float]:
    """Measure configurations: median seconds of each over the rounds."""
    asked = list(dict.fromkeys(configs))
    seconds: dict[Config, list[float]] = {}
    for config, _, measurement in measure_missing(platform, op, operands, missing=[asked] * timing.rounds,
                                                  timing=timing):
        if measurement.failure is None:
            seconds.setdefault(config, []).append(measurement.best)
    return {config: float(np.median(values)) for config, values in seconds.items()}


def read_shape(shape: object) -> GemmShape:
    """Check the option `shape`, [m, n, k] or [m, n, k, layout], and return it as a shape of GEMM."""
    if isinstance(shape, str | Mapping) or not isinstance(shape, Sequence) or len(shape) not in (3, 4):
        raise ValueError(f"shape={shape} is not [m,n,k] or [m,n,k,layout]: rows and columns of the result, "
                         f"length of the sums, and {', '.join(LAYOUTS)}")
    for name, extent in zip("mnk", shape[:3], strict=True):
        whole = isinstance(extent, int | float) and not isinstance(extent, bool) and extent % 1 == 0
        if not whole or not 1 <= extent <= LARGEST_EXTENT:
            raise ValueError(f"shape={list(shape)}: {name} is {extent!r}, give an integer from 1 to {LARGEST_EXTENT}")
    return GemmShape(*(int(extent) for extent in shape[:3]), *shape[3:])


def _shape_table(
    chosen: Sequence[Config], predicted: Mapping[str, np.ndarray], times: Mapping[Config, float], shape: GemmShape,
    *, coverage: float | None,
) -> Table:
    columns = {"GFLOP/s": [f"{rate:.1f}" for rate in predicted["gflops"]]}
    if coverage is not None:
        columns[f"{coverage:.0%} interval"] = [f"{low:.1f}–{high:.1f}"
                               for low, high in zip(predicted["low"], predicted["high"], strict=True)]
    if times:
        columns["measured"] = [f"{shape.flops / times[config] / GIGA:.1f}" if config in times else "failed"
                               for config in chosen]
    table = report_table(("rank", *chosen[0].names, *columns), text=())
    for index, config in enumerate(chosen):
        table.add_row(str(index + 1), *_cells(config), *(column[index] for column in columns.values()))
    return table


def _shape_regrets(chosen: Sequence[Config], times: Mapping[Config, float], shape: GemmShape) -> dict[str, float]:
    """Return the rate of the first choice, and its time over the least verified time."""
    if chosen[0] not in times:
        return {}
    first = times[chosen[0]]
    return {"measured_gflops": shape.flops / first / GIGA, "regret": first / min(times.values())}


@dataclass(frozen=True)
class Recommend:
    """Rank all configurations of a platform for one matrix.

    Args:
        shape: m, n, k and perhaps the layout of a GEMM, instead of a matrix.
        recommender: recommender for this platform and operation.
        verify: measure or simulate nothing, the first five and the default ("top"), or the whole space ("all").
    """

    matrix: str | None
    shape: Sequence[int] | None
    dense: RecommendShape
    op: Op
    platform: "Platform"
    recommender: Recommender
    verify: Literal["none", "top", "all"]
    timing: TimingProtocol
    width: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Print the first five, the lead of the first and what it may lose; draw the tiling."""
        if self.verify not in ("none", "top", "all"):
            raise ValueError(f"verify={self.verify!r} is not one of none, top, all")
        if self.verify != "none" and self.shape is None and not getattr(self.platform, "runnable", True):
            raise Unsupported(f"verify={self.verify} runs configurations, and {self.platform.name} cannot be run from "
                              "here: leave verify=none, and time the recommended ones on the accelerator")
        if self.shape is not None and self.matrix is not None:
            raise ValueError(f"matrix={self.matrix} and shape={self.shape}: give one of them")
        if self.shape is not None:
            return self.dense.run(self.shape, out)
        recommender = self.recommender
        ranking = recommender.rank(self.matrix)
        began = time.perf_counter()
        draw_ranking(ranking, recommender.space, out / "spy")
        drawing = time.perf_counter() - began
        chosen, behind, loss = ranking.programs[:TOP_K], ranking.behind[:TOP_K].tolist(), ranking.loss
        metrics = {"lead": behind[1] if len(behind) > 1 else 0.0,
                   **({} if loss is None else {"expected_loss": loss.mean, "loss_bound": loss.bound}),
                   "rows": ranking.view.shape[0], "cols": ranking.view.shape[1], "nnz": ranking.view.nnz,
                   "seconds": ranking.read_seconds + ranking.rank_seconds + drawing}
        default = self.platform.baseline(self.op, ranking.matrix.pattern)
        times = {}
        if self.verify != "none":
            width = getattr(self.platform, "width", self.width)  # target.width alone may have been given
            operands = operands_for(self.platform, self.op, ranking.matrix, width, self.timing.seed)
            configs = recommender.space if self.verify == "all" else [*chosen, default]
            times = verified(self.platform, self.op, operands, configs, self.timing)
        log.console.print(_table(chosen, behind, times, default), soft_wrap=False)
        log.console.print(f"lead of the first: {metrics['lead']:.2f} standard deviations of all scores")
        log.console.print(_loss_text(loss, recommender.calibration), soft_wrap=True)
        metrics |= _regrets(chosen, times, default, whole=self.verify == "all")
        write_json(out / "recommendation.json", {
            "matrix": str(self.matrix), "op": self.op.name, "platform": self.platform.name,
            "preset": self.platform.preset, "recommender": recommender.fitted.name,
            "expected_loss": metrics.get("expected_loss"), "loss_bound": metrics.get("loss_bound"),
            "configurations": [{"config": config.key, "behind": gap, "seconds": times.get(config)}
                               for config, gap in zip(chosen, behind, strict=True)]})
        return metrics


def _loss_text(loss: ExpectedLoss | None, calibration: Calibration | None) -> str:
    if loss is None or calibration is None:
        return (f"what it may lose is not known: that takes samples of all configurations of {LEAST_MATRICES} matrices "
                "that the model has not learned from")
    return (f"the first is expected to be {loss.mean:.1%} slower than the best configuration, and in about "
            f"{COVERAGE:.0%} of all cases at most {loss.bound:.1%} (from {len(calibration.matrices)} matrices not "
            "learned from)")


def _table(chosen: Sequence[Config], behind: Sequence[float], times: Mapping[Config, float], default: Config) -> Table:
    table = report_table(("rank", *default.names, "behind", *(("ms", "speedup") if times else ())), text=())
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
    """Print and return the time of the first choice over the least verified time."""
    if chosen[0] not in times:
        return {}
    first = times[chosen[0]]
    found = {"regret_top5": first / min(times[config] for config in chosen if config in times)}
    if whole:
        found = {"regret": first / min(times.values()), **found}
    if default in times:
        found["speedup"] = times[default] / first
    for key in ("regret_top5", "regret"):
        if key in found:
            log.console.print(f"{key} {found[key]:.4f}")
    return found
