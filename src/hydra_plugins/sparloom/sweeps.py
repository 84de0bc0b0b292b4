"""Search by Optuna behind `hydra/sweeper=sparloom_optuna`, and the table at the end of every sweep.

Grids are run by Hydra's own BasicSweeper. A search asks a study of Optuna for values, lets the launcher run them, and
tells the study what came of them. The study is a journal in the folder of the sweep: the same command with the same
hydra.sweep.dir continues it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sparloom import log
from sparloom.cli import UsageError, failure_reason, sweep_table
from sparloom.lazy import install_command

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

STUDY = "study.journal"


class RunsTable(Callback):
    """Prints the runs of a sweep when it has ended."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the table and write it to trials.csv."""
        sweep_table(Path(config.hydra.sweep.dir))


class OptunaSweeper(BasicSweeper):
    """Searches for the overrides with the best objective.

    Args:
        params: key -> values or range in Hydra's grammar, as on the command line, which wins.
        direction: maximize or minimize the metric that the root key `objective` names.
        trials: how many in all, those of earlier runs of this sweep included.
        batch: how many the launcher gets at once.
        sampler: _target_ and arguments, without seed.
    """

    def __init__(
        self, *, params: Mapping[str, str], direction: str, trials: int, batch: int, seed: int,
        sampler: Mapping[str, Any],
    ) -> None:
        super().__init__(max_batch_size=batch, params=dict(params))
        self.direction, self.trials, self.batch, self.seed, self.sampler = direction, trials, batch, seed, sampler

    def sweep(self, arguments: list[str]) -> float:
        """Run the trials that are missing and return the best value.

        Raises:
            UsageError: there is nothing to search or no objective, earlier trials had other options, or none has a
                value.
        """
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = {override.get_key_element(): override
                     for override in parser.parse_overrides([*self._parse_config(), *arguments])}
        space = {key: override for key, override in overrides.items() if override.is_sweep_override()}
        fixed = [override.input_line for key, override in overrides.items() if key not in space]
        if not space:
            raise UsageError("nothing to search: give a key such as 'model.optimizer.lr=tag(log,interval(1e-5,1e-3))'")
        if OmegaConf.select(self.config, "objective") is None:
            raise UsageError("no objective: name a metric that the task returns, objective=<metric>")
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        study = _open(folder / STUDY, self.direction)
        _refuse_other_options(study, [f"{self.direction} {OmegaConf.select(self.config, 'objective')}", *fixed,
                                      *(override.input_line for override in space.values())])
        _ask_again_for_interrupted(study)
        log.console.print(f"search: {_ended(study)} of {self.trials} trials done; stopped, it continues with "
                          f"hydra.sweep.dir={folder}", markup=False)
        while _ended(study) < self.trials:
            self._run_batch(study, space, fixed)
        valued = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
        if not valued:
            raise UsageError(f"none of {len(study.trials)} trials has a value: run one by itself")
        log.console.print(f"best: {study.best_value:.6g}, trial {study.best_trial.number}: run it with "
                          f"{' '.join([*fixed, *study.best_trial.user_attrs['overrides']])}", markup=False)
        return study.best_value

    def _run_batch(self, study: "Study", space: Mapping[str, Override], fixed: Sequence[str]) -> None:
        trials, jobs = [], []
        for _ in range(min(self.batch, self.trials - _ended(study))):
            study.sampler = instantiate(self.sampler, seed=self.seed + len(study.trials))
            trial = study.ask()
            point = [f"{key}={_suggest(trial, key, override)}" for key, override in space.items()]
            trial.set_user_attr("overrides", point)
            trials.append(trial)
            jobs.append([*fixed, *point, f"hydra.sweep.subdir=trial_{trial.number:04d}"])
        returned = self.launcher.launch(jobs, initial_job_idx=trials[0].number)
        for trial, job in zip(trials, returned, strict=True):
            _tell(study, trial, job)


def _suggest(trial: "Trial", key: str, override: Override) -> str:
    """Draw a value, as it is written on a command line."""
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        whole = type(sweep.start) is int and type(sweep.end) is int
        suggest = trial.suggest_int if whole else trial.suggest_float
        return repr(suggest(key, sweep.start, sweep.end, log="log" in sweep.tags))
    values = list(override.sweep_string_iterator())
    if isinstance(sweep, RangeSweep) and all(value.lstrip("-").isdigit() for value in values):
        numbers = sorted(map(int, values))
        return str(trial.suggest_int(key, numbers[0], numbers[-1], step=int(abs(sweep.step))))
    return trial.suggest_categorical(key, values)


def _tell(study: "Study", trial: "Trial", job: JobReturn) -> None:
    from optuna.trial import TrialState

    value = job._return_value  # the property would raise
    point = ", ".join(trial.user_attrs["overrides"])
    if job.status == JobStatus.COMPLETED and isinstance(value, int | float) and value == value:
        study.tell(trial, value)
        log.console.print(f"trial {trial.number} ({point}): {value:.6g}; best {study.best_value:.6g}", markup=False)
    else:
        reason = failure_reason(value) if isinstance(value, Exception) else f"the objective is {value}"
        study.tell(trial, state=TrialState.FAIL)
        log.errors.print(f"trial {trial.number} ({point}) failed: {reason}", markup=False)


def _open(path: Path, direction: str) -> "Study":
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise UsageError(f"hydra/sweeper=sparloom_optuna needs Optuna: {install_command('scale')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
                               study_name="sweep", direction=direction, load_if_exists=True)


def _refuse_other_options(study: "Study", options: Sequence[str]) -> None:
    """Refuse to mix trials whose objective, space or options differ."""
    earlier = study.user_attrs.get("options", options)
    if sorted(earlier) != sorted(options):
        changed = sorted({*earlier} ^ {*options})
        raise UsageError(f"the trials of this sweep were made with other options ({', '.join(changed)}): give the "
                         "same, or another hydra.sweep.dir")
    study.set_user_attr("options", list(options))


def _ask_again_for_interrupted(study: "Study") -> None:
    """Replace trials that an interrupted sweep left running by waiting trials with the same values."""
    from optuna.trial import TrialState

    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"replaces": trial.number})


def _ended(study: "Study") -> int:
    """Count the trials that have ended, each interrupted one together with its replacement."""
    return sum(trial.state.is_finished() - ("replaces" in trial.user_attrs) for trial in study.trials)
