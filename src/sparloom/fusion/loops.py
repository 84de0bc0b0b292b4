"""Two loops as the inspector sees them: what their iterations read through indices, and how many bytes they move."""

from dataclasses import dataclass

import numpy as np

from sparloom.sparse import Pattern

__all__ = ["FusedLoops", "Loop", "Reads", "gemm_spmm_loops", "spmm_gemm_loops", "spmm_spmm_loops"]

INDEX_BYTES, POINTER_BYTES = 4, 8


@dataclass(frozen=True, eq=False)
class Reads:
    """The rows of a dense array that every iteration of a loop reads, as CSR; their content is checked when inspected.

    Args:
        indptr: (iterations + 1,) int64, rises from 0 to the number of reads.
        indices: (reads,) int32; within an iteration in any order, repeated or not.
        extent: rows of the dense array.
        rising: the indices of every iteration rise and lie in 0 .. extent - 1: then they need not all be looked at.

    Raises:
        ValueError: type, size or `indptr` is not as above.
    """

    indptr: np.ndarray
    indices: np.ndarray
    extent: int
    rising: bool = False

    def __post_init__(self) -> None:
        for name, dtype in (("indptr", np.int64), ("indices", np.int32)):
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise ValueError(f"{name} is {array.dtype} of shape {array.shape}: it must be a contiguous list of "
                                 f"{np.dtype(dtype)}")
        ends = (self.indptr[0], self.indptr[-1]) if self.indptr.size else ()
        if ends != (0, self.indices.size) or not (self.rising or (self.indptr[1:] >= self.indptr[:-1]).all()):
            raise ValueError(f"indptr does not rise from 0 to {self.indices.size}")

    @classmethod
    def of(cls, pattern: Pattern) -> "Reads":
        """Take the columns of a pattern, without a copy."""
        return cls(pattern.indptr, pattern.indices, pattern.cols, rising=True)

    @property
    def iterations(self) -> int:
        """Iterations of the loop."""
        return self.indptr.size - 1


@dataclass(frozen=True)
class Loop:
    """A parallel loop and what Equation 4 counts of it.

    Args:
        iterations: how many it has.
        reads: what it reads through indices, None if nothing.
        iteration_bytes: moved per iteration: rows of dense arrays that belong to it, pointers of sparse ones.
        nonzero_bytes: moved per index read: the index and the value beside it.
        column_bytes: moved per distinct index of a tile: the dense row that it points to.
    """

    iterations: int
    reads: Reads | None
    iteration_bytes: int
    nonzero_bytes: int = 0
    column_bytes: int = 0

    def __post_init__(self) -> None:
        if self.reads is not None and self.reads.iterations != self.iterations:
            raise ValueError(f"reads of {self.reads.iterations} iterations for a loop of {self.iterations}")


@dataclass(frozen=True)
class FusedLoops:
    """A pair of loops to be fused; iteration j of loop two depends on the iterations of loop one that it reads.

    Args:
        two: without `reads`, iteration j depends on iteration j alone.

    Raises:
        ValueError: the loops differ in length, or loop two reads other rows than loop one writes.
    """

    one: Loop
    two: Loop

    def __post_init__(self) -> None:
        ones, twos = self.one.iterations, self.two.iterations
        if ones != twos:
            raise ValueError(f"loops of {ones} and {twos} iterations: only loops of one length are fused")
        if self.two.reads is not None and self.two.reads.extent != ones:
            raise ValueError(f"loop two reads {self.two.reads.extent} rows, but loop one writes {ones}")


def gemm_spmm_loops(matrix: Reads, *, inner: int, width: int, element_bytes: int) -> FusedLoops:
    """Describe D1 = B C (loop one), D = A D1 (loop two).

    Args:
        matrix: A.
        inner: columns of B.
        width: columns of C.
    """
    row = width * element_bytes
    one = Loop(matrix.iterations, None, inner * element_bytes + row)
    return FusedLoops(one, _sparse_loop(matrix, read_bytes=row, written_bytes=row, element_bytes=element_bytes))


def spmm_spmm_loops(matrix: Reads, inner: Reads, *, width: int, element_bytes: int) -> FusedLoops:
    """Describe D1 = B C (loop one), D = A D1 (loop two) with B sparse.

    Args:
        matrix: A.
        inner: B.
        width: columns of C.
    """
    row = width * element_bytes
    return FusedLoops(*(
        _sparse_loop(reads, read_bytes=row, written_bytes=row, element_bytes=element_bytes)
        for reads in (inner, matrix)))


def spmm_gemm_loops(matrix: Reads, *, inner: int, width: int, element_bytes: int) -> FusedLoops:
    """Describe D1 = A B (loop one), D = D1 C (loop two): one to one.

    Args:
        matrix: A.
        inner: columns of B.
        width: columns of C.
    """
    row = inner * element_bytes
    one = _sparse_loop(matrix, read_bytes=row, written_bytes=row, element_bytes=element_bytes)
    return FusedLoops(one, Loop(matrix.iterations, None, width * element_bytes))


def _sparse_loop(reads: Reads, *, read_bytes: int, written_bytes: int, element_bytes: int) -> Loop:
    return Loop(
        reads.iterations, reads, iteration_bytes=written_bytes + POINTER_BYTES,
        nonzero_bytes=element_bytes + INDEX_BYTES, column_bytes=read_bytes)
