"""Compare runs of other experiments (arms): one table and one figure per group of rows, also as Markdown and LaTeX."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom import log, report
from sparloom.data import Split
from sparloom.files import write_json, write_text
from sparloom.ops import Op

COSTS = ("target_labels", "target_matrices", "source_labels", "source_matrices", "source_epochs", "epochs", "steps",
         "dce")
"""Costs in the metrics of a run: `<role>/<method>_<cost>`."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arm:
    """One run of a comparison.

    Args:
        group: rows of one group share their matrices, a table and a figure; None: that of the operation.
        rows: method of the run -> row of the comparison.
        note: remark that is printed below its rows.
    """

    group: str | None
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
    run: report.Run
    per_matrix: pd.DataFrame
    curves: pd.DataFrame
    labels: Mapping[int, frozenset[tuple[str, str]]]

    @property
    def commit(self) -> str | None:
        return self.run.environment.get("commit")

    @property
    def record(self) -> dict[str, Any]:
        """Provenance of the numbers, for arms.json."""
        environment = self.run.environment
        noted = {key: environment.get(key) for key in ("started", "commit", "dirty", "data", "machine")}
        return {"command": self.run.command, "run": self.run.folder.name, **noted,
                "seconds": self.run.metrics.get("seconds")}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield costs, training lengths and last values of the curves for each row."""
        role = next(key.partition("/")[0] for key in self.run.metrics if key.endswith("/matrices"))
        for method, row in self.arm.rows.items():
            costs = {cost: float(self.run.metrics.get(f"{role}/{method}_{cost}", "nan")) for cost in COSTS}
            ends = self.curves[self.curves["row"] == row].groupby("seed").last().filter(like="/").mean()
            yield {"group": self.arm.group, "row": row, "arm": self.name, **costs,
                   **{name.replace("/", "_"): value for name, value in ends.items()}}


def read_arm(name: str, arm: Arm, folder: Path) -> ArmResult:
    """Read the run of an arm.

    Raises:
        ValueError: the run lacks the method of a row.
    """
    run = report.read_run(folder)
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


def _only(results: Sequence[ArmResult], split: Path) -> list[ArmResult]:
    """Keep the rows of test matrices of a split.

    Raises:
        ValueError: a run judges no such matrix.
    """
    names = set(Split.read(split).names("test"))
    for result in results:
        if not names & set(result.per_matrix["matrix"]):
            raise ValueError(f"the run of arm {result.name} judges none of the {len(names)} test matrices in {split}: "
                             "task.judged is the split.csv of a folder of samples")
    return [replace(result, per_matrix=result.per_matrix[result.per_matrix["matrix"].isin(names)])
            for result in results]


def refuse_unequal(results: Sequence[ArmResult], *, same_labels: bool) -> None:
    """Refuse arms of one group that are not comparable.

    Raises:
        ValueError: two arms have the same row, are judged by different matrices or seconds, or, with `same_labels`,
            drew equally many but different labels; names both.
    """
    for index, later in enumerate(results):
        for first in (result for result in results[:index] if result.arm.group == later.arm.group):
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
    matching = frame[frame["method"].isin(rows)]
    columns = {"group": arm.group, "row": matching["method"].map(rows)}
    return matching.assign(**columns).drop(columns="method")


@dataclass(frozen=True)
class Compare:
    """Compare rows of finished runs; run.py runs the arms beforehand.

    Args:
        op: its name is the group of arms that have none.
        arms: name -> `Arm`, or a mapping of its fields.
        grids: further arms, see `expand_grid`; they follow `arms`.
        common: overrides of every arm.
        reference: row that the other rows are divided by.
        paper: group -> row -> statistic -> the paper's number.
        labels: row or group -> its name in tables and figures.
        same_labels: require that arms which draw equally many labels drew the same ones; false if the choice of labels
            is compared.
        columns: statistics in the tables besides speedups and shares of the optimum.
        judged: path of a table of roles (split.csv); only its test matrices are compared, so that runs which judge two
            sets of matrices are shown for each. None: all matrices that the runs judge.
        runs, failures: arm -> folder of its run, or reason why it has none; run.py adds those of arms that it runs.
    """

    op: Op
    arms: Mapping[str, Arm | Mapping[str, Any]]
    common: Sequence[str]
    reference: str
    paper: Mapping[str, Mapping[str, Mapping[str, float]]]
    labels: Mapping[str, str]
    columns: Sequence[str]
    same_labels: bool
    figure: report.GroupFigure
    judged: str | None = None
    grids: Sequence[Mapping[str, Any]] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Build the arms that are given as mappings of the fields of `Arm`, and give each a group."""
        arms = dict(self.arms)
        for grid in self.grids:
            arms |= expand_grid(grid)
        built = {name: arm if isinstance(arm, Arm) else _arm(name, arm) for name, arm in arms.items()}
        built = {name: replace(arm, group=arm.group or self.op.name) for name, arm in built.items()}
        object.__setattr__(self, "arms", built)

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
        compared = report.Compared(self._rows(frame, results), frame, pd.concat(curves) if curves else pd.DataFrame())
        compared.write(out)
        write_json(out / "arms.json", {result.name: result.record for result in results})
        for group, rows in compared.rows.groupby("group", sort=False):
            self._show(compared, str(group), rows, out)
        commits = {result.commit for result in results}
        if len(commits) > 1:
            logger.info("the runs were made at %d commits: arms.json says which", len(commits))
        return report.row_metrics(compared.rows) | {"arms": len(self.arms), "failed_arms": len(self.failures)}

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
        results = [read_arm(name, self.arms[name], Path(folder)) for name, folder in self.runs.items()]
        return results if self.judged is None else _only(results, Path(self.judged))

    def _rows(self, frame: pd.DataFrame, results: Sequence[ArmResult]) -> pd.DataFrame:
        """Return statistics, costs, the paper's numbers and notes, in the order of the arms, the optimum last."""
        rows = report.row_statistics(frame, reference=self.reference, seed=0)
        known = pd.DataFrame([values for result in results for values in result.rows()])
        rows = rows.merge(known, on=["group", "row"], how="left")
        failed = [{"group": arm.group, "row": row, "arm": name, "failure": self.failures[name]}
                  for name, arm in self.arms.items() if name in self.failures for row in arm.rows.values()]
        rows = pd.concat([rows, pd.DataFrame(failed)], ignore_index=True)
        published = [self.paper.get(group, {}).get(row, {})
                     for group, row in zip(rows["group"], rows["row"], strict=True)]
        rows = rows.join(pd.DataFrame(published, index=rows.index, dtype=float).add_prefix("paper_"))
        rows["label"] = [self.labels.get(row, report.row_label(row)) for row in rows["row"]]
        rows["note"] = [self._note(row, rows) for row in rows.to_dict(orient="records")]
        rows["failure"] = rows["failure"].fillna("") if "failure" in rows else ""
        ranks = {(arm.group, row): rank for rank, (arm, row) in enumerate(
            (arm, row) for arm in self.arms.values() for row in arm.rows.values())}
        order = [ranks.get((group, row), len(ranks)) for group, row in zip(rows["group"], rows["row"], strict=True)]
        return rows.assign(order=order).sort_values("order", kind="stable").drop(columns="order").reset_index(drop=True)

    def _note(self, row: Mapping[str, object], rows: pd.DataFrame) -> str:
        """Return the note of an arm, and its training length where it differs from the longest of its group."""
        arm = self.arms.get(str(row["arm"]))
        parts = [arm.note] if arm and arm.note else []
        if row.get("source_epochs", 0) > 0:
            parts.append(f"{row['source_epochs']:.0f} epochs of pre-training")
        if row.get("epochs", 0) > 0 and row["epochs"] < rows.loc[rows["group"] == row["group"], "epochs"].max():
            parts.append(f"{row['epochs']:.0f} epochs of training, {row['steps']:.0f} steps")
        return "; ".join(parts)

    def _show(self, compared: report.Compared, group: str, rows: pd.DataFrame, out: Path) -> None:
        title = f"{self.labels.get(group, report.op_title(group))}, {_counted(rows)}"
        log.console.print(f"{title}: speedup over the default")
        log.console.print(report.rows_table(rows, columns=self.columns, bold=self.reference), soft_wrap=False)
        for remark in _remarks(rows):
            log.console.print(remark, markup=False)
        if (rows["failure"] == "").any():
            self.figure.draw(compared, group, out / f"figure_{group}", title=title)


