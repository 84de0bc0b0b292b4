"""Gather what methods chose and write it: per matrix, as metrics, as a printed table, as figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from sparloom import log
from sparloom.files import atomic_path, write_json
from sparloom.measure import DCE_COST, dce
from sparloom.report import Choices, draw_matrices, draw_methods, per_matrix, results_table, summary
from sparloom.tasks.study import Study
from sparloom.tasks.training import write_curves

__all__ = ["Comparison"]

TITLES = {"spmm": "SpMM", "sddmm": "SDDMM"}


@dataclass
class Comparison:
    """Choices and curves of all methods and seeds.

    Args:
        source_labels: how many labels of the source the pre-trained network had read.
        drawn: the target labels that were read, by seed.
    """

    study: Study
    source_labels: int
    drawn: dict[int, pd.DataFrame] = field(default_factory=dict)
    choices: list[Choices] = field(default_factory=list)
    curves: list[pd.DataFrame] = field(default_factory=list)

    def add(self, choices: Choices, curves: pd.DataFrame | None = None) -> None:
        """Note what one method chose with one seed."""
        self.choices.append(choices)
        if curves is not None:
            self.curves.append(curves)

    def write(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, split.json, labels.parquet, the figures; print the table; return the metrics."""
        study = self.study
        frame = per_matrix(study.truth, self.choices, study.about(study.truth.matrices))
        with atomic_path(out / "per_matrix.parquet") as partial:
            frame.to_parquet(partial, compression="zstd")
        self._write_inputs(out)
        methods = [choice.method for choice in self.choices if choice.method != "optimum"]
        headline = "cognate" if "cognate" in methods else None
        metrics = summary(frame, headline=headline, prefix=study.role, seed=0) | self._costs()
        title = f"{TITLES.get(study.op.name, study.op.name)} on {study.platform.name} {study.platform.preset}"
        log.console.print(self._headline(title))
        log.console.print(results_table(metrics, prefix=study.role), soft_wrap=False)
        draw_methods(metrics, out / "speedups", prefix=study.role, title=f"{title}, geometric mean")
        draw_matrices(frame, out / "matrices", title=f"{title}, each matrix", method=headline or methods[-1])
        if self.curves:
            write_curves(out, self.curves)
        return metrics

    def _headline(self, title: str) -> str:
        truth = self.study.truth
        labels = {len(rows) for rows in self.drawn.values()}
        return (f"{title}: speedup over the default on {len(truth.matrices)} {self.study.role} matrices, "
                f"{'/'.join(map(str, sorted(labels)))} target labels, {len(self.drawn)} seeds")

    def _write_inputs(self, out: Path) -> None:
        """Write which matrices did what, and the labels that were read."""
        write_json(out / "split.json", {
            "fine_tuning": {str(seed): sorted(set(rows["matrix"])) for seed, rows in self.drawn.items()},
            "judged": list(self.study.truth.matrices),
            **{role: self.study.names(role) for role in ("train", "validation", "test")},
        })
        with atomic_path(out / "labels.parquet") as partial:
            pd.concat([rows.assign(seed=seed) for seed, rows in self.drawn.items()]).to_parquet(partial)

    def _costs(self) -> dict[str, float]:
        """Target labels each method read per seed, those that were only watched, and the cost of all data."""
        labels = max(len(rows) for rows in self.drawn.values())
        known = self.study.platform.name in DCE_COST
        read = {"cpu": self.source_labels, self.study.platform.name: labels}
        found = {"labels_per_seed": labels, "source_labels": self.source_labels}
        found |= {"dce": dce(read)} if known else {}
        return {f"{self.study.role}/{key}": value for key, value in found.items()}
