"""The fast level of the simulator against the slow one that follows every line."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.experiments.fanout import run_jobs
from sparloom.measure import geomean
from sparloom.ops import Op
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    from sparloom.platforms import SpadePlatform

__all__ = ["ValidateSimulator"]

SAMPLES = ("fast", "reference", "fast_lines", "reference_lines")


@dataclass(frozen=True)
class ValidateSimulator:
    """Simulate the same configurations on both levels and compare times, orders and DRAM traffic.

    Args:
        target: the machine; its own level does not matter.
        configs: how many of the 64 stratified configurations per matrix, evenly spread.
        matrices: how many, evenly spread over the corpus; those above `nonzeros` are left out.
        jobs: processes.
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
        """Write samples.parquet and per_matrix.parquet; returns errors, rank correlations, differences in traffic."""
        entries = [entry for entry in self.corpus.entries() if entry.nnz <= self.nonzeros]
        chosen = [entries[place] for place in _spread(len(entries), self.matrices)]
        weights = {entry.name: float(entry.nnz) for entry in chosen}
        found = dict(run_jobs(self.simulate, {name: name for name in weights}, weights=weights, processes=self.jobs,
                              description="both levels"))
        samples, table = (pd.concat([found[name][part] for name in weights], ignore_index=True) for part in (0, 1))
        for name, rows in (("samples", samples), ("per_matrix", table)):
            write_frame(out / f"{name}.parquet", rows)
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
            log.console.print(f"{op}: " + ", ".join(
                f"{key.partition('/')[2]} {value:.3g}" for key, value in metrics.items() if key.startswith(f"{op}/")))
        return metrics

    def simulate(self, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """One matrix: a row per operation and configuration as `Pair`, and a row per operation as `Agreement`."""
        from sparloom.platforms.spade import Agreement, both_levels, stratified

        pattern = self.corpus.load(name).pattern
        samples, table = [], []
        for op in self.ops:
            space = stratified(self.target.space(op))
            drawn = [space[place] for place in _spread(len(space), self.configs)]
            pairs = both_levels(pattern, op.name, width=self.width, configs=drawn, machine=self.target.machine)
            head = {"op": op.name, "matrix": name}
            samples += [head | {"config": pair.config.key} | {key: getattr(pair, key) for key in SAMPLES}
                        for pair in pairs]
            table.append(head | {"nnz": pattern.nnz} | asdict(Agreement.of(pairs)))
        return pd.DataFrame(samples), pd.DataFrame(table)


def _spread(available: int, wanted: int) -> np.ndarray:
    """Places of `wanted` things, or of all there are, from the first to the last."""
    return np.unique(np.linspace(0, max(0, available - 1), min(available, wanted)).round().astype(int))
