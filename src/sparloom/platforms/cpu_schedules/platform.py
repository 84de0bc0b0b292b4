"""The CPU as a platform: configurations become storage and programs, and kernels are timed in interleaved rounds.

The speed of a machine drifts within tenths of a second, because neighbours share its caches and its memory. So the
repetitions of one configuration are spread over a round: as many configurations as fit into memory are packed, then all
of them run once, then all again. A drift then affects all alike.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.jit import aligned, compiler_version, sources_digest
from sparloom.measure import REPEATS, Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms.clock import Stopwatch, keep_threads_awake, one_by_one, processor_clock
from sparloom.platforms.cpu_schedules.kernels import Kernels, fresh_result, register_columns, unpack_result
from sparloom.platforms.cpu_schedules.lowering import Program
from sparloom.platforms.cpu_schedules.storage import LEVELS, Layout, Packed, Packer
from sparloom.platforms.timing import SpotCheck, reallocated
from sparloom.space import Config, ConfigSpace, CpuSpace, Readings
from sparloom.sparse import Pattern

POSITION_BYTES = 12  # most bytes of a stored position: pos, crd, or value and result

BATCH_BYTES = 2**30  # of packed matrices at once

GENERATOR = 1
"""Version of the generated code: raise it with every change that alters the seconds of a schedule."""


@dataclass(frozen=True)
class Job:
    """A configuration resolved for one matrix."""

    config: Config
    layout: Layout
    program: Program
    packed_bytes: int


@dataclass(frozen=True)
class Planner:
    """Resolves configurations for a matrix, or explains why they cannot run.

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operands.
        register_columns: number of them that are kept in registers at once.
    """

    op: str
    space: ConfigSpace
    width: int
    register_columns: int

    def job(self, packer: Packer, config: Config) -> Job:
        """Choose layout and program; raises IllegalSchedule if they are illegal or would store too many zeros."""
        self.space.validate(config)
        layout = Layout.of(
            packer.matrix.pattern.shape,
            rows_tile=int(config["rows_tile"]),
            cols_tile=config["cols_tile"],
            order=[loop for loop in str(config["order"]).split(".") if loop in LEVELS],
            formats=str(config["formats"]),
        )
        positions = packer.count(layout)
        program = Program.of(self.op, config, layout, width=self.width, register_columns=self.register_columns)
        return Job(config, layout, program, packed_bytes=POSITION_BYTES * sum(positions))


@dataclass(eq=False)
class Round:
    """Measures jobs with one allocation of the dense operands, their repetitions interleaved.

    Args:
        operands: copied.
        spot_check: checks the result of every job, unless None.
        rng: order of the repetitions.
    """

    kernels: Kernels
    op: Op
    operands: Operands
    packer: Packer
    timing: TimingProtocol
    spot_check: SpotCheck | None
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.operands = reallocated(self.operands)
        self._clock = processor_clock()
        self._baseline = math.inf

    def measure(self, jobs: Sequence[Job], visits: dict[Config, int]) -> Iterator[tuple[int, Measurement]]:
        """Measure all jobs; the first is the baseline, which decides what is slow.

        Args:
            visits: number of visits per configuration; filled by the first round, used by later ones.

        Yields:
            Index of a job and its measurement, each once. Nothing is yielded between the runs of a batch, so that work
            of the caller (such as writing to disk) disturbs none.
        """
        for batch in _batches(jobs):
            started = [(index, self._start(jobs[index], visits)) for index in batch]
            for sweep in range(self.timing.repetitions):
                for position in self.rng.permutation(len(started)):
                    index, watch = started[position]
                    if sweep < visits[jobs[index].config]:
                        watch.visit()
            for index, watch in started:
                yield index, watch.measurement()

    def _start(self, job: Job, visits: dict[Config, int]) -> Stopwatch:
        """Pack a job, warm it up, check its result."""
        packed = self.packer.pack(job.layout, locate=self.spot_check is not None and self.op.name == "sddmm")
        result = self._result(packed)
        run = self.kernels.bind(job.program, job.layout, operands=self.operands, packed=packed, result=result,
                                chunk=int(job.config["chunk"]))
        threads = self.kernels.threads if job.program.parallel else 1
        watch = Stopwatch(one_by_one(run, self._clock), self.timing, threads=threads)
        visits[job.config] = watch.warm_up(self._baseline, visits.get(job.config))
        if math.isinf(self._baseline):  # the very first: its second run, in warm caches, sets the scale
            watch.warm_up(math.inf)
            self._baseline = watch.warm_seconds
        if self.spot_check is not None:
            self.spot_check.check(unpack_result(self.op.name, packed, result), job.config)
        return watch

    def _result(self, packed: Packed) -> np.ndarray:
        """Share the result of SpMM, which has one shape, among configurations; allocate that of SDDMM."""
        if self.op.name == "spmm":
            return self._shared_result
        return fresh_result(self.op.name, packed, self.operands)

    @cached_property
    def _shared_result(self) -> np.ndarray:
        return aligned((self.operands.matrix.pattern.rows, self.operands.width), np.float32, zero=True)


@dataclass(eq=False, kw_only=True)
class CpuPlatform:
    """Kernels rendered per schedule, compiled by the system compiler, run with `threads` threads.

    Args:
        threads: of every parallel loop.
        width: columns of the dense operands for which `space` is made.
        orders: all 30 legal loop orders, or the fewer that WACO draws for SpMM.
        preset: name of these settings in sample tables.
        readings: how the shared model reads the configurations; None: the recommended readings.
    """

    threads: int
    width: int
    orders: Literal["all", "waco"]
    preset: str
    readings: Readings | None

    name = "cpu"
    option = "cpu"  # of conf/options/platforms.yaml
    kind = "wall"

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on besides the machine: threads, orders, compiler, generated and packing code."""
        return {"threads": self.threads, "orders": self.orders, "generator": GENERATOR,
                "compiler": compiler_version("c"), "packing": sources_digest(["cpu/pack.cpp"])}

    def space(self, op: Op) -> ConfigSpace:
        """List the schedules of `op`, not yet bound to a matrix."""
        if op.name not in ("spmm", "sddmm"):
            raise Unsupported(f"operation {op.name} on platform cpu: use spmm or sddmm")
        return CpuSpace(op.name, width=self.width, orders=self.orders, readings=self.readings)

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Choose row-parallel CSR with the result row in registers, whatever the matrix."""
        return self.space(op).default()

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Pack, compile if necessary, and compute; raises IllegalSchedule as `Planner.job` does."""
        packer = Packer(operands.matrix)
        job = self._planner(op, operands.width).job(packer, config)
        self._kernels.prepare([job.program])
        packed = packer.pack(job.layout, locate=op.name == "sddmm")
        result = fresh_result(op.name, packed, operands)
        self._kernels.bind(job.program, job.layout, operands=operands, packed=packed, result=result,
                           chunk=int(config["chunk"]))()
        return unpack_result(op.name, packed, result)

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration and join the repetitions of all rounds."""
        taken = [measurement for asked, number, measurement in self.measure_many(op, operands, [config], timing)
                 if asked == config and number < timing.rounds]
        return Measurement.joined(taken)

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds: all of them once, in random order, then all again.

        In every round operands are allocated and the matrix is packed anew. The baseline, if asked for, is packed and
        measured three times in each round (A/A). The second and third measurement are numbered as rounds
        `rounds + 2 * round` and the next, so that labels over all rounds stay right and their spread is the noise of
        the machine. A refused configuration yields its reason once per round.

        The first round also checks some results of each configuration against the float64 oracle.

        Raises:
            AssertionError: a kernel computes something else than the oracle.
        """
        keep_threads_awake()
        packer, planner = Packer(operands.matrix), self._planner(op, operands.width)
        baseline = self.baseline(op, operands.matrix.pattern)
        jobs: list[Job] = []
        for config in configs:
            try:
                jobs.append(planner.job(packer, config))
            except IllegalSchedule as error:
                for number in range(timing.rounds):
                    yield config, number, Measurement.failed(str(error), "wall")
        reference = planner.job(packer, baseline)
        self._kernels.prepare([reference.program, *(job.program for job in jobs)])
        spot_check = SpotCheck(op, operands, seed=timing.seed)
        rng = np.random.default_rng(timing.seed)
        others = [job for job in jobs if job.config != baseline]
        repeats = REPEATS if baseline in configs else 0
        visits: dict[Config, int] = {}
        for number in range(timing.rounds):
            shuffled = [others[index] for index in rng.permutation(len(others))]
            if repeats:
                shuffled = [*shuffled[: len(others) // 2], reference, *shuffled[len(others) // 2 :], reference]
            asked = [reference, *shuffled]
            again = iter(range(timing.rounds + REPEATS * number, timing.rounds + REPEATS * (number + 1)))
            measure = Round(self._kernels, op, operands, packer, timing=timing, rng=rng,
                            spot_check=spot_check if number == 0 else None)
            for index, measurement in measure.measure(asked, visits):
                if asked[index] is not reference:
                    yield asked[index].config, number, measurement
                elif index == 0 and repeats:
                    yield baseline, number, measurement
                elif index:
                    yield baseline, next(again), measurement

    def _planner(self, op: Op, width: int) -> Planner:
        return Planner(op.name, self.space(op), width=width, register_columns=register_columns())

    @cached_property
    def _kernels(self) -> Kernels:
        return Kernels(self.threads)


def _batches(jobs: Sequence[Job]) -> Iterator[list[int]]:
    """Split the jobs, in their order, into batches that fit into BATCH_BYTES (or hold a single job)."""
    batch: list[int] = []
    filled = 0
    for index, job in enumerate(jobs):
        if batch and filled + job.packed_bytes > BATCH_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(index)
        filled += job.packed_bytes
    yield batch
