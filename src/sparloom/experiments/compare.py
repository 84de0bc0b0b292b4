"""Compare runs of other experiments: one table and one figure per group of rows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from sparloom import log
from sparloom.experiments.arm import Arm, ArmResult, read_arm, refuse_unequal
from sparloom.files import write_json
from sparloom.report import Compared, GroupFigure, op_title, row_label, row_metrics, row_statistics, rows_table

__all__ = ["Compare"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compare:
    """Put rows of finished runs side by side; run.py runs the arms before.

    Rows of one group are judged by the same matrices.

    Args:
        arms: by name.
        common: overrides of every arm.
        reference: row that the others are divided by.
        paper: group -> row -> statistic -> the paper's number.
        labels: row or group -> how it is called in tables and figures.
        same_labels: arms that draw equally many labels must have drawn the same ones; false where their choice is what
            is compared.
        columns: statistics that the tables show besides speedups and shares of the optimum.
        runs, failures: arm -> folder of its run, or why it has none; run.py fills in those of arms that it runs.
    """

    arms: Mapping[str, Arm]
    common: Sequence[str]
    reference: str
    paper: Mapping[str, Mapping[str, Mapping[str, float]]]
    labels: Mapping[str, str]
    columns: Sequence[str]
    same_labels: bool
    figure: GroupFigure
    runs: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    def run(self, out: Path) -> Mapping[str, float]:
        """Read the runs, print a table and draw a figure per group, write the rows.

        Raises:
            ValueError: no arm has finished, an arm has no run, or two arms are not comparable.
        """
        results = self._results()
        refuse_unequal(results, same_labels=self.same_labels)
        frame = pd.concat([result.per_matrix for result in results], ignore_index=True)
        frame = frame.drop_duplicates(["group", "row", "seed", "matrix"])
        curves = [result.curves for result in results if len(result.curves)]
        compared = Compared(self._rows(frame, results), frame, pd.concat(curves) if curves else pd.DataFrame())
        compared.write(out)
        write_json(out / "arms.json", {result.name: result.record for result in results})
        for group, rows in compared.rows.groupby("group", sort=False):
            self._show(compared, str(group), rows, out)
        commits = {result.commit for result in results}
        if len(commits) > 1:
            logger.info("the runs were made at %d commits: arms.json says which", len(commits))
        return row_metrics(compared.rows) | {"arms": len(self.arms), "failed_arms": len(self.failures)}

    def _results(self) -> list[ArmResult]:
        lost = [name for name in self.arms if name not in self.runs and name not in self.failures]
        if lost:
            raise ValueError(f"no run of arm {lost[0]}: start the comparison with run.py, which runs the arms first")
        unknown = [name for name in self.runs if name not in self.arms]
        if unknown:
            raise ValueError(f"task.runs names {unknown[0]}, which is no arm: arms are {', '.join(self.arms)}")
        if not self.runs:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failures.items())
            raise ValueError(f"no arm has finished ({reasons})")
        return [read_arm(name, self.arms[name], Path(folder)) for name, folder in self.runs.items()]

    def _rows(self, frame: pd.DataFrame, results: Sequence[ArmResult]) -> pd.DataFrame:
        """Statistics, what was read, the paper's numbers and notes, in the order of the arms, the optimum last."""
        rows = row_statistics(frame, reference=self.reference, seed=0)
        known = pd.DataFrame([values for result in results for values in result.rows()])
        rows = rows.merge(known, on=["group", "row"], how="left")
        failed = [{"group": arm.group, "row": row, "arm": name, "failure": self.failures[name]}
                  for name, arm in self.arms.items() if name in self.failures for row in arm.rows.values()]
        rows = pd.concat([rows, pd.DataFrame(failed)], ignore_index=True)
        told = [self.paper.get(group, {}).get(row, {}) for group, row in zip(rows["group"], rows["row"], strict=True)]
        rows = rows.join(pd.DataFrame(told, index=rows.index, dtype=float).add_prefix("paper_"))
        rows["label"] = [self.labels.get(row, row_label(row)) for row in rows["row"]]
        rows["note"] = [self._note(row, rows) for row in rows.to_dict(orient="records")]
        rows["failure"] = rows["failure"].fillna("") if "failure" in rows else ""
        places = {(arm.group, row): place for place, (arm, row) in enumerate(
            (arm, row) for arm in self.arms.values() for row in arm.rows.values())}
        order = [places.get((group, row), len(places)) for group, row in zip(rows["group"], rows["row"], strict=True)]
        return rows.assign(order=order).sort_values("order", kind="stable").drop(columns="order").reset_index(drop=True)

    def _note(self, row: Mapping[str, object], rows: pd.DataFrame) -> str:
        """Note of the arm, with how long it was trained where that differs from the longest of its group."""
        arm = self.arms.get(str(row["arm"]))
        parts = [arm.note] if arm and arm.note else []
        if row.get("source_epochs", 0) > 0:
            parts.append(f"{row['source_epochs']:.0f} epochs of pre-training")
        if row.get("epochs", 0) > 0 and row["epochs"] < rows.loc[rows["group"] == row["group"], "epochs"].max():
            parts.append(f"capped at {row['epochs']:.0f} epochs, {row['steps']:.0f} steps")
        return "; ".join(parts)

    def _show(self, compared: Compared, group: str, rows: pd.DataFrame, out: Path) -> None:
        """Print the table of a group and what has to be said of its rows; draw its figure."""
        finished = rows[rows["failure"] == ""]
        counted = f"{finished['matrices'].max():.0f} matrices" if len(finished) else "no arm has finished"
        title = f"{self.labels.get(group, op_title(group))}, {counted}"
        log.console.print(f"{title}: speedup over the default")
        log.console.print(rows_table(rows, columns=self.columns, bold=self.reference), soft_wrap=False)
        for kind in ("note", "failure"):
            for text, told in rows[rows[kind] != ""].groupby(kind, sort=False):
                log.console.print(f"{', '.join(told['label'])}: {text}", markup=False)
        if len(finished):
            self.figure.draw(compared, group, out / f"figure_{group}", title=title)