def expand_grid(grid: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Make an arm of every combination of the values of a grid.

    The values of an arm are those of the grid, then of the value of every axis, of which later ones win; overrides are
    joined. `{axis}` in its group and rows stands for the name of the value. Names of values, joined by _, are the name
    of the arm.

    Args:
        grid: fields of `Arm` that all have, and axes: axis -> name of a value -> fields, or overrides alone.
    """
    axes, common = grid["axes"], {key: value for key, value in grid.items() if key != "axes"}
    arms = {}
    for values in itertools.product(*(axis.items() for axis in axes.values())):
        names = dict(zip(axes, (name for name, _ in values), strict=True))
        parts = [common, *(part if isinstance(part, Mapping) else {"overrides": part} for _, part in values)]
        arm = {key: value for part in parts for key, value in part.items()}
        arm["overrides"] = [text for part in parts for text in part.get("overrides", ())]
        arm["rows"] = {method: row.format(**names) for method, row in arm["rows"].items()}
        if "group" in arm:
            arm["group"] = arm["group"].format(**names)
        arms["_".join(names.values())] = arm
    return arms


def _arm(name: str, settings: Mapping[str, Any]) -> Arm:
    known = [each.name for each in fields(Arm)]
    unknown = [key for key in settings if key not in known]
    missing = [key for key in ("experiment", "rows") if key not in settings]
    if unknown or missing:
        wrong = f"unknown keys {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise ValueError(f"task.arms.{name} has {wrong}: an arm has {', '.join(known)}, of which only "
                         "experiment and rows are required")
    return Arm(**{"group": None, **settings})


@dataclass(frozen=True)
class Tabulate:
    """Write one table per group of rows of a comparison, with the remarks on its rows below.

    Args:
        comparison: folder of a finished run of Compare.
        columns: statistics in the tables besides speedups and shares of the optimum.
    """

    comparison: str
    columns: Sequence[str]
    bold: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write <group>.md and <group>.tex; return counts.

        Raises:
            FileNotFoundError: there is no finished comparison.
        """
        folder = Path(self.comparison)
        if not (folder / "rows.parquet").exists():
            raise FileNotFoundError(f"{folder} holds no finished comparison: run an experiment eval_... first, and "
                                    "give its folder as task.comparison")
        compared = report.read_compared(folder)
        groups = {str(group): rows for group, rows in compared.rows.groupby("group", sort=False)}
        for group, rows in groups.items():
            headings, cells = report.rows_cells(rows, columns=self.columns)
            named = rows["row"].tolist()
            bold = named.index(self.bold) if self.bold in named else None
            about = [f"{report.op_title(group)}: speedup over the default on {_counted(rows)}.",
                     *_remarks(rows)]
            table = report.markdown_table(headings, cells, bold=bold).rstrip()
            write_text(out / f"{group}.md", "\n\n".join([about[0], table, *about[1:]]) + "\n")
            comments = "".join(f"% {line}\n" for line in about)
            write_text(out / f"{group}.tex", comments + report.latex_table(headings, cells, bold=bold))
            logger.info("%s", out / f"{group}.md")
        return {"tables": len(groups), "rows": len(compared.rows)}


def _counted(rows: pd.DataFrame) -> str:
    """Tell on how many matrices the arms that have finished were judged."""
    finished = rows[rows["failure"] == ""]
    return f"{finished['matrices'].max():.0f} matrices" if len(finished) else "no matrix, because no arm has finished"


def _remarks(rows: pd.DataFrame) -> list[str]:
    """List notes and failures, each with the rows that it concerns."""
    return [f"{', '.join(same['label'])}: {text}" for kind in ("note", "failure")
            for text, same in rows[rows[kind] != ""].groupby(kind, sort=False)]
