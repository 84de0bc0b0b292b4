"""Edges as graph attention reads them: by receiver and by sender, with self-loops and the features of these."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from sparloom.jit import compile_cpp
from sparloom.nn.custom_ops import without_functorch
from sparloom.nn.edges import MAX_NODES, Flow, plain_edges
from sparloom.nn.graph import Graph, cached_for_edges
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
        order: E edges: first those that were passed, without self-loops if there are to be others, then these, unless
            `sorted_edges` changes that.
        rows, cols: receivers and senders.
        given: number of edges that were passed.
        loops: number of self-loops that were added.
        flow: "target_to_source": receivers are above senders in edge_index.
        sorted_edges: (E,) int64, for a sparse matrix with self-loops, where each of its nonzeros was before they were
            sorted; None: they were not.
    """

    order: EdgeOrder
    rows: int
    cols: int
    given: int
    loops: int
    flow: Flow
    sorted_edges: torch.Tensor | None


def edge_order(receivers: torch.Tensor, senders: torch.Tensor, rows: int, cols: int, *, loops: int = 0) -> EdgeOrder:
    """Sort edges by receiver and by sender, by counting.

    Args:
        receivers, senders: (E,) both int64 or both int32.
        loops: replace the self-loops by this number of new ones, of the first nodes, which come last; 0: change
            nothing.

    Raises:
        ValueError: a node is out of range.
    """
    room = senders.shape[0] + loops
    by_receiver, by_sender = (
        (torch.empty(nodes + 1, dtype=torch.int64), torch.empty(room, dtype=torch.int32),
         torch.empty(room, dtype=torch.int32)) for nodes in (rows, cols))
    arguments = _Arguments(
        receivers=receivers.data_ptr(), senders=senders.data_ptr(), receiver_step=receivers.stride(0),
        sender_step=senders.stride(0), count=senders.shape[0], loops=loops, wide=senders.dtype == torch.int64,
        by_receiver=_Side(*(each.data_ptr() for each in by_receiver), rows),
        by_sender=_Side(*(each.data_ptr() for each in by_sender), cols))
    status = _function()(ctypes.byref(arguments))
    if status:
        name, numbers, count = (("receiver", receivers, rows), ("sender", senders, cols))[status - 1]
        raise ValueError(f"{name}s range from {int(numbers.min())} to {int(numbers.max())}: expected 0 to {count - 1}")
    if arguments.total < room:
        by_receiver, by_sender = ((each[0], each[1][:arguments.total].clone(), each[2][:arguments.total].clone())
                                  for each in (by_receiver, by_sender))
    return EdgeOrder(by_receiver, by_sender)


class _Side(ctypes.Structure):
    """The struct EdgeSide of kernels/cpu/attention_edges.cpp."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("indptr", "others", "edges")), ("nodes", ctypes.c_int64))


class _Arguments(ctypes.Structure):
    """The struct AttentionEdges of kernels/cpu/attention_edges.cpp."""

    _fields_ = (
        ("receivers", ctypes.c_void_p), ("senders", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("receiver_step", "sender_step", "count", "loops", "total")),
        ("by_receiver", _Side), ("by_sender", _Side), ("wide", ctypes.c_int32),
    )


@cache
def _function() -> Any:
    function = compile_cpp(["cpu/attention_edges.cpp"]).sparloom_attention_edges
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function


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
    key = "attention", rows, cols, loops, flow
    if isinstance(graph, Graph):
        if key not in graph.derived:
            with torch.inference_mode(False), without_functorch():
                graph.derived[key] = _attention_edges(graph, rows, cols, loops, flow)
        return graph.derived[key]
    plain = plain_edges(graph)
    if not isinstance(plain, torch.Tensor):
        raise TypeError(f"the graph is a {type(graph).__name__}: expected edge_index, a sparse tensor or a Graph")
    if not plain.is_cpu:
        return _attention_edges(plain, rows, cols, loops, flow)  # which refuses it
    return cached_for_edges(graph, plain, key, lambda: _attention_edges(plain, rows, cols, loops, flow))


def _attention_edges(graph: Any, rows: int, cols: int, loops: int, flow: Flow) -> AttentionEdges:
    senders, receivers = given_ends(graph, rows, cols, flow)
    given, places = senders.shape[0], None
    if given + loops > MAX_NODES:
        raise ValueError(f"the graph has {given} edges: at most {MAX_NODES} are supported: sample it")
    if loops and is_matrix(graph):
        receivers, senders = _looped(receivers, senders, loops)
        places = torch.from_numpy(np.lexsort((senders.numpy(), receivers.numpy())))
        order = edge_order(receivers[places], senders[places], rows, cols)
    else:
        order = edge_order(receivers, senders, rows, cols, loops=loops)
    return AttentionEdges(order, rows, cols, given, loops, flow, places)


def _looped(receivers: torch.Tensor, senders: torch.Tensor, loops: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace self-loops by those of the first nodes; returns both ends."""
    proper = receivers != senders
    nodes = torch.arange(loops, dtype=senders.dtype, device="cpu")
    return torch.cat([receivers[proper], nodes]), torch.cat([senders[proper], nodes])


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
            torch.repeat_interleave(torch.arange(rows, dtype=graph.col_indices().dtype, device="cpu"),
                                    graph.crow_indices().diff()))


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
    if edges.loops:
        receivers, senders = _looped(receivers, senders, edges.loops)
    pairs = torch.stack([senders, receivers])
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
    senders, receivers = given_ends(graph, edges.rows, edges.cols, edges.flow)
    proper = senders != receivers
    if not bool(proper.all()):
        features, senders, receivers = features[proper], senders[proper], receivers[proper]
    receivers = (receivers if edges.flow == "source_to_target" else senders).long()
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
