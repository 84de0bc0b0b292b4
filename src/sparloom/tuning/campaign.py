"""Campaigns: choose which configurations of which matrices to time next, until more would gain little.

    campaign = Campaign(folder, space, matrices)
    for trial in campaign.ask(8):
        campaign.tell(trial.matrix, trial.config, seconds=run(trial))

What is asked and told lies in the folder, so that a campaign survives the death of its process, and several processes
of one machine may share it. A Gaussian process over all matrices predicts log seconds of configurations that have not
run; a formula of the platform, if there is one, is its mean. The configuration that is expected to be fastest runs
first on each matrix. Then the campaign asks for the configuration, of whichever matrix, that is expected to improve
most on the best known time of its matrix. A matrix whose first trials all fail gets fewer and is then given up.

Source: expected improvement, Jones et al. 1998; trials that are still running count as if they came out as expected
(kriging believer, Ginsbourger et al. 2010). Names as in Optuna: ask, tell, trial.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from sparloom.data import checked_seconds
from sparloom.errors import SchemaError
from sparloom.files import append_lines, locked, read_json, read_lines, write_json, write_text
from sparloom.models import Estimator, GaussianProcess, MatrixFeatures
from sparloom.space import MAX_LISTED, Config, ConfigSpace, Parameter, Value
from sparloom.tuning.tuners import REFIT_GROWTH

ASKED, TOLD, SETTINGS = "asked.jsonl", "told.jsonl", "campaign.json"
RESULT_KEYS = {"matrix", "config", "seconds", "failure"}  # of `Campaign.tell_all`
TELLING = "telling"  # file that is locked while results are written
DRAWS = 256  # of the posterior, from which regret is expected
LEAST_DEVIATION = 1e-9
LEAST_LABELS = 3  # with which a model is fitted
LEAST_TO_END = 16  # labels, without an estimate: a model of fewer is too sure of itself
SMOOTHNESS = 2.5
ESTIMATE_DEVIATION = 0.2  # of the logarithm of estimated seconds, before anything has run
MOST_FAILURES = 16  # of a matrix without a success, which is then given up


@dataclass(frozen=True)
class Proposal:
    """A configuration of a matrix that is worth running."""

    matrix: str
    config: Config


@dataclass(frozen=True)
class MatrixSummary:
    """What is known and expected of one matrix.

    Args:
        config, seconds: the fastest configuration that ran; None if none has.
        trials: how many have run, failures included.
        gain: largest expected improvement of one more trial, as a share of the seconds; infinite as long as too
            little has run to tell, 0 if no configuration is left or the matrix is given up.
        regret: by how much the best of all configurations is expected to be faster, likewise.
    """

    matrix: str
    config: Config | None
    seconds: float | None
    trials: int
    gain: float
    regret: float


class Campaign:
    """A campaign in a folder, begun there or continued.

    Args:
        folder: created if it is not there.
        space: configurations of the platform and operation.
        matrices: features by name.
        estimator: seconds by a formula of the platform, if there is one.
        conditions: what else seconds depend on, such as the machine or a command, in types of JSON. Other values are
            refused once there is a result with seconds.
        seed: of what is drawn.

    Raises:
        SchemaError: the folder holds a campaign of another space, of other matrices, that is of other names or
            patterns, or under other conditions, or a damaged file.
        OSError: a new campaign cannot be written, such as to a full disk. One that is there opens even so,
                unless its conditions change.
        ValueError: there is no matrix, or the space has more than `MAX_LISTED` configurations, all of which are scored.
    """

    def __init__(self, folder: Path | str, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures], *,
                 estimator: Estimator | None = None, conditions: Mapping[str, Any] | None = None, seed: int = 0
                 ) -> None:
        if not matrices:
            raise ValueError("a campaign without matrices: give at least one")
        if len(space) > MAX_LISTED:
            raise ValueError(f"{space.name} has {len(space)} configurations, and a campaign scores all of them for "
                             f"every trial: give a space of at most {MAX_LISTED}")
        self.folder, self.space, self.matrices = Path(folder), space, dict(matrices)
        self.estimator, self.seed = estimator, seed
        self.folder.mkdir(parents=True, exist_ok=True)
        sizes = {name: [*view.shape, view.nnz] for name, view in sorted(self.matrices.items())}
        patterns = {name: view.digest for name, view in sorted(self.matrices.items())}
        self._open_folder({"space": space.digest(), "matrices": sizes, "patterns": patterns},
                          json.loads(json.dumps(dict(conditions or {}))))
        self._spaces = {name: space.bind(view.shape) for name, view in self.matrices.items()}
        self._programs = {name: list(dict.fromkeys(map(bound.canonical, bound)))  # one of those that do not differ
                          for name, bound in self._spaces.items()}
        self._model: GaussianProcess | None = None
        self._learned: pd.DataFrame | None = None  # labels to which the model was fitted
        self._tuned_with = 0  # number of labels to which its hyperparameters were fitted

    def ask(self, count: int, *, tolerance: float = 0.0) -> list[Proposal]:
        """Choose the next trials, at most `count`, and remember that they are running.

        Trials that were asked but not told count as running: see `pending` and `forget`.

        Args:
            tolerance: choose no more once one more trial of each matrix is expected to gain less, in the mean, than
                this share of the seconds.
        """
        if count < 1:
            raise ValueError(f"ask({count}): ask for at least one trial")
        with locked(self.folder / "lock"):
            chosen = self._choose(count, tolerance)
            append_lines(self.folder / ASKED, [json.dumps({"matrix": trial.matrix, "config": trial.config.key})
                                               for trial in chosen])
        return chosen

    def tell(self, matrix: str, config: Config | str | Mapping[str, Any], *, seconds: float | None = None,
             failure: str | None = None) -> None:
        """Add what came out of a trial, asked for or not; it is on disk when this returns.

        Several results of one program are repetitions, of which the median counts. Configurations that are the same
        program on this matrix are not told apart.

        Args:
            config: a configuration, its key, or a dict of all parameters.
            seconds: of the run, or any number in proportion to them, with the same factor on all matrices.
            failure: why there are none.

        Raises:
            ValueError: the matrix, a parameter or its value is unknown, seconds are not positive and finite, or both or
                none of seconds and failure are given.
            IllegalSchedule: the space does not have the configuration.
            TypeError: the configuration is something else.
        """
        row = self._row(matrix, config, seconds=seconds, failure=failure)
        with locked(self.folder / TELLING):
            append_lines(self.folder / TOLD, [json.dumps(row)])

    def tell_all(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Add what came out of many trials; all of it is on disk when this returns, and nothing if it raises.

        Args:
            results: arguments of `tell` by name: matrix, config, and seconds or failure.

        Raises:
            ValueError, IllegalSchedule, TypeError: as `tell`.
        """
        rows = []
        for number, result in enumerate(results, start=1):
            if not isinstance(result, Mapping) or not {"matrix", "config"} <= result.keys() <= RESULT_KEYS:
                raise TypeError(f"result {number} is {result!r:.200}: give a dict with matrix, config, and seconds or "
                                "failure")
            rows.append(json.dumps(self._row(**result)))
        with locked(self.folder / TELLING):
            append_lines(self.folder / TOLD, rows)

    def _row(self, matrix: str, config: Config | str | Mapping[str, Any], *, seconds: float | None = None,
             failure: str | None = None) -> dict[str, Any]:
        """Check a result; return its row in the journal."""
        if not isinstance(matrix, str) or matrix not in self.matrices:
            raise ValueError(f"matrix {matrix!r} is not in this campaign: {', '.join(sorted(self.matrices)[:5])}, ...")
        key = self.program(matrix, config).key
        if (seconds is None) == (failure is None):
            raise ValueError(f"{matrix}, {key}: give either seconds or failure")
        if seconds is not None:
            seconds = checked_seconds(seconds, lambda _: f"{matrix}, {key}").item()
        return {"matrix": matrix, "config": key, "seconds": seconds,
                "failure": None if failure is None else str(failure)}

    def program(self, matrix: str, config: Config | str | Mapping[str, Any]) -> Config:
        """Return the configuration that stands for all that are the same program on a matrix, see `tell`."""
        if isinstance(config, str):
            config = Config.parse(self.space.name, config)
        elif isinstance(config, Mapping):
            config = _config(self.space, config)
        elif not isinstance(config, Config):
            raise TypeError(f"config is of type {type(config).__name__}: give a Config, its key such as "
                            f"{self.space.default().key!r}, or a dict of all parameters")
        self.space.validate(config)
        return self._spaces[matrix].canonical(config)

    def pending(self) -> list[Proposal]:
        """Return the trials that were asked for, not forgotten, and not told."""
        return self._pending(self._told())

    def _pending(self, rows: Sequence[Mapping[str, Any]]) -> list[Proposal]:
        told = {(row["matrix"], row["config"]) for row in rows}
        open_: dict[tuple[str, str], bool] = {}
        for row in self._read(ASKED):
            open_[row["matrix"], row["config"]] = not row.get("forgotten", False)
        return [Proposal(matrix, Config.parse(self.space.name, key)) for (matrix, key), is_open in open_.items()
                if is_open and (matrix, key) not in told]

    def forget(self, trial: Proposal) -> None:
        """Stop waiting for a trial, so that it may be asked for again."""
        append_lines(self.folder / ASKED, [json.dumps(
            {"matrix": trial.matrix, "config": trial.config.key, "forgotten": True})])

    def forget_failures(self) -> int:
        """Stop counting the failures, so that their trials may be asked for again; return how many there were."""
        with locked(self.folder / TELLING):
            rows = self._read(TOLD)
            failed = [row for row in rows if row["failure"] is not None and not row.get("forgotten", False)]
            append_lines(self.folder / ASKED, [json.dumps(
                {"matrix": row["matrix"], "config": row["config"], "forgotten": True}) for row in failed])
            for row in failed:
                row["forgotten"] = True
            if failed:
                write_text(self.folder / TOLD, "".join(f"{json.dumps(row)}\n" for row in rows))
        return len(failed)

    def labels(self) -> pd.DataFrame:
        """Return the results with seconds: matrix, config, seconds; medians of repetitions."""
        return _labels(self._told())

    def count(self) -> int:
        """Count the results, failures included."""
        return len(self._told())

    def history(self, *, forgotten: bool = False) -> pd.DataFrame:
        """Return all results in the order in which they came: matrix, config, seconds, failure.

        Args:
            forgotten: with the failures that `forget_failures` no longer counts.
        """
        rows = self._read(TOLD) if forgotten else self._told()
        return pd.DataFrame(rows, columns=["matrix", "config", "seconds", "failure"]).astype({"seconds": float})

    def summary(self) -> list[MatrixSummary]:
        """Return what is known and expected of every matrix."""
        rows = self._told()
        labels, taken = _labels(rows), {(row["matrix"], row["config"]) for row in rows}
        model, found, rng = self._fitted(labels), [], np.random.default_rng(self.seed)
        for name in self.matrices:
            known, left = labels[labels["matrix"] == name], self._open(name, taken)
            trials = [row for row in rows if row["matrix"] == name]
            config, seconds, gain, regret = None, None, math.inf, math.inf
            if not known.empty:
                best = known.loc[known["seconds"].idxmin()]
                config, seconds = Config.parse(self.space.name, best["config"]), float(best["seconds"])
            if not left or (config is None and len(trials) >= MOST_FAILURES):
                gain = regret = 0.0
            elif seconds is not None and model is not None and self._can_tell(labels):
                mean, covariance = (part[left] for part in self._posterior(model, name))
                covariance, least = covariance[:, left], math.log(seconds)
                gain = -math.expm1(-_improvement(least, mean, _deviation(covariance)).max())
                draws = rng.multivariate_normal(mean, covariance, DRAWS, check_valid="ignore", method="eigh")
                regret = -math.expm1(-float(np.maximum(0, least - draws.min(axis=1)).mean()))
            found.append(MatrixSummary(name, config, seconds, len(trials), gain, regret))
        return found

    def _choose(self, count: int, tolerance: float) -> list[Proposal]:
        rows = self._told()
        labels, running = _labels(rows), self._pending(rows)
        taken = {(row["matrix"], row["config"]) for row in rows} | {(each.matrix, each.config.key) for each in running}
        failures = {name: sum(row["matrix"] == name for row in rows) for name in self.matrices}
        failures |= dict.fromkeys(labels["matrix"].unique(), 0)
        model, begun = self._fitted(labels), {matrix for matrix, _ in taken}
        choices = [name for name in self.matrices if failures[name] < MOST_FAILURES]
        scores = {name: self._scores(model, name, labels, running, begun=name in begun) / (1 + failures[name])
                  for name in choices}
        sure = set(labels["matrix"]) if model is not None and self._can_tell(labels) else set()
        chosen: list[Proposal] = []
        while len(chosen) < count:
            options = {name: self._open(name, taken) for name in choices}
            best = {name: max((scores[name][index], -index) for index in indices)
                    for name, indices in options.items() if indices}
            gain = sum(-math.expm1(-score) if name in sure else math.inf for name, (score, _) in best.items())
            if not best or gain / len(self.matrices) < tolerance:
                break
            name = max(best, key=lambda each: best[each][0])
            trial = Proposal(name, self._programs[name][-best[name][1]])
            chosen.append(trial)
            running.append(trial)
            taken.add((name, trial.config.key))
            scores[name] = self._scores(model, name, labels, running, begun=True) / (1 + failures[name])
        return chosen

    def _scores(self, model: GaussianProcess | None, name: str, labels: pd.DataFrame, running: Sequence[Proposal], *,
                begun: bool) -> np.ndarray:
        """Return expected improvements; without a trial of the matrix, 1 to 1.5, larger for faster configurations."""
        mean, covariance = self._posterior(model, name)
        if not begun:
            return 1 + 1 / (1 + np.exp(mean - mean.min()))
        indices = {config.key: index for index, config in enumerate(self._programs[name])}
        waiting = [indices[trial.config.key] for trial in running if trial.matrix == name]
        known = labels[labels["matrix"] == name]
        logs = np.log(known["seconds"].to_numpy())
        listed = known["config"].isin(indices).to_numpy()
        if model is None and listed.any():  # the unit is unknown until a model is fitted
            mean = mean + (logs[listed] - mean[known.loc[listed, "config"].map(indices)]).mean()
        covariance = _believed(covariance, waiting)
        least = min([*logs, *mean[waiting]], default=mean.min())
        return _improvement(least, mean, _deviation(covariance))

    def _can_tell(self, labels: pd.DataFrame) -> bool:
        """Return whether there are enough labels to expect what more trials gain."""
        return self.estimator is not None or len(labels) >= LEAST_TO_END

    def _open(self, name: str, taken: set[tuple[str, str]]) -> list[int]:
        """Return the indices of programs of a matrix that have not run and are not running."""
        return [index for index, config in enumerate(self._programs[name]) if (name, config.key) not in taken]

    def _fitted(self, labels: pd.DataFrame) -> GaussianProcess | None:
        """Fit the model to new labels, if there are any; return None if there are too few.

        Its hyperparameters are fitted again whenever there are a quarter more labels, which takes long if there are
        many.
        """
        if len(labels) < LEAST_LABELS or labels.equals(self._learned):
            return self._model
        model = GaussianProcess(smoothness=SMOOTHNESS)
        model = model if self.estimator is None else model.with_estimate(self.estimator)
        if self._model is not None and len(labels) < REFIT_GROWTH * self._tuned_with:
            model = model.with_hyperparameters(self._model)
        else:
            self._tuned_with = len(labels)
        self._model, self._learned = model.fit(labels, space=self.space, matrices=self.matrices), labels
        return self._model

    def _posterior(self, model: GaussianProcess | None, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the covariance of log seconds of the programs of a matrix."""
        view, programs = self.matrices[name], self._programs[name]
        if model is not None:
            return model.posterior(view, programs)
        if self.estimator is not None:
            return np.log(self.estimator(view, programs)), ESTIMATE_DEVIATION**2 * np.eye(len(programs))
        rng = np.random.default_rng([self.seed, *name.encode()])  # nothing is known: any order
        return 1e-3 * rng.permutation(len(programs)), np.eye(len(programs))

    def _open_folder(self, settings: dict[str, Any], conditions: dict[str, Any]) -> None:
        """Store the settings of a new campaign, or compare them; conditions may change until seconds are told."""
        path = self.folder / SETTINGS
        with locked(self.folder / "lock"):
            stored = _stored_settings(path) if path.exists() else {**settings, "conditions": {}}
            before = stored["conditions"]
            for name, value in settings.items():
                if stored[name] != value:
                    other = name if name != "patterns" else "matrices of the same sizes, such as " + next(
                        each for each in value if stored[name].get(each) != value[each])
                    raise SchemaError(f"{self.folder} holds a campaign with other {other}: choose an empty folder")
            if any(row["seconds"] is not None for row in self._told()):
                for name, value in conditions.items():
                    if before.get(name, value) != value:
                        raise SchemaError(f"{self.folder} holds a campaign under other conditions, {name}: choose an "
                                          f"empty folder, or change {path} if seconds are comparable")
            fresh = {**settings, "conditions": {**before, **conditions}}
            if not path.exists() or fresh != stored:
                write_json(path, fresh)

    def _told(self) -> list[dict[str, Any]]:
        return [row for row in self._read(TOLD) if not row.get("forgotten", False)]

    def _read(self, name: str) -> list[dict[str, Any]]:
        found = []
        for number, line in enumerate(read_lines(self.folder / name), start=1):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise SchemaError(f"{self.folder / name}, line {number} is damaged ({error}): remove it") from None
        return found


def _stored_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a campaign."""
    try:
        stored = read_json(path)
        kinds = {"space": str, "matrices": dict, "patterns": dict, "conditions": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(stored[name], kind)]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise SchemaError(f"{path} is damaged or of an earlier version ({error!r}): choose an empty folder") from None
    if wrong:
        raise SchemaError(f"{path} is damaged: {wrong[0]} is {stored[wrong[0]]!r:.100}: choose an empty folder")
    return stored


def _labels(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the results with seconds: matrix, config, seconds; medians of repetitions."""
    frame = pd.DataFrame([row for row in rows if row["seconds"] is not None], columns=["matrix", "config", "seconds"])
    return frame.groupby(["matrix", "config"], as_index=False, sort=True)["seconds"].median()


def _config(space: ConfigSpace, values: Mapping[str, Any]) -> Config:
    """Make a configuration of a dict of all parameters, whose numbers may be of any type, also texts.

    Raises:
        ValueError: names the parameter that is unknown, missing or has no such value.
    """
    names = [each.name for each in space.parameters]
    for name in [*values, *names]:
        if name not in names or name not in values:
            reason = "is no parameter" if name in values else "is missing"
            raise ValueError(f"configuration {dict(values)}: {name!r} {reason}: give {', '.join(names)}")
    return Config(space.name, tuple((each.name, _value(each, values[each.name])) for each in space.parameters))


def _value(parameter: Parameter, value: Any) -> Value:
    for allowed in parameter.values:
        if str(value) == str(allowed) or (isinstance(value, Real) and value == allowed):
            return allowed
    raise ValueError(f"{parameter.name}={value!r} is not in the space: its values are "
                     f"{', '.join(map(str, parameter.values))}")


def _improvement(least: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return by how much each value is expected to be below the least (expected improvement)."""
    deviation = np.maximum(deviation, LEAST_DEVIATION)
    score = (least - mean) / deviation
    return deviation * (score * norm.cdf(score) + norm.pdf(score))


def _deviation(covariance: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(np.diag(covariance), 0))


def _believed(covariance: np.ndarray, indices: Sequence[int]) -> np.ndarray:
    """Condition a covariance on the values at some indices."""
    if not indices:
        return covariance
    known = covariance[np.ix_(indices, indices)] + LEAST_DEVIATION * np.eye(len(indices))
    return covariance - covariance[:, indices] @ np.linalg.solve(known, covariance[indices])
