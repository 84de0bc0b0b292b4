"""Pieces of the parallel loop of a schedule: how much work each is, and how long workers need that share them.

A parallel loop is executed once per iteration of the loops around it; each execution is a region, at whose end all
workers wait. Its iterations are dealt in chunks, the pieces. The work of a piece is counted as the generated loops
visit it, in units of one multiplication of a vector of 16 dense columns by a stored value:

    POSITION    a position of a storage level
    ENTRY       an entry of the innermost sparse loop, per vector: loads or stores a row of the result
    VALUE       a stored value, per vector, by what the innermost loop keeps in registers
    REDUCTION   a stored value of SDDMM: the sum over the lanes of a vector
    ZERO        a vector of the result that is zeroed first; shared evenly

Only ratios matter, because the measured seconds of a schedule set the length of a unit. The ratios are those of a
least-squares fit to measured seconds (28 matrices, 70 schedules each), rounded; a unit took about half a nanosecond.
Tiles that extend beyond the edge of a matrix count whole.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

from sparloom.jit import address, check_memory, compile_cpp
from sparloom.platforms.cpu_schedules.lowering import LANES, Program
from sparloom.platforms.cpu_schedules.storage import Layout, Packed

Dealing = Literal["dynamic", "static"]
"""Who gets the next piece: the worker that is free first, or all in turn."""

POSITION, ENTRY, REDUCTION, ZERO = 2.0, 0.5, 1.0, 4.0
VALUE = {"row": 1.0, "column": 0.9, "nothing": 1.2}
"""Work of a vector of a stored value, by what stays in registers: a row of the result, the row of a column, neither."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of all regions of one schedule on one matrix.

    Args:
        work: (pieces,) float64, in the order of the loops.
        region: (regions + 1,) int64, first piece of each region.
        repeats: how often the regions are executed, once per tile of dense columns if that loop is outside.
        even: work that is shared evenly, in a region of its own.
        shared: whether the loop is parallel; if not, one worker does everything.
    """

    work: np.ndarray
    region: np.ndarray
    repeats: int
    even: float
    shared: bool

    @property
    def total(self) -> float:
        """Work of all pieces."""
        return float(self.work.sum()) * self.repeats + self.even

    @property
    def regions(self) -> int:
        """Number of regions, of which each ends with a barrier; 0 if nothing is parallel."""
        return ((len(self.region) - 1) * self.repeats + bool(self.even)) * self.shared

    def seconds(
        self, unit: float, *, workers: int, dealing: Dealing, dispatch: float = 0.0, barrier: float = 0.0
    ) -> float:
        """Deal the pieces to workers and add up the regions.

        Args:
            unit: seconds of one unit of work.
            dispatch: seconds to hand out one piece, during which no other is handed out: a region cannot end before all
                its pieces are handed out. It does not matter to a single worker.
            barrier: seconds of a barrier.
        """
        if not self.shared or workers == 1:
            return self.total * unit
        ends = deal(self.work, self.region, workers=workers, dealing=dealing) * unit
        if dealing == "dynamic":
            ends = np.maximum(ends, np.diff(self.region) * dispatch)
        return float(ends.sum()) * self.repeats + self.even * unit / workers + self.regions * barrier


def pieces_of(program: Program, layout: Layout, packed: Packed, *, chunk: int) -> Pieces:
    """Count the pieces of a packed matrix: descendants of consecutive positions are consecutive on every level.

    Args:
        chunk: iterations of the parallel loop in a piece.
    """
    inner = layout.order[-1]
    tiles = -(-program.width // program.dense_tile)
    ko = program.order.index("ko") if "ko" in program.order else len(program.order)
    shared = program.parallel is not None
    first = layout.order.index(program.parallel) if shared else 0
    repeats = tiles if shared and ko < program.order.index(program.parallel) else 1
    region, edges = _cut(_children(layout, packed, first, _parents(layout, packed, first)), chunk if shared else None)
    work, vectors = np.zeros(len(edges) - 1), program.width / LANES / repeats
    for depth in range(first, len(layout.order)):
        level = layout.order[depth]
        if depth > first:
            if level == inner:
                work += ENTRY * vectors * np.diff(edges)
            edges = _children(layout, packed, depth, edges)
        if level in program.order:
            passes = tiles // repeats if ko < program.order.index(level) else 1
            work += POSITION * passes * np.diff(edges)
    kept = "nothing" if program.order.index(inner) < ko < len(program.order) else {"ji": "row", "ii": "column"}[inner]
    values = np.diff(edges)
    work += VALUE[kept] * vectors * values
    if program.op == "sddmm":
        work += REDUCTION * (1 if kept == "nothing" else tiles // repeats) * values
    even = 0.0 if program.overwrites else ZERO * _result_vectors(program, layout, packed)
    return Pieces(work, region, repeats, even, shared)


def deal(work: np.ndarray, region: np.ndarray, *, workers: int, dealing: Dealing) -> np.ndarray:
    """Deal pieces in their order; returns the work of the worker that ends last, (regions,).

    Args:
        work, region: see `Pieces`.

    Raises:
        ValueError: there is no worker, or the dealing is unknown.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers: at least 1 is needed")
    if dealing not in get_args(Dealing):
        raise ValueError(f"dealing {dealing!r} is unknown: use {' or '.join(get_args(Dealing))}")
    ends = np.empty(len(region) - 1)
    job = _Dealing(address(work, np.float64), address(region, np.int64), len(ends), workers, dealing == "dynamic",
                   address(ends, np.float64, written=True))
    check_memory(_library().sparloom_deal(ctypes.byref(job)), f"deal to {workers} workers", 8 * workers)
    return ends


