"""Trials of a study as a table on the console and as CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from sparloom.files import atomic_path

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["names", "shown", "write_csv"]

STATES = {"COMPLETE": "", "PRUNED": "pruned", "FAIL": "failed"}
NOTED = ("seconds", "reason", "folder")


def names(trials: Sequence["FrozenTrial"]) -> list[str]:
    """List the parameters of all trials in the order of their first use."""
    return list(dict.fromkeys(key for trial in trials for key in trial.params))


def shown(trials: Sequence["FrozenTrial"], *, maximize: bool, objective: str) -> Table:
    """Lay out ended trials: those with a value first, the best on top; then pruned, then failed ones."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("trial", objective, *(key.lstrip("+") for key in names(trials)), "seconds"):
        table.add_column(heading, justify="right", no_wrap=heading == "trial")
    table.add_column("")
    sign = -1 if maximize else 1
    order = list(STATES)
    ended = [trial for trial in trials if trial.state.name in STATES]
    ended.sort(key=lambda trial: (order.index(trial.state.name), sign * (_value(trial) or 0), trial.number))
    for place, trial in enumerate(ended):
        value, seconds = _value(trial), trial.user_attrs.get("seconds")
        remark = f"{STATES[trial.state.name]} {trial.user_attrs.get('reason', '')}".strip()
        table.add_row(
            str(trial.number), "" if value is None else f"{value:.6g}",
            *(_cell(trial.params.get(key)) for key in names(trials)),
            "" if seconds is None else f"{seconds:.3g}", remark,
            style="bold" if place == 0 and not remark else None)
    return table


def write_csv(trials: Sequence["FrozenTrial"], path: Path) -> None:
    """Write all trials in the order of their numbers: trial, state, objective, parameters, seconds, reason, folder."""
    keys = names(trials)
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trial", "state", "objective", *(key.lstrip("+") for key in keys), *NOTED])
        for trial in trials:
            noted = [trial.user_attrs.get(name, "") for name in NOTED]
            rows.writerow([trial.number, trial.state.name.lower(), "" if trial.value is None else trial.value,
                           *(trial.params.get(key, "") for key in keys), *noted])


def _value(trial: "FrozenTrial") -> float | None:
    return trial.value if trial.state.name != "FAIL" else None


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
