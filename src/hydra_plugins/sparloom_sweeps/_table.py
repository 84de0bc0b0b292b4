"""Trials of a sweep as a table on the console and as CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from hydra_plugins.sparloom_sweeps._point import Trial
from sparloom.files import atomic_path

__all__ = ["names", "shown", "write_csv"]

STATES = {"COMPLETE": "", "PRUNED": "pruned", "FAIL": "failed"}
NOTED = ("seconds", "reason", "folder")
SHOWN = 4  # metrics of runs without an objective


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
    for place, trial in enumerate(ended):
        seconds = trial.user_attrs.get("seconds")
        found = {objective: _value(trial)} if objective else trial.user_attrs.get("metrics", {})
        remark = f"{STATES[trial.state.name]} {trial.user_attrs.get('reason', '')}".strip()
        table.add_row(
            str(trial.number), *(_number(found.get(name)) for name in values),
            *(_cell(trial.params.get(key)) for key in names(trials)),
            "" if seconds is None else f"{seconds:.3g}", remark,
            style="bold" if place == 0 and objective and not remark else None)
    return table


def write_csv(trials: Sequence[Trial], path: Path) -> None:
    """Write all trials in the order of their numbers: trial, state, objective, parameters, seconds, reason, folder."""
    keys = names(trials)
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trial", "state", "objective", *(key.lstrip("+") for key in keys), *NOTED])
        for trial in trials:
            noted = [trial.user_attrs.get(name, "") for name in NOTED]
            rows.writerow([trial.number, trial.state.name.lower(), "" if trial.value is None else trial.value,
                           *(trial.params.get(key, "") for key in keys), *noted])


def _value(trial: Trial) -> float | None:
    return trial.value if trial.state.name != "FAIL" else None


def _first_metrics(trials: Sequence[Trial]) -> list[str]:
    """Names of some metrics that the trials have, for runs without an objective."""
    return next((list(trial.user_attrs["metrics"])[:SHOWN] for trial in trials if trial.user_attrs.get("metrics")), [])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
