"""Deal measured samples of the CPU to the workers of a simulated processor, and test the dealing against measurements.

The platform holds the model, see `sparloom.platforms.ManyCorePlatform`. Dealt samples are a platform of their own: they
have their own table, `cpu_many_<op>.parquet`, and their own checkpoints.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparloom.data import Sample, SampleSource, SampleTable, conditions_entry
from sparloom.errors import IllegalSchedule, SparloomError
from sparloom.experiments import harness
from sparloom.measure import TimingProtocol, kendall_tau
from sparloom.ops import Op
from sparloom.space import Config
from sparloom.sparse import Corpus, Role, SparseMatrix, stratified_choice

if TYPE_CHECKING:
    from sparloom.platforms import CpuPlatform, ManyCorePlatform

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DealSamples:
    """Make the samples of simulated processors from measured ones of the same matrices; nothing is measured here.

    Every round of a measured configuration becomes a round of each preset, so that the noise of the measurement stays
    visible; a failure stays one.

    Args:
        platforms: presets that share the measured platform.
        corpus: holds the patterns of the measured matrices.
        samples: the measured samples.
        timing: recorded with the samples.
        data: folder of the table, see `data_folder`; presets that are already in it are replaced.
    """

    op: Op
    platforms: Sequence["ManyCorePlatform"]
    corpus: Corpus
    samples: SampleSource
    timing: TimingProtocol
    jobs: int
    data: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write the table; return counts and the median speedup over the measured seconds.

        Raises:
            MissingArtifact: nothing is measured; names the experiment that measures.
            ValueError: presets have different measured platforms, or the corpus lacks all matrices.
        """
        began = time.monotonic()
        measured = self.platforms[0].measured
        if any(vars(platform.measured) != vars(measured) for platform in self.platforms):
            raise ValueError(f"presets {', '.join(platform.preset for platform in self.platforms)} are made of "
                             "different measurements: give them the same `measured`")
        table = harness.samples_of(self.samples, measured, self.op)
        entries = {entry.name: entry for entry in self.corpus.entries()}
        frame = table.frame().astype({"matrix": str, "config": str})
        rows = {str(name): part for name, part in frame.groupby("matrix") if name in entries}
        if not rows:
            raise ValueError(f"the corpus has none of the {len(table.matrices)} matrices that were measured: choose "
                             "that of the samples")
        samples, absent = [], len(table.matrices) - len(rows)
        weights = {name: harness.job_weight(entries[name].nnz) for name in rows}
        for name, (fresh, reason) in harness.run_jobs(self.deal, rows, weights=weights, processes=self.jobs,
                                                      description=f"{self.platforms[0].name} {self.op.name}",
                                                      unit="matrices"):
            samples += fresh
            absent += bool(reason)
            if reason:
                logger.warning("%s is left out: %s", name, reason)
        made = self._written(samples, table)
        logger.info("%s: %d rows of %d matrices", self._table, len(made), len(made.matrices))
        return {"matrices": len(made.matrices), "left_out": absent, "rows": len(samples),
                **self._speedups(table, made), "seconds": time.monotonic() - began}

    def deal(self, rows: pd.DataFrame) -> tuple[list[Sample], str]:
        """Deal the rows of one matrix; an unreadable matrix gives no samples and the reason."""
        name = str(rows["matrix"].iloc[0])
        try:
            matrix = self.corpus.load(name)
        except (OSError, ValueError, SparloomError) as error:
            return [], f"cannot be read: {error}"
        dealer, found = self.platforms[0].dealt(self.op, matrix), []
        records = dict(zip(rows.index, rows.to_dict("records"), strict=True))
        for key, taken in rows.groupby("config", sort=False):
            timed = taken[taken["failure"].isna()]
            failures = dict(taken.loc[taken["failure"].notna(), "failure"].items())
            least = [float(np.min(seconds)) for seconds in timed["seconds"]]
            try:
                dealt = dealer.seconds(str(key), least, self.platforms) if least else np.empty((len(self.platforms), 0))
            except IllegalSchedule as error:  # the space has changed since it was measured
                failures |= dict.fromkeys(timed.index, str(error))
                timed, dealt = timed[:0], np.empty((len(self.platforms), 0))
            for platform, values in zip(self.platforms, dealt, strict=True):
                found += [self._sample(platform, records[index], seconds=(float(value),))
                          for index, value in zip(timed.index, values, strict=True)]
                found += [self._sample(platform, records[index], failure=str(reason))
                          for index, reason in failures.items()]
        return found, ""

    def _sample(
        self, platform: "ManyCorePlatform", row: Mapping[str, Any], *, seconds: tuple[float, ...] = (),
        failure: str | None = None,
    ) -> Sample:
        """Make a sample from a measured row, whose machine, round and time of measurement it keeps."""
        return Sample(
            op=self.op.name, platform=platform.name, preset=platform.preset, matrix=row["matrix"],
            width=int(row["width"]), config=row["config"], round=int(row["round"]), seconds=seconds, cpu_seconds=(),
            kind=platform.kind, failure=failure, stolen=bool(row["stolen"]), machine=str(row["machine"]),
            commit=harness.commit(), started=f"{row['started']:%Y-%m-%dT%H:%M:%SZ}")

    @property
    def _table(self) -> Path:
        name = f"{self.platforms[0].name}_{self.op.name}.parquet"
        return harness.data_folder(self.data, self.corpus) / "samples" / name

    def _written(self, samples: Sequence[Sample], measured: SampleTable) -> SampleTable:
        """Write the samples with their conditions and those of the measured ones."""
        origin = {"dealt_from": list(measured.provenance), "commit": harness.commit(), "op": self.op.name,
                  "platform": self.platforms[0].name}
        provenance = [origin]
        for platform in self.platforms:
            conditions = harness.conditions_of(platform, self.op, self.timing)
            provenance.append(conditions_entry((self.op.name, platform.name, platform.preset), conditions.digest,
                                               conditions))
        made = SampleTable.of(samples, provenance)
        if self._table.exists():
            others = SampleTable.read(self._table)
            for platform in self.platforms:
                others = others.without((self.op.name, platform.name, platform.preset))
            made = others.updated(made)
        made.validate()
        made.write(self._table)
        return made

    def _speedups(self, measured: SampleTable, made: SampleTable) -> dict[str, float]:
        before = measured.labels().set_index(["matrix", "config"])["seconds"]
        found = {}
        for platform in self.platforms:
            after = made.filter(preset=platform.preset).labels().set_index(["matrix", "config"])["seconds"]
            found[f"{platform.preset}/speedup_over_measured"] = float((before / after).median())
        return found


