"""Collect samples: matrices of a corpus x configurations x platforms; an interrupted collection continues."""

import hashlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparloom.data import ROLES, Journal, Sample
from sparloom.errors import SparloomError
from sparloom.experiments import harness
from sparloom.measure import TimingProtocol, describe_machine
from sparloom.ops import Op, Operands
from sparloom.space import Config
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    from sparloom.platforms import Platform

FLUSH_SECONDS = 0.2
"""Simulated rows that arrive faster than this are written together: one trace makes many."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectedRows:
    """Rows and failures that one matrix added, or the reason why nothing could be collected."""

    rows: int
    failures: int
    reason: str = ""


@dataclass(frozen=True)
class Collect:
    """Measure or simulate configurations of one operation on the matrices of a corpus.

    Rows go to one journal per (platform, preset, op, matrix) and are flushed to disk, so an interrupted run continues
    and loses at most the sample in flight. When all matrices are complete, the journals are joined into one table.
    Journals and table record the conditions of their rows; rows of other conditions are refused. On a GPU cuSPARSE is
    timed between the kernels; its rows have the preset "vendor".

    Args:
        platforms: one platform, or several presets of it, which may share their work.
        configs: number of configurations per matrix, drawn with a seed of the matrix; "all": the whole space.
        roles: roles of the split, in the order in which they are collected.
        matrices: names; empty: all matrices of the roles.
        max_nonzeros: matrices with more are left out, for slow simulators; None: no limit.
        shard: "i/n": every n-th matrix from the i-th on; "0/1" is everything.
        jobs: processes; 1 for anything that is timed.
        journals: folder of the journals, one folder in it per corpus.
        data: folder of the tables, see `data_folder`. Matrices without a journal keep their rows in the table.
        partial: write the table even if matrices are missing.
        overwrite: drop samples of these presets that were made under other conditions instead of raising an error.
    """

    op: Op
    platforms: Sequence["Platform"]
    corpus: Corpus
    timing: TimingProtocol
    width: int
    configs: int | str
    roles: Sequence[str]
    matrices: Sequence[str]
    shard: str
    jobs: int
    journals: str
    data: str
    partial: bool
    seed: int
    overwrite: bool = False
    max_nonzeros: int | None = None

    def run(self, out: Path) -> Mapping[str, float]:
        """Collect missing samples; return counts of matrices, rows and failures."""
        began = time.monotonic()
        first, step = _shard(self.shard)
        self._check()
        planned = self._planned()
        mine = planned[first::step]
        self._resumed.begin()
        costs = {entry.name: harness.job_weight(entry.nnz) for entry in self.corpus.entries()}
        title = f"{self.platforms[0].name} {self.op.name}"
        finished = {name for name in mine if self._complete(name)}
        logger.info("%s: %d of %d matrices, %d of them found finished, %s configurations each, %d processes", title,
                    len(mine), len(planned), len(finished), self.configs, self.jobs)
        outcomes = {}
        with self._alone():
            for name, outcome in harness.run_jobs(self.collect, {name: name for name in mine}, processes=self.jobs,
                                                  weights={name: costs[name] for name in mine}, description=title,
                                                  unit="matrices", finished=finished):
                outcomes[name] = outcome
                if outcome.reason:
                    logger.warning("%s is left out: %s", name, outcome.reason)
        absent = {name for name, outcome in outcomes.items() if outcome.reason}
        self._put_together(planned, absent)
        return {
            "matrices": len(mine) - len(absent),
            "left_out": len(absent),
            "new_rows": sum(outcome.rows for outcome in outcomes.values()),
            "new_failures": sum(outcome.failures for outcome in outcomes.values()),
            "seconds": time.monotonic() - began,
        }

    def collect(self, name: str) -> CollectedRows:
        """Collect the missing samples of one matrix; an unreadable matrix is reported, not raised."""
        missing = [self._missing(name, platform) for platform in self.platforms]
        if not any(any(lacks) for lacks in missing):
            return CollectedRows(0, 0)
        try:
            matrix = self.corpus.load(name)
        except (OSError, ValueError, SparloomError) as error:
            return CollectedRows(0, 0, f"cannot be read: {error}")
        operands = harness.operands_for(self.platforms[0], self.op, matrix, self.width, self.timing.seed)
        rows = failures = 0
        for samples in self._samples(name, operands, missing):
            rows += len(samples)
            failures += sum(sample.failure is not None for sample in samples)
        return CollectedRows(rows, failures)

    def _check(self) -> None:
        """Refuse an invalid number of configurations, and platforms for another width than that of the operands."""
        size = len(self.platforms[0].space(self.op))
        whole = isinstance(self.configs, int) and not isinstance(self.configs, bool)
        if self.configs != "all" and not (whole and 1 <= self.configs <= size):
            raise ValueError(f"configs={self.configs!r} per matrix: give all, or an integer from 1 to {size}")
        for platform in self.platforms:
            width = getattr(platform, "width", self.width)
            if width != self.width:
                raise ValueError(f"platform {platform.name} {platform.preset} is for {width} columns, and the dense "
                                 f"operands have {self.width}: give width={width} alone")

    def _alone(self) -> AbstractContextManager[None]:
        """Lock the machine for timing; simulations need no lock."""
        if self.platforms[0].kind == "simulated":
            return nullcontext()
        if self.jobs > 1:
            raise ValueError(f"{self.jobs} jobs would disturb each other's times on platform {self.platforms[0].name}: "
                             "task.jobs=1, or one machine per shard")
        return harness.exclusive_timing()

    def _planned(self) -> list[str]:
        """List names by role, within a role in the order of a hash, so that any prefix is a fair sample."""
        split = self.corpus.split()
        unknown = sorted(set(self.matrices) - set(split))
        if unknown:
            raise ValueError(f"no matrix {', '.join(unknown)} in the corpus of {len(split)}: check task.matrices")
        if others := sorted(set(self.roles) - set(ROLES)):
            raise ValueError(f"task.roles has {', '.join(others)}: roles are {', '.join(ROLES)}")
        wanted = set(self.matrices) or {name for name, role in split.items() if role in self.roles}
        if not wanted:
            raise ValueError(f"no matrix of the corpus has a role of {', '.join(self.roles)}")
        if self.max_nonzeros is not None:
            wanted -= {entry.name for entry in self.corpus.entries() if entry.nnz > self.max_nonzeros}
            if not wanted:
                raise ValueError(f"no matrix has at most max_nonzeros={self.max_nonzeros} nonzeros: raise it")
        rank = {role: index for index, role in enumerate(self.roles)}
        return sorted(wanted, key=lambda name: (rank.get(split[name], len(rank)), _digest(name)))

    def _drawn(self, name: str) -> list[Config]:
        entry = next(entry for entry in self.corpus.entries() if entry.name == name)
        space = self.platforms[0].space(self.op).bind((entry.rows, entry.cols))
        if self.configs == "all":
            return list(space)
        return space.sample(self.configs, np.random.default_rng([self.seed, _digest(name)]))

    @cached_property
    def _resumed(self) -> harness.Resumed:
        """Existing journals and table; computed before other processes get a copy of the task."""
        drawn = {} if self.configs == "all" else {"seed": self.seed}
        conditions = {platform.preset: harness.conditions_of(platform, self.op, self.timing, **drawn)
                      for platform in self.platforms}
        for platform in self.platforms:
            vendors = {config.space for config in self._vendors(platform)}
            conditions |= dict.fromkeys(vendors, conditions[platform.preset])
        return harness.Resumed(
            op=self.op.name, platform=self.platforms[0].name, journals=self._folder, table=self._table,
            conditions=conditions, identities=harness.identities_of(self.corpus), overwrite=self.overwrite)

    @property
    def _table(self) -> Path:
        name = f"{self.platforms[0].name}_{self.op.name}.parquet"
        return harness.data_folder(self.data, self.corpus) / "samples" / name

    @property
    def _folder(self) -> Path:
        return Path(self.journals) / harness.corpus_name(self.corpus)

    def _journal(self, name: str, platform: "Platform", preset: str | None = None) -> Journal:
        return Journal(self._folder, (platform.name, preset or platform.preset, self.op.name, name))

    def _vendors(self, platform: "Platform") -> Mapping[Config, Any]:
        """Name the vendor kernels on a GPU; the space of their configurations is the preset of their rows."""
        if platform.kind != "device":
            return {}
        from sparloom.baselines import vendor_sparse

        return vendor_sparse(platform, self.op)

    def _missing(self, name: str, platform: "Platform") -> list[list[Config]]:
        """List the configurations without a row, by round."""
        vendors = self._vendors(platform)
        done, wanted = self._journal(name, platform).done(self.width), [*self._drawn(name), *vendors]
        for preset in {config.space for config in vendors}:
            done |= self._journal(name, platform, preset).done(self.width)
        return [[config for config in wanted if (config.key, turn) not in done] for turn in range(self.timing.rounds)]

    def _complete(self, name: str) -> bool:
        return not any(any(self._missing(name, platform)) for platform in self.platforms)

    def _samples(
        self, name: str, operands: Operands, missing: Sequence[Sequence[Sequence[Config]]]
    ) -> Iterator[list[Sample]]:
        """Measure and write rows as they arrive, those of one instant together."""
        conditions = {"op": self.op.name, "platform": self.platforms[0].name, "matrix": name, "width": self.width,
                      "machine": str(describe_machine()["name"]), "commit": harness.commit()}
        journals, vendors = {platform.preset: self._journal(name, platform) for platform in self.platforms}, {}
        for platform in self.platforms:
            vendors |= self._vendors(platform)
            journals |= {config.space: self._journal(name, platform, config.space) for config in vendors}
        done = {preset: journal.done(self.width) for preset, journal in journals.items()}
        fresh: list[Sample] = []
        written = time.monotonic()
        for preset, config, turn, measurement in harness.measure_presets(
                self.platforms, self.op, operands, missing=missing, timing=self.timing, vendors=vendors):
            preset = config.space if config in vendors else preset
            if (config.key, turn) in done[preset]:
                continue
            done[preset].add((config.key, turn))
            fresh.append(Sample.of(measurement, config, round=turn, preset=preset,
                                   conditions=self._resumed.name(preset, name), **conditions))
            if measurement.kind != "simulated" or time.monotonic() - written >= FLUSH_SECONDS:
                yield _append(journals, fresh)
                fresh, written = [], time.monotonic()
        yield _append(journals, fresh)

    def _put_together(self, planned: Sequence[str], absent: set[str]) -> None:
        """Write the table if only unreadable matrices are missing."""
        waiting = [name for name in planned if name not in absent and not self._complete(name)]
        if waiting and not self.partial:
            logger.info("%d of %d matrices are incomplete, so no table is written", len(waiting), len(planned))
            return
        self._resumed.put_together(self.timing, commit=harness.commit(), seed=self.seed)


def _append(journals: Mapping[str, Journal], samples: Sequence[Sample]) -> list[Sample]:
    for preset, journal in journals.items():
        journal.append(sample for sample in samples if sample.preset == preset)
    return list(samples)


def _shard(shard: str) -> tuple[int, int]:
    """Read "i/n": every n-th name from the i-th on.

    Raises:
        ValueError: `shard` is not "i/n" with 0 <= i < n.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or int(found[1]) >= int(found[2]):
        raise ValueError(f"shard {shard!r} is not i/n with 0 <= i < n: write task.shard=0/4 for the first of four")
    return int(found[1]), int(found[2])


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
