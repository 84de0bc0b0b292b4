"""Collect samples of dense GEMM: shapes x configurations, in sweeps at different times."""

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sparloom.baselines import VENDOR, vendor_gemms
from sparloom.data import Journal, Sample
from sparloom.experiments import harness
from sparloom.measure import TimingProtocol, describe_machine
from sparloom.ops import GEMM, GemmShape, GemmShapes
from sparloom.space import Config, gemm_program

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels, CudaPlatform

OP = GEMM()
WRONG = "wrong result"  # prefix of failures that are not refusals
SMALL_FLOPS = 10_000_000  # smaller shapes have a collection rate of their own
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """Shapes that are measured by the same number of processes."""

    name: str
    shapes: tuple[GemmShape, ...]
    processes: int


@dataclass(frozen=True)
class Outcome:
    """New rows of one shape in one sweep, and how many of them are failures and wrong results."""

    rows: int
    failures: int
    wrong: int


@dataclass(frozen=True)
class CollectGemm:
    """Measure every program on every shape, `timing.rounds` times, and the vendor's GEMM between them.

    A round is a sweep over all shapes, with newly allocated operands. Every result is compared with float64. Rows of a
    shape are written at once, so an interrupted run continues and loses at most the shape in flight. At the end all
    journals become one table.

    Args:
        count: number of shapes to measure, a fair sample of all; None: all.
        jobs: processes, each on a processor of its own; kernels with several threads or on a GPU need 1.
        alone_bytes: shapes with larger operands are measured by one process, as they share the last cache and memory.
        data: folder of the tables; shapes without a journal keep their rows.
        overwrite: drop samples of this preset and of the vendor that were made under other conditions instead of
            raising an error.
    """

    platform: "CpuKernels | CudaPlatform"
    shapes: GemmShapes
    timing: TimingProtocol
    count: int | None
    jobs: int
    alone_bytes: float
    journals: str
    data: str
    overwrite: bool = False

    def run(self, out: Path) -> Mapping[str, float]:
        """Collect missing samples; return counts, and rates in rows per wall second."""
        if self.jobs > 1 and not self._on_one_processor:
            raise ValueError(f"{self.jobs} jobs of preset {self.platform.preset} would disturb each other's times: "
                             "task.jobs=1")
        stages = self._stages()
        self._resumed.begin()
        began, rows, failures, wrong = time.monotonic(), 0, 0, 0
        metrics: dict[str, float] = {}
        with harness.exclusive_timing():
            for turn in range(self.timing.rounds):
                for stage in stages:
                    started = time.monotonic()
                    outcomes = list(self._measure(stage, turn))
                    fresh = sum(outcome.rows for outcome in outcomes)
                    if fresh:
                        metrics[f"{stage.name}/rows_per_second_{turn}"] = fresh / (time.monotonic() - started)
                    rows, failures = rows + fresh, failures + sum(outcome.failures for outcome in outcomes)
                    wrong += sum(outcome.wrong for outcome in outcomes)
        seconds = time.monotonic() - began
        if wrong:
            logger.error("%d of %d new rows are wrong results: mend the kernels before using the table", wrong, rows)
        self._resumed.put_together(self.timing, commit=harness.commit(), seed=self.timing.seed, processes=self.jobs,
                                   processors="one per process, claimed", alone_bytes=self.alone_bytes)
        shapes = sum(len(stage.shapes) for stage in stages)
        return {"shapes": shapes, "new_rows": rows, "new_failures": failures, "seconds": seconds,
                "rows_per_second": rows / seconds, **metrics}

    def sweep(self, task: tuple[GemmShape, int]) -> Outcome:
        """Measure and write the missing rows of one shape in one round."""
        shape, turn = task
        done = self._done(shape, turn)
        configs = [config for config in self._programs(shape) if (self.platform.preset, config.key) not in done]
        vendors = {config: vendor for config, vendor in vendor_gemms(self.platform).items()
                  if (VENDOR, config.key) not in done}
        once = replace(self.timing, rounds=1, seed=self.timing.seed + turn)
        with harness.claim_processor() if self._on_one_processor else nullcontext():
            operands = OP.operands(shape, seed=self.timing.seed)
            found = list(self.platform.measure_many(OP, operands, configs, once, vendors))
        conditions = {"op": OP.name, "platform": self.platform.name, "matrix": shape.matrix, "width": shape.width,
                      "machine": str(describe_machine()["name"]), "commit": harness.commit(),
                      "conditions": self._resumed.name(self.platform.preset)}
        samples = [Sample.of(measurement, config, round=turn, **conditions,
                             preset=VENDOR if config in vendors else self.platform.preset)
                   for config, _, measurement in found]
        self._journal(shape).append(samples)
        failures = [sample.failure for sample in samples if sample.failure is not None]
        return Outcome(len(samples), len(failures), sum(failure.startswith(WRONG) for failure in failures))

    @property
    def _on_one_processor(self) -> bool:
        return self.platform.kind == "wall" and self.platform.threads == 1

    def _stages(self) -> list[Stage]:
        """Group shapes into small, large and memory-bound ones, in the order of a hash: any prefix is a fair sample."""
        shapes = sorted((problem.shape for problem in self.shapes.problems()), key=_digest)
        count = len(shapes) if self.count is None else self.count
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(shapes):
            raise ValueError(f"count={count!r} shapes: give an integer from 1 to {len(shapes)}, or null for all")
        shapes = shapes[:count]
        bound = tuple(shape for shape in shapes if shape.bytes > self.alone_bytes)
        small = tuple(shape for shape in shapes if shape not in bound and shape.flops < SMALL_FLOPS)
        rest = tuple(shape for shape in shapes if shape not in bound and shape not in small)
        stages = [Stage("small", small, self.jobs), Stage("large", rest, self.jobs), Stage("memory", bound, 1)]
        return [stage for stage in stages if stage.shapes]

    def _measure(self, stage: Stage, turn: int) -> Iterator[Outcome]:
        waiting = [shape for shape in stage.shapes if not self._complete(shape, turn)]
        logger.info("sweep %d, %s: %d of %d shapes, up to %d configurations each, %d processes", turn, stage.name,
                    len(waiting), len(stage.shapes), len(self.platform.space(OP)), stage.processes)
        jobs = {f"{shape.matrix} {shape.width}": (shape, turn) for shape in waiting}
        weights = {name: shape.flops + float(SMALL_FLOPS) for name, (shape, _) in jobs.items()}
        finished = {f"{shape.matrix} {shape.width}" for shape in stage.shapes} - {*jobs}
        for _, outcome in harness.run_jobs(self.sweep, jobs, weights=weights, processes=stage.processes,
                                           description=f"sweep {turn} {stage.name}", unit="shapes",
                                           finished=finished):
            yield outcome

    def _complete(self, shape: GemmShape, turn: int) -> bool:
        done = self._done(shape, turn)
        return (all((self.platform.preset, config.key) in done for config in self._programs(shape))
                and any(name == VENDOR for name, _ in done))

    def _programs(self, shape: GemmShape) -> list[Config]:
        """List the configurations that are different programs in the layout of a shape."""
        return list(dict.fromkeys(gemm_program(config, shape.layout) for config in self.platform.space(OP)))

    def _done(self, shape: GemmShape, turn: int) -> set[tuple[str, str]]:
        """Return (preset, configuration key) of the rows of one shape and round."""
        return {(sample.preset, sample.config) for sample in self._journal(shape).samples()
                if sample.round == turn}

    def _journal(self, shape: GemmShape) -> Journal:
        return Journal(self._folder, (self.platform.name, self.platform.preset, OP.name, f"{shape.matrix}x{shape.n}"))

    @cached_property
    def _resumed(self) -> harness.Resumed:
        """Existing journals and table; computed before other processes get a copy of the task."""
        made = harness.conditions_of(self.platform, OP, self.timing, alone_bytes=self.alone_bytes)
        return harness.Resumed(
            op=OP.name, platform=self.platform.name, journals=self._folder, table=self._table,
            conditions={self.platform.preset: made, VENDOR: made}, identities={}, overwrite=self.overwrite)

    @property
    def _table(self) -> Path:
        return Path(self.data) / "samples" / f"{self.platform.name}_{OP.name}.parquet"

    @property
    def _folder(self) -> Path:
        return Path(self.journals) / OP.name


def _digest(shape: GemmShape) -> bytes:
    return hashlib.sha256(f"{shape.matrix} {shape.width}".encode()).digest()
