"""Train performance models, score them on problems they have not seen, distil the GEMM model and export it to C."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom import log, models
from sparloom.data import SampleSource, write_frame
from sparloom.experiments.harness import FULL, INTERVAL, SMALL, TreeModels
from sparloom.experiments.trees.evaluation import (
    Judgement,
    TreeSubject,
    gemm_subject,
    model_scores,
    sparse_subject,
)
from sparloom.files import atomic_folder, write_json, write_text
from sparloom.ir import F64, I64, Param
from sparloom.jit import Source, compile_c
from sparloom.models.performance import (
    GEMM_INPUTS,
    BoostingConfig,
    Grid,
    PerformanceModel,
    Rows,
    Target,
    TreeCount,
    bounds_out_of_fold,
    c_header,
    continue_training,
    distil,
    gemm_problems,
    gemm_shapes,
    load_performance,
    nearby_shapes,
    problem_folds,
    save_interval,
    save_performance,
    train_performance,
)
from sparloom.ops import Op
from sparloom.report import efficiency_table, op_title
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels, CudaPlatform

REPEATS = 30  # timed predictions; the fastest counts, since other processes only slow them down
C_REPEATS = 200
TIMER = """
#include <time.h>

void sparloom_time(double m, double n, double k, double a_transposed, double b_transposed, long repeats,
                   double *seconds, double *rates)
{
    struct timespec before, after;
    seconds[0] = 1e9;
    for (long turn = 0; turn < repeats; turn++) {
        clock_gettime(CLOCK_MONOTONIC, &before);
        volatile int place = sparloom_gemm_best(m, n, k, a_transposed, b_transposed);
        clock_gettime(CLOCK_MONOTONIC, &after);
        (void)place;
        const double taken = (after.tv_sec - before.tv_sec) + 1e-9 * (after.tv_nsec - before.tv_nsec);
        if (taken < seconds[0])
            seconds[0] = taken;
    }
    for (int place = 0; place < SPARLOOM_GEMM_CONFIGS; place++)
        rates[place] = sparloom_gemm_predict(m, n, k, a_transposed, b_transposed, place);
}
"""
LABELS: Mapping[str, str] = {
    "noise_ceiling": "fastest of the other sweep", "model": "trees", "distilled": "trees, distilled",
    "log": "trees, log throughput", "raw": "trees, raw throughput", "bandwidth": "trees, log1p bandwidth",
    "latency": "trees, raw latency", "vendor": "MKL", "static": "one configuration for all", "random": "random",
}
OTHERS: Mapping[str, Target] = {
    "log": Target("throughput", "log"), "raw": Target("throughput", "raw"), "bandwidth": Target("bandwidth", "log1p"),
    "latency": Target("latency", "raw"),
}
"""Targets that are compared with that of the saved model: those of the source, and the scales it rejected."""

HEADER = "sparloom_gemm.h"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Distillation:
    """Settings for distilling the GEMM model to a small one.

    Args:
        growth: settings of the small model.
        shapes: number of shapes that the large model labels, drawn near the measured ones.
        focus: extra weight of the fast configurations of a shape, see `distil`.
    """

    growth: BoostingConfig
    shapes: int
    focus: float
    share: float

    def small(self, subject: TreeSubject, model: PerformanceModel) -> PerformanceModel:
        shapes = nearby_shapes(gemm_shapes(subject.measured.problems), self.shapes, seed=self.growth.seed)
        problems = gemm_problems(shapes)
        return distil(model, problems, subject.measured.configs, growth=self.growth, focus=self.focus, share=self.share)

    def scores(self, subject: TreeSubject, model: PerformanceModel) -> Float[np.ndarray, "problems configs"]:
        """Score every fold by the distilled form of the member that has not seen it."""
        fold = problem_folds(subject.measured, model.folds).ravel()
        found = np.zeros(subject.measured.seconds.shape)
        for number in range(len(model.members)):
            asked = fold == number
            small = self.small(subject, model.member(number))
            problems = {name: column[asked] for name, column in subject.measured.problems.items()}
            found[asked] = small.over(subject.measured.configs).score(problems)
        return found


def prediction_seconds(model: PerformanceModel, subject: TreeSubject, *, threads: int) -> float:
    """Return the least time of predicting all configurations on one problem, including features."""
    candidates = replace(model, threads=threads).over(subject.measured.configs)
    problem = {name: column[:1] for name, column in subject.measured.problems.items()}
    candidates.predict(problem)
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        candidates.predict(problem)
        taken.append(time.perf_counter() - began)
    return min(taken)


def write_header(path: Path, model: PerformanceModel, subject: TreeSubject) -> Mapping[str, float]:
    """Write the C header, compile it, compare its predictions with Python and time it.

    Returns:
        `c_milliseconds` of choosing for one problem, and `c_error`, the largest relative difference of a prediction.
    """
    configs = subject.measured.configs
    text = c_header(model, configs, fallback=subject.fallback)
    write_text(path, text)
    sizes = [Param(name, F64) for name in GEMM_INPUTS]
    results = [Param(name, F64, buffer=True, const=False) for name in ("seconds", "rates")]
    source = Source("sparloom_time", (*sizes, Param("repeats", I64), *results), text + TIMER)
    function = compile_c([source]).function("sparloom_time")
    problems = {name: subject.measured.problems[name] for name in GEMM_INPUTS}
    expected = model.over(configs).predict(problems)
    taken, worst = [], 0.0
    for index in range(len(subject)):
        seconds, rates = np.zeros(1), np.zeros(len(configs))
        sizes = (float(problems[name][index]) for name in GEMM_INPUTS)
        function(*sizes, C_REPEATS if index == 0 else 1, seconds, rates)
        taken.append(seconds[0])
        worst = max(worst, float(np.abs(rates / expected[index] - 1).max()))
    return {"c_milliseconds": taken[0] * 1e3, "c_error": worst}


class LoggedTreeCount:
    """Choose the number of trees of every member of a model in turn, and log the error after every tree.

    Gives the same numbers as `BoostingConfig.best_tree_count`.

    Args:
        out: folder of the logs; each member has a folder in it.
        logger: keyword argument save_dir -> Lightning logger.
    """

    def __init__(self, out: Path, logger: Callable[..., Any]) -> None:
        self._out, self._logger, self._members = out, logger, 0

    def __call__(
        self, growth: BoostingConfig, rows: Rows, held: Rows, names: tuple[str, ...], *, quantile: float | None = None
    ) -> int:
        """Train with early stopping on the held-out rows; return the number of trees with the smallest error."""
        module = models.BoostingModule(growth, names, rows=rows, held=held, quantile=quantile)
        models.train_on_cpu(module, out=self._out / f"member_{self._members}", logger=self._logger)
        self._members += 1
        return max(1, module.booster.best_iteration)


@dataclass(frozen=True)
class FitTrees:
    """Train a model of GEMM and one of each sparse operation.

    The saved model is the scored one: it has one member per fold, each problem is scored by the member that has not
    seen it, and predictions for new problems are means over all members.

    Args:
        judging_sweep: number of the sweep whose seconds judge.
        others: further targets that are compared with it: log, raw, bandwidth, latency.
        roles: roles of the matrices of sparse operations; without "test" while anything is chosen by the result. Models
            of fewer roles have folders of their own.
        base: folder of an earlier GEMM model that is trained further, or None.
        logger: keyword argument save_dir -> Lightning logger of the trees of the saved models; None: no logger.
    """

    gemm: Op
    gemm_platform: "CpuKernels | CudaPlatform"
    sparse: Sequence[Op]
    sparse_platform: "CpuKernels"
    samples: SampleSource
    judging_sweep: int
    target: Target
    others: Sequence[str]
    growth: BoostingConfig
    folds: int
    distillation: Distillation
    coverage: float
    roles: Sequence[Role]
    models: TreeModels
    base: str | None
    threads: int
    seed: int
    logger: Callable[..., Any] | None = None

    def run(self, out: Path) -> Mapping[str, float]:
        """Write models, per_problem.parquet and the C header; print efficiencies with bounds."""
        began = time.monotonic()
        subjects = [sparse_subject(self.samples, self.sparse_platform, op, judging=self.judging_sweep,
                                   roles=self.roles) for op in self.sparse]  # before anything is trained
        metrics, rows = self._dense(out)
        frames = [rows]
        for op, subject in zip(self.sparse, subjects, strict=True):
            found, rows = self._sparse(op, subject, out)
            metrics |= found
            frames.append(rows)
        write_frame(out / "per_problem.parquet", pd.concat(frames, ignore_index=True))
        return metrics | {"seconds": time.monotonic() - began}

    def _dense(self, out: Path) -> tuple[dict[str, float], pd.DataFrame]:
        subject = gemm_subject(self.samples, self.gemm_platform, self.gemm, judging=self.judging_sweep, alone=True)
        asked = subject.take(~subject.unasked)
        model = self._trained(asked, self.base, tree_count=self._logged(out, self.gemm))
        scores = {"model": model_scores(asked, model), "distilled": self.distillation.scores(asked, model)}
        scores |= self._others(asked)
        folder = self.models.folder(self.gemm_platform, self.gemm, self.samples)
        metrics, rows = self._judged(asked, model, scores, prefix="oof/")
        metrics |= {"oof/unasked_problems": int(subject.unasked.sum())}
        with atomic_folder(folder) as made:  # its models belong together
            metrics |= self._interval(asked, model, made) | self._small(asked, model, made)
            self._save(made, model)
        logger.info("%s: %d trees", folder / FULL, model.trees)
        return metrics, rows

    def _sparse(self, op: Op, subject: TreeSubject, out: Path) -> tuple[dict[str, float], pd.DataFrame]:
        asked = subject.take(~subject.unasked)
        model = self._trained(asked, None, tree_count=self._logged(out, op))
        scores = {"model": model_scores(asked, model)} | self._others(asked)
        folder = self.models.folder(self.sparse_platform, op, self.samples, self.roles)
        self._save(folder, model)
        logger.info("%s: %d trees", folder / FULL, model.trees)
        return self._judged(asked, model, scores, prefix=f"{op.name}/oof_")

    def _others(self, subject: TreeSubject) -> dict[str, np.ndarray]:
        """Return scores of models of other targets, which are not saved."""
        return {name: model_scores(subject, self._trained(subject, None, OTHERS[name])) for name in self.others}

    def _logged(self, out: Path, op: Op) -> TreeCount | None:
        return LoggedTreeCount(out / "training" / op.name, self.logger) if self.logger else None

    def _trained(
        self, subject: TreeSubject, base: str | None, target: Target | None = None, tree_count: TreeCount | None = None
    ) -> PerformanceModel:
        began = time.monotonic()
        if base is not None:
            earlier = load_performance(Path(base), spec=subject.spec, threads=self.growth.threads)
            model = continue_training(earlier, subject.measured, spec=subject.spec,
                                 growth=self.growth.with_trees(self.growth.more_trees))
        else:
            model = train_performance(subject.measured, spec=subject.spec, target=target or self.target,
                                      origin=subject.origin, growth=self.growth, folds=self.folds,
                                      tree_count=tree_count)
        logger.info("%s, %s %s: %d trees in %d members, %.0f s", subject.spec.op, model.target.scale,
                    model.target.quantity, model.trees, len(model.members), time.monotonic() - began)
        return model

    def _judged(
        self, subject: TreeSubject, model: PerformanceModel, scores: Mapping[str, np.ndarray], *, prefix: str
    ) -> tuple[dict[str, float], pd.DataFrame]:
        judgement = Judgement.of(subject, scores, model.folds, prefix=prefix, seed=self.seed)
        title = (f"{op_title(subject.spec.op)} on {subject.origin.platform} {subject.origin.preset}: efficiency on "
                 f"{len(subject)} problems out of fold, {len(subject.measured.configs)} configurations")
        of_gpu = subject.spec.op == self.gemm.name and self.gemm_platform.kind == "device"
        labels = LABELS | ({"vendor": "cuBLAS"} if of_gpu else {})
        log.console.print(efficiency_table(judgement.rows, labels, title=title, seed=self.seed), soft_wrap=False)
        metrics = {f"{prefix}rows": int(subject.offered.sum()), f"{prefix}trees": model.trees}
        return metrics | judgement.metrics(), judgement.rows.assign(op=subject.spec.op)

    def _interval(self, subject: TreeSubject, model: PerformanceModel, folder: Path) -> dict[str, float]:
        """Fit quantile models to the other sweeps; return how often the judging sweep lies within the interval.

        A sweep that is alone is learned from, too; each problem is judged by models of other problems.
        """
        learned = subject.judged.seconds if subject.other is None else subject.other
        grid = Grid.of(subject.spec, subject.with_seconds(learned), target=model.target)
        folds = problem_folds(subject.measured, model.folds)
        bounds = bounds_out_of_fold(grid, self.growth, folds, coverage=self.coverage)
        save_interval(folder / INTERVAL, bounds.interval(model))
        judging = Grid.of(subject.spec, subject.with_seconds(subject.judged.seconds), target=model.target).targets
        widened = model.target.restore(bounds.high + bounds.margins) / model.target.restore(bounds.low - bounds.margins)
        return {"interval/meant": self.coverage, "interval/coverage": float(bounds.cover(judging)[grid.ran].mean()),
                "interval/coverage_unwidened": float(bounds.cover_plain(judging)[grid.ran].mean()),
                "interval/median_ratio": float(np.median(widened[grid.ran]))}

    def _small(self, subject: TreeSubject, model: PerformanceModel, folder: Path) -> dict[str, float]:
        """Save the distilled model of all members, in Python and as a C header; return its prediction times."""
        small = self.distillation.small(subject, model)
        save_performance(folder / SMALL, small)
        timed = {name: prediction_seconds(variant, subject, threads=self.threads) * 1e3
                 for name, variant in (("full_milliseconds", model), ("distilled_milliseconds", small))}
        timed |= {"configurations": len(subject.measured.configs), "distilled_trees": small.trees}
        timed |= write_header(folder / HEADER, small, subject)
        return {f"predict/{key}": value for key, value in timed.items()}

    def _save(self, folder: Path, model: PerformanceModel) -> None:
        save_performance(folder / FULL, model)
        write_json(folder / "lineage.json", list(model.lineage))
