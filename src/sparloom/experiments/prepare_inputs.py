"""Prepare what models read of every matrix of a corpus: capped sites, pattern statistics, roles."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sparloom.data import MatrixInput, MatrixInputs, Split, cap, write_statistics, write_walks
from sparloom.errors import SparloomError
from sparloom.experiments.fanout import run_jobs
from sparloom.experiments.places import data_folder
from sparloom.experiments.provenance import commit
from sparloom.models import conv_flops
from sparloom.sparse import Corpus, WalkStatistics, statistics, walk_statistics

__all__ = ["PrepareInputs"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrepareInputs:
    """Write inputs/inputs.npz, statistics/statistics.parquet, statistics/walks.parquet and split.csv of one corpus.

    Args:
        sites, flops: limits of one pass of the featurizer.
        jobs: processes.
        data: folder of the data; see `data_folder`.
    """

    corpus: Corpus
    sites: int
    flops: float
    jobs: int
    data: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Read every matrix once; returns counts."""
        began = time.monotonic()
        entries = {entry.name: entry for entry in self.corpus.entries()}
        weights = {name: float(entry.nnz + 20_000) for name, entry in entries.items()}
        inputs, rows, walks = [], {}, {}
        jobs = {name: name for name in entries}
        for name, (item, numbers, walked, fault) in run_jobs(self.prepare, jobs, weights=weights, processes=self.jobs,
                                                     description="inputs"):
            if fault:
                logger.warning("%s is left out: %s", name, fault)
                continue
            inputs.append(item)
            rows[name], walks[name] = numbers, walked
        if not rows:
            raise ValueError(f"none of {len(entries)} matrices could be read: check paths.mirror and the log")
        folder = data_folder(self.data, self.corpus)
        conditions = {"sites": self.sites, "flops": self.flops, "commit": commit()}
        MatrixInputs.of(inputs, conditions).write(folder / "inputs" / "inputs.npz")
        frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")
        write_statistics(folder / "statistics" / "statistics.parquet", frame)
        write_walks(folder / "statistics" / "walks.parquet", walks)
        roles = {name: role for name, role in self.corpus.split().items() if name in rows}
        Split(roles, {name: entries[name].family for name in roles}).write(folder / "split.csv")
        logger.info("%s: inputs and statistics of %d matrices", folder, len(rows))
        return {
            "matrices": len(rows), "left_out": len(entries) - len(rows), "seconds": time.monotonic() - began,
            "sites_mean": sum(len(item.counts) for item in inputs) / len(inputs),
            "coarsened": sum(item.quantum > 1 for item in inputs),
        }

    def prepare(self, name: str) -> tuple[MatrixInput | None, dict[str, float], WalkStatistics, str]:
        """Input, statistics, those of walks, and fault of one matrix."""
        try:
            pattern = self.corpus.load(name).pattern
        except (OSError, ValueError, SparloomError) as error:
            return None, {}, {}, str(error)
        item = cap(pattern, name=name, cost=conv_flops, sites=self.sites, flops=self.flops)
        return item, statistics(pattern), walk_statistics(pattern), ""
