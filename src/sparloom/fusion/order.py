"""Orders of the iterations that bring those that depend on each other into one tile.

An order is a permutation, (n,) int32: the old number of each new iteration. It applies to both loops, that is to rows
and columns of A: rows of A, B and D move together.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse

from sparloom.errors import Unsupported
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import check_memory, compile_cpp
from sparloom.sparse import Pattern, locality_order

__all__ = ["LEAST_FUSED_RATIO", "Reordered", "bandwidth_order", "metis_order", "partition_order", "rescue_order"]

LEAST_FUSED_RATIO = 1e-4  # §5.1.2: matrices below are reordered


@dataclass(frozen=True, eq=False)
class Reordered:
    """A square pattern with rows and columns in another order.

    Args:
        pattern: the reordered pattern; this is what is inspected.
        order: (rows,) int32, the old number of each new row.
        source: (nnz,) int64, where the value of each nonzero was: new values need no new inspection.
    """

    pattern: Pattern
    order: np.ndarray
    source: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, order: np.ndarray) -> "Reordered":
        """Apply an order.

        Raises:
            ValueError: the pattern is not square, or `order` is not a permutation of its rows.
        """
        _check_square(pattern)
        order = np.asarray(order)
        if order.shape != (pattern.rows,) or not np.array_equal(np.sort(order), np.arange(pattern.rows)):
            raise ValueError(f"an order of shape {order.shape} is not a permutation of 0 to {pattern.rows - 1}")
        number = np.empty(pattern.rows, dtype=np.int64)
        number[order] = np.arange(pattern.rows)
        rows, cols = number[pattern.row_ids()], number[pattern.indices]
        source = np.lexsort((cols, rows))
        indptr = np.concatenate([[0], np.cumsum(pattern.row_lengths()[order])])
        return cls(Pattern(pattern.shape, indptr, cols[source]), order.astype(np.int32), source)

    def values(self, values: np.ndarray) -> np.ndarray:
        """Bring values, (nnz,) in the order of the old pattern, into that of the new one."""
        return values[self.source]


def rescue_order(schedule: TileSchedule, pattern: Pattern) -> np.ndarray | None:
    """Give the order that the paper applies where next to nothing is fused; None where something is."""
    return bandwidth_order(pattern) if schedule.fused_ratio < LEAST_FUSED_RATIO else None


def bandwidth_order(pattern: Pattern) -> np.ndarray:
    """Order by reverse Cuthill-McKee on A + A^T: neighbours get near numbers.

    In three dimensions the bandwidth, about n^(2/3), soon exceeds a tile: see `partition_order`.

    Raises:
        ValueError: the pattern is not square.
    """
    _check_square(pattern)
    return locality_order(pattern)[0].astype(np.int32)


def partition_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by recursive bisection of the graph of A + A^T, so that equal ranges have few neighbours outside.

    The cuts fall at the bounds v n / parts of the scheduler's coarse tiles and of their halves. Bisection is
    geometric: vertices are placed by their distances to ten pivots and cut across the direction of greatest spread, so
    it serves meshes, and other graphs whose distances vary.

    Args:
        parts: tiles of wavefront 0, see `coarse_tiles`.

    Raises:
        ValueError: the pattern is not square, or there are no parts.

    Source: the embedding is that of Harel and Koren, Graph Drawing by High-Dimensional Embedding (2002).
    """
    parts = _checked_parts(parts, pattern)
    both = _either_way(pattern)
    indptr, indices = both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False)
    order = np.empty(pattern.rows, dtype=np.int32)
    problem = _Problem(indptr.ctypes.data, indices.ctypes.data, pattern.rows, parts, order.ctypes.data)
    check_memory(_bisect()(ctypes.byref(problem)), f"number {pattern.rows} vertices", 72 * pattern.rows)
    return order


def metis_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by the parts that METIS makes of the graph of A + A^T; within a part the order stays.

    It looks at edges where `partition_order` looks at distances, so it serves graphs of small diameter too. Its parts
    are only about equal: bounds of tiles lie beside theirs.

    Args:
        parts: as of `partition_order`.

    Raises:
        ValueError: as by `partition_order`.
        Unsupported: pymetis is not installed.
    """
    parts = _checked_parts(parts, pattern)
    try:
        import pymetis
    except ImportError as error:
        raise Unsupported("pymetis is not installed: install sparloom[peers] or take partition_order") from error
    if parts == 1:
        return np.arange(pattern.rows, dtype=np.int32)
    both = _either_way(pattern)
    both.setdiag(0)
    both.eliminate_zeros()
    _, part = pymetis.part_graph(parts, pymetis.CSRAdjacency(both.indptr, both.indices))
    return np.argsort(part, kind="stable").astype(np.int32)


def _either_way(pattern: Pattern) -> scipy.sparse.csr_array:
    """Make the graph of A + A^T, with weights above 0."""
    ones = pattern.to_scipy()
    return scipy.sparse.csr_array(ones + ones.T)


def _checked_parts(parts: int, pattern: Pattern) -> int:
    _check_square(pattern)
    if parts < 1:
        raise ValueError(f"{parts} parts: there must be at least 1")
    return min(parts, max(1, pattern.rows))


def _check_square(pattern: Pattern) -> None:
    if pattern.rows != pattern.cols:
        raise ValueError(f"a pattern of {pattern.rows} x {pattern.cols}: only a square one has an order of both")


class _Problem(ctypes.Structure):
    """The struct PartitionProblem of kernels/cpu/partition_order.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices")),
        *((name, ctypes.c_int64) for name in ("n", "parts")),
        ("order", ctypes.c_void_p),
    )


@cache
def _bisect() -> Any:
    function = compile_cpp(["cpu/partition_order.cpp"]).sparloom_partition_order
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function
