"""One round of timing: fresh operands, every configuration packed anew, repetitions interleaved.

The speed of a machine drifts within tenths of a second (neighbours share its caches and its memory). So repetitions of
one configuration are spread over the round: as many configurations as fit into memory are packed, then all of them are
run once, then all again. What drifts then meets all alike.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from sparloom.jit import aligned
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms.arrays import reallocated
from sparloom.platforms.clock import Stopwatch, one_by_one, processor_clock
from sparloom.platforms.cpu.kernels import Kernels, fresh_result, unpack_result
from sparloom.platforms.cpu.plan import Job
from sparloom.platforms.cpu.storage import Packed, Packer
from sparloom.platforms.spot_check import SpotCheck
from sparloom.space import Config

__all__ = ["Round"]

BATCH_BYTES = 2**30  # of packed matrices at once


class Round:
    """Measures jobs with one allocation of the dense operands.

    Args:
        spot_check: compare the result of every job with it, or None.
        rng: order of the repetitions.
    """

    def __init__(
        self, kernels: Kernels, op: Op, operands: Operands, packer: Packer, *, timing: TimingProtocol,
        spot_check: SpotCheck | None, rng: np.random.Generator,
    ) -> None:
        self.kernels = kernels
        self.op = op
        self.operands = reallocated(operands)
        self.packer = packer
        self.timing = timing
        self.spot_check = spot_check
        self.rng = rng
        self._clock = processor_clock()
        self._baseline = math.inf

    def measure(self, jobs: Sequence[Job], visits: dict[Config, int]) -> Iterator[tuple[int, Measurement]]:
        """Measure all jobs; the first is the baseline, against which slow ones are told.

        Args:
            visits: how often each configuration is visited; filled by the first round, obeyed by later ones.

        Yields:
            Index of a job and its measurement, each once; between the runs of a batch nothing is yielded, so that what
            the caller does (such as writing to disk) disturbs none.
        """
        for batch in _batches(jobs):
            started = [(index, self._start(jobs[index], visits)) for index in batch]
            for sweep in range(self.timing.repetitions):
                for place in self.rng.permutation(len(started)):
                    index, watch = started[place]
                    wanted = visits[jobs[index].config]
                    if sweep < wanted:
                        watch.visit()
            for index, watch in started:
                yield index, watch.measurement()

    def _start(self, job: Job, visits: dict[Config, int]) -> Stopwatch:
        """Pack a job, warm it up, compare its result."""
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
        """The result of SpMM has one shape for all configurations, and so one place."""
        if self.op.name == "spmm":
            return self._shared_result
        return fresh_result(self.op.name, packed, self.operands)

    @cached_property
    def _shared_result(self) -> np.ndarray:
        return aligned((self.operands.matrix.pattern.rows, self.operands.width), np.float32, zero=True)


def _batches(jobs: Sequence[Job]) -> Iterator[list[int]]:
    """Cut the jobs, in their order, into runs that fit into BATCH_BYTES (or hold a single job)."""
    batch: list[int] = []
    filled = 0
    for index, job in enumerate(jobs):
        if batch and filled + job.packed_bytes > BATCH_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(index)
        filled += job.packed_bytes
    yield batch
