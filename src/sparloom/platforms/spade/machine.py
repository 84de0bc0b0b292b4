"""Parameters of a SPADE machine (ISCA'23 table 1, HotTiles, COGNATE §4.1).

Values of the parameters are in conf/options/platforms.yaml.
"""

from dataclasses import dataclass
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
