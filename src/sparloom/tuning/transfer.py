"""Sources of a campaign: what other devices, problem sizes, versions or a simulator have shown of similar programs.

A source need not have the parameters of the target. Those that both have are shared; of each combination of shared
values the fastest trial of the source counts, as its own parameters can be chosen freely there; the target's own
parameters are left to the target's own trials.

What a source is worth is estimated from the order in which it ranks the target's trials. Before there are any, it is
trusted by half; sixteen trials count five times as much as that belief. A source that ranks them the wrong way is not
trusted at all.

Source: weights by ranking follow M. Feurer, B. Letham and E. Bakshy, Scalable meta-learning for Bayesian optimization
using ranking-weighted Gaussian process ensembles, AutoML workshop 2018. Departures: Kendall's coefficient, shrunk to
a prior belief, instead of the share of drawn rankings that a source wins; sources are slopes of one process instead
of processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import kendalltau

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.models import Posterior, Priors, Surrogate, lowest_and_spread
from sparloom.space import Columns, SearchSpace
from sparloom.tuning.encoding import SpaceEncoding

if TYPE_CHECKING:
    import pandas as pd

PRIOR_TRUST = 0.5  # Kendall's coefficient that is expected of a source
PRIOR_TRIALS = 3.0  # of the target, that weigh as much as this expectation
MAX_CONDITIONED = 1024  # trials of a source that its model reads
FAILED_QUANTILE = 0.9  # of the source's times, which stands for a failed trial
LENGTH_DEVIATION = 0.5  # of the prior of lengths that sources have taught
PREDICTED_LENGTH = (np.log(2.0), 0.7)  # prior of the length in what a source predicts, scaled by PREDICTED_SCALE
PREDICTED_SCALE = 0.2
SLOPE_VARIANCE = (np.log(0.1), 1.0)  # prior


@dataclass(frozen=True)
class Source:
    """Trials of another campaign.

    Args:
        name: in reports, for example the device.
        trials: a column for every parameter of the source, seconds (NaN for a failure), and if there are several
            problems, problem.
    """

    name: str
    trials: pd.DataFrame

    def __post_init__(self) -> None:
        if "seconds" not in self.trials or self.trials["seconds"].notna().sum() < 2:
            raise SchemaError(f"source {self.name} has fewer than two trials with seconds: leave it out")

    def of_problem(self, problem: str) -> Source:
        """Return the trials of one problem, or all of them if there is none of this name."""
        if "problem" not in self.trials or problem not in set(self.trials["problem"]):
            return self
        return Source(self.name, self.trials[self.trials["problem"] == problem].drop(columns="problem"))


class SourceModel:
    """A source as seen from the space of the target: log seconds of any of its configurations, standardised."""

    def __init__(self, source: Source, space: SearchSpace) -> None:
        self.name, self._space = source.name, space
        self.shared = [name for name in space.names if name in source.trials]
        if not self.shared:
            raise SchemaError(f"source {source.name} has none of the parameters {', '.join(space.names)}: its columns "
                              f"are {', '.join(map(str, source.trials.columns))}")
        columns, relative = self._read(source.trials)
        self._encoding = SpaceEncoding(space, {"": {}})
        codes, places = np.unique(self._codes(columns), axis=0, return_inverse=True)
        logs = np.full(len(codes), np.inf)
        np.fmin.at(logs, places.reshape(-1), relative)
        finite = np.isfinite(logs)
        self._codes_seen, self._failed = codes, ~finite
        mean, self.deviation = logs[finite].mean(), max(1e-3, logs[finite].std())
        self._values = np.where(finite, (logs - mean) / self.deviation, 0)
        self._values[~finite] = np.quantile(self._values[finite], FAILED_QUANTILE)
        first = np.full(len(codes), -1)
        first[places.reshape(-1)] = np.arange(len(places.reshape(-1)))
        self._points = self._encoding.points("", {name: column[first] for name, column in columns.items()})
        self._surrogate = Surrogate(self._encoding.priors).fit(self._points[finite], self._values[finite])

    @property
    def lengths(self) -> np.ndarray:
        """Logarithms of the lengths of the source's own model."""
        return self._surrogate.mode[:len(self._encoding.priors.lengths)]

    def predict(self, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
        """Return standardised log seconds (n,), and which configurations failed: 0 or 1, (n,)."""
        codes = self._codes(columns)
        everything = np.concatenate([self._codes_seen, codes])
        place = np.unique(everything, axis=0, return_inverse=True)[1].reshape(-1)
        index = np.full(place.max(initial=-1) + 1, -1)
        index[place[:len(self._codes_seen)]] = np.arange(len(self._codes_seen))
        index = index[place[len(self._codes_seen):]]
        values, failed = self._values[index], np.where(index >= 0, self._failed[index], 0).astype(float)
        if (index < 0).any():
            rows = np.flatnonzero(index < 0)
            unseen = self._encoding.points("", {name: column[rows] for name, column in columns.items()})
            values[rows] = self._posterior.at(unseen)[0]
        return values, failed

    def fastest(self, count: int) -> Columns:
        """Return the fastest configurations of the source, the target's own parameters at their defaults."""
        order = np.argsort(np.where(self._failed, np.inf, self._values), kind="stable")[:count]
        return self._decode(self._codes_seen[order])

    @cached_property
    def _posterior(self) -> Posterior:
        rows = lowest_and_spread(self._values, MAX_CONDITIONED)
        return self._surrogate.condition(self._points[rows], self._values[rows])

    def _read(self, trials: pd.DataFrame) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the trials as columns of the target, and their log seconds, relative to the mean of the problem.

        Trials with a value that the target does not know are left out; log seconds of failures are NaN.
        """
        parameters = {each.name: each for each in self._space.parameters}
        columns = dict(self._space.columns([self._space.default()]))
        usable, read = np.ones(len(trials), bool), {}
        for name in self.shared:
            values, parsed = trials[name].tolist(), {}
            for value in dict.fromkeys(values):
                try:
                    parsed[value] = parameters[name].parse(value)
                except IllegalSchedule:
                    parsed[value] = None
            read[name] = [parsed[value] for value in values]
            usable &= np.array([value is not None for value in read[name]])
        if usable.sum() < 2:
            raise SchemaError(f"source {self.name}: fewer than two trials have values of {', '.join(self.shared)} that "
                              f"space {self._space.name} has, too: leave it out")
        for name, column in columns.items():
            if name in read:
                kept = [value for value, use in zip(read[name], usable, strict=True) if use]
                columns[name] = parameters[name].column(kept)
            else:
                columns[name] = np.repeat(column, int(usable.sum()))
        logs = np.log(trials["seconds"].astype(float))
        if "problem" in trials:
            logs = logs - logs.groupby(trials["problem"]).transform("mean")
        return columns, logs.to_numpy()[usable]

    def _codes(self, columns: Columns) -> np.ndarray:
        """Return the codes of the shared parameters."""
        return np.stack([each.codes(columns[each.name]) for each in self._space.parameters if each.name in self.shared],
                        axis=1).astype(np.float64)

    def _decode(self, codes: np.ndarray) -> Columns:
        columns = {name: np.repeat(column, len(codes))
                   for name, column in self._space.columns([self._space.default()]).items()}
        parameters = [each for each in self._space.parameters if each.name in self.shared]
        return columns | {each.name: each.decode(codes[:, place]) for place, each in enumerate(parameters)}


class SourceModels:
    """All sources of a campaign, as they are seen from its problems.

    A source that has a problem of the same name is read there; else all of its problems count, each relative to its
    mean.
    """

    def __init__(self, space: SearchSpace, problems: Iterable[str], sources: Sequence[Source]) -> None:
        twice = [each.name for each in sources if [other.name for other in sources].count(each.name) > 1]
        if twice:
            raise SchemaError(f"two sources are named {twice[0]}: rename one")
        self.names = [each.name for each in sources]
        models: dict[tuple[str, str], SourceModel] = {}
        self._models: dict[str, list[SourceModel]] = {}
        for problem in problems:
            self._models[problem] = []
            for source in sources:
                part = source.of_problem(problem)
                key = source.name, "" if part is source else problem
                if key not in models:
                    models[key] = SourceModel(part, space)
                self._models[problem].append(models[key])

    def predict(self, problem: str, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
        """Return what every source predicts, and where it failed: (n, sources) each, see `SourceModel.predict`."""
        count = len(next(iter(columns.values())))
        values, failed = np.zeros((2, count, len(self.names)))
        for place, model in enumerate(self._models[problem]):
            values[:, place], failed[:, place] = model.predict(columns)
        return values, failed

    def fastest(self, problem: str, count: int) -> list[Columns]:
        return [each.fastest(count) for each in self._models[problem]]

    def slopes(self, rankings: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return by how much log seconds grow with what each source predicts (sources,), see `trusts`.

        They are a regression that begins at the belief that all sources together are half as steep as the target.
        """
        models = next(iter(self._models.values()))
        believed = PRIOR_TRUST * np.array([each.deviation for each in models]) / max(1, len(models))
        squares, products = PRIOR_TRIALS * np.eye(len(models)), PRIOR_TRIALS * believed
        for predicted, logs in rankings:
            finite = np.isfinite(logs)
            if finite.sum() > 1:
                centred = predicted[finite] - predicted[finite].mean(axis=0)
                squares = squares + centred.T @ centred
                products = products + centred.T @ (logs[finite] - logs[finite].mean())
        return np.linalg.solve(squares, products)

    def trusts(self, rankings: Iterable[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
        """Return how much each source is trusted: 0 to 1.

        Args:
            rankings: for each problem, what the sources predict of its trials (n, sources), and their log seconds (n,),
                infinite for a failure.
        """
        listed = list(rankings)
        return {name: trust((predicted[:, place], logs) for predicted, logs in listed)
                for place, name in enumerate(self.names)}

    def extend(self, priors: Priors, trusts: Mapping[str, float]) -> Priors:
        """Add the lengths and slopes of sources, and move the other lengths to those of trusted sources."""
        count = len(self.names)
        lengths = priors.lengths.copy()
        models = next(iter(self._models.values()))
        weights = np.array([trusts.get(name, 0.0) ** 2 for name in self.names])
        if weights.sum() and all(len(each.lengths) <= len(lengths) for each in models):
            general = max(0.0, 1 - weights.sum())
            learned = np.array([each.lengths for each in models])
            shared = learned.shape[1]
            lengths[:shared, 0] = (weights @ learned + general * lengths[:shared, 0]) / (weights.sum() + general)
            lengths[:shared, 1] -= (lengths[:shared, 1] - LENGTH_DEVIATION) * min(1.0, weights.sum())
        return Priors(
            np.concatenate([lengths, np.tile(PREDICTED_LENGTH, (count, 1))]),
            np.concatenate([priors.slopes, np.tile(SLOPE_VARIANCE, (count, 1))]),
            np.concatenate([priors.smooth_groups, len(lengths) + np.arange(count)]),
            np.concatenate([priors.linear_groups, len(priors.slopes) + np.arange(count)]))


def trust(rankings: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return how much a source is trusted: 0 to 1.

    Args:
        rankings: for each problem, what the source predicts of the target's trials, and their seconds, infinite for a
            failure.
    """
    agreement, weight = PRIOR_TRIALS * PRIOR_TRUST, PRIOR_TRIALS
    for predicted, seconds in rankings:
        if len(seconds) > 1:
            ranked = float(kendalltau(predicted, seconds).statistic)
            agreement += (len(seconds) - 1) * (0.0 if np.isnan(ranked) else ranked)  # NaN: all are equal
            weight += len(seconds) - 1
    return max(0.0, agreement / weight)
