"""The end of a sweep: table, figures, and the best configuration as an experiment."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra_plugins.sparloom_optuna._best import write_experiment
from hydra_plugins.sparloom_optuna._compose import Composer
from hydra_plugins.sparloom_optuna._study import Study
from hydra_plugins.sparloom_optuna._table import shown, write_csv
from sparloom import log
from sparloom.cli import UsageError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["conclude"]


def conclude(study: Study, fixed: Sequence[str], folder: Path, compose: Composer) -> float:
    """Print the trials and write trials.csv, objective.*, slices.* and experiment/<name>_best.yaml under `folder`.

    Returns:
        Value of the best trial.

    Raises:
        UsageError: no trial has a value.
    """
    trials, best = study.trials(), study.best()
    write_csv(trials, folder / "trials.csv")
    if best is None:
        reasons = [trial.user_attrs["reason"] for trial in trials if "reason" in trial.user_attrs]
        raise UsageError(f"none of {len(trials)} trials has a value (the last failed: {reasons[-1]}): run one by itself"
                         if reasons else f"none of {len(trials)} trials has a value: choose a gentler pruner")
    from hydra_plugins.sparloom_optuna._figures import draw_objective, draw_slices  # slow to import

    chosen = compose([*fixed, *best.user_attrs["point"]])
    objective = str(chosen.config.objective)
    log.console.print(shown(trials, maximize=study.maximizes, objective=objective), soft_wrap=False)
    draw_objective(trials, folder / "objective", maximize=study.maximizes, objective=objective)
    draw_slices(trials, folder / "slices", best=best.number, objective=objective)
    name = f"{chosen.choices.get('experiment') or chosen.choices.get('task') or 'sweep'}_best"
    path = folder / "experiment" / f"{name}.yaml"
    write_experiment(path, chosen, compose, header=_header(trials, best, objective, chosen.choices.get("experiment")))
    log.console.print(f"best: {objective} {best.value:.6g}, trial {best.number}; run it with --config-dir {folder} "
                      f"experiment={name}, or copy {path} into conf/experiment", markup=False)
    return best.value


def _header(trials: Sequence["FrozenTrial"], best: "FrozenTrial", objective: str, experiment: str | None) -> list[str]:
    """What the experiment is, where it comes from, how long it takes."""
    ended = sum(trial.state.is_finished() for trial in trials)
    command = shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])
    seconds = best.user_attrs.get("seconds")
    taken = "as long as the experiment it differs from" if seconds is None else _duration(seconds)
    what = f"{experiment or 'A run'} at the best of {ended} points: {objective} {best.value:.6g} (trial {best.number})."
    return [what, f"Found by: {' '.join(command.split())}", f"Takes {taken}."]


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds / 60:.0f} min"
