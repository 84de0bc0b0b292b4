"""A simulated processor with many cores: schedules that were measured with two threads, dealt to more workers.

Two threads show no imbalance: a schedule with two equal pieces is as fast as one with a thousand. The model:

    the pieces of the parallel loop have known work, see pieces.py
    the measured seconds, less the barriers, are those of the measured threads when the pieces are dealt to them first
    free; they set the seconds of a unit of work of this schedule on this matrix
    a worker computes as fast as one of the measured threads, but has another share of the last cache: each byte that it
    fetches beyond those that a measured thread fetches (see dense_traffic.py) costs 1 / fetch_gb_per_s more
    the pieces, as large as the schedule says or of a fixed chunk, are dealt to the workers, first free or in turn;
    handing out a piece first free takes dispatch_ns, during which no other is handed out
    a barrier takes barrier_ns times the logarithm to base 2 of the workers
    all workers together fetch no faster than the memory delivers

Nothing else is modelled: remote memory, clocks that fall with the number of busy cores, and sharing of rows among
workers are left out. With the measured threads, caches and memory, the simulated seconds are the measured ones.

conf/options/platforms.yaml has the constants, each with its origin.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import sources_digest
from sparloom.ops import Op, Operands
from sparloom.platforms.cpu_schedules.dense_traffic import DenseTraffic
from sparloom.platforms.cpu_schedules.kernels import register_columns
from sparloom.platforms.cpu_schedules.pieces import Dealing, Pieces, pieces_of
from sparloom.platforms.cpu_schedules.platform import CpuPlatform, Planner
from sparloom.platforms.cpu_schedules.storage import Packer
from sparloom.platforms.platform import RunElsewhere
from sparloom.space import Config, GridSpace, Readings
from sparloom.sparse import SparseMatrix

MODEL = 1
"""Version of the model: raise it with every change that alters simulated seconds."""
LEAST_SHARE = 0.25  # of the measured seconds that are work: barriers and fetched bytes are estimates
MIB, GB = 2**20, 1e9


@dataclass(frozen=True, kw_only=True)
class ManyCores:
    """A processor with many cores, and what sets it apart from the measured one.

    Args:
        workers: threads of every parallel loop.
        dealing: "dynamic" hands the next piece to the first free worker, "static" to all in turn.
        chunk: iterations of the parallel loop in a piece; None: the chunk of the schedule.
        llc_mib, workers_per_llc: last-level cache, and the number of workers that share one.
        measured_llc_mib: last-level cache of the measured machine, which all measured threads share.
        dram_gb_per_s, dram_efficiency: theoretical bandwidth of all memory, and the share of it that is achieved.
        fetch_gb_per_s: rate at which one thread of the measured machine fetches dense rows from memory.
        dispatch_ns: to hand out one piece.
        barrier_ns: of two threads.
    """

    workers: int
    dealing: Dealing
    chunk: int | None
    llc_mib: float
    workers_per_llc: int
    measured_llc_mib: float
    dram_gb_per_s: float
    dram_efficiency: float
    fetch_gb_per_s: float
    dispatch_ns: float
    barrier_ns: float

    def __post_init__(self) -> None:
        for field in fields(ManyCores):
            value = getattr(self, field.name)
            if field.name != "dealing" and value is not None and not value > 0:
                raise ValueError(f"{field.name} {value} of a processor with many cores must be above 0")

    def barrier(self, workers: int) -> float:
        """Return the seconds of a barrier."""
        return self.barrier_ns * 1e-9 * math.log2(max(1, workers))


@dataclass(frozen=True, kw_only=True)
class ManyCorePlatform(RunElsewhere, ManyCores):
    """Schedules of the CPU on a simulated processor with many cores; their labels are made of measured ones.

    Args:
        measured: platform of the measured labels.
        preset: name of these settings in sample tables.
        option: name of these settings in conf/options/platforms.yaml.
    """

    measured: CpuPlatform
    preset: str
    option: str

    name = "cpu_many"
    experiments = "cpu"  # whose experiments make its encoder
    codes_of = "cpu"     # whose hardware-specific parameters it has: encoders with a slot per platform know that one
    kind = "simulated"

    @property
    def width(self) -> int:
        """Columns of the dense operands."""
        return self.measured.width

    @property
    def readings(self) -> Readings | None:
        """How the shared model reads the configurations; None: the recommended readings."""
        return self.measured.readings

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what simulated seconds depend on besides the measured ones: the machine, the threads, the model."""
        machine = {field.name: getattr(self, field.name) for field in fields(ManyCores)}
        return {"machine": machine, "threads": self.measured.threads, "orders": self.measured.orders,
                "simulator": f"{MODEL}-{sources_digest(['cpu/makespan.cpp'])}"}

    def space(self, op: Op) -> GridSpace:
        """Take the schedules of the CPU under the name of this platform."""
        return replace(self.measured.space(op), name=self.name)

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Compute the result by the kernel of the schedule, with the measured threads."""
        space = self.measured.space(op)
        return self.measured.run(op, operands, space.parse(config.key))

    def dealt(self, op: Op, matrix: SparseMatrix) -> "MatrixDealer":
        """Prepare to deal the measured seconds of schedules of one matrix."""
        return MatrixDealer(self, op, matrix)

    def elsewhere(self) -> Unsupported:
        return Unsupported(f"{self.name} {self.preset} is simulated from seconds measured on {self.measured.name} "
                           f"{self.measured.preset}: experiment=collect_{self.name} makes its samples")


class MatrixDealer:
    """Deals measured seconds of schedules of one matrix to the workers of machines that share the measured platform."""

    def __init__(self, platform: ManyCorePlatform, op: Op, matrix: SparseMatrix) -> None:
        self._measured = platform.measured
        self._planner = Planner(op.name, self._measured.space(op), width=platform.width,
                                register_columns=register_columns())
        self._packer, self._traffic = Packer(matrix), DenseTraffic(matrix.pattern)

    def seconds(self, key: str, measured: Sequence[float], machines: Sequence[ManyCores]) -> np.ndarray:
        """Deal the measured seconds of one schedule: (machines, measured).

        Args:
            key: of the configuration.
            measured: seconds of independent measurements.

        Raises:
            IllegalSchedule: the schedule cannot run on this matrix.
        """
        job = self._planner.job(self._packer, self._planner.space.parse(key))
        packed, drawn = self._packer.pack(job.layout, locate=False), int(job.config["chunk"])
        chunks = {drawn, *(machine.chunk for machine in machines)} - {None}
        pieces = {chunk: pieces_of(job.program, job.layout, packed, chunk=chunk) for chunk in chunks}

        def fetched(llc_mib: float, sharers: int) -> float:
            return self._traffic.fetched_bytes(job.program, job.layout, whole_capacity=llc_mib * MIB,
                                               capacity=llc_mib * MIB / sharers)

        threads, whole = self._measured.threads, self._traffic.whole_bytes(job.program.width)
        found = []
        for machine in machines:
            moved = fetched(machine.llc_mib, machine.workers_per_llc)
            more = moved - fetched(machine.measured_llc_mib, threads)
            streamed = self._traffic.matrix_bytes * pieces[drawn].repeats if whole > machine.llc_mib * MIB else 0
            found.append([simulate(machine, pieces[machine.chunk or drawn], seconds, pieces_measured=pieces[drawn],
                                   threads=threads, more_bytes=more, bytes_moved=moved + streamed)
                          for seconds in measured])
        return np.array(found)


def simulate(
    machine: ManyCores, pieces: Pieces, measured: float, *, pieces_measured: Pieces, threads: int, more_bytes: float,
    bytes_moved: float,
) -> float:
    """Compute the seconds of one schedule on a machine from those measured.

    Args:
        measured: seconds with `threads` threads, to which `pieces_measured` were dealt first free.
        more_bytes: fetched beyond those that the measured threads fetch.
        bytes_moved: between the memory and all caches.
    """
    barriers = pieces_measured.regions * machine.barrier(threads)
    units = pieces_measured.seconds(1.0, workers=threads, dealing="dynamic")
    unit = max(measured - barriers, LEAST_SHARE * measured) / units if units else 0.0
    work = unit * pieces.total  # the chunk does not change it
    slower = max(LEAST_SHARE, 1 + more_bytes / (machine.fetch_gb_per_s * GB) / work) if work else 1.0
    dealt = pieces.seconds(unit * slower, workers=machine.workers, dealing=machine.dealing,
                           dispatch=machine.dispatch_ns * 1e-9, barrier=machine.barrier(machine.workers))
    return max(dealt, bytes_moved / (machine.dram_gb_per_s * GB * machine.dram_efficiency))
