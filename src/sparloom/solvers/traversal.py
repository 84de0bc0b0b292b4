"""Steps with one sparse matrix in an order of blocks in which several steps share one reading of the matrix.

    y_p = alpha A y_{p-1} + beta y_{p-1} + gamma y_{p-2} + delta g        p = 1 .. k

Row i of step p needs the rows of step p-1 at the columns of row i. If these lie near i, as in a band or after numbering
by breadth-first levels, step p can follow step p-1 at a short distance, while the rows between them are in a cache:

    for block: for p: rows of the block of step p, as soon as all rows that they read are done

Source: level-based blocking of RACE (Alappat et al., Level-based Blocking for Sparse Matrices, 2022). Departures:
distances come from the columns of each block instead of whole levels, so that a band needs no other order; and threads
take separate ranges of rows, whose gaps are closed afterwards, where that suits the matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.measure import Caches
from sparloom.solvers.packed_steps import PackedMatrix, Schedule

NEAR_BLOCK_BYTES = 1 << 15
SHARED_BLOCK_BYTES = 1 << 19
MIN_BLOCKS_PER_THREAD = 4
LARGE_BYTES, PIECES_PER_THREAD = 1 << 22, 8  # of A, above which a step is cut into so many pieces
CACHE_SHARE = 0.7  # of a cache that the rows between the first and the last step may take


@dataclass(frozen=True)
class Blocks:
    """Consecutive chunks of rows, with the blocks that each one needs.

    Args:
        bounds: (blocks + 1,) chunks.
        first, last: (blocks,) int64, neither ever falls: no step of a block runs before the previous step of the blocks
            first .. last.
        starts: (blocks + 1,) bytes of A before each block.
    """

    bounds: np.ndarray
    first: np.ndarray
    last: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, matrix: PackedMatrix, *, block_bytes: int) -> Blocks:
        """Cut a matrix into blocks of about equal bytes.

        A block also waits for those that read it, because a step overwrites the result of the step before the previous
        one, so what counts is the pattern of A + A^T.
        """
        count = max(1, min(matrix.chunks.size - 1, round(matrix.nbytes / block_bytes)))
        cuts = np.searchsorted(matrix.chunks, np.linspace(0, matrix.nbytes, count + 1)[1:-1])
        bounds = np.unique(np.concatenate([[0], cuts, [matrix.chunks.size - 1]]))
        block = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
        first = block[np.minimum.reduceat(matrix.first, bounds[:-1]) // matrix.chunk_rows]
        last = block[np.maximum.reduceat(matrix.last, bounds[:-1]) // matrix.chunk_rows]
        own = np.arange(first.size)
        latest_reader, earliest_reader = own.copy(), own.copy()
        np.maximum.at(latest_reader, first, own)
        np.minimum.at(earliest_reader, last, own)
        last = np.maximum(np.maximum.accumulate(last), np.maximum.accumulate(latest_reader))
        first = np.minimum(first, np.minimum.accumulate(earliest_reader[::-1])[::-1])
        return cls(bounds, np.minimum.accumulate(first[::-1])[::-1], last, matrix.chunks[bounds])

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.first.size


def plain_schedule(matrix: PackedMatrix, steps: int, *, threads: int, copies: bool) -> Schedule:
    """Run one step after the other, each in pieces that threads take as they get free.

    Args:
        copies: whether step 0 copies the input into the order of A.
    """
    pieces = threads if threads == 1 or matrix.nbytes < LARGE_BYTES else PIECES_PER_THREAD * threads
    cuts = np.searchsorted(matrix.chunks, np.linspace(0, matrix.nbytes, pieces + 1))
    cuts[0], cuts[-1] = 0, matrix.chunks.size - 1
    phases = [[[(begin, end, step)] for begin, end in itertools.pairwise(cuts)]
              for step in range(0 if copies else 1, steps + 1)]
    return _collected(phases, pieces, matrix.nbytes, 1)


def schedule_steps(
    matrix: PackedMatrix, steps: int, *, threads: int, copies: bool, row_bytes: int,
) -> Schedule | None:
    """Order the blocks of `steps` steps so that as many as fit the caches share one reading of A.

    Args:
        row_bytes: of all dense arrays together, per row.

    Returns:
        None if two steps do not fit.
    """
    room = CACHE_SHARE * Caches.here(threads).far_bytes
    grown = 1 + row_bytes * matrix.rows / max(1, matrix.nbytes)  # bytes of A and the dense rows over those of A
    depths = sorted({-(-steps // passes) for passes in range(1, steps)} - {1}, reverse=True)
    near = Blocks.of(matrix, block_bytes=NEAR_BLOCK_BYTES)
    far = Blocks.of(matrix, block_bytes=SHARED_BLOCK_BYTES) if threads > 1 else None
    for depth in depths:
        found = [_split(near, steps, depth, threads, copies)]
        if far is not None:
            found.append(_shared(far, steps, depth, threads, copies))
        for schedule in found:
            if schedule is not None and schedule.window_bytes * grown <= room:
                return schedule
    return None


def _split(blocks: Blocks, steps: int, depth: int, threads: int, copies: bool) -> Schedule | None:
    """Give each thread a range of rows; close the gaps between the ranges afterwards, pass by pass.

    None if the ranges are too short for that.
    """
    if blocks.count < MIN_BLOCKS_PER_THREAD * threads and threads > 1:
        return None
    starts = np.searchsorted(blocks.starts, np.linspace(0, blocks.starts[-1], threads + 1))
    starts[0], starts[-1] = 0, blocks.count
    phases, window = [], 0
    for first, last in _passes(steps, depth, copies):
        insides = []
        for t in range(threads):
            ranges = _shrunk(blocks, starts[t], starts[t + 1], last - first)
            if ranges is None:
                return None
            insides.append(ranges)
        gaps = []
        for t in range(1, threads):
            gap = list(zip(insides[t - 1][1], insides[t][0], strict=True))
            for p in range(1, len(gap)):  # a gap may only read itself and the ranges beside it
                begin, end = gap[p]
                if begin < end and (blocks.first[begin] < insides[t - 1][0][p - 1]
                                    or blocks.last[end - 1] >= insides[t][1][p - 1]):
                    return None
            gaps.append(gap)
        lists = []
        for begins, ends in insides:
            tasks, used = _wave(blocks, begins, ends, first)
            window += used if first <= 1 else 0
            lists.append(tasks)
        phases.append(lists)
        if threads > 1:
            closing = [[(int(blocks.bounds[begin]), int(blocks.bounds[end]), first + p)
                        for p, (begin, end) in enumerate(gap) if begin < end] for gap in gaps]
            phases.append([*closing, []])
    return _collected(phases, threads, window, depth)


def _shrunk(blocks: Blocks, begin: int, end: int, steps: int) -> tuple[list[int], list[int]] | None:
    """Return the blocks of each step, begins and ends, that need nothing outside of begin .. end."""
    begins, ends = [int(begin)], [int(end)]
    for _ in range(steps):
        low = begin if begin == 0 else int(np.searchsorted(blocks.first, begins[-1], side="left"))
        high = end if end == blocks.count else int(np.searchsorted(blocks.last, ends[-1], side="left"))
        if not begins[-1] <= low < high <= ends[-1]:
            return None
        begins.append(int(low))
        ends.append(int(high))
    return begins, ends


def _wave(
    blocks: Blocks, begins: Sequence[int], ends: Sequence[int], first: int,
) -> tuple[list[tuple[int, int, int]], int]:
    """Order the blocks of some steps: each block as soon as the previous step has done what it needs.

    Args:
        begins, ends: blocks of each step.
        first: number of the first step.

    Returns:
        Tasks, and the most bytes of A between the first and the last step.
    """
    last, bounds, starts = blocks.last.tolist(), blocks.bounds.tolist(), blocks.starts.tolist()
    at, tasks, window, count = list(begins), [], 0, len(begins)
    while at != ends:
        if at[0] < ends[0]:
            tasks.append((bounds[at[0]], bounds[at[0] + 1], first))
            at[0] += 1
        window = max(window, starts[at[0]] - starts[at[-1]])
        for p in range(1, count):
            while at[p] < ends[p] and last[at[p]] < at[p - 1]:
                tasks.append((bounds[at[p]], bounds[at[p] + 1], first + p))
                at[p] += 1
    return tasks, window


def _shared(blocks: Blocks, steps: int, depth: int, threads: int, copies: bool) -> Schedule:
    """Divide the rows of every block among all threads, with a barrier after a block of every step.

    Within a phase, each step takes blocks whose needs earlier phases have met.
    """
    last, starts = blocks.last.tolist(), blocks.starts.tolist()
    pieces = [_pieces(blocks, block, threads) for block in range(blocks.count)]
    phases, window = [], 0
    for first, end in _passes(steps, depth, copies):
        at = [0] * (end - first + 1)
        while at[-1] < blocks.count:
            lists: list[list[tuple[int, int, int]]] = [[] for _ in range(threads)]
            before = list(at)
            for p in range(len(at)):
                while at[p] < blocks.count and (at[p] == before[p] if p == 0 else last[at[p]] < before[p - 1]):
                    for tasks, (begin, stop) in zip(lists, pieces[at[p]], strict=True):
                        if begin < stop:
                            tasks.append((begin, stop, first + p))
                    at[p] += 1
            window = max(window, starts[at[0]] - starts[before[-1]])
            phases.append(lists)
    return _collected(phases, threads, window, depth)


def _pieces(blocks: Blocks, block: int, threads: int) -> list[tuple[int, int]]:
    cuts = np.linspace(blocks.bounds[block], blocks.bounds[block + 1], threads + 1).astype(int).tolist()
    return list(itertools.pairwise(cuts))


def _passes(steps: int, depth: int, copies: bool) -> list[tuple[int, int]]:
    """Split the steps 1 .. steps into passes of at most `depth`; step 0, a copy, belongs to the first one."""
    firsts = list(range(1, steps + 1, depth))
    passes = [(first, min(first + depth - 1, steps)) for first in firsts]
    return [(0, passes[0][1]), *passes[1:]] if copies else passes


def _collected(phases: Sequence[Sequence[Sequence[Any]]], lists: int, window: int, depth: int) -> Schedule:
    flat = [tasks for phase in phases for tasks in phase]
    tasks = np.array([task for each in flat for task in each], np.int32).reshape(-1, 3)
    bounds = np.concatenate([[0], np.cumsum([len(each) for each in flat])]).astype(np.int64)
    return Schedule(tasks, bounds, lists, int(window), depth)
