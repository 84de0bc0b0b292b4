"""Gather what methods chose and write it: per matrix, as metrics, as a printed table, as figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.experiments.study import Study
from sparloom.experiments.training import Trained, write_curves
from sparloom.files import read_json, sha256, write_json
from sparloom.measure import DCE_COST, dce
from sparloom.report import Choices, draw_matrices, draw_methods, op_title, per_matrix, results_table, summary

__all__ = ["Comparison"]

WITHOUT_TARGET = ("random", "vendor", "zero_shot")  # all others read the drawn labels
WITHOUT_SOURCE = ("random", "vendor", "static", "trees", "no_transfer")


@dataclass
class Comparison:
    """Choices and curves of all methods and seeds.

    Args:
        source: notes of the pre-trained network; empty where none was read.
        drawn: the target labels that were read, by seed.
        lengths: epochs and steps of the training of a method.
    """

    study: Study
    source: Mapping[str, Any]
    drawn: dict[int, pd.DataFrame] = field(default_factory=dict)
    choices: list[Choices] = field(default_factory=list)
    curves: list[pd.DataFrame] = field(default_factory=list)
    lengths: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, choices: Choices, trained: Trained | None = None) -> None:
        """Note what one method chose with one seed."""
        self.choices.append(choices)
        if trained is not None:
            self.curves.append(trained.curves.assign(method=choices.method, seed=choices.seed))
            self.lengths[choices.method] = {"epochs": int(trained.curves["epoch"].max()), "steps": trained.steps}

    def write(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, split.json, labels.parquet, the figures; print the table; return the metrics."""
        study = self.study
        frame = per_matrix(study.truth, self.choices, study.about(study.truth.matrices))
        write_frame(out / "per_matrix.parquet", frame)
        self._write_inputs(out)
        methods = [choice.method for choice in self.choices if choice.method != "optimum"]
        headline = "cognate" if "cognate" in methods else None
        metrics = summary(frame, headline=headline, prefix=study.role, seed=0) | self._costs()
        title = f"{op_title(study.op.name)} on {study.platform.name} {study.platform.preset}"
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
        """Write which matrices did what, the labels that were read, and hashes of the files they were read from."""
        write_json(out / "split.json", {
            "fine_tuning": {str(seed): sorted(set(rows["matrix"])) for seed, rows in self.drawn.items()},
            "judged": list(self.study.truth.matrices),
            **{role: self.study.names(role) for role in ("train", "validation", "test")},
        })
        write_frame(out / "labels.parquet", pd.concat([rows.assign(seed=seed) for seed, rows in self.drawn.items()]))
        origins = getattr(self.study.samples, "origins", None)
        if origins is not None:  # a finished run is not taken for one with other samples
            path = out / "made_from.json"
            known = read_json(path) if path.exists() else {}
            read = origins(self.study.platform.name, self.study.op.name)
            write_json(path, known | {str(file): sha256(file) for file in read})

    def _costs(self) -> dict[str, float]:
        """Labels and matrices that each method read per seed, the cost of its data, how long it was trained."""
        labels = max(len(rows) for rows in self.drawn.values())
        matrices = max(rows["matrix"].nunique() for rows in self.drawn.values())
        source = {"labels": int(self.source.get("labels", 0)), "matrices": len(self.source.get("matrices", ())),
                  "epochs": int(self.source.get("epochs", 0))}
        found = {"labels_per_seed": labels, "source_labels": source["labels"],
                 **self._dce(labels, source["labels"])}
        for method in dict.fromkeys(choice.method for choice in self.choices if choice.method != "optimum"):
            none = method in WITHOUT_TARGET
            target = {"labels": 0 if none else labels, "matrices": 0 if none else matrices}
            read = dict.fromkeys(source, 0) if method in WITHOUT_SOURCE else source
            costs = {f"target_{key}": value for key, value in target.items()}
            costs |= {f"source_{key}": value for key, value in read.items()}
            costs |= self._dce(target["labels"], read["labels"]) | self.lengths.get(method, {})
            found |= {f"{method}_{key}": value for key, value in costs.items()}
        return {f"{self.study.role}/{key}": value for key, value in found.items()}

    def _dce(self, target: int, source: int) -> dict[str, float]:
        """Cost of so many labels of the target and of the source; empty where a label of the target has no price."""
        name = self.study.platform.name
        return {"dce": dce({"cpu": source, name: target})} if name in DCE_COST else {}
