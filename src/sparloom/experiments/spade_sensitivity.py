"""What the constants of the simulator that no paper states decide: each by itself, at a low and a high value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from sparloom import log
from sparloom.data import write_frame
from sparloom.experiments.fanout import run_jobs
from sparloom.measure import geomean, kendall_tau
from sparloom.ops import Op
from sparloom.report import draw_sensitivity
from sparloom.sparse import Corpus, Role, stratified_choice

if TYPE_CHECKING:
    from sparloom.platforms import SpadePlatform
    from sparloom.platforms.spade import Machine

__all__ = ["BASELINE", "SpadeSensitivity", "sensitivity"]

BASELINE = "baseline"  # the machine as it is


@dataclass(frozen=True)
class SpadeSensitivity:
    """Simulate all configurations on machines that differ from the target in one constant each.

    Args:
        target: the machine as it is; simulated at level T1.
        varied: constant -> other values of it, low before high.
        role: of the matrices; "test" is for results only.
        matrices: how many, chosen evenly over row bins and sparsity.
        nonzeros: larger matrices are left out.
        jobs: processes, one matrix each.
        seed: of the choice of matrices.
    """

    ops: Sequence[Op]
    target: "SpadePlatform"
    corpus: Corpus
    varied: Mapping[str, Sequence[float | str]]
    role: Role
    matrices: int
    nonzeros: int
    width: int
    jobs: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and sensitivity.parquet, print and draw the latter; returns its numbers."""
        self.machines()
        roles = self.corpus.split()
        entries = {entry.name: entry for entry in self.corpus.entries()
                   if roles[entry.name] == self.role and entry.nnz <= self.nonzeros}
        chosen = stratified_choice(entries.values(), self.matrices, seed=self.seed)
        weights = {name: float(entries[name].nnz) for name in chosen}
        found = dict(run_jobs(self.simulate, {name: name for name in chosen}, weights=weights, processes=self.jobs,
                              description="matrices"))
        frame = pd.concat([found[name] for name in chosen], ignore_index=True)
        table = sensitivity(frame)
        for name, rows in (("per_matrix", frame), ("sensitivity", table)):
            write_frame(out / f"{name}.parquet", rows)
        title = f"SPADE {self.target.preset}, one constant changed, {len(chosen)} {self.role} matrices"
        log.console.print(_shown(table, title), soft_wrap=False)
        draw_sensitivity(table, out / "sensitivity", title=title)
        return {"matrices": len(chosen)} | _metrics(table)

    def machines(self) -> dict[tuple[str, str], "Machine"]:
        """The machine as it is, and one for every other value: (constant, value) -> machine.

        Raises:
            ValueError: there is no such constant, or the machine would be impossible.
        """
        base = self.target.machine
        unknown = sorted(set(self.varied) - {field.name for field in fields(base)})
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no constant of the machine: task.varied takes names of the "
                             "platform's options")
        made = {(BASELINE, ""): base}
        for constant, values in self.varied.items():
            for value in values:
                made[constant, str(value)] = replace(base, **{constant: value})
        for machine in made.values():
            machine.geometry(self.width)
        return made

    def simulate(self, name: str) -> pd.DataFrame:
        """One matrix: a row per operation and machine.

        Returns:
            Columns op, matrix, nnz, constant, value; optimum: default over best seconds on this machine; kept: best
            seconds over those of the configuration that is best on the machine as it is; tau: Kendall tau between the
            seconds of all configurations on both.
        """
        from sparloom.platforms.spade import simulate_ops

        pattern, machines = self.corpus.load(name).pattern, self.machines()
        spaces = {op.name: self.target.space(op) for op in self.ops}
        configs = {op: list(space) for op, space in spaces.items()}
        times = simulate_ops(pattern, configs, width=self.width, machines=list(machines.values()))
        rows = []
        for op, seconds in times.items():
            default, best = configs[op].index(spaces[op].default()), seconds[0].argmin()
            for (constant, value), own in zip(machines, seconds, strict=True):
                rows.append({"op": op, "matrix": name, "nnz": pattern.nnz, "constant": constant, "value": value,
                             "optimum": own[default] / own.min(), "kept": own.min() / own[best],
                             "tau": kendall_tau(seconds[0], own)})
        return pd.DataFrame(rows)


def sensitivity(frame: pd.DataFrame) -> pd.DataFrame:
    """Reduce rows of matrices to one per operation and machine.

    Returns:
        Columns op, constant, value; optimum and kept, geometric means; tau, the median; kept_least and tau_least.
    """
    groups = frame.groupby(["op", "constant", "value"], sort=False)
    columns = {"optimum": groups["optimum"].agg(geomean), "tau": groups["tau"].median(),
               "tau_least": groups["tau"].min(), "kept": groups["kept"].agg(geomean),
               "kept_least": groups["kept"].min()}
    return pd.DataFrame(columns).reset_index()


def _metrics(table: pd.DataFrame) -> dict[str, float]:
    """Flat: `<op>/<constant>=<value>/<number>`, and of the machine as it is `<op>/optimum`."""
    metrics: dict[str, float] = {}
    for row in table.to_dict(orient="records"):
        if row["constant"] == BASELINE:
            metrics[f"{row['op']}/optimum"] = row["optimum"]
            continue
        for key in ("optimum", "tau", "tau_least", "kept", "kept_least"):
            metrics[f"{row['op']}/{row['constant']}={row['value']}/{key}"] = row[key]
    return metrics


def _shown(table: pd.DataFrame, title: str) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for heading in ("op", "constant", "value", "optimum over default", "tau", "least", "kept", "least"):
        shown.add_column(heading, justify="left" if heading in ("op", "constant") else "right", no_wrap=True)
    for row in table.itertuples():
        shown.add_row(row.op, row.constant, row.value, f"{row.optimum:.3f}", f"{row.tau:.3f}", f"{row.tau_least:.3f}",
                      f"{row.kept:.3f}", f"{row.kept_least:.3f}")
    return shown
