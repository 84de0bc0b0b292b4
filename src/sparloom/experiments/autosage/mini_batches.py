"""Mini-batches of graphs: sampled neighbourhoods, induced subgraphs, and joined small graphs.

PyTorch Geometric's NeighborLoader, ClusterData and samplers of GraphSAINT need pyg-lib or torch-sparse, which are on no
package registry for every version of torch. These samplers have the same output and need NumPy only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparloom.sparse import Pattern

BONDS = 1.1  # edges per node of a small graph, in each direction
SHARE_OF_SIZES = 0.5  # small graphs have this share more or fewer nodes than their mean


@dataclass(frozen=True)
class MiniBatch:
    """A subgraph to train on.

    Args:
        nodes: (nodes,) int64, their numbers in the whole graph.
        edges: (2, edges) int64, senders above receivers, numbered in the subgraph, unsorted.
        size: the loss is that of the first `size` nodes, or of so many graphs.
        graph_of_node: (nodes,) int64 if the batch consists of `size` graphs.
    """

    nodes: torch.Tensor
    edges: torch.Tensor
    size: int
    graph_of_node: torch.Tensor | None = None

    def seen_first(self) -> "MiniBatch":
        """Return the batch with a copy of its edges, as a loader would hand it out."""
        return replace(self, edges=self.edges.clone())


def sample_neighbours(
    pattern: Pattern, seeds: np.ndarray, fanouts: Sequence[int], *, rng: np.random.Generator,
) -> MiniBatch:
    """Sample up to `fanouts[h]` senders of each node that hop h - 1 has found, without replacement.

    Args:
        pattern: (nodes, nodes), rows receive.
        seeds: (size,) distinct nodes, the first of the batch.

    Returns:
        As NeighborLoader with its defaults: nodes in the order in which they are found, edges in the order of hops.

    Source: Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs.
    """
    local = np.full(pattern.rows, -1, np.int64)
    local[seeds] = np.arange(seeds.size)
    found, frontier, edges = [seeds.astype(np.int64)], seeds.astype(np.int64), []
    count = seeds.size
    for fanout in fanouts:
        receivers, senders = _drawn(pattern, frontier, fanout, rng=rng)
        new, first = np.unique(senders[local[senders] < 0], return_index=True)
        new = new[np.argsort(first)]
        local[new] = count + np.arange(new.size)
        count += new.size
        found.append(new)
        edges.append(np.stack([local[senders], local[receivers]]))
        frontier = new
    return MiniBatch(torch.from_numpy(np.concatenate(found)), torch.from_numpy(np.concatenate(edges, axis=1)),
                     size=seeds.size)


def _drawn(
    pattern: Pattern, frontier: np.ndarray, fanout: int, *, rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw up to `fanout` nonzeros of each row in `frontier`: their rows and columns."""
    receivers, positions = _nonzeros(pattern, frontier)
    keys = rng.random(positions.size)
    order = np.lexsort((keys, receivers))  # rows one after the other, each shuffled
    rows = receivers[order]
    starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]])) if rows.size else np.zeros(0, np.int64)
    place = np.arange(rows.size) - np.repeat(starts, np.diff(np.concatenate([starts, [rows.size]])))
    kept = order[place < fanout]
    return frontier[receivers[kept]], pattern.indices[positions[kept]].astype(np.int64)


