"""One trial as a job of Hydra: its overrides and folder, and what came of it."""

import json
import math
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from hydra.core.utils import JobReturn, JobStatus

from sparloom.cli import Reported, UsageError, suggestion
from sparloom.files import check_sum
from sparloom.intermediate import REPORTED, STOP, STOPPED

if TYPE_CHECKING:
    from optuna.trial import Trial

    from hydra_plugins.sparloom_sweeps._point import Point

__all__ = ["Job", "metrics"]

METRICS = "metrics.json"  # a run writes it last and at once


@dataclass(frozen=True)
class Job:
    """A trial with everything a launcher needs.

    Args:
        overrides: all overrides of the job.
        objective: metric of the configuration of this job; None: it only has to succeed.
    """

    trial: Union["Trial", "Point"]
    overrides: list[str]
    folder: Path
    objective: str | None

    def kept(self) -> float | str | None:
        """What came of a run that ended before the sweep that had started it could note it; None: there is no such."""
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
        given = known.get(self.objective) if isinstance(done, Exception) else done._return_value
        value = _number(given)
        if value is not None:
            return value
        if known and self.objective not in known:
            raise UsageError(f"the task returns no metric {self.objective!r}: set objective; "
                             f"{suggestion(self.objective, known)}")
        return f"{self.objective} is {given}, not a finite number"

    def failure(self, done: JobReturn | Exception) -> str | None:
        """Say why the job failed, if it did; it may have ended well before its launcher failed."""
        if isinstance(done, Exception):
            return None if metrics(self.folder) else _reason(done)
        return _reason(done._return_value) if done.status != JobStatus.COMPLETED else None  # the property would raise

    def seconds(self) -> float | None:
        """How long the run took, from the files it wrote first and last."""
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
