"""A grid: from `hydra.sweeper.params` and from the command line to all combinations of values."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override

from hydra_plugins.sparloom_sweeps._point import Point, Values
from sparloom.cli import UsageError

__all__ = ["Grid", "read_grid"]


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
