"""Choose which configurations to time next: the model behind `Campaign`, `Optimizer` and `OptunaSampler`.

A surrogate (`sparloom.models.Surrogate`) predicts log seconds of configurations that have not run, and the
configuration that is expected to improve most on the fastest of its problem is chosen. No single model is right on all
devices, so choices alternate at random: some of them are made by trees instead of the surrogate; half of those of a
single problem read trials that are slower than the median as if they were as fast as it, for what is slow says little
about what is fast; and where there are sources, they count with a chance of the square of the best one's trust. Where
they do not count, choices are the same as if there were none. A forest learns which configurations fail, and sources
tell it as far as they are trusted; such configurations score lower, but are not forbidden.

    Engine       what stays the same: space, problems, sources, their encoding
    _Labels      what has run at one moment, as observations of the surrogate
    _Model       the surrogate given these labels; scores candidates

Sources: expected improvement, D. R. Jones et al. 1998; trials that are still running count as if they came out as
expected (kriging believer, D. Ginsbourger et al. 2010).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.models import Estimator, MatrixFeatures, Points, Posterior, Surrogate, lowest_and_spread
from sparloom.space import Columns, Config, ConfigSpace, SearchSpace
from sparloom.tuning.encoding import Encoding, SpaceEncoding, WalkEncoding
from sparloom.tuning.transfer import PREDICTED_SCALE, Source, SourceModels

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

ONLY = ""  # name of the problem where there is only one
MAX_LISTED_CANDIDATES = 2**14  # configurations of a space that are all candidates, every time
DRAWN_CANDIDATES = 2048  # of a larger space
NEIGHBOURED = 4  # fastest configurations whose neighbours are candidates
NEIGHBOURS = 128  # of each
SOURCE_CANDIDATES = 64  # fastest configurations of every source, likewise
MIN_LABELS = 3  # with which a model of several problems, or with a formula, is fitted
MIN_RANDOM = 5  # trials of a single problem, before a model chooses
RANDOM_FIRST = 3  # trials before sources count, by which these are judged first
REFIT_GROWTH = 1.15  # of the number of labels, at which hyperparameters are fitted again
MAX_CONDITIONED = 512  # labels of which the surrogate predicts
MAX_JOINT = 1024  # configurations among which the best of all is expected
DRAWS = 256  # of the posterior, likewise
DRAWS_TO_END = 16  # of hyperparameters, by which a campaign ends
MIN_LABELS_TO_END = 16  # without a formula: a model of fewer is too sure of itself
MAX_FAILURES = 16  # of a problem without a success, which is then given up if there are others
CLIPPED = 1 / 2  # of the choices of a single problem: slow trials count as the median
BY_TREES = 0.15  # of all choices
TREES = 60
DIGITS = 9  # that trees read of a value, so that the unit of time cannot change a split
FAILURE_TREES = 30
MAX_FAILURE = 0.95  # chance of a failure, beyond which no prediction goes
SOURCE_FAILURE = 0.9  # chance that a configuration fails which failed on all sources, if all are trusted fully
FORMULA_DEVIATION = 0.2  # of the logarithm of seconds by a formula, before a model is fitted
MIN_DEVIATION = 1e-9
MIN_SCALE = 1e-3
PRIOR_RESIDUALS = 3  # that count as much as the deviation that a formula is expected to have


@dataclass(frozen=True)
class Proposal:
    """A configuration of a problem that is worth running."""

    problem: str
    config: Config


@dataclass(frozen=True)
class Trials:
    """What has run, in the order in which it came: (problem, configuration, seconds or NaN), and what is running."""

    done: Sequence[tuple[str, Config, float]]
    running: Sequence[tuple[str, Config]] = ()


@dataclass(frozen=True)
class Candidates:
    """Configurations of one problem, as the model reads them.

    Args:
        codes: identify them (n, parameters).
        points: for the surrogate, as if there were no sources.
        expected: log seconds by a formula (n,).
        predicted: by every source: standardised log seconds (n, sources).
        failed: whether a configuration failed on a source, 0 or 1 (n, sources).
    """

    codes: np.ndarray
    points: Points
    expected: np.ndarray
    predicted: np.ndarray
    failed: np.ndarray

    def __len__(self) -> int:
        return len(self.expected)

    @cached_property
    def rows(self) -> dict[bytes, int]:
        """Where each configuration is, by its codes."""
        return {codes.tobytes(): row for row, codes in enumerate(self.codes)}

    @staticmethod
    def concatenate(parts: Sequence[Candidates]) -> Candidates:
        codes, expected, predicted, failed = (np.concatenate([getattr(each, name) for each in parts])
                                              for name in ("codes", "expected", "predicted", "failed"))
        return Candidates(codes, Points.concatenate([each.points for each in parts]), expected, predicted, failed)

    def __getitem__(self, rows: np.ndarray | slice) -> Candidates:
        return Candidates(self.codes[rows], self.points[rows], self.expected[rows], self.predicted[rows],
                          self.failed[rows])

    def described(self, *, with_sources: bool) -> Points:
        """Return the points for the surrogate, with what sources predict as further features or without it."""
        if not with_sources:
            return self.points
        return Points(np.column_stack([self.points.smooth, PREDICTED_SCALE * self.predicted]),
                      np.column_stack([self.points.linear, self.predicted]))


class Engine:
    """Chooses trials of one problem or several.

    Args:
        space: configurations; those of a platform that are the same program on a matrix are one.
        problems: features of every problem by name: numbers and categories, or a sparse matrix.
        sources, estimator, seed: those of `Optimizer`, which says what is refused.
    """

    def __init__(
        self, space: SearchSpace | ConfigSpace, problems: Mapping[str, Any], *, sources: Sequence[Source] = (),
        estimator: Estimator | None = None, seed: int = 0,
    ) -> None:
        if not problems:
            raise ValueError("there is no problem: give at least one")
        self.space = space if isinstance(space, SearchSpace) else SearchSpace.from_grid(space)
        self.problems, self.estimator, self.seed = dict(problems), estimator, seed
        self.features = {name: _constants(name, each, self.space) for name, each in self.problems.items()}
        self._grids = {name: self.space.grid.bind(each.shape) for name, each in self.problems.items()
                       if self.space.grid is not None and isinstance(each, MatrixFeatures)}
        listed = {name: self._list(name) for name in self.problems}
        self.encoding = self._make_encoding(listed)
        self.sources = SourceModels(self.space, self.problems, sources)
        self._listed = {name: None if columns is None else self.encode(name, columns)
                        for name, columns in listed.items()}
        self._surrogates: dict[tuple[bool, bool], tuple[Surrogate, int]] = {}  # `_model` -> fitted, to so many labels
        self._forest: tuple[RandomForestClassifier | None, int, int] = (None, 0, 0)  # fitted to trials, failures
        self._encoded: dict[str, dict[Config, Candidates]] = {}
        self._programs: dict[tuple[str, str], Config] = {}  # (problem, key) -> what `program` returns

    def program(self, problem: str, config: Config | Mapping[str, Any] | str) -> Config:
        """Return the configuration that stands for all that are the same program on a problem.

        Raises:
            ValueError: the problem is unknown.
            IllegalSchedule: the space does not have the configuration.
            TypeError: the configuration is something else.
        """
        if not isinstance(problem, str) or problem not in self.problems:
            names = ", ".join(sorted(self.problems)[:5])
            raise ValueError(f"problem {problem!r} is not in this campaign: it has {names}, ...")
        if not isinstance(config, Config | Mapping | str):
            raise TypeError(f"config is of type {type(config).__name__}: give a Config, its key such as "
                            f"{self.space.default().key!r}, or a dict of all parameters")
        if isinstance(config, Config) and config.space != self.space.name:
            raise IllegalSchedule(f"configuration {config} belongs to space {config.space}, not to {self.space.name}")
        if isinstance(config, Mapping):
            return self._parse(problem, config)
        key = config if isinstance(config, str) else config.key
        if (problem, key) not in self._programs:
            self._programs[problem, key] = self._parse(problem, key)
        return self._programs[problem, key]

    def _parse(self, problem: str, config: Mapping[str, Any] | str) -> Config:
        parsed = self.space.parse(config, self.features[problem])
        return self._grids[problem].canonical(parsed) if problem in self._grids else parsed

    def choose(self, trials: Trials, count: int, *, tolerance: float = 0.0) -> list[Proposal]:
        """Choose the next trials, at most `count`.

        Args:
            tolerance: choose no more once one more trial of each problem is expected to gain less, in the mean, than
                this share of the seconds.
        """
        model = self._model(_Labels(self, trials))
        names = [name for name in self.problems if not model.is_given_up(name)]
        scores = {name: model.scores(name) for name in names}
        chosen: list[Proposal] = []
        while len(chosen) < count:
            best = {name: int(each.argmax()) for name, each in scores.items() if len(each) and each.max() > -math.inf}
            gain = sum(model.gain(name, scores[name][row]) for name, row in best.items())
            if not best or (gain / len(self.problems) < tolerance
                            and self._model(model.labels, alternate=False).mean_gain() < tolerance):
                break
            name = max(best, key=lambda each: scores[each][best[each]])
            chosen.append(Proposal(name, self.config(model.candidates[name].codes[best[name]])))
            if len(chosen) < count:
                model.add_running(name, best[name])
                scores[name] = model.scores(name)
        return chosen

    def expectation(self, trials: Trials) -> dict[str, tuple[float, float]]:
        """Return for every problem what one more trial, and what the best of all, are expected to save of its seconds.

        Infinite as long as too little has run to tell; 0 if nothing is left to run or the problem is given up.
        """
        model = self._model(_Labels(self, trials), alternate=False)
        return {name: model.expectation(name) for name in self.problems}

    def trusts(self, trials: Trials) -> dict[str, float]:
        """Return how much each source is trusted after some trials: 0 to 1."""
        return self.sources.trusts(_Labels(self, trials).rankings())

    def encode_configs(self, problem: str, configs: Sequence[Config]) -> Candidates:
        """Encode some configurations of a problem, each once in the life of the engine."""
        cached = self._encoded.setdefault(problem, {})
        added = [each for each in configs if each not in cached]
        if added:
            encoded = self.encode(problem, self.space.columns(added))
            cached.update((config, encoded[row:row + 1]) for row, config in enumerate(added))
        return Candidates.concatenate([cached[each] for each in configs])

    def encode(self, problem: str, columns: Columns) -> Candidates:
        """Encode configurations of a problem."""
        predicted, failed = self.sources.predict(problem, columns)
        return Candidates(self.space.codes(columns), self.encoding.points(problem, columns),
                          self.encoding.expected(problem, columns), predicted, failed)

    def candidates(self, name: str, fastest: Sequence[Config], rng: np.random.Generator) -> Candidates:
        """Return the configurations of a problem among which the next trial is chosen.

        Args:
            fastest: trials near which a large space is searched.
        """
        listed = self._listed[name]
        if listed is not None:
            return listed
        features = self.features[name]
        parts = [self.space.sample(DRAWN_CANDIDATES, rng, features)]
        for each in self.sources.fastest(name, SOURCE_CANDIDATES):
            usable = self.space.valid(each, features)
            parts.append({parameter: column[usable] for parameter, column in each.items()})
        parts += [self.space.neighbours(config, rng, NEIGHBOURS, features) for config in fastest]
        return self.encode(name, {each: np.concatenate([part[each] for part in parts]) for each in self.space.names})

    def fit_failures(self, points: np.ndarray, failed: np.ndarray) -> RandomForestClassifier:
        """Fit a forest to which trials failed, unless few have run since the last time and none of them failed."""
        from sklearn.ensemble import RandomForestClassifier  # loads for a second, and only failures need it

        forest, count, failures = self._forest
        if forest is None or failed.sum() != failures or not count <= len(failed) < REFIT_GROWTH * count:
            forest = RandomForestClassifier(FAILURE_TREES, random_state=self.seed).fit(points, failed)
            self._forest = forest, len(failed), int(failed.sum())
        return forest

    def config(self, codes: np.ndarray) -> Config:
        """Return the configuration with these codes (parameters,)."""
        return self.space.configs(self.space.decode(codes[None]))[0]

    def _list(self, name: str) -> Columns | None:
        """Return the columns of all different programs of a problem, or None if there are too many."""
        columns = self.space.enumerate(MAX_LISTED_CANDIDATES, self.features[name])
        if columns is None or name not in self._grids:
            return columns
        programs = dict.fromkeys(map(self._grids[name].canonical, self.space.configs(columns)))
        return self.space.columns(list(programs))

    def _make_encoding(self, listed: Mapping[str, Columns | None]) -> Encoding:
        matrices = {name: each for name, each in self.problems.items() if isinstance(each, MatrixFeatures)}
        grid = self.space.grid
        is_listed = all(columns is not None for columns in listed.values())
        if is_listed and grid is not None and grid.mapping is not None and len(matrices) == len(self.problems):
            programs = {name: self.space.configs(columns) for name, columns in listed.items()}
            return WalkEncoding(self.space, matrices, programs, self.estimator)
        described = {name: _described(each) for name, each in self.problems.items()}
        _check_features(described)
        return SpaceEncoding(self.space, described)

    def _model(self, labels: _Labels, *, alternate: bool = True) -> _Model:
        """Make the model of one moment.

        Args:
            alternate: whether trees may predict, or slow trials be clipped, as some choices do at random.
        """
        rng = np.random.default_rng([self.seed, 2, labels.done, labels.begun - labels.done])
        trusts = self.sources.trusts(labels.rankings())
        if labels.begun < RANDOM_FIRST:
            trusts = dict.fromkeys(trusts, 0.0)
        few = MIN_LABELS if len(self.problems) > 1 or self.estimator is not None else MIN_RANDOM
        is_fitted = labels.count >= few
        chance = max(trusts.values(), default=0.0) ** 2
        with_sources = np.random.default_rng([self.seed, 3, labels.begun]).random() < chance  # leaves `rng` alone
        clipped = is_fitted and len(self.problems) == 1 and rng.random() < CLIPPED and alternate
        model = _Model(self, labels, rng, trusts, with_sources=with_sources, clipped=clipped)
        if is_fitted:
            kind = with_sources, clipped
            surrogate, fitted_with = self._surrogates.get(kind, (None, 0))
            if not fitted_with <= labels.count < max(REFIT_GROWTH * fitted_with, fitted_with + 1):
                priors = self.sources.extend(self.encoding.priors, trusts) if with_sources else self.encoding.priors
                surrogate = Surrogate(priors, None if surrogate is None else surrogate.mode)
                surrogate.fit(model.points, model.values, model.variances)
                self._surrogates[kind] = surrogate, labels.count
            model.condition(self._surrogates[kind][0], by_trees=rng.random() < BY_TREES and alternate)
        return model


class _Labels:
    """What has run of every problem, each program once.

    Attributes:
        done, begun: how many trials have run, and how many of them or others have begun.
        logs: medians of log seconds, infinite for a failure.
        variances: of these, as far as programs that ran several times show how much log seconds scatter.
    """

    def __init__(self, engine: Engine, trials: Trials) -> None:
        repeated: dict[str, dict[Config, list[float]]] = {name: {} for name in engine.problems}
        for problem, config, seconds in trials.done:
            repeated[problem].setdefault(config, []).append(seconds)
        self.configs = {name: list(each) for name, each in repeated.items() if each}
        self.running = {name: [config for problem, config in trials.running if problem == name]
                        for name in engine.problems}
        logs = {name: [np.log([each for each in seconds if not math.isnan(each)]) for seconds in listed.values()]
                for name, listed in repeated.items() if listed}
        self.logs = {name: np.array([np.median(each) if len(each) else math.inf for each in parts])
                     for name, parts in logs.items()}
        self.done, self.begun = len(trials.done), len(trials.done) + len(trials.running)
        several = [each - each.mean() for parts in logs.values() for each in parts if len(each) > 1]
        scatter = sum((each**2).sum() for each in several) / max(1, sum(len(each) - 1 for each in several))
        self.variances = {name: scatter / np.array([max(1, len(each)) for each in parts])
                          for name, parts in logs.items()}
        self.encoded = {name: engine.encode_configs(name, configs) for name, configs in self.configs.items()}

    @property
    def count(self) -> int:
        """How many programs have seconds."""
        return sum(int(np.isfinite(logs).sum()) for logs in self.logs.values())

    def rankings(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return what sources predict of every problem's programs, and their log seconds."""
        return [(self.encoded[name].predicted, self.logs[name]) for name in self.logs]

    def fastest(self, name: str) -> list[Config]:
        """Return the fastest configurations of a problem."""
        logs = self.logs.get(name, np.zeros(0))
        return [self.configs[name][place] for place in np.argsort(logs, kind="stable")[:NEIGHBOURED]
                if np.isfinite(logs[place])]


