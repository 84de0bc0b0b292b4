"""Where the sites of a pattern are at every level and which of them touch: built once, used in every pass.

A site is a cell of the (capped) pattern that holds a nonzero. Convolutions are submanifold: the output sites are the
input sites. Pooling merges the sites of each aligned 2x2 cell, so level l + 1 has the distinct values of coords // 2.

    out[u] = sum over offsets o of x[u + o] @ weight[o]        u + o must be a site

Offsets run in row-major order: (-1,-1), (-1,0), ... (1,1) for a 3x3 kernel, as the taps of torch's conv2d.

Maps that were built before: a matrix is convolved hundreds of times, its map is built once.

Floating-point operations of the featurizer, counted from the sites before anything is trained.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

__all__ = [
    "CHANNELS", "Block", "Level", "MapCache", "Pool", "SparseMap", "build_map", "cell_keys", "conv_flops",
    "input_patches", "level_channels", "map_flops", "stack_matrices", "to_int32",
]

BLOCK_FLOATS = 2**20  # of one gathered buffer (4 MiB): two of them stay in the last cache level
CENTRE = 4            # tap of a 3x3 kernel that needs no neighbour


@dataclass(frozen=True)
class Block:
    """The neighbours of consecutive sites, at most BLOCK_FLOATS / channels of them, grouped by offset.

    Args:
        rows: first and last + 1 site.
        taps: offset of each group (the centre is in none), empty groups left out.
        counts: pairs per group, in the order of `taps`.
        source: (pairs,) int32, the neighbour u + o.
        target: (pairs,) int32, the site u.
        order: (pairs,) int32, positions in this block sorted by site.
        bags: (sites + 1,) int32, where each site's run starts in `order`.
    """

    rows: tuple[int, int]
    taps: tuple[int, ...]
    counts: tuple[int, ...]
    source: Tensor
    target: Tensor
    order: Tensor
    bags: Tensor


@dataclass(frozen=True)
class Level:
    """The sites between two poolings: `segments` counts them per matrix of the batch."""

    sites: int
    pairs: int
    segments: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Pool:
    """Children of every site of the next level: `first` (sites,), then those of second, third and fourth children.

    `extra` holds (parents, children) int64 for each later child, so that a parent appears at most once in each.
    """

    first: Tensor
    extra: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class SparseMap:
    """Everything a featurizer needs to know about the patterns of one batch; never changed after it is built.

    Args:
        coords: (sites, 2) int64 of the first level, sorted by matrix, row and column.
        features: (sites, channels) input of the first layer.
        patches: (sites, 25 * channels) inputs under the 5x5 kernel, 0 where there is no site.
        patch_pairs: existing (site, neighbour) pairs of the 5x5 kernel, the centre included.
    """

    coords: Tensor
    features: Tensor
    patches: Tensor
    patch_pairs: int
    levels: tuple[Level, ...]
    pools: tuple[Pool, ...]

    @property
    def matrices(self) -> int:
        """Count the matrices of the batch."""
        return len(self.levels[0].segments)

    def to(self, device: torch.device | str) -> "SparseMap":
        """Copy to a device; the same object if it is there already."""
        device = torch.device(device)
        if self.patches.device == device:
            return self
        levels = tuple(replace(level, blocks=tuple(_moved(block, device) for block in level.blocks))
                       for level in self.levels)
        pools = tuple(Pool(pool.first.to(device), tuple((p.to(device), c.to(device)) for p, c in pool.extra))
                      for pool in self.pools)
        return replace(self, coords=self.coords.to(device), features=self.features.to(device),
                       patches=self.patches.to(device), levels=levels, pools=pools)


def build_map(
    coords: Sequence[Int[np.ndarray, "n 2"]],
    features: Sequence[Float[np.ndarray, "n c"]] | None = None,
    *,
    channels: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> SparseMap:
    """Build the map of one or several matrices, one after the other with gaps wider than any kernel.

    Args:
        coords: per matrix its distinct sites, any order, 0 <= row, col < 2**28.
        features: per matrix the input of the first layer; 1 everywhere if not given.
        channels: widest layer of every level; as many levels are built.
        dtype: of features and patches.

    Raises:
        ValueError: a site occurs twice or is negative.
    """
    rows, cols, owner, values = stack_matrices(coords, features, steps=2 ** (len(channels) - 1))
    stride = int(cols.max(initial=0)) + 5
    keys = cell_keys(rows, cols, stride)
    order = np.argsort(keys, kind="stable")
    keys, owner, values = keys[order], owner[order], values[order]
    if (keys[1:] == keys[:-1]).any():
        raise ValueError("a site occurs twice: merge equal coordinates before building a map")
    patches, patch_pairs = input_patches(keys, stride, values)
    rows, cols = rows[order], cols[order]
    sites = np.stack([rows, cols], axis=1)
    levels, pools = [_level(keys, stride, owner, len(coords), channels[0])], []
    for width in channels[1:]:
        rows, cols, owner, pool = _halve(rows, cols, owner)
        pools.append(pool)
        stride = int(cols.max(initial=0)) + 5
        levels.append(_level(cell_keys(rows, cols, stride), stride, owner, len(coords), width))
    return SparseMap(
        coords=torch.from_numpy(sites), features=torch.from_numpy(values).to(dtype),
        patches=torch.from_numpy(patches).to(dtype), patch_pairs=patch_pairs, levels=tuple(levels), pools=tuple(pools),
    )


def stack_matrices(
    coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None, *, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Put the matrices below each other; gaps of 2 rows at the coarsest level, aligned to its cells."""
    if not coords:
        raise ValueError("no matrices: a map needs at least one (it may have no sites)")
    rows, cols, owners, start = [], [], [], 0
    for index, sites in enumerate(coords):
        sites = np.asarray(sites, dtype=np.int64).reshape(-1, 2)
        if sites.size and sites.min() < 0:
            raise ValueError(f"matrix {index} of the batch has the coordinate {sites.min()}: sites start at 0")
        rows.append(sites[:, 0] + start)
        cols.append(sites[:, 1])
        owners.append(np.full(len(sites), index))
        height = int(sites[:, 0].max(initial=-1)) + 1
        start += (-(-height // steps) + 2) * steps
    if features is None:
        values = np.ones((sum(map(len, rows)), 1), dtype=np.float32)
    else:
        values = np.concatenate([np.asarray(feature, dtype=np.float32) for feature in features])
    return np.concatenate(rows), np.concatenate(cols), np.concatenate(owners), values


def cell_keys(rows: np.ndarray, cols: np.ndarray, stride: int) -> np.ndarray:
    """Number the cells row by row, with a margin of two columns on each side so that no neighbour wraps around."""
    return rows * stride + cols + 2


def _touching(keys: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Find all (site, neighbour) with key[neighbour] = key[site] + shift, by ascending site."""
    place = np.searchsorted(keys, keys + shift)
    place[place == keys.size] = 0
    found = np.flatnonzero(keys[place] == keys + shift) if keys.size else np.zeros(0, dtype=np.int64)
    return found, place[found]


def input_patches(keys: np.ndarray, stride: int, values: np.ndarray) -> tuple[Float32[np.ndarray, "n p"], int]:
    """Lay the inputs under the 5x5 kernel beside each other; offsets before the centre mirror those after it."""
    sites, channels = values.shape
    patches = np.zeros((sites, 25, channels), dtype=np.float32)
    patches[:, 12] = values
    pairs = sites
    for tap in range(13, 25):
        site, neighbour = _touching(keys, (tap // 5 - 2) * stride + tap % 5 - 2)
        patches[site, tap] = values[neighbour]
        patches[neighbour, 24 - tap] = values[site]
        pairs += 2 * site.size
    return patches.reshape(sites, 25 * channels), pairs


def _level(keys: np.ndarray, stride: int, owner: np.ndarray, matrices: int, channels: int) -> Level:
    """Find the pairs of the 3x3 kernel and cut them into blocks."""
    forward = [_touching(keys, (tap // 3 - 1) * stride + tap % 3 - 1) for tap in range(5, 9)]
    backward = [_mirrored(pair) for pair in reversed(forward)]
    groups = dict(zip((0, 1, 2, 3, 5, 6, 7, 8), [*backward, *forward], strict=True))
    degree = np.zeros(keys.size, dtype=np.int64)
    for site, _ in groups.values():
        degree[site] += 1
    blocks = tuple(_block(groups, rows) for rows in _cuts(degree, max(1, BLOCK_FLOATS // channels)))
    segments = tuple(np.bincount(owner, minlength=matrices).tolist())
    return Level(sites=keys.size, pairs=int(degree.sum()), segments=segments, blocks=blocks)


def _mirrored(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Swap site and neighbour; both ascend, since all keys move by the same shift."""
    return pair[1], pair[0]


def _cuts(degree: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Cut the sites into runs of at most `limit` pairs (a single site may exceed it)."""
    total = np.concatenate([[0], np.cumsum(degree)])
    cuts, start = [], 0
    while start < degree.size and total[-1] > total[start]:
        stop = max(start + 1, int(np.searchsorted(total, total[start] + limit, side="right")) - 1)
        cuts.append((start, stop))
        start = stop
    return cuts


def _block(groups: dict[int, tuple[np.ndarray, np.ndarray]], rows: tuple[int, int]) -> Block:
    taps, targets, sources = [], [], []
    for tap, (site, neighbour) in groups.items():
        low, high = np.searchsorted(site, rows)
        if low < high:
            taps.append(tap)
            targets.append(site[low:high])
            sources.append(neighbour[low:high])
    target = np.concatenate(targets)
    bags = np.concatenate([[0], np.cumsum(np.bincount(target - rows[0], minlength=rows[1] - rows[0]))])
    return Block(
        rows=rows, taps=tuple(taps), counts=tuple(map(len, targets)), source=to_int32(np.concatenate(sources)),
        target=to_int32(target), order=to_int32(np.argsort(target, kind="stable")), bags=to_int32(bags),
    )


def _halve(rows: np.ndarray, cols: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Pool]:
    """Merge the sites of every aligned 2x2 cell; returns the coarser sites and who their children are."""
    rows, cols = rows // 2, cols // 2
    keys = cell_keys(rows, cols, int(cols.max(initial=0)) + 5)
    order = np.argsort(keys, kind="stable")          # children of one parent in row-major order
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    parent = np.repeat(np.arange(starts.size), np.diff(starts, append=keys.size))
    rank = np.arange(keys.size) - starts[parent] if keys.size else parent
    extra = []
    for later in range(1, 4):
        chosen = np.flatnonzero(rank == later)
        if chosen.size:
            extra.append((torch.from_numpy(parent[chosen]), torch.from_numpy(order[chosen])))
    first = order[starts]
    return rows[first], cols[first], owner[first], Pool(torch.from_numpy(first), tuple(extra))


def to_int32(values: np.ndarray) -> Tensor:
    """Keep integers as indices of PyTorch."""
    return torch.from_numpy(values.astype(np.int32))


def _moved(block: Block, device: torch.device) -> Block:
    tensors = {name: getattr(block, name).to(device) for name in ("source", "target", "order", "bags")}
    return replace(block, **tensors)


class MapCache:
    """Keep the most recently used maps in memory; copies of a network share it, since maps never change.

    Args:
        limit: how many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._maps: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Look a map up, or build it and drop the one unused for longest."""
        if key not in self._maps:
            self._maps[key] = build()
            if len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        self._maps.move_to_end(key)
        return self._maps[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "MapCache":
        return self


CHANNELS = (32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256)  # COGNATE table 5
BLOCK = 3  # convolutions between two poolings


def level_channels(channels: Sequence[int]) -> tuple[int, ...]:
    """Widest layer of every level, blocks of three layers each; what a map cuts its blocks by."""
    return tuple(max(channels[start:start + BLOCK]) for start in range(0, len(channels), BLOCK))


def map_flops(sites: SparseMap, channels: Sequence[int] = CHANNELS) -> float:
    """Count one forward and backward pass over existing (site, neighbour) pairs, 2 operations per multiply-add.

    Every layer has three products: outputs, input gradients, weight gradients. The first layer has two, as its input
    needs no gradient. Pooling, activations and the head are left out.
    """
    total = 4.0 * sites.patch_pairs * sites.features.shape[1] * channels[0]
    for layer in range(1, len(channels)):
        level = sites.levels[layer // BLOCK]
        total += 6.0 * (level.sites + level.pairs) * channels[layer - 1] * channels[layer]
    return total


def conv_flops(coords: np.ndarray, channels: Sequence[int] = CHANNELS) -> float:
    """Count the operations of one forward and backward pass over a pattern with these sites (n, 2)."""
    return map_flops(build_map([coords], channels=level_channels(channels)), channels)
