"""The sweeper of searches: asks the study for trials, launches them in batches, tells the study what came of them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.sparloom_sweeps._jobs import Job, Watch
from hydra_plugins.sparloom_sweeps._results import conclude, flat, plain
from hydra_plugins.sparloom_sweeps._study import Space, Study, read_space
from hydra_plugins.sparloom_sweeps.grid import JobSweeper, in_folder
from sparloom import log
from sparloom.cli import UsageError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

INDIFFERENT = ("debug", "prepare", "paths.", "logger.")  # may change while a sweep goes on


class OptunaSweeper(JobSweeper):
    """Searches for the configuration with the best objective; the folder of the sweep keeps all that is known.

    Args:
        params: the search space, see `_space`.
        direction: maximize or minimize the metric that the root key `objective` names.
        trials: how many in all, those of earlier runs of this sweep included.
        batch: how many the launcher gets at once.
        study: path of the SQLite file; None: study.db in the folder of the sweep.
        sampler: _target_ and arguments, without seed.
        poll_seconds: between two looks for intermediate values.
    """

    def __init__(
        self, *, params: Mapping[str, Any], direction: str, trials: int, batch: int, study: str | None, seed: int,
        sampler: Mapping[str, Any], pruner: Mapping[str, Any], poll_seconds: float,
    ) -> None:
        self.params, self.direction, self.trials, self.batch, self.study = params, direction, trials, batch, study
        self.seed, self.sampler, self.pruner, self.poll_seconds = seed, sampler, pruner, poll_seconds

    def sweep(self, arguments: list[str]) -> float:
        """Run what trials are still missing, then write table, figures and the best experiment; returns its value."""
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        space, fixed = read_space(self.params, arguments, parser.parse_overrides)
        first = self.compose([*fixed, *(f"{key}={parameter.first()}" for key, parameter in space.items())])
        self._check(first.config)
        folder = self.folder({key: getattr(parameter, "values", ()) for key, parameter in space.items()})
        self._check_options(space, fixed, str(first.config.objective))
        folder.mkdir(parents=True, exist_ok=True)
        with self._open(folder) as study:
            study.keep_origin(self._origin(space))
            OmegaConf.save(self.config, folder / "multirun.yaml")
            left = f", {study.left} left by an interrupted sweep" if study.left else ""
            log.console.print(f"sweep: {study.finished} of {self.trials} trials done{left}; stopped, it goes on with "
                              f"hydra.sweep.dir={folder}", markup=False)
            while study.finished < self.trials:
                self._run_batch(study, space, fixed, folder)
            found = conclude(study.trials(), objective=str(first.config.objective), maximize=study.maximizes,
                             fixed=fixed, folder=folder, compose=self.compose)
            if found is None:
                raise UsageError(_no_value(study.trials()))
            return found

    def _check(self, config: DictConfig) -> None:
        """Refuse options that cannot be meant."""
        if self.direction not in ("maximize", "minimize"):
            raise UsageError(f"hydra.sweeper.direction={self.direction} is not one of maximize, minimize")
        if self.trials < 1 or self.batch < 1:
            raise UsageError(f"hydra.sweeper.trials={self.trials}, batch={self.batch}: both must be at least 1")
        if OmegaConf.select(config, "objective") is None:
            raise UsageError("no objective: name a metric that the task returns, objective=<metric>")

    def _check_options(self, space: Space, fixed: Sequence[str], objective: str) -> None:
        """Refuse options of searched groups whose launcher or sweeper would come too late, or with other objectives."""
        for key in space.keys() & self.config.hydra.runtime.choices.keys():
            others = [f"{name}={parameter.first()}" for name, parameter in space.items() if name != key]
            for value in getattr(space[key], "values", ()):
                with suppress(HydraException, OmegaConfBaseException):  # its trials fail
                    job = self.load_job([*fixed, *others], [f"{key}={value}"])
                    if str(job.objective) != objective:
                        raise UsageError(f"{key}={value} has the objective {job.objective}, and others {objective}: "
                                         "give one for all, objective=<metric>")

    def _open(self, folder: Path) -> Study:
        path = Path(self.study).absolute() if self.study else folder / "study.db"
        return Study(path, direction=self.direction, seed=self.seed, make_pruner=lambda: instantiate(self.pruner),
                     make_sampler=lambda seed: instantiate(self.sampler, seed=seed))

    def _origin(self, space: Space) -> dict[str, Any]:
        """Return the overrides that all trials share."""
        config = {key: value for key, value in flat(plain(self.config)).items() if not key.startswith(INDIFFERENT)}
        searched = {f"hydra.sweeper.params.{key}": str(parameter) for key, parameter in space.items()}
        return config | searched | {"hydra.sweeper.direction": self.direction}

    def _run_batch(self, study: Study, space: Space, fixed: Sequence[str], folder: Path) -> None:
        jobs = []
        for _ in range(min(self.batch, self.trials - study.finished)):
            job = self._ask(study, space, fixed, folder)
            if job is not None:
                job.clear()
                jobs.append(job)
        if not jobs:
            return
        with Watch({job.folder: job.trial for job in jobs}, self.poll_seconds):
            done = self.launch(jobs)
        for job, returned in zip(jobs, done, strict=True):
            try:
                outcome = job.outcome(returned)
            except UsageError as error:
                if study.best() is None:
                    raise  # all the others would run in vain
                outcome = str(error)
            self._tell(study, job, outcome)

    def _ask(self, study: Study, space: Space, fixed: Sequence[str], folder: Path) -> Job | None:
        """Make the next trial a job; None if it needs no run."""
        trial, point = study.next(space)
        name = f"trial_{trial.number:04d}"
        overrides = [*fixed, *point]
        try:
            objective = self.compose(overrides).config.objective
        except (HydraException, OmegaConfBaseException) as error:
            study.tell(trial, " ".join(str(error).split()))
            self._report(study, trial.number)
            return None
        job = Job(trial, [*overrides, *in_folder(folder, name)], folder / name, objective)
        stored, twin = job.stored_outcome(), study.twin(trial)
        if stored is None and twin is None:
            return job
        self._tell(study, job, twin.value if stored is None else stored)
        return None

    def _tell(self, study: Study, job: Job, outcome: float | str) -> None:
        seconds = job.seconds()
        if seconds is not None:
            job.trial.set_user_attr("seconds", seconds)
        study.tell(job.trial, outcome)
        self._report(study, job.trial.number)

    def _report(self, study: Study, number: int) -> None:
        """Print one line on a trial that has ended."""
        trial, best = study.trials()[number], study.best()
        point = ", ".join(f"{key.lstrip('+')}={value}" for key, value in trial.params.items())
        result = {"COMPLETE": f"{trial.value:.6g}" if trial.state.name == "COMPLETE" else "", "PRUNED": "pruned"}.get(
            trial.state.name, f"failed: {trial.user_attrs.get('reason')}")
        leader = f"; best {best.value:.6g}, trial {best.number}" if best else ""
        log.console.print(f"trial {number} ({point}): {result}{leader}", markup=False)


def _no_value(trials: Sequence["FrozenTrial"]) -> str:
    reasons = [trial.user_attrs["reason"] for trial in trials if "reason" in trial.user_attrs]
    if reasons:
        return f"none of {len(trials)} trials has a value (the last failed: {reasons[-1]}): run one by itself"
    return f"none of {len(trials)} trials has a value: choose a gentler pruner"
