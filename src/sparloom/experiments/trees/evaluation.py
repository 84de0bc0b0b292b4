"""Load the sweeps that performance models learn from, and judge choices of configurations by them."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from sparloom.baselines import VENDOR
from sparloom.data import SampleSource, SampleTable, Sweeps
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.experiments.harness import check_width
from sparloom.measure import geomean
from sparloom.models.performance import (
    GEMM_SPECS,
    SDDMM_FEATURES,
    SPMM_FEATURES,
    FeatureSpec,
    Grid,
    Measured,
    Origin,
    PerformanceModel,
    gemm_problems,
    machine_constants,
    out_of_fold,
    problem_folds,
    sparse_problems,
)
from sparloom.ops import GemmShape, Op
from sparloom.report import JudgedProblems, efficiencies, efficiency_metrics, paired_metrics
from sparloom.space import Config, gemm_program
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels, CudaPlatform

SPARSE_FEATURES: Mapping[str, FeatureSpec] = {"spmm": SPMM_FEATURES, "sddmm": SDDMM_FEATURES}
FEW_ROWS = 16  # at most, of products that are judged by themselves, too
LARGE = 64e6  # flops of the smallest large GEMM
logger = logging.getLogger(__name__)
METRIC_NAMES: Mapping[str, Mapping[str, str]] = {
    "model": {"mean": "mean_efficiency", "p10": "p10_efficiency", "min": "min_efficiency"},
    "static": {"mean": "static_efficiency", "p10": "static_p10_efficiency", "min": "static_min_efficiency"},
    "noise_ceiling": {"mean": "noise_ceiling", "p10": "noise_ceiling_p10", "min": "noise_ceiling_min"},
    "random": {"mean": "random_efficiency"},
    "vendor": {"mean": "vendor_efficiency", "p10": "vendor_p10_efficiency"},
}
"""Method -> names of its metrics; metrics of other methods have the method as a prefix."""


@dataclass(frozen=True)
class TreeSubject:
    """One operation on one platform.

    Args:
        measured: mean seconds of all sweeps, which models learn from; no model is scored on a problem that it has
            learned from, in any sweep.
        other: mean seconds of the other sweeps, which measure the noise, (problems, configs); None: there is one sweep.
        vendor: seconds of the fastest vendor kernel in the judging sweep, (problems,); NaN where there is none.
        fallback: configuration for problems outside the domain of the models.
    """

    spec: FeatureSpec
    origin: Origin
    measured: Measured
    other: Float[np.ndarray, "problems configs"] | None
    judged: JudgedProblems
    vendor: np.ndarray
    fallback: Config

    def __len__(self) -> int:
        return len(self.measured)

    @cached_property
    def offered(self) -> np.ndarray:
        """Tell whether a configuration ran on a problem, bool (problems, configs)."""
        return np.isfinite(self.measured.seconds)

    def with_seconds(self, seconds: Float[np.ndarray, "problems configs"]) -> Measured:
        """Return the problems with other seconds, such as those of some sweeps."""
        return replace(self.measured, seconds=seconds)

    @cached_property
    def unasked(self) -> np.ndarray:
        """Problems outside the domain of the models, bool (problems,)."""
        return self.spec.falls_back(self.measured.problems)

    def take(self, selected: np.ndarray) -> "TreeSubject":
        """Keep some problems, given by a mask or by indices."""
        indices = np.arange(len(self))[selected]
        judged = replace(self.judged, about=self.judged.about.iloc[indices].reset_index(drop=True),
                        seconds=self.judged.seconds[indices])
        other = None if self.other is None else self.other[indices]
        return replace(self, measured=self.measured.take(indices), other=other, judged=judged,
                       vendor=self.vendor[indices])


def gemm_subject(
    samples: SampleSource, platform: "CpuKernels | CudaPlatform", op: Op, *, judging: int, alone: bool = False
) -> TreeSubject:
    """Load GEMM samples: a problem is a shape in a layout, a group is a shape.

    Configurations that are one program in a layout share its seconds, see `gemm_program`.

    Args:
        alone: the judging sweep may be the only one.
    """
    table, space = samples.table(platform.name, platform.preset, op.name), platform.space(op)
    measured = set(table.sweeps()["config"])
    configs = tuple(config for config in space if config.key in measured)
    sweeps = _opened(table, [config.key for config in configs], judging, alone=alone)
    shapes = [GemmShape.of(*problem) for problem in sweeps.problems]
    sweeps = replace(sweeps, seconds=_by_program(sweeps.seconds, configs, [shape.layout for shape in shapes]))
    about = pd.DataFrame({
        "matrix": [shape.matrix for shape in shapes], "width": [shape.n for shape in shapes],
        "group": [f"{shape.m}x{shape.n}x{shape.k}" for shape in shapes], "slice": [_slice(shape) for shape in shapes],
        "layout": [shape.layout for shape in shapes],
        "height": ["few_rows" if shape.m <= FEW_ROWS else "many_rows" for shape in shapes],
    })
    origin = Origin(platform.name, platform.preset, space.digest(), _constants(table, platform))
    problems = gemm_problems(shapes) | {name: np.full(len(shapes), value) for name, value in origin.machine.items()}
    return TreeSubject(
        spec=GEMM_SPECS[platform.name], origin=origin, fallback=space.default(),
        measured=Measured(problems, tuple(about["group"]), configs, _mean(sweeps.seconds)),
        other=_other(sweeps, judging),
        judged=JudgedProblems(about, sweeps.configs, sweeps.seconds[:, :, judging]),
        vendor=_fastest_vendor(samples, platform, op, sweeps, judging))


def sparse_subject(
    samples: SampleSource, platform: "CpuKernels", op: Op, *, judging: int, roles: Collection[Role]
) -> TreeSubject:
    """Load a sparse operation: a problem is a matrix and a width, a group is a family of matrices.

    Configurations are those of the table, because the space depends on the width. Problems have all widths of the
    samples, which must include that of the platform: the fallback configuration is of that width.

    Raises:
        ValueError: there are samples, but none of the platform's width.
    """
    table, space = samples.table(platform.name, platform.preset, op.name), platform.space(op)
    check_width(table, platform, op)
    split, families, statistics = samples.split(), samples.families(), samples.statistics()
    if unlisted := sorted(set(table.matrices) - split.keys()):
        logger.warning("%d matrices without a role are left out, such as %s", len(unlisted), unlisted[0])
    table = table.filter(matrices={name for name in table.matrices if split.get(name) in roles})
    sweeps = _opened(table, sorted(set(table.sweeps()["config"])), judging)
    configs = tuple(Config.parse(space.name, key) for key in sweeps.configs)
    about = pd.DataFrame({
        "matrix": [name for name, _ in sweeps.problems], "width": [width for _, width in sweeps.problems],
        "group": [families[name] for name, _ in sweeps.problems],
        "slice": [f"width_{width}" for _, width in sweeps.problems],
    })
    origin = Origin(platform.name, platform.preset, space.digest(), _constants(table, platform))
    problems = dict(sparse_problems(sweeps.problems, statistics)) | {
        name: np.full(len(sweeps), value) for name, value in origin.machine.items()}
    return TreeSubject(
        spec=SPARSE_FEATURES[op.name], origin=origin, fallback=space.default(),
        measured=Measured(problems, tuple(about["group"]), configs, _mean(sweeps.seconds)),
        other=_other(sweeps, judging),
        judged=JudgedProblems(about, sweeps.configs, sweeps.seconds[:, :, judging]),
        vendor=_fastest_vendor(samples, platform, op, sweeps, judging))


def _opened(table: SampleTable, configs: list[str], judging: int, *, alone: bool = False) -> Sweeps:
    """Arrange a table by sweeps; problems that lack rows in one of the sweeps are left out.

    Raises:
        SchemaError: the judging sweep is missing, or there is no other sweep and it may not be `alone`.
    """
    sweeps = Sweeps.of(table, configs)
    count = sweeps.seconds.shape[2]
    if judging >= count or (count < 2 and not alone):
        raise SchemaError(f"sweep {judging} judges and another one measures the noise, but the table has {count}: "
                          f"collect with timing.rounds={max(2, judging + 1)}")
    if count == 1:
        logger.warning("the table has one sweep, so the noise is unknown: collect with timing.rounds=2 to measure it")
    whole = sweeps.complete
    if not whole.all():
        logger.warning("%d of %d problems lack rows in one of the sweeps and are left out", (~whole).sum(), len(whole))
    return sweeps.take(whole)


def _by_program(
    seconds: Float[np.ndarray, "problems configs sweeps"], configs: Sequence[Config], layouts: Sequence[str]
) -> Float[np.ndarray, "problems configs sweeps"]:
    """Give configurations that were not measured, since they are the program of another one, its seconds."""
    columns = {config: column for column, config in enumerate(configs)}
    programs = {layout: [columns.get(gemm_program(config, layout), columns[config]) for config in configs]
                for layout in set(layouts)}
    return np.stack([of_problem[programs[layout]] for of_problem, layout in zip(seconds, layouts, strict=True)])


def _mean(seconds: Float[np.ndarray, "problems configs sweeps"]) -> Float[np.ndarray, "problems configs"]:
    """Geometric mean over sweeps; NaN where a configuration did not run."""
    return np.exp(np.log(seconds).mean(axis=2))


def _other(sweeps: Sweeps, judging: int) -> Float[np.ndarray, "problems configs"] | None:
    """Mean seconds of the sweeps that do not judge; None if there are none."""
    return None if sweeps.seconds.shape[2] == 1 else _mean(np.delete(sweeps.seconds, judging, axis=2))


def _slice(shape: GemmShape) -> str:
    if shape.m == 1:
        return "m1"
    if shape.flops < 1e6:
        return "tiny"
    return "large" if shape.flops >= LARGE else "medium"


def _constants(table: SampleTable, platform: "CpuKernels | CudaPlatform") -> dict[str, float]:
    """Return constants of the machine that made the table, as far as its provenance records them, or of the device."""
    if platform.kind == "device":
        return {"multiprocessors": float(platform.limits.multiprocessors)}
    machines = [entry["machine"] for entry in table.provenance if isinstance(entry.get("machine"), dict)]
    return machine_constants(machines[-1] if machines else {}, threads=platform.threads)


def _fastest_vendor(
    samples: SampleSource, platform: "CpuKernels | CudaPlatform", op: Op, sweeps: Sweeps, sweep: int
) -> np.ndarray:
    """Return the least seconds of vendor kernels on each problem; NaN where none was timed."""
    try:
        rows = samples.table(platform.name, VENDOR, op.name).sweeps()
    except MissingArtifact:
        logger.warning("no rows of preset %s: choices are not compared with vendor kernels", VENDOR)
        return np.full(len(sweeps), np.nan)
    least = rows[rows["round"] == sweep].groupby(["matrix", "width"], observed=True)["seconds"].min()
    return np.array([least.get(problem, np.nan) for problem in sweeps.problems])


def model_scores(subject: TreeSubject, model: PerformanceModel) -> Float[np.ndarray, "problems configs"]:
    """Score every problem by the ensemble member that has not seen it; low = fast."""
    grid = Grid.of(subject.spec, subject.measured, target=model.target).only(model.names)
    return model.target.sign * out_of_fold(grid, model.members, problem_folds(subject.measured, model.folds),
                                           threads=model.threads)


def best_configs(subject: TreeSubject, scores: Float[np.ndarray, "problems configs"]) -> Int[np.ndarray, " problems"]:
    """Return the column of the lowest score among the configurations that ran on each problem (first of ties)."""
    return np.where(subject.offered, scores, np.inf).argmin(axis=1)


@dataclass(frozen=True)
class Judgement:
    """Choices of several methods on the problems of one operation.

    Args:
        rows: one per method and problem, see `report.JudgedProblems.choices`.
    """

    prefix: str
    rows: pd.DataFrame
    seed: int

    @classmethod
    def of(
        cls, subject: TreeSubject, scores: Mapping[str, Float[np.ndarray, "problems configs"]],
        folds: Mapping[str, int], *, prefix: str, seed: int,
    ) -> "Judgement":
        """Judge methods by their scores, and choices that need no model.

        Args:
            scores: method -> out-of-fold scores; the other methods are compared with "model".
            folds: group -> fold; the static choice is made on the other folds.
        """
        judged = subject.judged
        frames = [judged.choices(method, best_configs(subject, values)) for method, values in scores.items()]
        static = static_scores(efficiencies(subject.measured.seconds), problem_folds(subject.measured, folds))
        frames.append(judged.choices("static", best_configs(subject, static)))
        if subject.other is not None:
            frames.append(judged.choices("noise_ceiling", best_configs(subject, subject.other)))
        frames.append(_random(subject))
        if np.isfinite(subject.vendor).any():
            frames.append(judged.baseline("vendor", subject.vendor).dropna(subset="seconds"))
        rows = pd.concat(frames, ignore_index=True)
        return cls(prefix, rows.assign(fold=rows["group"].map(folds)), seed)

    def of_method(self, method: str) -> pd.DataFrame:
        return self.rows[self.rows["method"] == method].reset_index(drop=True)

    def metrics(self) -> dict[str, float]:
        """Efficiencies of all methods and slices, and the model against each other method."""
        found: dict[str, float] = {"problems": len(self.of_method("model"))}
        for method in self.rows["method"].unique():
            names = METRIC_NAMES.get(method) or {key: f"{method}_{name}" for key, name in METRIC_NAMES["model"].items()}
            found |= efficiency_metrics(self.of_method(method), names, seed=self.seed)
        model = self.of_method("model")
        for column in (name for name in ("slice", "layout", "height") if name in model):
            for name, rows in model.groupby(column):
                names = {key: f"{name}_{called}" for key, called in METRIC_NAMES["model"].items()}
                found |= efficiency_metrics(rows, names, seed=self.seed) | {f"{name}_problems": len(rows)}
        return {f"{self.prefix}{key}": value for key, value in (found | self._comparisons()).items()}

    def _comparisons(self) -> dict[str, float]:
        model = self.of_method("model")
        found: dict[str, float] = {}
        for method in self.rows["method"].unique():
            others = self.of_method(method)
            both = model.merge(others[["matrix", "width"]])
            if method == "noise_ceiling":
                found |= paired_metrics(model, others, "of_noise_ceiling", _share, column="efficiency", seed=self.seed)
            if method not in ("model", "noise_ceiling", "vendor"):
                found |= paired_metrics(both, others, f"lead_over_{method}", _lead, column="efficiency", seed=self.seed)
            if method in ("static", "vendor"):
                found |= paired_metrics(both, others, f"speedup_over_{method}", _speedup, column="seconds",
                                        seed=self.seed)
        return found


def _share(own: np.ndarray, others: np.ndarray) -> float:
    return own.mean() / others.mean()


def _lead(own: np.ndarray, others: np.ndarray) -> float:
    return own.mean() - others.mean()


def _speedup(own: np.ndarray, others: np.ndarray) -> float:
    return geomean(others / own)


def static_scores(
    reached: Float[np.ndarray, "problems configs"], folds: Int[np.ndarray, "problems 1"],
) -> Float[np.ndarray, "problems configs"]:
    """Score configurations by their mean efficiency on the problems of the other folds; low = fast."""
    means = np.stack([reached[(folds != number).ravel()].mean(axis=0) for number in range(folds.max() + 1)])
    return -means[folds.ravel()]


def _random(subject: TreeSubject) -> pd.DataFrame:
    """Return rows of the expected efficiency of a uniformly random choice."""
    judged = subject.judged
    mean = np.nanmean(np.where(subject.offered, judged.best[:, None] / judged.seconds, np.nan), axis=1)
    return judged.baseline("random", judged.best / mean)
