"""Edges as graph attention reads them: by receiver and by sender, with self-loops and the features of these."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch.utils.weak import WeakIdKeyDictionary

from sparloom.forks import forkable
from sparloom.nn.content_hash import index_hash
from sparloom.nn.custom_ops import without_functorch
from sparloom.nn.edges import MAX_NODES, Flow, plain_edges
from sparloom.nn.graph import Graph
from sparloom.nn.torch_integration import eager

FILL_REDUCTIONS = ("add", "mean", "min", "max", "mul")


@dataclass(frozen=True, eq=False)
class EdgeOrder:
    """E edges by receiver and by sender; edges of a node are in the order in which they were given.

    Args:
        by_receiver: row pointers (rows + 1,) int64, senders (E,) int32, and numbers of edges (E,) int32.
        by_sender: column pointers (cols + 1,) int64, receivers (E,) int32, and numbers of edges (E,) int32.
    """

    by_receiver: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    by_sender: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All six tensors."""
        return *self.by_receiver, *self.by_sender


@dataclass(frozen=True, eq=False)
class AttentionEdges:
    """Edges of one graph, those that were passed and self-loops.

    Args:
        order: E edges: first those that were passed, then the self-loops, unless `sorted_edges` changes that.
        rows, cols: receivers and senders.
        kept: (kept,) int64, which of the passed edges remain; None: all.
        given: number of edges that were passed.
        loops: number of self-loops that were added.
        flow: "target_to_source": receivers are above senders in edge_index.
        sorted_edges: (E,) int64, for a sparse matrix with self-loops, where each of its nonzeros was before they were
            sorted; None: they were not.
    """

    order: EdgeOrder
    rows: int
    cols: int
    kept: torch.Tensor | None
    given: int
    loops: int
    flow: Flow
    sorted_edges: torch.Tensor | None


def edge_order(receivers: np.ndarray, senders: np.ndarray, rows: int, cols: int) -> EdgeOrder:
    """Sort edges by receiver and by sender, by counting.

    Args:
        receivers, senders: (E,) integers below rows and cols.
    """
    return EdgeOrder(_sorted(receivers, senders, rows), _sorted(senders, receivers, cols))


