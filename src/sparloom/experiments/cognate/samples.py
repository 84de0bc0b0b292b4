"""Prepare model inputs of a corpus, gather finished samples, and export them as CSV (COGNATE appendix E)."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sparloom.data import (
    Manifest,
    MatrixInput,
    MatrixInputs,
    SampleSource,
    SampleTable,
    Split,
    coarsen,
    write_csv,
    write_statistics,
    write_walks,
)
from sparloom.errors import SparloomError
from sparloom.experiments.harness import commit, data_folder, job_weight, run_jobs, samples_of
from sparloom.models import conv_flops
from sparloom.ops import Op
from sparloom.sparse import Corpus, WalkStatistics, statistics, walk_statistics

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
REORDER = "reverse Cuthill-McKee on A + A^T; clustering by degree for rectangular matrices"


@dataclass(frozen=True)
class Gather:
    """Copy finished samples to one folder in the layout of `StoredSamples`: paths.data=<folder> reads it.

    Nothing is measured or simulated here; `Collect` does that.

    Args:
        manifest: path of a `Manifest` of the matrices to take; None: all.
    """

    op: Op
    platforms: Sequence["Platform"]
    samples: SampleSource
    manifest: str | None

    def run(self, out: Path) -> Mapping[str, float]:
        """Check all samples, then write samples/, inputs/, statistics/, split.csv and manifest.csv; return counts.

        Raises:
            SchemaError: the samples are of other matrices than the manifest.
            ValueError: a matrix has no role or no statistics, or a platform has no samples.
        """
        inputs = self.samples.inputs()
        manifest = Manifest.of(inputs) if self.manifest is None else Manifest.read(Path(self.manifest))
        manifest.check(inputs)
        names = sorted(manifest.matrices)
        roles, families = self.samples.split(), self.samples.families()
        statistics, walks = self.samples.statistics(), self.samples.walks()
        for what, known in (("role", roles), ("pattern statistics", statistics.index), ("walks", walks)):
            _refuse_absent(names, known, what)
        tables = self._tables(names)
        for name, table in tables.items():
            table.write(out / "samples" / f"{name}.parquet")
            logger.info("%s: %d rows of %d of %d matrices", name, len(table), len(table.matrices), len(names))
        MatrixInputs.of([inputs[name] for name in names], inputs.conditions).write(out / "inputs" / "inputs.npz")
        write_statistics(out / "statistics" / "statistics.parquet", statistics.loc[names])
        write_walks(out / "statistics" / "walks.parquet", {name: walks[name] for name in names})
        split = Split({name: roles[name] for name in names}, {name: families.get(name, name) for name in names})
        split.write(out / "split.csv")
        manifest.write(out / "manifest.csv")
        counts = {f"{name}/{what}": count for name, table in tables.items()
                  for what, count in (("rows", len(table)), ("matrices", len(table.matrices)))}
        return {"matrices": len(names), **counts}

    def _tables(self, names: Collection[str]) -> dict[str, SampleTable]:
        """Return validated samples by file; presets of one platform share a file."""
        tables: dict[str, SampleTable] = {}
        for platform in self.platforms:
            whole = self.samples.table(platform.name, platform.preset, self.op.name)
            table = whole.filter(preset=platform.preset, matrices=names)
            if not len(table):
                raise ValueError(f"no samples of {platform.name} {platform.preset} of any of {len(names)} matrices: "
                                 "check task.manifest and samples")
            table.validate()
            name = f"{platform.name}_{self.op.name}"
            tables[name] = SampleTable.concat([tables[name], table]) if name in tables else table
        return tables


def _refuse_absent(names: Sequence[str], known: Collection[str], what: str) -> None:
    absent = [name for name in names if name not in known]
    if absent:
        raise ValueError(f"{len(absent)} of {len(names)} matrices have no {what} ({', '.join(absent[:3])}): "
                         "run experiment=prepare_inputs, or take them out of the manifest")


@dataclass(frozen=True)
class ExportCsv:
    """Write the samples of one operation and preset as CSV with a sidecar, as `samples=csv` reads them.

    Args:
        platform: SPADE, whose parameters are the columns of the CSV.
        unit: unit of the column time: s, ms, us or ns.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    unit: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write <platform>_<preset>_<op>.csv and .json; return counts."""
        table = samples_of(self.samples, self.platform, self.op)
        frame = table.frame()
        path = out / f"{self.platform.name}_{self.platform.preset}_{self.op.name}.csv"
        write_csv(path, table, unit=self.unit, sidecar={
            "source": f"sparloom, {', '.join(sorted(set(frame['kind'])))}",
            "version": ", ".join(sorted(set(frame["commit"]))),
            "started": f"{frame['started'].min():%Y-%m-%dT%H:%M:%SZ}",
            "pes": getattr(self.platform, "pes", None),
            "reorder": REORDER,
        })
        metrics = {"matrices": len(table.matrices), "rows": len(frame[["matrix", "config"]].drop_duplicates()),
                   "failures": len(table.failures())}
        logger.info("%s: %d rows of %d matrices", path, metrics["rows"], metrics["matrices"])
        return metrics


@dataclass(frozen=True)
class PrepareInputs:
    """Write inputs/inputs.npz, statistics/statistics.parquet, statistics/walks.parquet and split.csv of one corpus.

    Args:
        sites, flops: limits of one pass of the featurizer.
        data: folder of the data, see `data_folder`.
    """

    corpus: Corpus
    sites: int
    flops: float
    jobs: int
    data: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Read every matrix once; return counts."""
        began = time.monotonic()
        entries = {entry.name: entry for entry in self.corpus.entries()}
        weights = {name: job_weight(entry.nnz) for name, entry in entries.items()}
        inputs, rows, walks = [], {}, {}
        jobs = {name: name for name in entries}
        for name, (item, numbers, walked, fault) in run_jobs(self.prepare, jobs, weights=weights, processes=self.jobs,
                                                     description="inputs", unit="matrices"):
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
        """Return model input, statistics, walk statistics and the error message of one matrix."""
        try:
            pattern = self.corpus.load(name).pattern
        except (OSError, ValueError, SparloomError) as error:
            return None, {}, {}, str(error)
        item = coarsen(pattern, name=name, cost=conv_flops, sites=self.sites, flops=self.flops)
        return item, statistics(pattern), walk_statistics(pattern), ""
