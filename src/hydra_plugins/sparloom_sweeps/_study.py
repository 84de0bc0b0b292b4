"""Search: read the space of parameters, and ask and tell trials in a study, an SQLite file that outlives the process.

The space is read from `hydra.sweeper.params` and from the command line. In a file, one kind per parameter: `{interval:
[low, high]}`, `{log_interval: [low, high]}`, `{int: [low, high]}` or `{int: [low, high, step]}`, both ends included,
and `{choice: [...]}`. A string is read by Hydra's grammar, as on the command line: `interval(0,1)`,
`tag(log,interval(1e-5,1e-3))`, `int(interval(1,9))`, `range(1,9)`, `choice(a,b)`, `a,b`.
"""

import fcntl
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hydra.core.override_parser.types import IntervalSweep, Override, Quote, QuotedString, RangeSweep

from hydra_plugins.sparloom_sweeps._jobs import best
from sparloom.cli import UsageError, suggestion
from sparloom.lazy import install_command

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

Parse = Callable[[list[str]], list[Override]]
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = ("true", "false", "null", "nan", "inf")  # are no strings without quotes
_KINDS = {
    "interval": "interval: [low, high] with two numbers", "log_interval": "log_interval: [low, high] with two numbers",
    "int": "int: [low, high] or [low, high, step] with integers", "choice": "choice: [value, value, ...]",
}
LOCK_SECONDS = 60  # to wait for another process that reads the file, such as a dashboard


