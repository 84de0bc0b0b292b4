"""How configurations are chosen: by a model out of fold, by one configuration for all, by the sweep before."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from sparloom.experiments.tree_subject import TreeSubject
from sparloom.measure import geomean
from sparloom.models.performance import Grid, PerformanceModel, fold_of, out_of_fold
from sparloom.report import efficiencies, efficiency_metrics, paired_metrics

__all__ = ["Judgement", "chosen", "model_scores"]

NAMES: Mapping[str, Mapping[str, str]] = {
    "model": {"mean": "mean_efficiency", "p10": "p10_efficiency", "min": "min_efficiency"},
    "static": {"mean": "static_efficiency", "p10": "static_p10_efficiency", "min": "static_min_efficiency"},
    "noise_ceiling": {"mean": "noise_ceiling", "p10": "noise_ceiling_p10", "min": "noise_ceiling_min"},
    "random": {"mean": "random_efficiency"},
    "vendor": {"mean": "vendor_efficiency", "p10": "vendor_p10_efficiency"},
}
"""Method -> names of its numbers; those of other methods begin with the method."""


def model_scores(subject: TreeSubject, model: PerformanceModel) -> Float[np.ndarray, "problems configs"]:
    """Score every problem by the member that has not seen it; low = fast."""
    grid = Grid.of(subject.spec, subject.measured, target=model.target).only(model.names)
    return model.target.sign * out_of_fold(grid, model.members, fold_of(subject.measured, model.folds),
                                           threads=model.threads)


def chosen(subject: TreeSubject, scores: Float[np.ndarray, "problems configs"]) -> Int[np.ndarray, " problems"]:
    """Column of the lowest score among the configurations that are offered for the problem; ties to the first."""
    return np.where(subject.offered, scores, np.inf).argmin(axis=1)


@dataclass(frozen=True)
class Judgement:
    """Choices of several methods on the problems of one operation.

    Args:
        prefix: of the metrics.
        rows: one per method and problem, see `report.Scene.judged`.
        seed: of the bounds.
    """

    prefix: str
    rows: pd.DataFrame
    seed: int

    @classmethod
    def of(
        cls, subject: TreeSubject, scores: Mapping[str, Float[np.ndarray, "problems configs"]],
        folds: Mapping[str, int], *, prefix: str, seed: int,
    ) -> "Judgement":
        """Judge methods by their scores, beside what needs no model.

        Args:
            scores: by method, out of fold; "model" is the one that the others are compared with.
            folds: by group; the static choice is made on the other folds, too.
        """
        scene = subject.scene
        frames = [scene.judged(method, chosen(subject, given)) for method, given in scores.items()]
        frames.append(scene.judged("static", _static(subject, folds)))
        frames.append(scene.judged("noise_ceiling", chosen(subject, subject.other)))
        frames.append(_random(subject))
        if np.isfinite(subject.vendor).any():
            frames.append(scene.rival("vendor", subject.vendor).dropna(subset="seconds"))
        rows = pd.concat(frames, ignore_index=True)
        return cls(prefix, rows.assign(fold=rows["group"].map(folds)), seed)

    def of_method(self, method: str) -> pd.DataFrame:
        """Rows of one method."""
        return self.rows[self.rows["method"] == method].reset_index(drop=True)

    def metrics(self) -> dict[str, float]:
        """Efficiencies of all methods and slices, and the model against each other method."""
        found: dict[str, float] = {"problems": len(self.of_method("model"))}
        for method in self.rows["method"].unique():
            names = NAMES.get(method) or {key: f"{method}_{name}" for key, name in NAMES["model"].items()}
            found |= efficiency_metrics(self.of_method(method), names, seed=self.seed)
        for name, rows in self.of_method("model").groupby("slice"):
            label = str(name).replace(" ", "_")
            names = {key: f"{label}_{called}" for key, called in NAMES["model"].items()}
            found |= efficiency_metrics(rows, names, seed=self.seed) | {f"{label}_problems": len(rows)}
        return {f"{self.prefix}{key}": value for key, value in (found | self._comparisons()).items()}

    def _comparisons(self) -> dict[str, float]:
        model = self.of_method("model")
        found = paired_metrics(model, self.of_method("noise_ceiling"), "of_noise_ceiling", _share, column="efficiency",
                               seed=self.seed)
        for method in self.rows["method"].unique():
            others = self.of_method(method)
            both = model.merge(others[["matrix", "width"]])
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


def _static(subject: TreeSubject, folds: Mapping[str, int]) -> np.ndarray:
    """For each fold the configuration with the highest mean efficiency on all others; the best that is offered."""
    fold = fold_of(subject.measured, folds).ravel()
    reached = efficiencies(subject.measured.seconds)
    columns = np.zeros(len(subject), int)
    for number in set(folds.values()):
        own = fold == number
        columns[own] = np.where(subject.offered[own], -reached[~own].mean(axis=0), np.inf).argmin(axis=1)
    return columns


def _random(subject: TreeSubject) -> pd.DataFrame:
    """The mean over uniformly random choices."""
    scene = subject.scene
    mean = np.nanmean(np.where(subject.offered, scene.best[:, None] / scene.seconds, np.nan), axis=1)
    return scene.rival("random", scene.best / mean)

