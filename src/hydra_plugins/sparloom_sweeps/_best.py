"""The best trial as an experiment: the difference from the experiment that was swept, ready for conf/experiment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hydra_plugins.sparloom_sweeps._compose import Composed, Composer, flat
from sparloom.files import write_text

__all__ = ["write_experiment"]

APART = ("experiment", "hparams", "local")  # groups that say how a run was asked for, not what it is


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
