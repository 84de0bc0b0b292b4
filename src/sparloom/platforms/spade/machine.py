"""Parameters of a SPADE machine (ISCA'23 table 1, HotTiles, COGNATE §4.1), and designs around it with their prices.

Values of the parameters are in conf/options/platforms.yaml.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Literal

LINE_BYTES = 64
VALUE_BYTES = 4
CHANNEL_GB_PER_S = 25.6  # one channel of DDR4-3200


@dataclass(frozen=True)
class Geometry:
    """The parameters that decide the counts of a trace for one slice width; machines of equal geometry share traces.

    Cache sizes are in sets of row slices; a level with 0 sets does not exist. `arguments` is the order of struct
    Geometry in kernels/spade/memory.hpp.
    """

    pes: int
    pes_per_l2: int
    quantum: int
    reservation_stations: int
    dense_loads: int
    row_lines: int
    vector_registers: int
    l1_sets: int
    l1_ways: int
    l2_sets: int
    l2_ways: int
    llc_sets: int
    llc_ways: int
    victim_sets: int
    victim_ways: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A SPADE accelerator: P processing elements (PEs) that share L2 caches, a last-level cache and DRAM.

    Args:
        pes: number of PEs.
        vector_registers: lines in the register file of a PE; a row slice takes several.
        reservation_stations: vector operations in flight per PE.
        dense_loads, sparse_loads, store_queue: lines in flight per PE and kind (the last one in T0 only).
        parallel_dense_lines: dense lines that overlap on average (T1).
        victim_kib: victim cache of the bypass buffer; 0: none.
        l1_kib, l2_kib, llc_kib: per PE, per L2, and LLC share per L2 (the shares form one pool); 0: none.
        dram_gb_per_s, dram_efficiency: theoretical bandwidth, and the share of it that is achieved.
        link_ns: round trip between PE and memory controller, part of the latency of DRAM only.
        l1_ns, l2_ns, llc_ns, dram_ns: latency of a request that the level serves, without queueing.
        smooth_exponent: q of the smooth maximum (x^q + y^q)^(1/q) of the limits of a PE (T1).
        forwarding_cycles: from one accumulation to the next on the same register.
        tile_ns: to start and drain a tile (T1).
        instruction_ns, barrier_ns: of the control processor per instruction, and of a barrier.
        quantum: nonzeros of a PE before those of the next PE, in the interleaving of the trace (T1).
        dealing: how the control processor deals tiles: "cyclic", in turn, or "first_free", to the PE with the least
            work so far.
    """

    pes: int
    clock_ghz: float
    vector_registers: int
    reservation_stations: int
    dense_loads: int
    sparse_loads: int
    store_queue: int
    parallel_dense_lines: float
    victim_kib: float
    victim_ways: int
    l1_kib: float
    l1_ways: int
    l2_kib: float
    l2_ways: int
    pes_per_l2: int
    llc_kib: float
    llc_ways: int
    dram_gb_per_s: float
    dram_efficiency: float
    link_ns: float
    l1_ns: float
    l2_ns: float
    llc_ns: float
    dram_ns: float
    smooth_exponent: float
    forwarding_cycles: float
    tile_ns: float
    instruction_ns: float
    barrier_ns: float
    quantum: int
    dealing: Literal["cyclic", "first_free"]

    @property
    def bandwidth(self) -> float:
        """Bytes per second that DRAM delivers."""
        return self.dram_gb_per_s * 1e9 * self.dram_efficiency

    @property
    def dram_channels(self) -> int:
        """Number of channels of the theoretical bandwidth."""
        return max(1, round(self.dram_gb_per_s / CHANNEL_GB_PER_S))

    def geometry(self, slice_width: int) -> Geometry:
        """Compute sizes in units of a row slice of `slice_width` values.

        Raises:
            ValueError: a count or a rate is not positive, a slice is not a whole number of lines or does not fit the
                registers, or a cache has more than 64 ways.
        """
        self._check()
        row_bytes = slice_width * VALUE_BYTES
        if row_bytes % LINE_BYTES:
            raise ValueError(f"{slice_width} columns are {row_bytes} bytes, not whole lines of {LINE_BYTES}: "
                             f"choose width and split as multiples of {LINE_BYTES // VALUE_BYTES}")
        row_lines = row_bytes // LINE_BYTES
        if self.vector_registers < 2 * row_lines:
            raise ValueError(f"{self.vector_registers} vector registers hold fewer than two rows of {row_lines} lines: "
                             "raise vector_registers or choose a smaller split")
        clusters = -(-self.pes // self.pes_per_l2)
        caches = {"l1": (self.l1_kib, self.l1_ways), "l2": (self.l2_kib, self.l2_ways),
                  "llc": (self.llc_kib * clusters, self.llc_ways), "victim": (self.victim_kib, self.victim_ways)}
        sizes: dict[str, int] = {}
        for name, (kib, ways) in caches.items():
            if not 1 <= ways <= 64:
                raise ValueError(f"{name}_ways {ways} is outside 1 to 64: model a fully associative cache with 64 ways")
            sizes[f"{name}_sets"] = 0 if kib == 0 else max(1, int(kib * 1024 // (row_bytes * ways)))
            sizes[f"{name}_ways"] = ways
        return Geometry(
            pes=self.pes, pes_per_l2=self.pes_per_l2, quantum=self.quantum,
            reservation_stations=self.reservation_stations, dense_loads=self.dense_loads, row_lines=row_lines,
            vector_registers=self.vector_registers, **sizes,
        )

    def dealing_costs(self, slice_width: int) -> tuple[int, int]:
        """Cycles per nonzero and per tile, which decide the first free PE; (0, 0): tiles are dealt in turn."""
        if self.dealing == "cyclic":
            return 0, 0
        return slice_width * VALUE_BYTES // LINE_BYTES, round(self.tile_ns * self.clock_ghz)

    def _check(self) -> None:
        if self.dealing not in ("cyclic", "first_free"):
            raise ValueError(f"dealing {self.dealing!r} of the machine is unknown: use cyclic or first_free")
        queues = ("reservation_stations", "dense_loads", "sparse_loads", "store_queue")
        for name in ("pes", "pes_per_l2", "quantum", *queues):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} of the machine must be at least 1")
        for name in ("clock_ghz", "dram_gb_per_s", "dram_efficiency", "parallel_dense_lines", "smooth_exponent"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)} of the machine must be above 0")

    @property
    def rates(self) -> tuple[float, ...]:
        """Numbers that turn counts into seconds, in the order of struct Rates in kernels/spade/timing.cpp."""
        return (
            self.clock_ghz * 1e9, self.bandwidth, self.l1_ns * 1e-9, self.l2_ns * 1e-9, self.llc_ns * 1e-9,
            (self.dram_ns + self.link_ns) * 1e-9, self.l1_ns * 1e-9, self.parallel_dense_lines, self.sparse_loads,
            self.smooth_exponent, self.forwarding_cycles, self.tile_ns * 1e-9, self.instruction_ns * 1e-9,
            self.barrier_ns * 1e-9, self.dram_channels,
        )


@dataclass(frozen=True)
class Prices:
    """A proxy for the cost of a machine: per element, per MB of L2 and LLC, per GB/s of DRAM; in any unit.

    Wires, yield and the ways of a cache have no price: use your own numbers.

    Source of those in conf/experiment/dse_spade.yaml, watts: ISCA'23 §7G. 224 elements with L1, bypass buffer and
    victim cache take 20.3 W, 14 % of the system; DRAM, of 410 GB/s, takes more than 50 %. Departure: we take exactly
    50 %, and assign the rest to the 154 MB of L2 and LLC, although it includes the interconnect.
    """

    pe: float
    cache_mb: float
    dram_gb_per_s: float

    def of(self, machine: Machine) -> float:
        """Compute the price of a machine, in the unit of the prices."""
        clusters = -(-machine.pes // machine.pes_per_l2)
        cache_mb = clusters * (machine.l2_kib + machine.llc_kib) / 1024
        return machine.pes * self.pe + cache_mb * self.cache_mb + machine.dram_gb_per_s * self.dram_gb_per_s


def designs(base: Machine, grid: Mapping[str, Sequence[float]], *, width: int) -> dict[str, Machine]:
    """Make every combination of the values of a grid: "pes=32,llc_kib=1536" -> machine.

    Args:
        grid: parameter of the machine -> its values, including those of `base`.
        width: columns of the dense operands.

    Raises:
        ValueError: there is no such parameter, a machine is impossible, or `base` is not one of them.
    """
    unknown = sorted(set(grid) - {field.name for field in fields(Machine)})
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no parameter of the machine: task.grid takes names of the platform's "
                         "options")
    made = {}
    for values in product(*grid.values()):
        changes = dict(zip(grid, values, strict=True))
        made[",".join(f"{name}={value}" for name, value in changes.items())] = replace(base, **changes)
    for machine in made.values():
        machine.geometry(width)
    if base not in made.values():
        own = ", ".join(f"{name}={getattr(base, name)}" for name in grid)
        raise ValueError(f"the grid lacks the target itself, which all designs are compared with: add {own}")
    return made
