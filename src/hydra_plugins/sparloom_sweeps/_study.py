"""The study: an SQLite file that outlives the process, and the order in which trials are asked and told."""

import fcntl
import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hydra_plugins.sparloom_sweeps._grid import best
from hydra_plugins.sparloom_sweeps._space import Space
from sparloom.cli import UsageError

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

LOCK_SECONDS = 60  # to wait for another process that reads the file, such as a dashboard


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
        raise UsageError("hydra/sweeper=sparloom_optuna needs Optuna: pip install -e .[scale]") from None
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
