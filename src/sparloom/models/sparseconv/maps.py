"""Convolution maps: the sites of a pattern at every level and their neighbours, built once per matrix and cached.

A site is a cell of the coarsened pattern that holds a nonzero. Convolutions are submanifold: output sites equal input
sites. Pooling merges the sites of each aligned 2x2 cell, so level l + 1 has the distinct values of coords // 2.

    out[u] = sum over offsets o of x[u + o] @ weight[o]        u + o must be a site

Offsets are in row-major order, (-1,-1), (-1,0), ... (1,1) for a 3x3 kernel, as the taps of torch's conv2d. `conv_flops`
counts the operations of COGNATE's featurizer on a pattern.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

CHANNELS = (32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256)
"""Channels of the featurizer's convolutions (COGNATE table 5)."""
LEVEL_DEPTH = 3
"""Convolutions per level, between two poolings."""
BLOCK_FLOATS = 2**20  # of one gathered buffer (4 MiB): two of them fit into the last-level cache
CENTRE = 4            # tap of a 3x3 kernel that needs no neighbour


@dataclass(frozen=True)
class Block:
    """Pairs (site, neighbour) of consecutive sites, at most BLOCK_FLOATS / channels, grouped by offset.

    Args:
        rows: first site and last site + 1.
        taps: offset of each nonempty group; the centre has no group.
        counts: number of pairs per group, in the order of `taps`.
        source: (pairs,) int32, neighbour u + o.
        target: (pairs,) int32, site u.
        order: (pairs,) int32, indices of the pairs sorted by site.
        bags: (sites + 1,) int32, offset of each site's run in `order`.
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
    """Sites and pairs between two poolings; `segments` has the number of sites per matrix of the batch."""

    sites: int
    pairs: int
    segments: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Pool:
    """Children of every site of the next level.

    Args:
        first: (sites,) first child of every site.
        extra: (parents, children) int64 of all second, all third and all fourth children.
    """

    first: Tensor
    extra: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class SparseMap:
    """Sites and neighbours of a batch of patterns; immutable.

    Args:
        coords: (sites, 2) int64 of the first level, sorted by matrix, row and column.
        features: (sites, channels) input of the first layer.
        patches: (sites, 25 * channels) inputs under the 5x5 kernel, 0 where there is no site.
        patch_pairs: number of (site, neighbour) pairs of the 5x5 kernel, including the centre.
    """

    coords: Tensor
    features: Tensor
    patches: Tensor
    patch_pairs: int
    levels: tuple[Level, ...]
    pools: tuple[Pool, ...]

    @property
    def matrices(self) -> int:
        return len(self.levels[0].segments)

    def to(self, device: torch.device | str) -> "SparseMap":
        """Copy to a device; returns self if it is there already."""
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
    """Build the map of one or several matrices, stacked with gaps wider than any kernel.

    Args:
        coords: distinct sites of each matrix in any order, 0 <= row, col < 2**28.
        features: input of the first layer for each matrix (default: 1).
        channels: number of channels of the widest layer of every level; determines the number of levels.
        dtype: type of features and patches.

    Raises:
        ValueError: a site occurs twice or is negative.
    """
    rows, cols, owner, values = stack_matrices(coords, features, steps=2 ** (len(channels) - 1))
    stride = row_stride(cols)
    keys = cell_keys(rows, cols, stride)
    patches, patch_pairs = input_patches(keys, stride, values)
    sites = np.stack([rows, cols], axis=1)
    levels, pools = [_level(keys, stride, owner, len(coords), channels[0])], []
    for width in channels[1:]:
        rows, cols, owner, pool = _halve(rows, cols, owner)
        pools.append(pool)
        stride = row_stride(cols)
        levels.append(_level(cell_keys(rows, cols, stride), stride, owner, len(coords), width))
    return SparseMap(
        coords=torch.from_numpy(sites), features=torch.from_numpy(values).to(dtype),
        patches=torch.from_numpy(patches).to(dtype), patch_pairs=patch_pairs, levels=tuple(levels), pools=tuple(pools),
    )


def stack_matrices(
    coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None, *, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Stack the matrices vertically, with gaps of 2 rows at the coarsest level, aligned to its cells.

    Returns:
        Rows, columns, matrix and input of every site, row by row.
    """
    if not coords:
        raise ValueError("no matrices: a map needs at least one, which may have no sites")
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
    stacked_rows, stacked_cols = np.concatenate(rows), np.concatenate(cols)
    keys = cell_keys(stacked_rows, stacked_cols, row_stride(stacked_cols))
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        raise ValueError("a site occurs twice: merge equal coordinates before building a map")
    return stacked_rows[order], stacked_cols[order], np.concatenate(owners)[order], values[order]


