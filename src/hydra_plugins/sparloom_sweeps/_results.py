"""The end of a sweep: table, figures, and the best configuration as an experiment."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra_plugins.sparloom_sweeps._best import write_experiment
from hydra_plugins.sparloom_sweeps._compose import Composer
from hydra_plugins.sparloom_sweeps._point import Trial, best
from hydra_plugins.sparloom_sweeps._table import names, shown, write_csv
from sparloom import log

__all__ = ["conclude"]


def conclude(
    trials: Sequence[Trial], *, objective: str | None, maximize: bool, fixed: Sequence[str], folder: Path,
    compose: Composer,
) -> float | None:
    """Print the trials and write trials.csv, objective.*, slices.* and experiment/<name>_best.yaml under `folder`.

    Returns:
        Value of the best trial; None if none has a value: then there are no figures and no experiment.
    """
    write_csv(trials, folder / "trials.csv")
    log.console.print(shown(trials, maximize=maximize, objective=objective), soft_wrap=False)
    leader = best(trials, maximize=maximize)
    if leader is None:
        log.console.print(f"results: {folder / 'trials.csv'}", markup=False)
        return None
    from hydra_plugins.sparloom_sweeps._figures import draw_objective, draw_slices  # slow to import

    draw_objective(trials, folder / "objective", maximize=maximize, objective=objective)
    if names(trials):
        draw_slices(trials, folder / "slices", best=leader.number, objective=objective)
    chosen = compose([*fixed, *leader.user_attrs["point"]])
    name = f"{chosen.choices.get('experiment') or chosen.choices.get('task') or 'sweep'}_best"
    path = folder / "experiment" / f"{name}.yaml"
    write_experiment(path, chosen, compose, header=_header(trials, leader, objective, chosen.choices.get("experiment")))
    log.console.print(f"best: {objective} {leader.value:.6g}, trial {leader.number}; run it with --config-dir {folder} "
                      f"experiment={name}, or copy {path} into conf/experiment", markup=False)
    return leader.value


def _header(trials: Sequence[Trial], leader: Trial, objective: str, experiment: str | None) -> list[str]:
    """What the experiment is, where it comes from, how long it takes."""
    ended = sum(trial.state.is_finished() for trial in trials)
    command = shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])
    seconds = leader.user_attrs.get("seconds")
    taken = "as long as the experiment it differs from" if seconds is None else _duration(seconds)
    found = f"{objective} {leader.value:.6g} (trial {leader.number})"
    what = f"{experiment or 'A run'} at the best of {ended} points: {found}."
    return [what, f"Found by: {' '.join(command.split())}", f"Takes {taken}."]


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds / 60:.0f} min"