@dataclass(frozen=True)
class Interval:
    """Real numbers from `low` to `high`, on a logarithmic scale if `log`; multiples of `step` above `low` if given."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def suggest(self, key: str, trial: "Trial") -> str:
        value = trial.suggest_float(key, self.low, self.high, log=self.log, step=self.step)
        return repr(value) if self.step is None else f"{value:.12g}"

    def first(self) -> str:
        return repr(self.low)


@dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high` in steps of `step`, on a logarithmic scale if `log`."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def suggest(self, key: str, trial: "Trial") -> str:
        return str(trial.suggest_int(key, self.low, self.high, step=self.step, log=self.log))

    def first(self) -> str:
        return str(self.low)


@dataclass(frozen=True)
class Choice:
    """Values without order, each as it is written on a command line."""

    values: tuple[str, ...]

    def suggest(self, key: str, trial: "Trial") -> str:
        return trial.suggest_categorical(key, self.values)

    def first(self) -> str:
        return self.values[0]


Parameter = Interval | Integers | Choice
"""`suggest` draws a value, `first` returns the lowest or first one, both as written on a command line."""

Space = dict[str, Parameter]


def read_space(params: Mapping[str, Any], arguments: Sequence[str], parse: Parse) -> tuple[Space, list[str]]:
    """Split parameters and arguments into parameters to search and overrides that hold for every trial.

    Args:
        params: key -> kind, text in Hydra's grammar, or a fixed number, as files hold them.
        arguments: overrides of the command line; they win over `params`.
        parse: Hydra's parser of overrides.

    Raises:
        UsageError: a parameter is not of the schema, or there is nothing to search.
    """
    space: Space = {}
    texts = []
    for key, spec in params.items():
        if isinstance(spec, Mapping):
            space[key] = _from_file(key, spec)
        elif isinstance(spec, list):
            raise UsageError(f"parameter {key}: a list is no search space: write {{choice: [...]}}")
        else:
            texts.append(f"{key}={'null' if spec is None else spec}")
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


def _from_file(key: str, spec: Mapping[str, Any]) -> Parameter:
    if len(spec) != 1:
        raise UsageError(f"parameter {key}: {len(spec)} kinds given ({', '.join(map(str, spec)) or 'none'}): "
                         f"exactly one of {', '.join(_KINDS)}")
    (kind, values), = spec.items()
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


class Study:
    """One search that one process at a time carries on, however often it is interrupted.

    Optuna does not store the state of its samplers: a sampler made anew with the same seed repeats its first points.
    So the sampler is made for every trial, from the seed and the number of the trial. A sweep that was killed therefore
    draws the same points as one that was not, as long as it runs one trial at a time.

    Args:
        path: SQLite file; made if absent.
        make_sampler: seed -> sampler.

    Raises:
        UsageError: Optuna is not installed, another process carries on the study, or the file is something else.
    """

    def __init__(
        self, path: Path, *, direction: str, seed: int, make_sampler: Callable[[int], "BaseSampler"],
        make_pruner: Callable[[], "BasePruner"],
    ) -> None:
        self.path = path
        self._make_sampler, self._seed = make_sampler, seed
        self._held = ExitStack()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock()
        try:
            self._study = _open(path, direction, make_pruner)
        except BaseException:
            self._held.close()
            raise
        self._left = [trial for trial in self.trials() if trial.state.name == "RUNNING"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def trials(self) -> list["FrozenTrial"]:
        """List all trials in the order of their numbers."""
        return self._study.get_trials(deepcopy=False)

    @property
    def finished(self) -> int:
        """Count the trials that have ended: with a value, pruned, or failed."""
        return sum(trial.state.is_finished() for trial in self.trials())

    @property
    def left(self) -> int:
        """Count the trials of an interrupted sweep that have not been resumed yet."""
        return len(self._left)

    @property
    def maximizes(self) -> bool:
        """Tell whether large values are good."""
        return self._study.direction.name == "MAXIMIZE"

    def best(self) -> "FrozenTrial | None":
        """Find the trial with the best value, the earlier of equals; None if none has a value."""
        return best(self.trials(), maximize=self.maximizes)

    def next(self, space: Space) -> tuple["Trial", list[str]]:
        """Ask for a trial, those that were left behind first; returns it with its overrides."""
        import optuna

        if self._left:
            left = self._left.pop(0)
            self._study.sampler = self._sampler(left.number)
            trial = optuna.trial.Trial(self._study, left._trial_id)  # keeps its number and what was drawn of its point
        else:
            self._study.sampler = self._sampler(len(self.trials()))
            trial = self._study.ask()
        point = [f"{key}={parameter.suggest(key, trial)}" for key, parameter in space.items()]
        trial.set_user_attr("point", point)
        return trial, point

    def twin(self, trial: "Trial") -> "FrozenTrial | None":
        """Find an earlier trial at the same point that has a value."""
        return next((other for other in self.trials()
                     if other.state.name == "COMPLETE" and other.params == trial.params), None)

    def tell(self, trial: "Trial", outcome: float | str) -> None:
        """Record the value of a trial, or "pruned", or else why it failed."""
        from optuna.trial import TrialState

        if isinstance(outcome, float):
            self._study.tell(trial, outcome)
        elif outcome == "pruned":
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            trial.set_user_attr("reason", outcome)
            self._study.tell(trial, state=TrialState.FAIL)

    def keep_origin(self, origin: Mapping[str, Any]) -> None:
        """Note what all trials share, or compare it with what the earlier ones shared.

        Args:
            origin: flat: search space, direction, configuration and "objective", which may change while no trial has
                ended.

        Raises:
            UsageError: earlier trials were made with something else.
        """
        known = self._study.user_attrs.get("origin")
        if known is not None and self.trials():
            may_change = () if self.finished else ("objective",)
            changed = [key for key in sorted({*known, *origin} - {*may_change}) if known.get(key) != origin.get(key)]
            if changed:
                shown = ", ".join(f"{key}={known.get(key)} (now {origin.get(key)})" for key in changed[:3])
                raise UsageError(f"{self.path} holds trials made with {shown}{', ...' if len(changed) > 3 else ''}: "
                                 "go on with the same options, or start another sweep in another hydra.sweep.dir")
        self._study.set_user_attr("origin", dict(origin))

    def _sampler(self, number: int) -> "BaseSampler":
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).digest()
        return self._make_sampler(int.from_bytes(digest[:4], "big"))

    def _lock(self) -> None:
        """Hold the study until this process ends, in whatever way."""
        file = self._held.enter_context(self.path.with_name(f"{self.path.name}.lock").open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._held.close()
            raise UsageError(f"{self.path} is in use by another sweep: wait for its end, or start this one in another "
                             "hydra.sweep.dir") from None


def _open(path: Path, direction: str, make_pruner: Callable[[], "BasePruner"]) -> "OptunaStudy":
    try:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise UsageError(f"hydra/sweeper=sparloom_optuna needs Optuna: {install_command('scale')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options = {"connect_args": {"timeout": LOCK_SECONDS}}
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=options)
        return optuna.create_study(
            storage=storage, study_name="sweep", direction=direction, pruner=make_pruner(), load_if_exists=True)
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is no study of this Optuna ({reason}): move it away or name another "
                         "hydra.sweeper.study") from None
