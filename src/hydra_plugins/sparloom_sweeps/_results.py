"""Report a sweep: its trials as a table and CSV, figures, and the best trial as an experiment for conf/experiment.

`Composer` composes the configuration of a trial, without what Hydra adds, so that two can be compared key by key.
"""

import csv
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from hydra_plugins.sparloom_sweeps._jobs import Trial, best
from sparloom import log
from sparloom.files import atomic_path, write_text

STATES = {"COMPLETE": "", "PRUNED": "pruned", "FAIL": "failed"}
NOTED = ("seconds", "reason", "folder")
SHOWN = 4  # metrics of runs without an objective
APART = ("experiment", "hparams", "local")  # groups that say how a run was asked for, not what it is


@dataclass(frozen=True)
class Composed:
    """A configuration without Hydra's own node, interpolations kept, and the option that every group has."""

    config: DictConfig
    choices: Mapping[str, str | None]


@dataclass(frozen=True)
class Composer:
    """Composes what a run with some overrides would get, whatever the sweep says of Hydra itself."""

    loader: ConfigLoader
    name: str

    def __call__(self, overrides: Sequence[str]) -> Composed:
        """Compose with these overrides.

        Raises:
            HydraException: an override does not fit.
        """
        whole = self.loader.load_configuration(self.name, list(overrides), run_mode=RunMode.RUN)
        return Composed(plain(whole), OmegaConf.to_container(whole.hydra.runtime.choices))


def plain(whole: DictConfig) -> DictConfig:
    """Leave out Hydra's own node."""
    return OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])


def flat(config: DictConfig) -> dict[str, Any]:
    """Dotted keys of the leaves, with interpolations as they are written; lists and empty nodes are leaves."""
    return dict(_leaves(OmegaConf.to_container(config, resolve=False), ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Any:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def names(trials: Sequence[Trial]) -> list[str]:
    """List the parameters of all trials in the order of their first use."""
    return list(dict.fromkeys(key for trial in trials for key in trial.params))


def shown(trials: Sequence[Trial], *, maximize: bool, objective: str | None) -> Table:
    """Lay out ended trials: those with a value first, the best on top; then pruned, then failed ones.

    Args:
        objective: None: the first metrics of the trials take its place.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    values = [objective] if objective else _first_metrics(trials)
    for heading in ("trial", *values, *(key.lstrip("+") for key in names(trials)), "seconds"):
        table.add_column(heading, justify="right", no_wrap=heading == "trial")
    table.add_column("")
    sign = -1 if maximize else 1
    order = list(STATES)
    ended = [trial for trial in trials if trial.state.name in STATES]
    ended.sort(key=lambda trial: (order.index(trial.state.name), sign * (_value(trial) or 0), trial.number))
    for rank, trial in enumerate(ended):
        seconds = trial.user_attrs.get("seconds")
        found = {objective: _value(trial)} if objective else trial.user_attrs.get("metrics", {})
        remark = f"{STATES[trial.state.name]} {trial.user_attrs.get('reason', '')}".strip()
        table.add_row(
            str(trial.number), *(_number(found.get(name)) for name in values),
            *(_cell(trial.params.get(key)) for key in names(trials)),
            "" if seconds is None else f"{seconds:.3g}", remark,
            style="bold" if rank == 0 and objective and not remark else None)
    return table


def write_csv(trials: Sequence[Trial], path: Path) -> None:
    """Write all trials in the order of their numbers: trial, state, objective, parameters, metrics, and what is noted.

    The metrics are the first of each run of a grid, which are printed where there is no objective.
    """
    keys, metrics = names(trials), _first_metrics(trials)
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trial", "state", "objective", *(key.lstrip("+") for key in keys),
                       *(f"metrics/{name}" for name in metrics), *NOTED])
        for trial in trials:
            notes, values = [trial.user_attrs.get(name, "") for name in NOTED], trial.user_attrs.get("metrics", {})
            rows.writerow([trial.number, trial.state.name.lower(), "" if trial.value is None else trial.value,
                           *(trial.params.get(key, "") for key in keys), *(values.get(name, "") for name in metrics),
                           *notes])


def _value(trial: Trial) -> float | None:
    return trial.value if trial.state.name != "FAIL" else None


def _first_metrics(trials: Sequence[Trial]) -> list[str]:
    """Names of the first metrics of the trials; those of different experiments have different ones."""
    return list(dict.fromkeys(name for trial in trials for name in list(trial.user_attrs.get("metrics", ()))[:SHOWN]))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def write_experiment(path: Path, trial: Composed, compose: Composer, *, header: Sequence[str]) -> None:
    """Write an experiment that composes to the configuration of `trial`.

    Departure: a key that the trial deleted with ~ stays, for YAML cannot delete.

    Args:
        header: lines of the comment on top.
    """
    swept = trial.choices.get("experiment")
    task = trial.choices.get("task")
    base = [f"experiment={swept}"] if swept else [f"task={task}"] if task else []
    before = compose(base).choices
    groups = {group: option for group, option in trial.choices.items()
              if group in before and before[group] != option and group not in APART and not group.startswith("hydra/")}
    options = {group: "null" if option is None else option for group, option in groups.items()}
    if task and not swept:
        options["task"] = task
    same = flat(compose([*base, *(f"{group}={option}" for group, option in options.items())]).config)
    values = {key: value for key, value in flat(trial.config).items() if key not in same or same[key] != value}
    lines = ["# @package _global_", *(f"# {line}" for line in header)]
    chosen = [*([swept] if swept else []), *({f"override /{group}": option} for group, option in options.items())]
    tree = _nested(values)
    body = OmegaConf.to_yaml(OmegaConf.create({"defaults": [*chosen, *(["_self_"] if tree else [])]})) if chosen else ""
    values_text = OmegaConf.to_yaml(OmegaConf.create(tree)) if tree else ""
    write_text(path, "\n".join(lines) + "\n" + "\n".join(part for part in (body, values_text) if part))


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *folders, name = key.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree


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
    leader = None if objective is None else best(trials, maximize=maximize)
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
    """Write the header of an experiment: what it is, where it comes from, how long it takes."""
    ended = sum(trial.state.is_finished() for trial in trials)
    command = shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])
    seconds = leader.user_attrs.get("seconds")
    taken = "as long as the experiment it differs from" if seconds is None else _duration(seconds)
    found = f"{objective} {leader.value:.6g} (trial {leader.number})"
    what = f"{experiment or 'A run'} at the best of {ended} points: {found}."
    return [what, f"Found by: {' '.join(command.split())}", f"Takes {taken}."]


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds / 60:.0f} min"