def _sorted(keys: np.ndarray, others: np.ndarray, nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort edges by one of their ends: a matrix (nodes, edges) with one nonzero per edge, from columns to rows."""
    count = keys.size
    ends = scipy.sparse.csc_array(
        (np.ones(count, np.int8), keys.astype(np.int32), np.arange(count + 1, dtype=np.int32)), shape=(nodes, count))
    by_node = ends.tocsr()
    edges = by_node.indices.astype(np.int32, copy=False)
    return (torch.from_numpy(by_node.indptr.astype(np.int64)), torch.from_numpy(others.astype(np.int32)[edges]),
            torch.from_numpy(edges))


@eager
def attention_edges(graph: Any, rows: int, cols: int, *, loops: int, flow: Flow = "source_to_target") -> AttentionEdges:
    """Return the edges of a graph; those of a tensor are cached while it lives and its indices are unchanged.

    Args:
        graph: edge_index, (2, E) integers with senders above receivers, in any order, duplicates counting separately,
            also as an EdgeIndex; a sparse matrix (rows, cols), CSR, CSC, COO or a SparseTensor, whose values are
            ignored; or a Graph.
        loops: replace the self-loops by this number of new ones, of the first nodes; 0: change nothing.

    Raises:
        TypeError, ValueError: the graph has another type, layout, shape or device, or a node is out of range.
    """
    key = rows, cols, loops, flow
    plain = graph if isinstance(graph, Graph) else plain_edges(graph)
    if not isinstance(plain, Graph | torch.Tensor):
        raise TypeError(f"the graph is a {type(graph).__name__}: expected edge_index, a sparse tensor or a Graph")
    with without_functorch(), _lock():
        content = None if isinstance(plain, Graph) else _content(plain)
        cached_content, found = _cache().get(graph, (None, {}))
        if cached_content != content:
            found = {}
        if key not in found:
            with torch.inference_mode(False):
                found[key] = _attention_edges(plain, rows, cols, loops, flow)
            _cache()[graph] = content, found
    return found[key]


def _content(graph: torch.Tensor) -> Hashable:
    if graph.layout == torch.sparse_csr:
        return index_hash(graph.crow_indices(), graph.col_indices())
    if graph.layout == torch.sparse_csc:
        return index_hash(graph.ccol_indices(), graph.row_indices())
    if graph.layout == torch.sparse_coo:
        return graph.is_coalesced(), index_hash(graph._indices())
    return index_hash(graph) if graph.layout == torch.strided and graph.is_cpu else None


@cache
def _cache() -> WeakIdKeyDictionary:
    return WeakIdKeyDictionary()


@cache
def _lock() -> AbstractContextManager[bool]:
    return forkable(RLock())  # reentrant: a finaliser may interrupt a call in the same thread


def _attention_edges(graph: Any, rows: int, cols: int, loops: int, flow: Flow) -> AttentionEdges:
    senders, receivers = (each.numpy() for each in given_ends(graph, rows, cols, flow))
    given, kept, places = senders.size, None, None
    for name, numbers, count in (("receiver", receivers, rows), ("sender", senders, cols)):
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
            raise ValueError(f"{name}s range from {numbers.min()} to {numbers.max()}: expected 0 to {count - 1}")
    if loops:
        proper = senders != receivers
        if not proper.all():
            kept = np.flatnonzero(proper)
            senders, receivers = senders[kept], receivers[kept]
        nodes = np.arange(loops, dtype=receivers.dtype)
        senders, receivers = np.concatenate([senders, nodes]), np.concatenate([receivers, nodes])
        if is_matrix(graph):
            places = np.lexsort((senders, receivers))
            senders, receivers = senders[places], receivers[places]
    if senders.size > MAX_NODES:
        raise ValueError(f"the graph has {senders.size} edges: at most {MAX_NODES} are supported: sample it")
    kept, places = (None if each is None else torch.from_numpy(each) for each in (kept, places))
    return AttentionEdges(edge_order(receivers, senders, rows, cols), rows, cols, kept, given, loops, flow, places)


def is_matrix(graph: Any) -> bool:
    """Return whether a graph was passed as a sparse matrix, rows being receivers."""
    if isinstance(graph, Graph):
        return graph.edges.compressed
    plain = plain_edges(graph)
    return isinstance(plain, torch.Tensor) and plain.layout != torch.strided


def given_ends(graph: Any, rows: int, cols: int, flow: Flow) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the senders and the receivers of a graph as it was passed, on the CPU.

    Raises:
        TypeError, ValueError: its dtype, shape, layout or device is not supported.
    """
    if isinstance(graph, Graph):
        if (graph.nodes, graph.senders) != (rows, cols):
            both = f"{rows} rows" if rows == cols else f"{cols} rows of senders and {rows} of receivers"
            nodes = (f"{graph.nodes} nodes" if graph.nodes == graph.senders else
                     f"{graph.senders} senders and {graph.nodes} receivers")
            raise ValueError(f"x has {both}, but the graph has {nodes}: expected one row per node")
        if graph.device.type != "cpu":
            raise ValueError(f"x is on cpu and the graph on {graph.device}: make the graph from "
                             "edge_index.to(x.device)")
        return graph.edges.cols, graph.edges.rows
    graph = plain_edges(graph)
    if graph.device.type != "cpu":
        raise ValueError(f"the graph is on {graph.device}: this layer computes on the CPU: pass graph.cpu()")
    if graph.layout == torch.strided:
        if graph.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"edge_index is {graph.dtype}: expected torch.int64")
        if graph.dim() != 2 or graph.shape[0] != 2:
            raise ValueError(f"edge_index has shape {tuple(graph.shape)}: expected (2, edges)")
        return (graph[0], graph[1]) if flow == "source_to_target" else (graph[1], graph[0])
    if flow != "source_to_target":
        raise ValueError("flow='target_to_source' needs an edge_index: pass the transposed matrix to a layer with the "
                         "default flow")
    if tuple(graph.shape[:2]) != (rows, cols):
        raise ValueError(f"the adjacency matrix has shape {tuple(graph.shape)}: expected {rows} receivers and {cols} "
                         "senders")
    if graph.layout == torch.sparse_coo:
        receivers, senders = graph.coalesce().indices()
        return senders, receivers
    if graph.layout == torch.sparse_csc:
        graph = graph.to_sparse_csr()
    if graph.layout != torch.sparse_csr:
        raise ValueError(f"the adjacency matrix has layout {graph.layout}: pass A.to_sparse_csr()")
    return (graph.col_indices(),
            torch.repeat_interleave(torch.arange(rows, device="cpu"), graph.crow_indices().diff()))