@dataclass(frozen=True)
class ValidateDealing:
    """Measure schedules with one thread and with more, in turn, and predict the latter by dealing the former.

    Args:
        platform: its measured platform runs the schedules; its caches and memory are taken as those of this machine.
        threads: number of threads to predict for.
        matrices: number of matrices, evenly spread over row bins and density; those above `nonzeros` are left out.
        role: their role.
        configs: schedules of a matrix, drawn like samples.
    """

    op: Op
    platform: "ManyCorePlatform"
    corpus: Corpus
    timing: TimingProtocol
    threads: int
    matrices: int
    nonzeros: int
    role: Role
    configs: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write samples.parquet and per_matrix.parquet; return ratios of predicted over measured seconds, and taus."""
        began, frames, roles = time.monotonic(), [], self.corpus.split()
        entries = [entry for entry in self.corpus.entries()
                   if roles[entry.name] == self.role and entry.nnz <= self.nonzeros]
        with harness.exclusive_timing():
            for name in stratified_choice(entries, self.matrices, seed=self.seed):
                frames.append(self.measured(self.corpus.load(name)).assign(matrix=name))
                logger.info("%s: %d schedules", name, len(frames[-1]))
        samples = pd.concat(frames, ignore_index=True)
        per_matrix = pd.DataFrame([self._agreement(str(name), rows) for name, rows in samples.groupby("matrix")])
        metrics = {"matrices": len(per_matrix), "schedules": len(samples), "threads": self.threads}
        for name in ("dealt", "even"):
            ratio = samples[name] / samples["many"]
            metrics |= {f"{name}/ratio_{share}": float(ratio.quantile(share / 100)) for share in (10, 50, 90)}
            metrics |= {f"{name}/within_10_percent": float(((ratio - 1).abs() <= 0.1).mean()),
                        f"{name}/tau": float(per_matrix[f"{name}_tau"].median())}
        metrics["dealt/tau_of_speedups"] = kendall_tau((samples["one"] / samples["dealt"]).to_numpy(),
                                                       (samples["one"] / samples["many"]).to_numpy())
        return harness.finish(out, None, metrics | {"seconds": time.monotonic() - began}, samples=samples,
                              per_matrix=per_matrix)

    def measured(self, matrix: SparseMatrix) -> pd.DataFrame:
        """Measure schedules of one matrix in turn with one thread and with more.

        Returns:
            Columns config, one and many, measured seconds, fastest repetition, median over rounds; dealt, seconds of
            many threads predicted from those of one; even, those of one divided by the threads.
        """
        cpu = self.platform.measured
        space = cpu.space(self.op).bind(matrix.pattern.shape)
        configs = space.sample(self.configs, np.random.default_rng(self.seed))
        operands = self.op.operands(matrix, cpu.width, self.timing.seed)
        taken: dict[int, dict[Config, list[float]]] = {1: {}, self.threads: {}}
        for turn in range(self.timing.rounds):
            once = replace(self.timing, rounds=1, seed=self.timing.seed + turn)
            for threads, found in taken.items():
                fresh: CpuPlatform = replace(cpu, threads=threads)  # sets the threads of this process
                for config, _, measurement in fresh.measure_many(self.op, operands, configs, once):
                    if measurement.failure is None:
                        found.setdefault(config, []).append(measurement.best)
        one, many = ({config: float(np.median(seconds)) for config, seconds in found.items()}
                     for found in taken.values())
        alone = replace(self.platform, measured=replace(cpu, threads=1), workers=self.threads, dealing="dynamic",
                        llc_mib=self.platform.measured_llc_mib, workers_per_llc=self.threads)
        dealer = alone.dealt(self.op, matrix)
        return pd.DataFrame([{"config": config.key, "one": seconds, "many": many[config],
                              "dealt": float(dealer.seconds(config.key, [seconds], [alone])[0, 0]),
                              "even": seconds / self.threads} for config, seconds in one.items() if config in many])

    @staticmethod
    def _agreement(name: str, rows: pd.DataFrame) -> dict[str, float | str]:
        return {"matrix": name, "schedules": len(rows),
                **{f"{each}_tau": kendall_tau(rows[each].to_numpy(), rows["many"].to_numpy())
                   for each in ("dealt", "even")},
                **{f"{each}_ratio": float((rows[each] / rows["many"]).median()) for each in ("dealt", "even")}}
