"""Run trials of a search, or points of a grid, as jobs of Hydra: their overrides, folders and outcomes.

A `Point` has the attributes of a trial of Optuna, so tables and figures read both alike. `Once` keeps a trial from
running twice when workers of a launcher outlive a killed sweep. `Watch` reads the intermediate values that running jobs
write, and stops those that the pruner gives up.
"""

import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Union

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import TaskFunction
from omegaconf import DictConfig

from sparloom.cli import Reported, UsageError, suggestion
from sparloom.files import check_sum, locked
from sparloom.log import REPORTED, STOP, STOPPED

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as OptunaTrial

Trial = Union["Point", "FrozenTrial"]
METRICS = "metrics.json"  # a run writes it last and at once


class State(Enum):
    """State of a point, by Optuna's names."""

    WAITING = 0
    COMPLETE = 1
    FAIL = 2

    def is_finished(self) -> bool:
        return self is not State.WAITING


@dataclass(frozen=True)
class Values:
    """All values of one parameter, as they are written on a command line."""

    choices: Sequence[str]


@dataclass
class Point:
    """One combination of values.

    Args:
        params: parameter -> its value.
        value: of the objective; None: there is none, or not yet.
        user_attrs: what became of it: point (its overrides), folder, seconds, reason.
    """

    number: int
    params: Mapping[str, str]
    distributions: Mapping[str, Values]
    state: State = State.WAITING
    value: float | None = None
    user_attrs: dict[str, Any] = field(default_factory=dict)

    def set_user_attr(self, name: str, value: Any) -> None:
        """Note what became of it."""
        self.user_attrs[name] = value


def best(trials: Sequence[Trial], *, maximize: bool) -> Trial | None:
    """Find the trial with the best value, the earlier of equals; None if none has a value."""
    valued = [trial for trial in trials if trial.state.name == "COMPLETE" and trial.value is not None]
    sign = -1 if maximize else 1
    return min(valued, key=lambda trial: (sign * trial.value, trial.number), default=None)


@dataclass(frozen=True)
class Grid:
    """Parameters with their values, each an override, and the overrides that hold for every run."""

    varied: Mapping[str, Sequence[str]]
    fixed: Sequence[str]

    @property
    def values(self) -> dict[str, list[str]]:
        """The values of every parameter."""
        return {key: [_value(text) for text in texts] for key, texts in self.varied.items()}

    def points(self) -> list[Point]:
        """All combinations; the last parameter changes first."""
        axes = {key: Values(values) for key, values in self.values.items()}
        return [Point(number, params={key: _value(text) for key, text in zip(axes, chosen, strict=True)},
                      distributions=axes, user_attrs={"point": list(chosen)})
                for number, chosen in enumerate(itertools.product(*self.varied.values()))]