def _parents(layout: Layout, packed: Packed, depth: int) -> np.ndarray:
    """Number the boundaries of all positions above a level, each of which is a region of a loop over the level."""
    count = 1
    for level in range(depth):
        count = int(_children(layout, packed, level, np.array([0, count]))[-1])
    return np.arange(count + 1)


def _children(layout: Layout, packed: Packed, depth: int, edges: np.ndarray) -> np.ndarray:
    """Map boundaries between positions of one level to those between their children, on the level `depth`."""
    if layout.compressed[depth]:
        return packed.arrays[f"{layout.order[depth]}_pos"][edges].astype(np.int64)
    return edges * layout.extents[depth]


def _cut(bounds: np.ndarray, chunk: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Cut each region into chunks; returns the first piece of each region, and the boundaries of all pieces.

    Args:
        bounds: (regions + 1,) first position of each region.
        chunk: positions of a piece; None: the whole loop is one piece of one region.
    """
    if chunk is None:
        return np.array([0, 1]), bounds[[0, -1]]
    counts = -(-np.diff(bounds) // chunk)
    region = np.concatenate([[0], np.cumsum(counts)])
    within = np.arange(region[-1]) - np.repeat(region[:-1], counts)
    return region, np.append(np.repeat(bounds[:-1], counts) + chunk * within, bounds[-1])


def _result_vectors(program: Program, layout: Layout, packed: Packed) -> float:
    rows = layout.extent("io") * layout.extent("ii")
    return (rows * program.width if program.op == "spmm" else packed.arrays["values"].size) / LANES


class _Dealing(ctypes.Structure):
    """The struct Dealing of kernels/cpu/makespan.cpp."""

    _fields_ = (("work", ctypes.c_void_p), ("region", ctypes.c_void_p),
                *((name, ctypes.c_int64) for name in ("regions", "workers", "dynamic")), ("ends", ctypes.c_void_p))


@cache
def _library() -> Any:
    library = compile_cpp(["cpu/makespan.cpp"])
    library.sparloom_deal.restype = ctypes.c_int32
    return library
