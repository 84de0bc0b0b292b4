"""The fast level of the simulator against the slow one that follows every line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from sparloom import log
from sparloom.files import atomic_path
from sparloom.measure import TimingProtocol, geomean
from sparloom.ops import Op, Operands
from sparloom.sparse import Corpus
from sparloom.tasks.fanout import run_jobs

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["ValidateSimulator"]


@dataclass(frozen=True)
class ValidateSimulator:
    """Simulate the same configurations on both levels and compare times and orders.

    Args:
        fast, reference: one machine at two levels.
        configs: how many per matrix, drawn with a seed.
        matrices: how many, spread over the corpus; those above `nonzeros` are left out.
        jobs: processes.
    """

    ops: Sequence[Op]
    fast: "Platform"
    reference: "Platform"
    corpus: Corpus
    timing: TimingProtocol
    configs: int
    matrices: int
    nonzeros: int
    width: int
    jobs: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write samples.parquet and per_matrix.parquet; returns errors and rank correlations."""
        entries = [entry for entry in self.corpus.entries() if entry.nnz <= self.nonzeros]
        step = max(1, len(entries) // self.matrices)
        picked = {entry.name: float(entry.nnz) for entry in entries[::step][:self.matrices]}
        results = run_jobs(self.simulate, {name: name for name in picked}, weights=picked, processes=self.jobs,
                           description="both levels")
        frame = pd.concat([rows for _, rows in results], ignore_index=True)
        frame["error"] = np.abs(np.log(frame["fast"] / frame["reference"]))
        groups = frame.groupby(["op", "matrix"])
        table = pd.DataFrame({
            "error": groups["error"].median(),
            "spearman": groups[["fast", "reference"]].apply(_spearman),
            "regret": groups[["fast", "reference"]].apply(_regret),
        }).reset_index()
        for name, rows in (("samples", frame), ("per_matrix", table)):
            with atomic_path(out / f"{name}.parquet") as partial:
                rows.to_parquet(partial)
        metrics = {
            "matrices": len(picked), "points": len(frame), "error_median": float(frame["error"].median()),
            "error_p90": float(frame["error"].quantile(0.9)), "spearman_median": float(table["spearman"].median()),
            "spearman_p10": float(table["spearman"].quantile(0.1)), "regret": geomean(table["regret"].to_numpy()),
        }
        log.console.print(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
        return metrics

    def simulate(self, name: str) -> pd.DataFrame:
        """Times of one matrix on both levels: columns op, matrix, config, fast, reference."""
        matrix = self.corpus.load(name)
        operands = Operands(matrix, {"B": np.broadcast_to(np.float32(0), (1, self.width))})
        frames = []
        for op in self.ops:
            space = self.fast.space(op).bind(matrix.pattern.shape)
            drawn = space.sample(self.configs, np.random.default_rng(self.seed))
            times = {label: [measurement.seconds[0] for _, _, measurement
                             in platform.measure_many(op, operands, drawn, self.timing)]
                     for label, platform in (("fast", self.fast), ("reference", self.reference))}
            keys = [config.key for config in drawn]
            frames.append(pd.DataFrame({"op": op.name, "matrix": name, "config": keys, **times}))
        return pd.concat(frames, ignore_index=True)


def _spearman(rows: pd.DataFrame) -> float:
    return float(spearmanr(rows["fast"], rows["reference"]).statistic)


def _regret(rows: pd.DataFrame) -> float:
    """Reference time of the configuration that is fastest on the fast level, over the best."""
    return float(rows["reference"].loc[rows["fast"].idxmin()] / rows["reference"].min())