def read_grid(
    params: Mapping[str, Any], arguments: Sequence[str], parse: Callable[[list[str]], list[Override]]
) -> Grid:
    """Split parameters and arguments into values to combine and overrides that hold for every run.

    Args:
        params: key -> values, joined by commas.
        arguments: overrides of the command line; they win over `params`.
        parse: Hydra's parser of overrides.

    Raises:
        UsageError: a parameter has no list of values.
    """
    varied: dict[str, list[str]] = {}
    fixed: dict[str, str] = {}
    for override in parse([*(f"{key}={value}" for key, value in params.items()), *arguments]):
        key = override.get_key_element()
        varied.pop(key, None)
        fixed.pop(key, None)
        if not override.is_sweep_override():
            fixed[key] = override.input_line or f"{key}={override.get_value_element_as_str()}"
        elif not override.is_discrete_sweep():
            raise UsageError(f"{override.input_line} is no list of values: give some, {key}=1,2, or search by "
                             "hydra/sweeper=sparloom_optuna")
        else:
            varied[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    return Grid(varied, list(fixed.values()))


def _value(override: str) -> str:
    return override.partition("=")[2]


@dataclass(frozen=True)
class Job:
    """A trial with everything a launcher needs.

    Args:
        objective: metric of the configuration of this job; None: it only has to succeed.
    """

    trial: Union["OptunaTrial", "Point"]
    overrides: list[str]
    folder: Path
    objective: str | None

    def stored_outcome(self) -> float | str | None:
        """Read the outcome of a run that ended before its killed sweep could record it; None if there is none."""
        noted = self.trial.user_attrs.get("folder")
        if noted is None or not (Path(noted) / METRICS).exists():
            return None
        if (Path(noted) / STOPPED).exists():
            return "pruned"
        return _number(metrics(Path(noted)).get(self.objective))

    def value(self) -> float | None:
        """Objective of a run that ended well; None if there is none."""
        return _number(metrics(self.folder).get(self.objective))

    def clear(self) -> None:
        """Take away what is left of another sweep or of a run that was killed, and note the folder.

        The metrics of a trial that was left behind stay: a worker that is still at it may write them at any time.
        """
        new = self.trial.user_attrs.get("folder") != str(self.folder)
        for name in (REPORTED, STOP, STOPPED, *([METRICS] if new else [])):
            (self.folder / name).unlink(missing_ok=True)
        self.trial.set_user_attr("folder", str(self.folder))

    def outcome(self, done: JobReturn | Exception) -> float | str:
        """Judge what the launcher gave back: the value, "pruned", or why there is none.

        Args:
            done: an exception if the launcher itself failed, which may have happened after this job had ended.

        Raises:
            UsageError: the job succeeded, but its task knows no such metric.
        """
        if (self.folder / STOPPED).exists():
            return "pruned"
        reason = self.failure(done)
        if reason is not None:
            return reason
        known = metrics(self.folder)
        returned = known.get(self.objective) if isinstance(done, Exception) else done._return_value
        value = _number(returned)
        if value is not None:
            return value
        if known and self.objective not in known:
            raise UsageError(f"the task returns no metric {self.objective!r}: set objective; "
                             f"{suggestion(self.objective, known)}")
        return f"{self.objective} is {returned}, not a finite number"

    def failure(self, done: JobReturn | Exception) -> str | None:
        """Say why the job failed, if it did; it may have ended well before its launcher failed."""
        if isinstance(done, Exception):
            return None if metrics(self.folder) else _reason(done)
        return _reason(done._return_value) if done.status != JobStatus.COMPLETED else None  # the property would raise

    def seconds(self) -> float | None:
        """Return the seconds of a run, from the files that it wrote first and last."""
        try:
            folder = Path(self.trial.user_attrs.get("folder", self.folder))
            began, ended = folder / ".hydra" / "overrides.yaml", folder / METRICS
            seconds = ended.stat().st_mtime - began.stat().st_mtime
        except FileNotFoundError:
            return None
        return seconds if seconds >= 0 else None  # a second process came to the folder later


def metrics(folder: Path) -> dict[str, Any]:
    """Read what a run that ended well has written; empty if there is none, or if it is damaged: it runs again."""
    path = folder / METRICS
    try:
        content = path.read_bytes()
        check_sum(path, content)
        return json.loads(content)
    except (FileNotFoundError, ValueError):
        return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


def _reason(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, Reported) else f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class Once:
    """The task, held off while another process is at the same trial, and left out when that one has ended well.

    Workers that outlive a killed sweep finish what is in their queue. The resumed sweep launches the same trials: of
    two processes the first to lock the folder runs the trial, the second waits and returns what the first has found.
    """

    task: TaskFunction

    def __call__(self, cfg: DictConfig) -> Any:
        """Run the task in the folder of the job, or give the objective that is there."""
        out = Path(HydraConfig.get().runtime.output_dir)
        with locked(out / "job.lock"):
            found = metrics(out).get(cfg.get("objective"))
            return self.task(cfg) if found is None else found


class Watch:
    """Watches folders of running trials from a thread of the sweeper, whatever the launcher.

    So jobs know nothing of Optuna, and only the sweeper opens the study, which may not lie on a network file system.

    Args:
        trials: folder -> trial.
        seconds: between two looks.
    """

    def __init__(self, trials: Mapping[Path, "OptunaTrial"], seconds: float) -> None:
        self._trials, self._seconds = trials, seconds
        self._read = dict.fromkeys(trials, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="intermediate values", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for folder, trial in self._trials.items():
            self._take(folder, trial)

    def _look_often(self) -> None:
        while not self._ended.wait(self._seconds):
            for folder, trial in self._trials.items():
                if self._take(folder, trial) and trial.should_prune():
                    (folder / STOP).touch()

    def _take(self, folder: Path, trial: "OptunaTrial") -> bool:
        """Hand new values to the trial; says whether there were any."""
        new = _complete_lines(folder / REPORTED)[self._read[folder]:]
        self._read[folder] += len(new)
        for line in new:
            step, _, value = line.partition(",")
            trial.report(float(value), int(step))
        return bool(new)


def _complete_lines(path: Path) -> Sequence[str]:
    """Leave out a last line that is still being written."""
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return ()
