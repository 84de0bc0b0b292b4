"""The CPU this runs on: schedules become C, C becomes kernels, kernels are timed in interleaved rounds."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms.cpu.clock import processor_clock, take
from sparloom.platforms.cpu.kernels import Kernels, fresh_result, register_columns, unpack_result
from sparloom.platforms.cpu.program import Program
from sparloom.platforms.cpu.sample import Sample
from sparloom.platforms.cpu.storage import LEVELS, Layout, Packer, aligned
from sparloom.space import Config, ConfigSpace, CpuSpace
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["CpuPlatform"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    config: Config
    layout: Layout
    program: Program


class CpuPlatform:
    """Kernels rendered per schedule, compiled by the system compiler, run with `threads` threads.

    Args:
        threads: of every parallel loop.
        width: columns of the dense operands for which `space` is made.
        orders: all 30 legal loop orders, or the fewer that WACO draws for SpMM.
        preset: name of these settings in sample tables.
    """

    name = "cpu"

    def __init__(self, threads: int, width: int, orders: Literal["all", "waco"], preset: str) -> None:
        self.threads = threads
        self.width = width
        self.orders = orders
        self.preset = preset

    def space(self, op: Op) -> ConfigSpace:
        """Schedules of `op`, not yet bound to a matrix."""
        if op.name not in ("spmm", "sddmm"):
            raise Unsupported(f"operation {op.name} on platform cpu: use spmm or sddmm")
        return CpuSpace(op.name, width=self.width, orders=self.orders)

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Row-parallel CSR with the result row in registers, the same for every matrix."""
        return self.space(op).default()

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Pack, compile if need be, and compute.

        Raises:
            IllegalSchedule: the schedule is not legal, or would store too many zeros.
        """
        packer = Packer(operands.matrix)
        job = self._job(op, packer, config, operands.width)
        self._kernels.prepare([job.program])
        packed = packer.pack(job.layout, locate=op.name == "sddmm")
        result = fresh_result(op.name, packed, operands)
        self._kernels.bind(job.program, job.layout, operands=operands, packed=packed, result=result,
                           chunk=int(config["chunk"]))()
        return unpack_result(op.name, packed, result)

    def prepare(self, op: Op, matrices: Iterable[SparseMatrix], configs: Sequence[Sequence[Config]]) -> int:
        """Compile in one batch all kernels that measuring `configs[n]` on the n-th matrix needs.

        Compiled kernels stay in the cache on disk, so another process may prepare and this one measure.

        Returns:
            Number of distinct kernels.
        """
        programs: dict[Program, None] = {}
        for matrix, chosen in zip(matrices, configs, strict=True):
            packer = Packer(matrix)
            for config in chosen:
                try:
                    programs[self._job(op, packer, config, self.width).program] = None
                except IllegalSchedule:
                    continue
        self._kernels.prepare(programs)
        return len(programs)

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration; the repetitions of all rounds in one measurement."""
        taken = [measurement for asked, number, measurement in self.measure_many(op, operands, [config], timing)
                 if asked == config and number < timing.rounds]
        if taken[0].failure is not None:
            return taken[0]
        return Measurement(
            tuple(value for each in taken for value in each.seconds),
            "wall",
            cpu_seconds=tuple(value for each in taken for value in each.cpu_seconds),
            stolen=any(each.stolen for each in taken),
        )

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds: all of them once, in random order, then all again.

        In every round operands are allocated and the matrix is packed anew. The baseline is measured at the start, in
        the middle and at the end of each round (A/A); the latter two are given as rounds `rounds + 2 * round` and the
        next, so that labels over all rounds remain right and their spread is the noise of the machine. A refused
        configuration gives its reason once per round.

        The first round also compares a few results of each configuration with the float64 oracle.

        Raises:
            AssertionError: a kernel computes something else than the oracle.
        """
        packer = Packer(operands.matrix)
        baseline = self.baseline(op, operands.matrix.pattern)
        jobs: list[_Job] = []
        for config in configs:
            try:
                jobs.append(self._job(op, packer, config, operands.width))
            except IllegalSchedule as error:
                for number in range(timing.rounds):
                    yield config, number, Measurement.failed(str(error), "wall")
        reference = self._job(op, packer, baseline, operands.width)
        self._kernels.prepare([reference.program, *(job.program for job in jobs)])
        sample = Sample(op, operands, seed=timing.seed)
        rng = np.random.default_rng(timing.seed)
        others = [job for job in jobs if job.config != baseline]
        for number in range(timing.rounds):
            fresh = _reallocated(operands)
            measure = _Round(self._kernels, op, fresh, packer, timing, sample if number == 0 else None)
            first = measure(reference, slow_above=math.inf)
            if baseline in configs:
                yield baseline, number, first
            limit = timing.slow_factor * first.best
            for place, index in enumerate(rng.permutation(len(others))):
                if place == len(others) // 2 and baseline in configs:
                    yield baseline, timing.rounds + 2 * number, measure(reference, slow_above=math.inf)
                yield others[index].config, number, measure(others[index], slow_above=limit)
            if baseline in configs:
                yield baseline, timing.rounds + 2 * number + 1, measure(reference, slow_above=math.inf)

    def _job(self, op: Op, packer: Packer, config: Config, width: int) -> _Job:
        """Check a configuration against the space and the matrix.

        Raises:
            IllegalSchedule: with the reason.
        """
        self.space(op).validate(config)
        layout = Layout.of(
            packer.matrix.pattern.shape,
            rows_tile=int(config["rows_tile"]),
            cols_tile=config["cols_tile"],
            order=[loop for loop in str(config["order"]).split(".") if loop in LEVELS],
            formats=str(config["formats"]),
        )
        packer.count(layout)
        return _Job(config, layout, Program.of(op.name, config, layout, width=width,
                                               register_columns=register_columns()))

    @cached_property
    def _kernels(self) -> Kernels:
        return Kernels(self.threads)


class _Round:
    """Packs and measures one configuration after another with the dense operands of one round."""

    def __init__(self, kernels: Kernels, op: Op, operands: Operands, packer: Packer, timing: TimingProtocol,
                 sample: Sample | None) -> None:
        self.kernels = kernels
        self.op = op
        self.operands = operands
        self.packer = packer
        self.timing = timing
        self.sample = sample
        self.clock = processor_clock()
        self.result: np.ndarray | None = None

    def __call__(self, job: _Job, *, slow_above: float) -> Measurement:
        packed = self.packer.pack(job.layout, locate=self.sample is not None and self.op.name == "sddmm")
        if self.result is None or self.op.name == "sddmm":
            self.result = fresh_result(self.op.name, packed, self.operands)
        run = self.kernels.bind(job.program, job.layout, operands=self.operands, packed=packed, result=self.result,
                                chunk=int(job.config["chunk"]))
        threads = self.kernels.threads if job.program.parallel else 1
        measurement = take(run, self.timing, threads=threads, slow_above=slow_above, processor=self.clock)
        if self.sample is not None:
            self.sample.check(unpack_result(self.op.name, packed, self.result), job.config)
        return measurement


def _reallocated(operands: Operands) -> Operands:
    """Copy the dense operands to new pages."""
    dense = {}
    for name, array in operands.dense.items():
        dense[name] = aligned(array.shape, np.float32)
        dense[name][...] = array
    return Operands(operands.matrix, dense)