def _nonzeros(pattern: Pattern, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the nonzeros of some rows: the index in `rows`, and the position in the pattern."""
    starts, lengths = pattern.indptr[rows], np.diff(pattern.indptr)[rows]
    which = np.repeat(np.arange(rows.size), lengths)
    before = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return which, np.repeat(starts, lengths) + np.arange(which.size) - before


def induced_batch(pattern: Pattern, nodes: np.ndarray) -> MiniBatch:
    """Take some nodes and all edges among them.

    Args:
        pattern: (nodes, nodes), rows receive.
        nodes: distinct.
    """
    local = np.full(pattern.rows, -1, np.int64)
    local[nodes] = np.arange(nodes.size)
    receivers, positions = _nonzeros(pattern, nodes)
    senders = local[pattern.indices[positions]]
    inside = senders >= 0
    return MiniBatch(torch.from_numpy(nodes.astype(np.int64)),
                     torch.from_numpy(np.stack([senders[inside], receivers[inside]])), size=nodes.size)


def cluster_batch(pattern: Pattern, count: int, *, parts: int, rng: np.random.Generator) -> MiniBatch:
    """Join some of `parts` parts of the graph, about `count` nodes; parts are ranges of nodes.

    Departure: ClusterData partitions by METIS; ranges keep the locality that the numbers of nodes have.
    """
    size = max(1, pattern.rows // parts)
    chosen = rng.choice(parts, min(parts, max(1, count // size)), replace=False)
    nodes = np.concatenate([np.arange(part * size, (part + 1) * size) for part in np.sort(chosen)])
    return induced_batch(pattern, nodes)


def walk_batch(pattern: Pattern, count: int, *, length: int, rng: np.random.Generator) -> MiniBatch:
    """Take the nodes of random walks over senders, at most `count`, as the random-walk sampler of GraphSAINT does."""
    nodes = rng.integers(0, pattern.rows, max(1, count // (length + 1)))
    lengths, visited = np.diff(pattern.indptr), [nodes]
    for _ in range(length):
        step = pattern.indptr[nodes] + (rng.random(nodes.size) * lengths[nodes]).astype(np.int64)
        moved = lengths[nodes] > 0
        nodes = nodes.copy()
        nodes[moved] = pattern.indices[step[moved]]
        visited.append(nodes)
    return induced_batch(pattern, np.unique(np.concatenate(visited)))


def small_graphs_batch(count: int, *, mean_nodes: int, rng: np.random.Generator) -> MiniBatch:
    """Join small graphs like those of molecules, as PyTorch Geometric's DataLoader does.

    Each has a random tree, mostly chains, and a few cycles; edges go in both directions, without self-loops.
    """
    low, high = (max(2, round(mean_nodes * (1 + sign * SHARE_OF_SIZES))) for sign in (-1, 1))
    sizes = rng.integers(low, high + 1, count)
    ends = []
    for start, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
        children = np.arange(1, size)
        parents = np.maximum(0, children - 1 - rng.geometric(0.5, size - 1) + 1)
        more = rng.integers(0, size, (2, max(0, round(BONDS * size) - size + 1)))
        pairs = np.concatenate([np.stack([parents, children]), more], axis=1)
        pairs = np.concatenate([pairs, pairs[::-1]], axis=1)[:, np.concatenate([pairs[0] != pairs[1]] * 2)]
        ends.append(np.unique(pairs, axis=1) + start)
    return MiniBatch(torch.arange(int(sizes.sum())), torch.from_numpy(np.concatenate(ends, axis=1)), size=count,
                     graph_of_node=torch.from_numpy(np.repeat(np.arange(count), sizes)))


Sampler = Callable[[np.random.Generator], MiniBatch]
"""Draws a batch."""


def samplers(pattern: Pattern, seeds: int, fanouts: Sequence[int]) -> dict[str, Sampler]:
    """List ways of sampling a graph, about as many nodes each as neighbourhoods of so many seeds have.

    Args:
        pattern: (nodes, nodes), rows receive.
    """
    seeds = min(seeds, pattern.rows)

    def neighbours(rng: np.random.Generator) -> MiniBatch:
        return sample_neighbours(pattern, rng.choice(pattern.rows, seeds, replace=False), fanouts, rng=rng)

    count = neighbours(np.random.default_rng(0)).nodes.numel()
    return {
        "neighbour": neighbours,
        "cluster": lambda rng: cluster_batch(pattern, count, parts=max(1, min(64, pattern.rows // 8)), rng=rng),
        "saint": lambda rng: walk_batch(pattern, count, length=len(fanouts), rng=rng),
    }
