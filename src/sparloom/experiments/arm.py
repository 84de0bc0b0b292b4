"""One arm of a comparison: what is run, what is read of its run, and whether two can stand side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom.report import Run, read_run

__all__ = ["COSTS", "Arm", "ArmResult", "read_arm", "refuse_unequal"]

COSTS = ("target_labels", "target_matrices", "source_labels", "source_matrices", "source_epochs", "epochs", "steps",
         "dce")
"""What a run says of each method: `<role>/<method>_<cost>`."""


@dataclass(frozen=True)
class Arm:
    """One run of a comparison.

    Args:
        group: rows of one group have the same matrices, a table and a figure.
        experiment: what is run, with `overrides`.
        rows: method of the run -> row it becomes.
        note: what a reader of its rows has to know.
    """

    group: str
    experiment: str
    rows: Mapping[str, str]
    overrides: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class ArmResult:
    """The rows of one arm.

    Args:
        per_matrix: rows of the arm's methods and of the optimum, with columns group and row in place of method.
        curves: as `per_matrix`; empty where none of its methods was trained.
        labels: seed -> drawn pairs of matrix and configuration.
    """

    name: str
    arm: Arm
    run: Run
    per_matrix: pd.DataFrame
    curves: pd.DataFrame
    labels: Mapping[int, frozenset[tuple[str, str]]]

    @property
    def commit(self) -> str | None:
        return self.run.environment.get("commit")

    @property
    def record(self) -> dict[str, Any]:
        """Where the numbers come from."""
        environment = self.run.environment
        kept = {key: environment.get(key) for key in ("started", "commit", "dirty", "data", "machine")}
        return {"command": self.run.command, "run": self.run.folder.name, **kept,
                "seconds": self.run.metrics.get("seconds")}

    def rows(self) -> Iterator[dict[str, Any]]:
        """What the run says of each row: what it read, how long it was trained, where its curves end."""
        role = next(key.partition("/")[0] for key in self.run.metrics if key.endswith("/matrices"))
        for method, row in self.arm.rows.items():
            costs = {cost: float(self.run.metrics.get(f"{role}/{method}_{cost}", "nan")) for cost in COSTS}
            ends = self.curves[self.curves["row"] == row].groupby("seed").last().filter(like="/").mean()
            yield {"group": self.arm.group, "row": row, "arm": self.name, **costs,
                   **{name.replace("/", "_"): value for name, value in ends.items()}}


def read_arm(name: str, arm: Arm, folder: Path) -> ArmResult:
    """Read the run of an arm.

    Raises:
        ValueError: the run lacks a method that a row is made of.
    """
    run = read_run(folder)
    frame = run.per_matrix
    absent = sorted(set(arm.rows) - set(frame["method"]))
    if absent:
        raise ValueError(f"the run of arm {name} has no method {', '.join(absent)}: it has "
                         f"{', '.join(dict.fromkeys(frame['method']))}; see {folder}")
    curves = run.curves if (folder / "curves.csv").exists() else pd.DataFrame(columns=["method", "seed"])
    drawn = run.table("labels")
    labels = {int(seed): frozenset(zip(rows["matrix"], rows["config"], strict=True))
              for seed, rows in drawn.groupby("seed")}
    return ArmResult(name, arm, run, _renamed(frame, arm, {**arm.rows, "optimum": "optimum"}),
                     _renamed(curves, arm, arm.rows), labels)


def refuse_unequal(results: Sequence[ArmResult], *, same_labels: bool) -> None:
    """Refuse arms of one group that do not compare.

    Raises:
        ValueError: two arms have the same row, are judged by other matrices or other seconds, or, with `same_labels`,
            learned from other labels although they draw as many; names both.
    """
    for place, later in enumerate(results):
        for first in (result for result in results[:place] if result.arm.group == later.arm.group):
            reason = _difference(first, later) or (_other_labels(first, later) if same_labels else None)
            if reason:
                raise ValueError(f"arms {first.name} and {later.name} {reason}: compare their runs, {first.run.folder} "
                                 f"and {later.run.folder}, or give them different groups")


def _difference(first: ArmResult, later: ArmResult) -> str | None:
    twice = set(first.arm.rows.values()) & set(later.arm.rows.values())
    if twice:
        return f"both have a row {sorted(twice)[0]}"
    known, seconds = _judging(first), _judging(later)
    if set(known.index) != set(seconds.index):
        return f"are judged by {len(known)} and {len(seconds)} matrices, which are not the same"
    if not known.equals(seconds.loc[known.index]):
        return "are judged by different seconds of the same matrices"
    return None


def _other_labels(first: ArmResult, later: ArmResult) -> str | None:
    for seed in set(first.labels) & set(later.labels):
        if _budget(first.labels[seed]) == _budget(later.labels[seed]) and first.labels[seed] != later.labels[seed]:
            return f"drew different labels with seed {seed}"
    return None


def _judging(result: ArmResult) -> pd.DataFrame:
    rows = result.per_matrix
    return rows[rows["row"] == "optimum"].set_index("matrix")[["best_seconds", "baseline_seconds"]].sort_index()


def _budget(labels: frozenset[tuple[str, str]]) -> tuple[int, int]:
    return len(labels), len({matrix for matrix, _ in labels})


def _renamed(frame: pd.DataFrame, arm: Arm, rows: Mapping[str, str]) -> pd.DataFrame:
    kept = frame[frame["method"].isin(rows)]
    columns = {"group": arm.group, "row": kept["method"].map(rows)}
    return kept.assign(**columns).drop(columns="method")