def given_features(graph: Any) -> torch.Tensor | None:
    """Return the values of a SparseTensor, which are features of edges if no others are passed, or None."""
    return graph.storage.value() if hasattr(graph, "sparse_sizes") and hasattr(graph, "storage") else None


@eager
def weighted_edges(graph: Any, edges: AttentionEdges, weights: torch.Tensor) -> Any:
    """Return the edges, with self-loops, and their attention weights, as PyTorch Geometric's layers do.

    Returns:
        edge_index and weights; for a sparse matrix, a matrix with the weights as values, and weights; for a
        SparseTensor, one with the weights as values.
    """
    if hasattr(graph, "sparse_sizes") and not edges.loops:
        return graph.set_value(weights, layout="coo")
    if not edges.loops and isinstance(graph, torch.Tensor) and not is_matrix(graph):
        return graph, weights
    senders, receivers = given_ends(graph, edges.rows, edges.cols, edges.flow)
    if edges.kept is not None:
        senders, receivers = senders[edges.kept], receivers[edges.kept]
    nodes = torch.arange(edges.loops, dtype=senders.dtype, device="cpu")
    pairs = torch.stack([torch.cat([senders, nodes]), torch.cat([receivers, nodes.to(receivers.dtype)])])
    pairs = pairs if edges.sorted_edges is None else pairs[:, edges.sorted_edges]
    if isinstance(graph, Graph) or not is_matrix(graph):
        return (pairs if edges.flow == "source_to_target" else pairs.flip(0)), weights
    if hasattr(graph, "sparse_sizes"):
        return type(graph)(row=pairs[1], col=pairs[0], value=weights, sparse_sizes=(edges.rows, edges.cols))
    shape = edges.rows, edges.cols, weights.shape[1]
    if graph.layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(pairs.flip(0), weights, shape, is_coalesced=True), weights
    matrix = torch.sparse_csr_tensor(edges.order.by_receiver[0], pairs[0].long(), weights, shape)
    return matrix, weights


@eager
def with_loop_features(
    features: torch.Tensor, graph: Any, edges: AttentionEdges, fill: float | torch.Tensor | str,
) -> torch.Tensor:
    """Return the features of all edges, (E, features): those of self-loops are made from `fill`.

    Args:
        features: (edges that were passed, features).
        fill: a number; a tensor, (features,); or a reduction of the features of other edges with the same receiver (the
            second row of edge_index), where nodes without any get 0, and 1 for "mul".
    """
    if not edges.loops:
        return features
    receivers = given_ends(graph, edges.rows, edges.cols, edges.flow)[edges.flow == "source_to_target"].long()
    if edges.kept is not None:
        features, receivers = features[edges.kept], receivers[edges.kept]
    shape = (edges.loops, features.shape[1])
    if isinstance(fill, torch.Tensor):
        loops = fill.to(features).expand(shape)
    elif isinstance(fill, str):
        loops = _reduced(features, receivers, shape, fill)
    else:
        loops = features.new_full(shape, fill)
    return torch.cat([features, loops])


def _reduced(features: torch.Tensor, receivers: torch.Tensor, shape: tuple[int, int], reduce: str) -> torch.Tensor:
    present = receivers < shape[0]  # in a bipartite graph some receivers may have no self-loop
    if not bool(present.all()):
        features, receivers = features[present], receivers[present]
    if reduce in ("add", "mean"):
        sums = features.new_zeros(shape).index_add(0, receivers, features)
        if reduce == "add":
            return sums
        return sums / torch.bincount(receivers, minlength=shape[0]).clamp(min=1).unsqueeze(1)
    index = receivers.unsqueeze(1).expand_as(features)
    if reduce == "mul":
        return features.new_ones(shape).scatter_reduce(0, index, features, "prod")
    return features.new_zeros(shape).scatter_reduce(0, index, features, f"a{reduce}", include_self=False)
