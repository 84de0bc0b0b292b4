"""Points of a grid; tables, figures and jobs read them as they read the trials of Optuna.

A grid: from `hydra.sweeper.params` and from the command line to all combinations of values.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Union

from hydra.core.override_parser.types import Override

from sparloom.cli import UsageError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Trial = Union["Point", "FrozenTrial"]


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

    def points(self) -> list[Point]:
        """All combinations; the last parameter changes first."""
        axes = {key: Values([_value(text) for text in texts]) for key, texts in self.varied.items()}
        return [Point(number, params={key: _value(text) for key, text in zip(axes, chosen, strict=True)},
                      distributions=axes, user_attrs={"point": list(chosen)})
                for number, chosen in enumerate(itertools.product(*self.varied.values()))]


def read_grid(
    params: Mapping[str, Any], arguments: Sequence[str], parse: Callable[[list[str]], list[Override]]
) -> Grid:
    """Split what is given into values to combine and overrides that hold for every run.

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
