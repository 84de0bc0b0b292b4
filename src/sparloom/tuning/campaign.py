"""Campaigns: choose which configurations of which problems to time next, until more would gain little.

    campaign = Campaign(folder, space, problems)
    for trial in campaign.ask(8):
        campaign.tell(trial.problem, trial.config, seconds=run(trial))

What is asked and told lies in the folder, so that a campaign survives the death of its process, and several processes
of one machine may share it. `sparloom.tuning.engine` chooses. Names as in Optuna: ask, tell, trial.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparloom.data import checked_seconds
from sparloom.errors import SchemaError
from sparloom.files import append_lines, locked, read_json, read_lines, write_json, write_text
from sparloom.models import Estimator, MatrixFeatures
from sparloom.space import Config, ConfigSpace, SearchSpace
from sparloom.tuning.engine import ONLY, Engine, Proposal, Trials
from sparloom.tuning.transfer import Source

ASKED, TOLD, SETTINGS = "asked.jsonl", "told.jsonl", "campaign.json"
RESULT_KEYS = {"problem", "config", "seconds", "failure"}  # of `Campaign.tell_all`
TELLING = "telling"  # file that is locked while results are written


@dataclass(frozen=True)
class ProblemSummary:
    """What is known and expected of one problem.

    Args:
        config, seconds: the fastest configuration that ran; None if none has.
        trials: how many have run, failures included.
        gain: largest expected improvement of one more trial, as a share of the seconds; infinite as long as too
            little has run to tell, 0 if no configuration is left or the problem is given up.
        regret: by how much the best of all configurations is expected to be faster, likewise.
    """

    problem: str
    config: Config | None
    seconds: float | None
    trials: int
    gain: float
    regret: float


class Campaign:
    """A campaign in a folder, begun there or continued.

    Args:
        folder: created if it is not there.
        space: configurations.
        problems: by name: features (a dict of numbers and categories, the same ones for all), or sparse matrices. None:
            there is one problem, named "", without features.
        sources: trials of other devices, problem sizes, versions or a simulator, from which the first trials are
            chosen, and later ones as far as they rank the trials of this campaign well.
        estimator: seconds by a formula of the platform, if there is one.
        conditions: what else seconds depend on, such as the machine or a command, in types of JSON. Other values are
            refused once there is a result with seconds.
        seed: of what is drawn.

    Raises:
        SchemaError: the folder holds a campaign of another space, of other problems, that is of other names,
            features or patterns, or under other conditions, or a damaged file; a source has no parameter in common with
            the space.
        OSError: a new campaign cannot be written, such as to a full disk. One that is there opens even so,
                unless its conditions change.
        ValueError: there is no problem.
    """

    def __init__(self, folder: Path | str, space: SearchSpace | ConfigSpace, problems: Mapping[str, Any] | None = None,
                 *, sources: Sequence[Source] = (), estimator: Estimator | None = None,
                 conditions: Mapping[str, Any] | None = None, seed: int = 0) -> None:
        self.folder, self.seed = Path(folder), seed
        self.problems = {ONLY: {}} if problems is None else dict(problems)
        self._engine = Engine(space, self.problems, sources=sources, estimator=estimator, seed=seed)
        self.space = self._engine.space
        self.folder.mkdir(parents=True, exist_ok=True)
        described = {name: _identity(each) for name, each in sorted(self.problems.items())}
        self._open_folder({"space": self.space.digest(), "problems": described},
                          json.loads(json.dumps(dict(conditions or {}))))

    def ask(self, count: int, *, tolerance: float = 0.0) -> list[Proposal]:
        """Choose the next trials, at most `count`, and remember that they are running.

        Trials that were asked but not told count as running: see `pending` and `forget`.

        Args:
            tolerance: choose no more once one more trial of each problem is expected to gain less, in the mean, than
                this share of the seconds.
        """
        if count < 1:
            raise ValueError(f"ask({count}): ask for at least one trial")
        with locked(self.folder / "lock"):
            chosen = self._engine.choose(self._trials(self._told()), count, tolerance=tolerance)
            append_lines(self.folder / ASKED, [json.dumps({"problem": trial.problem, "config": trial.config.key})
                                               for trial in chosen])
        return chosen

    def tell(self, problem: str, config: Config | str | Mapping[str, Any], *, seconds: float | None = None,
             failure: str | None = None) -> None:
        """Add what came out of a trial, asked for or not; it is on disk when this returns.

        Several results of one program are repetitions, of which the median counts. Configurations that are the same
        program on this problem are not told apart.

        Args:
            config: a configuration, its key, or a dict of all parameters.
            seconds: of the run, or any number in proportion to them, with the same factor on all problems.
            failure: why there are none.

        Raises:
            ValueError: the problem is unknown, seconds are not positive and finite, or both or none of seconds and
                failure are given.
            IllegalSchedule: the space does not have the configuration.
            TypeError: the configuration is something else.
        """
        row = self._row(problem, config, seconds=seconds, failure=failure)
        with locked(self.folder / TELLING):
            append_lines(self.folder / TOLD, [json.dumps(row)])

    def tell_all(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Add what came out of many trials; all of it is on disk when this returns, and nothing if it raises.

        Args:
            results: arguments of `tell` by name: problem, config, and seconds or failure.

        Raises:
            ValueError, IllegalSchedule, TypeError: as `tell`.
        """
        rows = []
        for number, result in enumerate(results, start=1):
            if not isinstance(result, Mapping) or not {"problem", "config"} <= result.keys() <= RESULT_KEYS:
                raise TypeError(f"result {number} is {result!r:.200}: give a dict with problem, config, and seconds or "
                                "failure")
            rows.append(json.dumps(self._row(**result)))
        with locked(self.folder / TELLING):
            append_lines(self.folder / TOLD, rows)

    def _row(self, problem: str, config: Config | str | Mapping[str, Any], *, seconds: float | None = None,
             failure: str | None = None) -> dict[str, Any]:
        """Check a result; return its row in the journal."""
        key = self.program(problem, config).key
        if (seconds is None) == (failure is None):
            raise ValueError(f"{problem}, {key}: give either seconds or failure")
        if seconds is not None:
            seconds = checked_seconds(seconds, lambda _: f"{problem}, {key}").item()
        return {"problem": problem, "config": key, "seconds": seconds,
                "failure": None if failure is None else str(failure)}

    def program(self, problem: str, config: Config | str | Mapping[str, Any]) -> Config:
        """Return the configuration that stands for all that are the same program on a problem, see `tell`."""
        return self._engine.program(problem, config)

    def pending(self) -> list[Proposal]:
        """Return the trials that were asked for, not forgotten, and not told."""
        return self._pending(self._told())

    def _pending(self, rows: Sequence[Mapping[str, Any]]) -> list[Proposal]:
        told = {(row["problem"], row["config"]) for row in rows}
        open_: dict[tuple[str, str], bool] = {}
        for row in self._read(ASKED):
            open_[row["problem"], row["config"]] = not row.get("forgotten", False)
        return [Proposal(problem, self._engine.program(problem, key)) for (problem, key), is_open in open_.items()
                if is_open and (problem, key) not in told]

    def forget(self, trial: Proposal) -> None:
        """Stop waiting for a trial, so that it may be asked for again."""
        append_lines(self.folder / ASKED, [json.dumps(
            {"problem": trial.problem, "config": trial.config.key, "forgotten": True})])

    def forget_failures(self) -> int:
        """Stop counting the failures, so that their trials may be asked for again; return how many there were."""
        with locked(self.folder / TELLING):
            rows = self._read(TOLD)
            failed = [row for row in rows if row["failure"] is not None and not row.get("forgotten", False)]
            append_lines(self.folder / ASKED, [json.dumps(
                {"problem": row["problem"], "config": row["config"], "forgotten": True}) for row in failed])
            for row in failed:
                row["forgotten"] = True
            if failed:
                write_text(self.folder / TOLD, "".join(f"{json.dumps(row)}\n" for row in rows))
        return len(failed)

    def labels(self) -> pd.DataFrame:
        """Return the results with seconds: problem, config, seconds; medians of repetitions."""
        return _labels(self._told())

    def count(self) -> int:
        """Count the results, failures included."""
        return len(self._told())

    def history(self, *, forgotten: bool = False) -> pd.DataFrame:
        """Return all results in the order in which they came: problem, config, seconds, failure.

        Args:
            forgotten: with the failures that `forget_failures` no longer counts.
        """
        rows = self._read(TOLD) if forgotten else self._told()
        return pd.DataFrame(rows, columns=["problem", "config", "seconds", "failure"]).astype({"seconds": float})

    def summary(self) -> list[ProblemSummary]:
        """Return what is known and expected of every problem."""
        rows = self._told()
        labels, expected = _labels(rows), self._engine.expectation(self._trials(rows))
        summaries = []
        for name, (gain, regret) in expected.items():
            seen = labels[labels["problem"] == name]
            best = None if seen.empty else seen.loc[seen["seconds"].idxmin()]
            summaries.append(ProblemSummary(
                name, None if best is None else self._engine.program(name, best["config"]),
                None if best is None else float(best["seconds"]), sum(row["problem"] == name for row in rows), gain,
                regret))
        return summaries

    def trusts(self) -> pd.DataFrame:
        """Return how much each source was trusted before the first trial and after each: a column for each, 0 to 1."""
        done = self._trials(self._told()).done
        return pd.DataFrame([self._engine.trusts(Trials(done[:count])) for count in range(len(done) + 1)])

    def _trials(self, rows: Sequence[Mapping[str, Any]]) -> Trials:
        done = [(row["problem"], self._engine.program(row["problem"], row["config"]),
                 math.nan if row["seconds"] is None else row["seconds"]) for row in rows]
        return Trials(done, [(each.problem, each.config) for each in self._pending(rows)])

    def _open_folder(self, settings: dict[str, Any], conditions: dict[str, Any]) -> None:
        """Store the settings of a new campaign, or compare them; conditions may change until seconds are told."""
        path = self.folder / SETTINGS
        with locked(self.folder / "lock"):
            stored = _stored_settings(path) if path.exists() else {**settings, "conditions": {}}
            before = stored["conditions"]
            for name, value in settings.items():
                if stored[name] != value:
                    other = next((f", such as {each!r}" for each in value if name == "problems"
                                  and stored[name].get(each) != value[each]), "")
                    raise SchemaError(f"{self.folder} holds a campaign with other {name}{other}: choose an empty folder"
                                      )
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
        kinds = {"space": str, "problems": dict, "conditions": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(stored[name], kind)]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise SchemaError(f"{path} is damaged or of an earlier version ({error!r}): choose an empty folder") from None
    if wrong:
        raise SchemaError(f"{path} is damaged: {wrong[0]} is {stored[wrong[0]]!r:.100}: choose an empty folder")
    return stored


def _labels(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the results with seconds: problem, config, seconds; medians of repetitions."""
    frame = pd.DataFrame([row for row in rows if row["seconds"] is not None], columns=["problem", "config", "seconds"])
    return frame.groupby(["problem", "config"], as_index=False, sort=True)["seconds"].median()


def _identity(problem: Any) -> Any:
    """Return what tells problems apart, in types of JSON: features, or the digest of a matrix."""
    if isinstance(problem, MatrixFeatures):
        return [*problem.shape, problem.nnz, problem.digest]
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in problem.items()}
