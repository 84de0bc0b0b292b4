"""Deal measured samples of the CPU to the workers of a simulated processor.

The platform holds the model, see `sparloom.platforms.ManyCorePlatform`. Dealt samples are a platform of their own: they
have their own table, `cpu_many_<op>.parquet`, and their own checkpoints.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparloom.data import Sample, SampleSource, SampleTable, conditions_entry
from sparloom.errors import IllegalSchedule, SparloomError
from sparloom.experiments import harness
from sparloom.measure import TimingProtocol
from sparloom.ops import Op
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    from sparloom.platforms import ManyCorePlatform

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
