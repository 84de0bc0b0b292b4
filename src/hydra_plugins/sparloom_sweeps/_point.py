"""Points of a grid; tables, figures and jobs read them as they read the trials of Optuna."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["Point", "State", "Trial", "Values", "best"]

Trial = Union["Point", "FrozenTrial"]


class State(Enum):
    """Where a point stands, by the names that Optuna has."""

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
