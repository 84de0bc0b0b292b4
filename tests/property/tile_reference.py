"""Readable version of Algorithm 1 of tile fusion; the compiled inspector must return the same arrays."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from sparloom.fusion import FusedLoops, Loop, TileSchedule

__all__ = ["loop_cost", "reference_schedule"]


def reference_schedule(loops: FusedLoops, *, threads: int, cache_bytes: int, ct_size: int) -> TileSchedule:
    """Schedule the loops, and examine each iteration again for each tile."""
    n = loops.one.iterations

    def inside(tile: range) -> list[int]:
        return [j for j in tile if all(i in tile for i in _inputs(loops.two, j))]

    def fits(tile: range) -> bool:
        return loop_cost(loops.one, tile) + loop_cost(loops.two, inside(tile)) <= cache_bytes

    count = _parts(n, ct_size, threads)
    coarse = [range(v * n // count, (v + 1) * n // count) for v in range(count)]
    tiles = [tile for whole in coarse for tile in _split(whole, fits)]
    groups = [inside(tile) for tile in tiles]
    fused = {j for group in groups for j in group}
    rest = [j for j in range(n) if j not in fused]
    late = [part for whole in _balance(loops.two, rest, _parts(len(rest), ct_size, threads))
            for part in _split(whole, lambda part: loop_cost(loops.two, part) <= cache_bytes)]
    needed = np.zeros(n, np.uint8)
    needed[[i for j in rest for i in _inputs(loops.two, j)]] = 1
    order = [*groups, *late]
    return TileSchedule(
        (len(tiles), len(late)), np.array([0, *(tile.stop for tile in tiles)]),
        np.array([j for group in order for j in group], dtype=np.int32),
        np.cumsum([0, *(len(group) for group in order)]), needed)


def loop_cost(loop: Loop, iterations: Iterable[int]) -> int:
    """Add up Equation 4 over some iterations of a loop."""
    iterations = list(iterations)
    columns = [] if loop.reads is None else [c for r in iterations for c in _row(loop, r)]
    return (len(iterations) * loop.iteration_bytes + len(columns) * loop.nonzero_bytes
            + len(set(columns)) * loop.column_bytes)


def _row(loop: Loop, iteration: int) -> list[int]:
    begin, end = loop.reads.indptr[iteration : iteration + 2]
    return loop.reads.indices[begin:end].tolist()


def _inputs(loop: Loop, iteration: int) -> list[int]:
    return [iteration] if loop.reads is None else _row(loop, iteration)


def _parts(n: int, ct_size: int, threads: int) -> int:
    return min(n, threads * math.ceil(n / (threads * ct_size)))


def _split(tile: range | list[int], fits: Callable[[range | list[int]], bool]) -> list[range | list[int]]:
    if len(tile) <= 1 or fits(tile):
        return [tile]
    middle = len(tile) // 2
    return [*_split(tile[:middle], fits), *_split(tile[middle:], fits)]


def _balance(loop: Loop, rest: list[int], tiles: int) -> list[list[int]]:
    """Assign iterations to tiles in order: each takes its share of the rest, and leaves one for each other."""
    weights = [1 + len(_inputs(loop, j)) for j in rest]
    cut, begin = [], 0
    for left in range(tiles, 0, -1):
        share = sum(weights[begin:]) / left
        end, last = begin + 1, len(rest) - (left - 1)
        while end < last and (left == 1 or sum(weights[begin:end]) + weights[end] / 2 <= share):
            end += 1
        cut.append(rest[begin:end])
        begin = end
    return cut