class _Model:
    """The model given the labels of one moment; without `condition`, what is known before a model is fitted.

    Args:
        with_sources: whether they count.
        clipped: whether slow trials count as the median.

    Attributes:
        labels: what has run.
        points, values, variances: observations, in units of `scale`, relative to what the formula and trusted sources
            expect.
    """

    def __init__(
        self, engine: Engine, labels: _Labels, rng: np.random.Generator, trusts: Mapping[str, float], *,
        with_sources: bool, clipped: bool,
    ) -> None:
        self._engine, self.labels, self._rng = engine, labels, rng
        self._trusts = np.array(list(trusts.values()))
        self.candidates = {name: engine.candidates(name, labels.fastest(name), rng) for name in engine.problems}
        self._points = {name: each.described(with_sources=with_sources) for name, each in self.candidates.items()}
        self._with_sources, self._slopes = with_sources, engine.sources.slopes(labels.rankings())
        self._tried = {name: self._tried_rows(name) for name in engine.problems}
        self._base = {name: self._expect(name, each) for name, each in self.candidates.items()}
        residuals = {name: logs - self._expect(name, labels.encoded[name]) for name, logs in labels.logs.items()}
        finite = {name: np.isfinite(each) for name, each in residuals.items()}
        self.scale = _scale([each[finite[name]] for name, each in residuals.items() if finite[name].any()],
                            None if engine.estimator is None else FORMULA_DEVIATION)
        if clipped:
            residuals = {name: np.minimum(each, np.median(each[finite[name]])) for name, each in residuals.items()}
        self.points = Points.concatenate([next(iter(self._points.values()))[:0], *(
            labels.encoded[name].described(with_sources=with_sources)[finite[name]] for name in residuals)])
        self.values, self.variances = (
            np.concatenate([np.zeros(0), *(each[finite[name]] / scale for name, each in columns.items())])
            for columns, scale in ((residuals, self.scale), (labels.variances, self.scale**2)))
        self._posterior: Posterior | None = None
        self._surrogate: Surrogate | None = None
        self._believed: dict[str, float] = {}  # least log seconds that are expected of running trials

    def condition(self, surrogate: Surrogate, *, by_trees: bool = False) -> None:
        """Take the surrogate with drawn hyperparameters, given the labels; scores are those of trees or its own.

        Running trials count as if they came out as expected, so that others are asked for that differ from them.
        """
        self._surrogate, self._drawn, self._by_trees = surrogate, surrogate.draw(self._rng), by_trees
        rows = lowest_and_spread(self.values, MAX_CONDITIONED)
        self._read = self.points[rows], self.values[rows], self.variances[rows]
        self._update()
        self._believed.clear()
        for name, configs in self.labels.running.items():
            if configs:
                self._believe(name, self._engine.encode_configs(name, configs))

    def _update(self) -> None:
        assert self._surrogate is not None
        self._posterior = self._surrogate.condition(*self._read, self._drawn)
        self._predictor = _Trees(*self._read[:2]) if self._by_trees else self._posterior

    def add_running(self, name: str, row: int) -> None:
        """Count a candidate as running."""
        self._tried[name] = np.append(self._tried[name], row)
        self.labels.running[name].append(self._engine.config(self.candidates[name].codes[row]))
        if self._posterior is not None:
            self._believe(name, self.candidates[name][[row]])

    def is_given_up(self, name: str) -> bool:
        """Return whether so many trials of a problem failed, and none had seconds, that others are tried instead."""
        logs = self.labels.logs.get(name, np.zeros(0))
        return len(self._engine.problems) > 1 and len(logs) >= MAX_FAILURES and not np.isfinite(logs).any()

    def scores(self, name: str) -> np.ndarray:
        """Return how much each candidate of a problem is expected to improve log seconds; minus infinity if tried.

        Candidates of a problem without a trial score 1 to 1.5, more if they are expected to be faster.
        """
        mean, deviation = self._predict(name)
        logs = self.labels.logs.get(name, np.zeros(0))
        if len(logs) or self.labels.running[name]:
            least = min([*logs[np.isfinite(logs)], self._believed.get(name, math.inf)])
            least = least if least < math.inf else float(mean.min())
            score = _improvement(least, mean, deviation) * (1 - self._failure(name))
            score = score / (1 + (0 if np.isfinite(logs).any() or len(self._engine.problems) == 1 else len(logs)))
        else:
            score = 1 + 1 / (1 + np.exp(np.minimum(mean - mean.min() + 5 * self._failure(name), 500)))
        score[self._tried[name]] = -math.inf
        return score

    def mean_gain(self) -> float:
        """Return the mean of what one more trial of each problem promises, over many draws of hyperparameters.

        One draw may be sure of what the next one doubts; a campaign must not end by it.
        """
        gains = []
        for _ in range(DRAWS_TO_END if self._surrogate is not None else 0):
            self.condition(self._surrogate)
            gains += [self.gain(name, max(0.0, self.scores(name).max(initial=0.0))) for name in self.candidates
                      if not self.is_given_up(name)]
        return sum(gains) / DRAWS_TO_END / len(self.candidates)

    def gain(self, name: str, score: float) -> float:
        """Return the share of seconds that a score promises; infinite where too little is known to tell."""
        return -math.expm1(-score) if self._can_tell(name) else math.inf

    def expectation(self, name: str) -> tuple[float, float]:
        """Return what one more trial and what the best of all candidates would save, see `Engine.expectation`."""
        scores = self.scores(name)
        if not len(scores) or scores.max() == -math.inf or self.is_given_up(name):
            return 0.0, 0.0
        if not self._can_tell(name) or self._posterior is None:
            return math.inf, math.inf
        rows = np.argsort(-scores, kind="stable")[:MAX_JOINT]
        rows = rows[scores[rows] > -math.inf]
        mean, covariance = self._posterior.joint(self._points[name][rows])
        mean = mean * self.scale + self._base[name][rows]
        drawn = np.random.default_rng(self._engine.seed).multivariate_normal(
            mean, covariance * self.scale**2, DRAWS, check_valid="ignore", method="eigh")
        logs = self.labels.logs[name]
        regret = np.maximum(0, logs.min() - drawn.min(axis=1)).mean()
        return -math.expm1(-float(scores.max())), -math.expm1(-float(regret))

    def _expect(self, name: str, encoded: Candidates) -> np.ndarray:
        """Return log seconds that the formula and, if they count, sources expect (n,)."""
        return encoded.expected + (encoded.predicted @ self._slopes if self._with_sources else 0.0)

    def _predict(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the deviation of log seconds of the candidates of a problem."""
        base = self._base[name]
        if self._posterior is not None:
            mean, deviation = self._predictor.at(self._points[name])
            return mean * self.scale + base, deviation * self.scale
        logs = self.labels.logs.get(name, np.zeros(0))
        finite = np.isfinite(logs)
        level = (logs[finite] - self._expect(name, self.labels.encoded[name])[finite]).mean() if finite.any() else 0.0
        if self._engine.estimator is not None:
            return base + level, np.full(len(base), FORMULA_DEVIATION)
        random = self._rng.random(len(base))
        if self._with_sources:
            return base + level + 1e-6 * random, np.ones(len(base))
        return 1e-3 * random + level, np.ones(len(base))

    def _failure(self, name: str) -> np.ndarray:
        """Return the chance that each candidate fails (n,): by a forest over all trials, or by trusted sources."""
        candidates = self.candidates[name]
        by_sources = SOURCE_FAILURE * (candidates.failed @ self._trusts) / max(1, len(self._trusts))
        failed = np.concatenate([np.zeros(0, bool), *(~np.isfinite(each) for each in self.labels.logs.values())])
        if failed.all() or not failed.any():
            return by_sources
        points = np.concatenate([self.labels.encoded[each].points.smooth for each in self.labels.logs])
        forest = self._engine.fit_failures(points, failed)
        chance = forest.predict_proba(candidates.points.smooth)[:, 1]
        return np.minimum(np.maximum(chance, by_sources), MAX_FAILURE)

    def _can_tell(self, name: str) -> bool:
        logs = self.labels.logs.get(name, np.zeros(0))
        return bool(np.isfinite(logs).any()) and self._posterior is not None and (
            self._engine.estimator is not None or self.labels.count >= MIN_LABELS_TO_END)

    def _believe(self, name: str, encoded: Candidates) -> None:
        """Condition on configurations of a problem as if they had run, with the seconds that are expected of them."""
        assert self._posterior is not None
        described = encoded.described(with_sources=self._with_sources)
        expected = self._posterior.at(described)[0]
        points, values, variances = self._read
        self._read = (Points.concatenate([points, described]), np.append(values, expected),
                      np.append(variances, np.zeros(len(expected))))
        self._update()
        logs = expected * self.scale + self._expect(name, encoded)
        self._believed[name] = min(self._believed.get(name, math.inf), float(logs.min()))

    def _tried_rows(self, name: str) -> np.ndarray:
        """Return the rows of candidates that have run or are running."""
        tried = [*self.labels.configs.get(name, ()), *self.labels.running[name]]
        codes = self._engine.encode_configs(name, tried).codes if tried else []
        rows = (self.candidates[name].rows.get(each.tobytes()) for each in codes)
        return np.array([row for row in rows if row is not None], np.int64)


class _Trees:
    """Extremely randomised trees (P. Geurts et al. 2006), whose scatter stands for the uncertainty."""

    def __init__(self, points: Points, values: np.ndarray) -> None:
        from sklearn.ensemble import ExtraTreesRegressor  # loads for a second

        trees = ExtraTreesRegressor(TREES, max_features=0.5, random_state=len(values))
        self._trees = trees.fit(np.column_stack([points.smooth, points.linear]), values.round(DIGITS))

    def at(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation at points, as a `Posterior` does."""
        features = np.column_stack([points.smooth, points.linear]).astype(np.float32)
        predicted = np.array([each.predict(features, check_input=False) for each in self._trees.estimators_])
        return predicted.mean(axis=0), predicted.std(axis=0)


def _constants(name: str, problem: Any, space: SearchSpace) -> dict[str, float]:
    """Return the numbers of a problem that the constraints of a space read."""
    described = _described(problem)
    missing = [each for each in space.features if each not in described]
    if missing:
        raise SchemaError(f"problem {name!r} has no {missing[0]}, which the constraints of space {space.name} read")
    return {each: float(described[each]) for each in space.features}


def _check_features(problems: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse problems that have different features, and numbers that are none."""
    first, names = next((name, set(each)) for name, each in problems.items())
    for name, each in problems.items():
        if set(each) != names:
            raise SchemaError(f"problems {first!r} and {name!r} have different features, {min(set(each) ^ names)!r} "
                              "among them: give all problems the same ones")
        wrong = [key for key, value in each.items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            raise SchemaError(f"problem {name!r}: {wrong[0]} is {each[wrong[0]]}: give a finite number, or a word")


def _described(problem: Any) -> Mapping[str, Any]:
    """Return the numbers and categories of a problem; of a sparse matrix, its size and the statistics of its rows."""
    if not isinstance(problem, MatrixFeatures):
        return problem
    return {"rows": problem.shape[0], "cols": problem.shape[1], "nnz": max(1, problem.nnz), **problem.statistics}


def _scale(residuals: Sequence[np.ndarray], expected: float | None) -> float:
    """Return the deviation of residuals: within problems if these have enough of them, else of all.

    Args:
        residuals: of each problem.
        expected: deviation that a formula is believed to have, which counts like a few residuals.
    """
    parts = [each - each.mean() for each in residuals]
    freedom = sum(map(len, parts)) - len(parts)
    if freedom < MIN_LABELS and expected is None:
        everything = np.concatenate([np.zeros(0), *residuals])
        parts, freedom = [everything - everything.mean()] if len(everything) else [], len(everything) - 1
    squares = float(sum((each**2).sum() for each in parts))
    if expected is not None:
        squares, freedom = squares + PRIOR_RESIDUALS * expected**2, freedom + PRIOR_RESIDUALS
    return max(MIN_SCALE, math.sqrt(squares / freedom)) if freedom > 0 and squares > 0 else 1.0


def _improvement(least: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return by how much each value is expected to be below the least (expected improvement)."""
    deviation = np.maximum(deviation, MIN_DEVIATION)
    score = (least - mean) / deviation
    return deviation * (score * norm.cdf(score) + norm.pdf(score))
