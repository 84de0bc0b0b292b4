"""The search space: from `hydra.sweeper.params` and from sweep overrides of the command line.

In a file, one kind per parameter: `{interval: [low, high]}`, `{log_interval: [low, high]}`, `{int: [low, high]}` or
`{int: [low, high, step]}`, both ends included, and `{choice: [...]}`. A string is read by Hydra's grammar, as on the
command line: `interval(0,1)`, `tag(log,interval(1e-5,1e-3))`, `int(interval(1,9))`, `range(1,9)`, `choice(a,b)`, `a,b`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, Quote, QuotedString, RangeSweep

from sparloom.cli import UsageError, suggestion

if TYPE_CHECKING:
    from optuna.trial import Trial

Parse = Callable[[list[str]], list[Override]]
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = ("true", "false", "null", "nan", "inf")  # are no strings without quotes


@dataclass(frozen=True)
class Interval:
    """Real numbers from `low` to `high`, on a logarithmic scale if `log`; multiples of `step` above `low` if given."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def suggest(self, key: str, trial: "Trial") -> str:
        """Draw a value, as it is written on a command line."""
        value = trial.suggest_float(key, self.low, self.high, log=self.log, step=self.step)
        return repr(value) if self.step is None else f"{value:.12g}"

    def first(self) -> str:
        """Write the lower end as on a command line."""
        return repr(self.low)


@dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high` in steps of `step`, on a logarithmic scale if `log`."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def suggest(self, key: str, trial: "Trial") -> str:
        """Draw a value, as it is written on a command line."""
        return str(trial.suggest_int(key, self.low, self.high, step=self.step, log=self.log))

    def first(self) -> str:
        """Write the lower end as on a command line."""
        return str(self.low)


@dataclass(frozen=True)
class Choice:
    """Values without order, each as it is written on a command line."""

    values: tuple[str, ...]

    def suggest(self, key: str, trial: "Trial") -> str:
        """Draw a value."""
        return trial.suggest_categorical(key, self.values)

    def first(self) -> str:
        """Give the first value."""
        return self.values[0]


Parameter = Interval | Integers | Choice
Space = dict[str, Parameter]


def read_space(params: Mapping[str, Any], arguments: Sequence[str], parse: Parse) -> tuple[Space, list[str]]:
    """Split what is given into parameters to search and overrides that hold for every trial.

    Args:
        params: key -> kind, text in Hydra's grammar, or a fixed number, as files hold them.
        arguments: overrides of the command line; they win over `params`.
        parse: Hydra's parser of overrides.

    Raises:
        UsageError: a parameter is not of the schema, or there is nothing to search.
    """
    space: Space = {}
    texts = []
    for key, given in params.items():
        if isinstance(given, Mapping):
            space[key] = _from_file(key, given)
        elif isinstance(given, list):
            raise UsageError(f"parameter {key}: a list is no search space: write {{choice: [...]}}")
        else:
            texts.append(f"{key}={'null' if given is None else given}")
    fixed: dict[str, str] = {}
    for override in parse([*texts, *arguments]):
        key = override.get_key_element()
        space.pop(key, None)
        fixed.pop(key, None)
        if override.is_sweep_override():
            space[key] = _from_override(key, override)
        else:
            fixed[key] = override.input_line or f"{key}={override.get_value_element_as_str()}"
    if not space:
        raise UsageError("nothing to search: choose hparams=<file with hydra.sweeper.params>, or give a key such as "
                         "'model.optimizer.lr=tag(log,interval(1e-5,1e-3))'")
    return space, list(fixed.values())


def written(value: Any) -> str:
    """Write a value as on a command line: strings that could be read as anything else are quoted."""
    if isinstance(value, QuotedString):
        return value.with_quotes()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{written(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in _WORDS):
        return QuotedString(value, Quote.single).with_quotes()
    return str(value)


def _from_file(key: str, given: Mapping[str, Any]) -> Parameter:
    """Read one kind of the schema."""
    if len(given) != 1:
        raise UsageError(f"parameter {key}: {len(given)} kinds given ({', '.join(map(str, given)) or 'none'}): "
                         f"exactly one of {', '.join(_KINDS)}")
    (kind, values), = given.items()
    if kind not in _KINDS:
        raise UsageError(f"parameter {key}: no kind {kind!r}: {suggestion(str(kind), _KINDS)}")
    if not isinstance(values, list):
        raise UsageError(f"parameter {key}: {kind} needs a list, not {values!r}: {_KINDS[kind]}")
    if kind == "choice":
        return _choice(key, [written(value) for value in values])
    numbers = (int,) if kind == "int" else (int, float)
    if len(values) not in ((2, 3) if kind == "int" else (2,)) or not all(type(value) in numbers for value in values):
        raise UsageError(f"parameter {key}: {kind}: {values} does not fit: {_KINDS[kind]} "
                         "(1e-4 is text in YAML, 1.0e-4 a number)")
    if kind == "int":
        return _integers(key, *values)
    return _interval(key, *map(float, values), log=kind == "log_interval")


def _from_override(key: str, override: Override) -> Parameter:
    """Read a sweep of Hydra's grammar."""
    sweep = override.value()
    tags = set(getattr(sweep, "tags", ()))
    if tags - {"log"} or (tags and not isinstance(sweep, IntervalSweep)):
        raise UsageError(f"parameter {key}: tag {', '.join(sorted(tags))} on {type(sweep).__name__}: "
                         "only tag(log,interval(low,high)) has a meaning")
    if isinstance(sweep, IntervalSweep):
        whole = type(sweep.start) is int and type(sweep.end) is int
        make = _integers if whole else _interval
        return make(key, sweep.start, sweep.end, log="log" in tags)
    if getattr(sweep, "shuffle", False):
        sweep.shuffle = False  # another order would be another space when the sweep goes on
    if isinstance(sweep, RangeSweep):
        values = list(override.sweep_iterator())
        if not values:
            raise UsageError(f"parameter {key}: the range is empty: range(start,stop,step) leaves out its stop")
        step = abs(sweep.step)
        if all(type(value) is int for value in values):
            return Integers(min(values), max(values), step)
        return Interval(float(min(values)), float(max(values)), step=float(step))
    return _choice(key, [written(value) for value in override.sweep_iterator()])


def _interval(key: str, low: float, high: float, *, log: bool = False) -> Interval:
    _check_ends(key, low, high, log=log)
    return Interval(low, high, log)


def _integers(key: str, low: int, high: int, step: int = 1, *, log: bool = False) -> Integers:
    _check_ends(key, low, high, log=log)
    if step < 1:
        raise UsageError(f"parameter {key}: step {step} is not positive: {_KINDS['int']}")
    return Integers(low, low + (high - low) // step * step, step, log)


def _choice(key: str, values: Sequence[str]) -> Choice:
    if not values or len(set(values)) < len(values):
        raise UsageError(f"parameter {key}: choice needs values that differ, not [{', '.join(values)}]")
    return Choice(tuple(values))


def _check_ends(key: str, low: float, high: float, *, log: bool) -> None:
    if not low < high:
        raise UsageError(f"parameter {key}: low {low} is not below high {high}: give [low, high]")
    if log and low <= 0:
        raise UsageError(f"parameter {key}: low {low} has no logarithm: give a positive one, or interval")


_KINDS = {
    "interval": "interval: [low, high] with two numbers", "log_interval": "log_interval: [low, high] with two numbers",
    "int": "int: [low, high] or [low, high, step] with integers", "choice": "choice: [value, value, ...]",
}