def row_stride(cols: np.ndarray) -> int:
    """Return the distance of the keys of two cells of one column."""
    return int(cols.max(initial=0)) + 5


def cell_keys(rows: np.ndarray, cols: np.ndarray, stride: int) -> np.ndarray:
    """Number the cells row by row, with a margin of two columns on each side so that no neighbour wraps around."""
    return rows * stride + cols + 2


def _touching(keys: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Find all (site, neighbour) with key[neighbour] = key[site] + shift, by ascending site."""
    index = np.searchsorted(keys, keys + shift)
    index[index == keys.size] = 0
    found = np.flatnonzero(keys[index] == keys + shift) if keys.size else np.zeros(0, dtype=np.int64)
    return found, index[found]


def input_patches(keys: np.ndarray, stride: int, values: np.ndarray) -> tuple[Float32[np.ndarray, "n p"], int]:
    """Gather the inputs under the 5x5 kernel of every site; offsets before the centre mirror those after it."""
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
    """Swap site and neighbour; both are ascending, since all keys have the same shift."""
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
    """Merge the sites of every aligned 2x2 cell; returns the coarser sites and their children."""
    rows, cols = rows // 2, cols // 2
    keys = cell_keys(rows, cols, row_stride(cols))
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
    return torch.from_numpy(values.astype(np.int32))


def _moved(block: Block, device: torch.device) -> Block:
    tensors = {name: getattr(block, name).to(device) for name in ("source", "target", "order", "bags")}
    return replace(block, **tensors)


class MapCache:
    """Least-recently-used cache of maps; copies of a network share it, since maps are immutable.

    Args:
        limit: largest number of maps.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._maps: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return a cached map, or build it and drop the least recently used one."""
        if (cached := self._maps.get(key)) is None:
            cached = self._maps[key] = build()
            if len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        with suppress(KeyError):  # another thread has dropped it
            self._maps.move_to_end(key)
        return cached

    def __deepcopy__(self, memo: dict[int, Any]) -> "MapCache":
        return self


def level_channels(channels: Sequence[int]) -> tuple[int, ...]:
    """Return the channels of the widest layer of every level, with LEVEL_DEPTH layers per level."""
    return tuple(max(channels[start:start + LEVEL_DEPTH]) for start in range(0, len(channels), LEVEL_DEPTH))


def map_flops(sites: SparseMap, channels: Sequence[int] = CHANNELS) -> float:
    """Count operations of one forward and backward pass, 2 per multiply-add.

    Every layer has three products: outputs, input gradients, weight gradients; the first layer needs no input
    gradients. Pooling, activations and the head are not counted.
    """
    total = 4.0 * sites.patch_pairs * sites.features.shape[1] * channels[0]
    for layer in range(1, len(channels)):
        level = sites.levels[layer // LEVEL_DEPTH]
        total += 6.0 * (level.sites + level.pairs) * channels[layer - 1] * channels[layer]
    return total


def conv_flops(coords: np.ndarray, channels: Sequence[int] = CHANNELS) -> float:
    """Count operations of one forward and backward pass over a pattern with these sites (n, 2)."""
    return map_flops(build_map([coords], channels=level_channels(channels)), channels)
