"""Check the SPADE simulator: its fast level against the exact one, and published effects."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.experiments.harness import finish, run_jobs
from sparloom.measure import geomean
from sparloom.ops import Op
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    from sparloom.platforms import SpadePlatform

SAMPLES = ("fast", "reference", "fast_lines", "reference_lines")
BAND = 5.0            # percent; smaller effects have no sign: figure 11 shows +-8 % that cannot be derived
BASE = "256 x all"    # the tile that effects of other tiles are relative to


@dataclass(frozen=True)
class ValidateSimulator:
    """Compare the fast level of the simulator with the exact one that follows every line: times, orders, traffic.

    Args:
        target: the machine; its level is ignored.
        configs: number of the 64 stratified configurations per matrix, evenly spread.
        matrices: number of matrices, evenly spread over the corpus; those above `nonzeros` are left out.
    """

    ops: Sequence[Op]
    target: "SpadePlatform"
    corpus: Corpus
    configs: int
    matrices: int
    nonzeros: int
    width: int
    jobs: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write samples.parquet and per_matrix.parquet; return errors, rank correlations and traffic differences."""
        entries = [entry for entry in self.corpus.entries() if entry.nnz <= self.nonzeros]
        if not entries:
            raise ValueError(f"no matrix has at most {self.nonzeros} nonzeros: raise task.nonzeros")
        chosen = [entries[index] for index in _spread(len(entries), self.matrices)]
        weights = {entry.name: float(entry.nnz) for entry in chosen}
        found = dict(run_jobs(self.simulate, {name: name for name in weights}, weights=weights, processes=self.jobs,
                              description="both levels", unit="matrices"))
        samples, table = (pd.concat([found[name][part] for name in weights], ignore_index=True) for part in (0, 1))
        metrics = {"matrices": len(chosen), "points": len(samples)}
        for op, rows in table.groupby("op", sort=False):
            points = samples[samples["op"] == op]
            traffic = (points["fast_lines"] / points["reference_lines"] - 1).abs()
            metrics |= {
                f"{op}/error_median": float(rows["error"].median()), f"{op}/error_worst": float(rows["error"].max()),
                f"{op}/spearman_median": float(rows["spearman"].median()),
                f"{op}/spearman_p10": float(rows["spearman"].quantile(0.1)),
                f"{op}/spearman_worst": float(rows["spearman"].min()),
                f"{op}/traffic_median": float(rows["traffic"].median()), f"{op}/traffic_worst": float(traffic.max()),
                f"{op}/traffic_within_10_percent": float((traffic <= 0.1).mean()),
                f"{op}/regret": geomean(rows["regret"].to_numpy()),
                f"{op}/regret_worst": float(rows["regret"].max()),
            }
        return finish(out, None, metrics, samples=samples, per_matrix=table)

    def simulate(self, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Simulate one matrix: a row per operation and configuration, and a row per operation as `Agreement`."""
        from sparloom.platforms.spade import Agreement, both_levels, stratified

        pattern = self.corpus.load(name).pattern
        samples, table = [], []
        for op in self.ops:
            space = stratified(self.target.space(op))
            drawn = [space[index] for index in _spread(len(space), self.configs)]
            pairs = both_levels(pattern, op.name, width=self.width, configs=drawn, machine=self.target.machine)
            head = {"op": op.name, "matrix": name}
            samples += [head | {"config": pair.config.key} | {key: getattr(pair, key) for key in SAMPLES}
                        for pair in pairs]
            table.append(head | {"nnz": pattern.nnz} | asdict(Agreement.of(pairs)))
        return pd.DataFrame(samples), pd.DataFrame(table)


def _spread(available: int, wanted: int) -> np.ndarray:
    """Return `wanted` indices below `available`, or all of them, from the first to the last."""
    return np.unique(np.linspace(0, max(0, available - 1), min(available, wanted)).round().astype(int))


@dataclass(frozen=True)
class CheckSpadeSigns:
    """Simulate the options of ISCA'23 table 3 on generated stand-ins and compare signs with the paper.

    Args:
        target: the machine of the paper; it is scaled down with the matrices.
        factor: divisor of the size of the matrices.
        matrices: names of ISCA'23 table 4.
    """

    target: "SpadePlatform"
    factor: int
    matrices: Sequence[str]
    widths: Sequence[int]
    jobs: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write signs.parquet; return for each table how many signs agree, are a tie on one side, are opposite."""
        jobs = {name: name for name in self.matrices}
        found = dict(run_jobs(self.simulate, jobs, weights=dict.fromkeys(jobs, 1.0), processes=self.jobs,
                              description="signs", unit="stand-ins"))
        frame = judge_signs(pd.concat([found[name] for name in self.matrices], ignore_index=True))
        metrics: dict[str, float] = {"factor": self.factor}
        for table, rows in frame[frame["verdict"] != "base"].groupby("table", sort=False):
            counts = rows["verdict"].value_counts()
            metrics |= {f"{table}/cases": len(rows)}
            metrics |= {f"{table}/{verdict}": int(counts.get(verdict, 0)) for verdict in ("agree", "tie", "opposite")}
        return finish(out, None, metrics, signs=frame)

    def simulate(self, name: str) -> pd.DataFrame:
        """Simulate one matrix: published numbers and ours, columns as the fields of `PublishedEffect`."""
        from sparloom.platforms.spade import effect_records

        return pd.DataFrame(effect_records(
            self.target.machine, factor=self.factor, matrices=[name], widths=self.widths))


def judge_signs(frame: pd.DataFrame) -> pd.DataFrame:
    """Add effects in percent of time (of speedup for "gain") and a verdict on their signs.

    Returns:
        The frame with paper_effect, our_effect and verdict: "agree" (both have the same sign or are within 5 %), "tie"
        (only one is within 5 %), "opposite", or "base" (the reference tile).
    """
    made = frame.copy()
    keys = ["table", "matrix", "op", "width"]
    for column, effect in (("paper", "paper_effect"), ("ours", "our_effect")):
        base = made[column].where(made["setting"] == BASE).groupby([made[key] for key in keys]).transform("first")
        relative = 100 * (made[column] / base.where(made["table"] == "tiles", 1.0) - 1)
        made[effect] = made[column].where(made["table"].isin(["barrier", "bypass"]), relative)
    signs = [np.sign(made[effect]) * (made[effect].abs() > BAND) for effect in ("paper_effect", "our_effect")]
    apart = (signs[0] - signs[1]).abs()
    verdict = apart.map({0: "agree", 1: "tie", 2: "opposite"})
    made["verdict"] = verdict.where(made["setting"] != BASE, "base")
    return made
