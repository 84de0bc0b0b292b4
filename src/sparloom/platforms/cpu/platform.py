"""The CPU this runs on: schedules become C, C becomes kernels, kernels are timed in interleaved rounds."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.jit import compiler_version, sources_digest
from sparloom.measure import REPEATS, Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms.clock import keep_threads_awake
from sparloom.platforms.cpu.kernels import Kernels, fresh_result, register_columns, unpack_result
from sparloom.platforms.cpu.plan import Job, Planner
from sparloom.platforms.cpu.rounds import Round
from sparloom.platforms.cpu.storage import Packer
from sparloom.platforms.spot_check import SpotCheck
from sparloom.space import Config, ConfigSpace, CpuSpace, Readings
from sparloom.sparse import Pattern

__all__ = ["CpuPlatform"]

GENERATOR = 1
"""Version of the generated code: raise it with every change after which the same schedule takes another time."""


class CpuPlatform:
    """Kernels rendered per schedule, compiled by the system compiler, run with `threads` threads.

    Args:
        threads: of every parallel loop.
        width: columns of the dense operands for which `space` is made.
        orders: all 30 legal loop orders, or the fewer that WACO draws for SpMM.
        preset: name of these settings in sample tables.
        readings: how the shared model reads the configurations; None: the recommended readings.
    """

    name = "cpu"
    kind = "wall"

    def __init__(
        self, *, threads: int, width: int, orders: Literal["all", "waco"], preset: str, readings: Readings | None
    ) -> None:
        self.threads = threads
        self.width = width
        self.orders = orders
        self.preset = preset
        self.readings = readings

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on beside the machine: threads, orders, compiler, generated and packing code."""
        return {"threads": self.threads, "orders": self.orders, "generator": GENERATOR,
                "compiler": compiler_version("c"), "packing": sources_digest(["cpu/pack.cpp"])}

    def space(self, op: Op) -> ConfigSpace:
        """List the schedules of `op`, not yet bound to a matrix."""
        if op.name not in ("spmm", "sddmm"):
            raise Unsupported(f"operation {op.name} on platform cpu: use spmm or sddmm")
        return CpuSpace(op.name, width=self.width, orders=self.orders, readings=self.readings)

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Take row-parallel CSR with the result row in registers, whatever the matrix."""
        return self.space(op).default()

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Pack, compile if need be, and compute.

        Raises:
            IllegalSchedule: the schedule is not legal, or would store too many zeros.
        """
        packer = Packer(operands.matrix)
        job = self._planner(op, operands.width).job(packer, config)
        self._kernels.prepare([job.program])
        packed = packer.pack(job.layout, locate=op.name == "sddmm")
        result = fresh_result(op.name, packed, operands)
        self._kernels.bind(job.program, job.layout, operands=operands, packed=packed, result=result,
                           chunk=int(config["chunk"]))()
        return unpack_result(op.name, packed, result)

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration; the repetitions of all rounds in one measurement."""
        taken = [measurement for asked, number, measurement in self.measure_many(op, operands, [config], timing)
                 if asked == config and number < timing.rounds]
        return Measurement.joined(taken)

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds: all of them once, in random order, then all again.

        In every round operands are allocated and the matrix is packed anew. The baseline, if asked for, is packed and
        measured three times in each round (A/A): the second and third are given as rounds `rounds + 2 * round` and the
        next, so that labels over all rounds remain right and their spread is the noise of the machine. A refused
        configuration gives its reason once per round.

        The first round also compares a few results of each configuration with the float64 oracle.

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
            again = iter(range(timing.rounds + 2 * number, timing.rounds + 2 * number + 2))
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
