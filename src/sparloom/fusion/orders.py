"""Orders of the iterations that let the inspector fuse more of them.

An order is a permutation, (n,) int32, of the old numbers of the new iterations. It applies to both loops, and so to
rows and columns of A: rows of A, B and D move together.
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
from sparloom.lazy import install_command
from sparloom.sparse import Pattern, locality_order

MIN_FUSED_RATIO = 1e-4
"""Matrices below this fused ratio are reordered (§5.1.2)."""


@dataclass(frozen=True, eq=False)
class Reordered:
    """A square pattern with its rows and columns reordered.

    Args:
        order: (rows,) int32, the old number of each new row.
        source: (nnz,) int64, the old position of the value of each nonzero.
    """

    pattern: Pattern
    order: np.ndarray
    source: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, order: np.ndarray) -> "Reordered":
        """Reorder a square pattern by a permutation of its rows."""
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
        """Permute values (nnz,) of the old pattern to the new one."""
        return values[self.source]


def rescue_order(schedule: TileSchedule, pattern: Pattern) -> np.ndarray | None:
    """Return the order that the paper applies where almost nothing is fused, or None where it is not needed."""
    return bandwidth_order(pattern) if schedule.fused_ratio < MIN_FUSED_RATIO else None


def bandwidth_order(pattern: Pattern) -> np.ndarray:
    """Order a square pattern by reverse Cuthill-McKee on A + A^T, which reduces the bandwidth.

    For three-dimensional meshes the bandwidth, about n^(2/3), soon exceeds a tile; see `partition_order`.
    """
    _check_square(pattern)
    return locality_order(pattern)[0].astype(np.int32)


def partition_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order a square pattern by recursive bisection of A + A^T, so that equal ranges have few neighbours outside.

    The cuts fall at the bounds v n / parts of the coarse tiles and of their halves. Bisection is geometric: the
    distances to ten pivots are the coordinates of a vertex, and cuts are perpendicular to the direction of greatest
    spread. It suits meshes and other graphs whose distances vary.

    Args:
        parts: number of tiles of wavefront 0, see `coarse_tiles`.

    Raises:
        ValueError: the pattern is not square, or `parts` is below 1.

    Source: Harel and Koren, Graph Drawing by High-Dimensional Embedding (2002), for the embedding.
    """
    parts = _checked_parts(parts, pattern)
    both = _undirected(pattern)
    indptr, indices = both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False)
    order = np.empty(pattern.rows, dtype=np.int32)
    problem = _PartitionProblem(indptr.ctypes.data, indices.ctypes.data, pattern.rows, parts, order.ctypes.data)
    check_memory(_bisect()(ctypes.byref(problem)), f"number {pattern.rows} vertices", 72 * pattern.rows)
    return order


def metis_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by the parts of a METIS partition of the graph of A + A^T; the order within a part is kept.

    METIS minimises cut edges, so it also suits graphs of small diameter. Its parts are only about equal, so tile bounds
    differ from theirs.

    Raises:
        Unsupported: pymetis is not installed.
    """
    parts = _checked_parts(parts, pattern)
    try:
        import pymetis
    except ImportError as error:
        raise Unsupported(f"pymetis is not installed: {install_command('peers')}, or take partition_order") from error
    if parts == 1:
        return np.arange(pattern.rows, dtype=np.int32)
    both = _undirected(pattern)
    both.setdiag(0)
    both.eliminate_zeros()
    _, part = pymetis.part_graph(parts, pymetis.CSRAdjacency(both.indptr, both.indices))
    return np.argsort(part, kind="stable").astype(np.int32)


def _undirected(pattern: Pattern) -> scipy.sparse.csr_array:
    """Return the graph of A + A^T, with positive weights."""
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


class _PartitionProblem(ctypes.Structure):
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
