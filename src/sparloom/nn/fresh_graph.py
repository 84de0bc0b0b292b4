"""Graphs that are seen for the first time, as in mini-batches: their matrices, without any preparation.

Edges are sorted by receiver in one call of compiled code, which also adds self-loops and normalises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from sparloom.jit import compile_cpp
from sparloom.nn.content_hash import content_hash
from sparloom.nn.custom_ops import is_differentiated
from sparloom.nn.edges import (
    MAX_NODES,
    AggregationMatrices,
    Edges,
    Flow,
    Normalisation,
    Size,
    check_square,
    checked_edge_weight,
    normalise,
)
from sparloom.nn.fresh_products import FreshAdjacency, FreshPattern

NO_LOOPS, REPLACED, ADDED = range(3)  # enum Loops of kernels/cpu/fresh_graph.cpp
UNSCALED, SYMMETRIC, MEAN = range(3)  # enum Scaling
NOT_CSR = 3  # enum Status
INDEX_DTYPES = (torch.int64, torch.int32)


class FreshGraph:
    """A graph on the CPU that may never be seen again; made by `fresh_graph`.

    Args:
        source: its edges, in memory that the caller does not keep alive by them.
        nodes: that receive.
        senders: nodes that send.
    """

    device = torch.device("cpu")

    def __init__(self, source: _Source, nodes: int, senders: int) -> None:
        self.nodes, self.senders = nodes, senders
        self.uses = 0
        """Calls of layers so far."""
        self._source = source
        self._adjacencies: dict[Hashable, tuple[Hashable, FreshAdjacency]] = {}

    @property
    def edges(self) -> int:
        """Number of edges."""
        return self._source.senders.numel()

    def adjacency(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor | None = None,
    ) -> FreshAdjacency:
        """Return the normalised matrix, see `Graph.adjacency`."""
        check_square(self.senders, self.nodes)
        source, content = self._source, None
        if edge_weight is not None:
            checked_edge_weight(edge_weight, source.senders.numel(), source.compressed, self.device)
            if is_differentiated(edge_weight):
                return self._differentiated(normalisation, dtype, edge_weight)
            content = content_hash(edge_weight)
        loops = (ADDED if source.compressed else REPLACED) if normalisation.self_loop else NO_LOOPS
        scaling = SYMMETRIC if normalisation.symmetric else UNSCALED
        key = (normalisation.self_loop, scaling, dtype)
        return self._made(key, content, source.weights if edge_weight is None else edge_weight, dtype, loops=loops,
                          scaling=scaling, self_loop=normalisation.self_loop)

    def aggregation(
        self, dtype: torch.dtype, edge_weight: torch.Tensor | None = None, *, mean: bool, weighted: bool = True,
    ) -> FreshAdjacency:
        """Return the matrix that sums over the senders of each node, or averages over its edges.

        Args:
            edge_weight: (edges,), with edge_index only (default: ones).
            weighted: the values of a sparse matrix are weights, not ignored.
        """
        source, scaling, content = self._source, MEAN if mean else UNSCALED, None
        weights = source.weights if weighted else None
        if edge_weight is not None:
            checked_edge_weight(edge_weight, source.senders.numel(), source.compressed, self.device)
            if is_differentiated(edge_weight):
                return self._differentiated_aggregation(dtype, edge_weight, mean=mean)
            weights, content = edge_weight, content_hash(edge_weight)
        return self._made((scaling, dtype, weighted), content, weights, dtype, scaling=scaling)

    def _made(
        self, key: Hashable, content: Hashable, weights: torch.Tensor | None, dtype: torch.dtype, **options: Any,
    ) -> FreshAdjacency:
        self.uses += 1
        known, made = self._adjacencies.get(key, (None, None))
        if made is None or known != content:
            made = _sorted(self._source, (self.nodes, self.senders), weights, dtype, **options)
            self._adjacencies[key] = content, made
        return made

    def _differentiated(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor,
    ) -> FreshAdjacency:
        """Normalise by torch, which records the operations for autograd."""
        self.uses += 1
        source = self._source
        edges = normalise(Edges(source.receivers.long(), source.senders.long(), edge_weight, self.nodes,
                                compressed=False, device=self.device, senders=self.senders), normalisation, dtype)
        unweighted = replace(source, receivers=edges.rows, senders=edges.cols, weights=None)
        return _sorted(unweighted, (self.nodes, self.senders), None, dtype, edge_weights=edges.weights)

    def _differentiated_aggregation(
        self, dtype: torch.dtype, edge_weight: torch.Tensor, *, mean: bool,
    ) -> FreshAdjacency:
        self.uses += 1
        receivers, weights = self._source.receivers.long(), edge_weight.to(dtype)
        if mean:
            weights = weights / torch.bincount(receivers, minlength=self.nodes).clamp(min=1)[receivers]
        return _sorted(self._source, (self.nodes, self.senders), None, dtype, edge_weights=weights)


@dataclass(frozen=True, eq=False)
class FreshMatrices:
    """The matrices of a graph for aggregation, made on demand; stands for `AggregationMatrices`.

    Args:
        edge_weight, weighted: see `FreshGraph.aggregation`.
        prepared: makes the matrices of the prepared graph, for what these cannot do.
    """

    graph: FreshGraph
    edge_weight: torch.Tensor | None
    weighted: bool
    prepared: Callable[[], AggregationMatrices]

    def adjacency(self, dtype: torch.dtype, *, mean: bool) -> FreshAdjacency:
        """Return the matrix that sums or averages."""
        return self.graph.aggregation(dtype, self.edge_weight, mean=mean, weighted=self.weighted)


def fresh_graph(edges: torch.Tensor, nodes: Size, flow: Flow = "source_to_target") -> FreshGraph | None:
    """Prepare nothing yet; None if the graph needs `Graph`, which also says what is wrong with it.

    Args:
        edges: edge_index or a sparse matrix, see `Graph`; its content must not change while the result is used.
    """
    senders, receivers = nodes if isinstance(nodes, tuple) and len(nodes) == 2 else (nodes, nodes)
    if type(senders) is not int or type(receivers) is not int or not 0 <= min(senders, receivers) <= max(
            senders, receivers) <= MAX_NODES:
        return None
    source = _Source.of(edges, (receivers, senders), flow)
    return None if source is None else FreshGraph(source, receivers, senders)


@dataclass(frozen=True)
class _Source:
    """The memory of a graph, not the tensors that the user passed, which a cache refers to weakly.

    Args:
        receivers: (edges,); None: `begin` gives them.
        senders: (edges,).
        begin: (nodes + 1,), where the edges of each receiver begin.
        weights: (edges,); None: all 1.
        compressed: see `Edges`.
    """

    receivers: torch.Tensor | None
    senders: torch.Tensor
    begin: torch.Tensor | None
    weights: torch.Tensor | None
    compressed: bool

    @classmethod
    def of(cls, edges: torch.Tensor, shape: tuple[int, int], flow: Flow) -> _Source | None:
        """Take a graph apart; None for what is not supported here."""
        if not edges.is_cpu or type(edges) is not torch.Tensor:
            return None
        if edges.layout == torch.strided:
            if edges.dtype not in INDEX_DTYPES or edges.dim() != 2 or edges.shape[0] != 2:
                return None
            senders, receivers = edges.data if flow == "source_to_target" else edges.data.flip(0)
            return cls(receivers, senders, None, None, compressed=False)
        if edges.dim() != 2 or edges.dense_dim() or tuple(edges.shape) != shape or flow != "source_to_target":
            return None
        if edges.layout == torch.sparse_csr:
            begin, senders = edges.crow_indices().data.contiguous(), edges.col_indices().data
            source = cls(None, senders, begin, edges.values().data, compressed=True)
        elif edges.layout == torch.sparse_coo and edges.is_coalesced():
            receivers, senders = edges._indices().data
            source = cls(receivers, senders, None, edges._values().data, compressed=True)
        else:
            return None
        return source if source.weights.is_floating_point() else None


def _sorted(
    source: _Source, shape: tuple[int, int], weights: torch.Tensor | None, dtype: torch.dtype, *, loops: int = NO_LOOPS,
    scaling: int = UNSCALED, self_loop: float = 0.0, edge_weights: torch.Tensor | None = None,
) -> FreshAdjacency:
    """Sort edges by receiver, with self-loops and normalisation.

    Args:
        weights: of edges; None: all 1.
        edge_weights: of edges, permuted by an operation that is recorded for autograd; instead of `weights`.

    Raises:
        ValueError: a node is out of range.
    """
    if torch.is_inference_mode_enabled() and edge_weights is None:  # inference tensors could not be used in training
        with torch.inference_mode(False):
            return _sorted(source, shape, weights, dtype, loops=loops, scaling=scaling, self_loop=self_loop)
    senders, receivers, begin = source.senders, source.receivers, source.begin
    edges, (nodes, cols) = senders.shape[0], shape
    room = edges + (nodes if loops else 0)
    indptr, indices = torch.empty(nodes + 1, dtype=torch.int64), torch.empty(room, dtype=torch.int32)
    values = order = None
    arguments = _FreshGraph(
        senders=senders.data_ptr(), edges=edges, sender_step=senders.stride(0), rows=nodes, cols=cols, loop=self_loop,
        indptr=indptr.data_ptr(), indices=indices.data_ptr(), loops=loops, scaling=scaling,
        wide=senders.dtype == torch.int64, is_double=dtype == torch.float64)
    if edge_weights is None:
        values = torch.empty(room, dtype=dtype)
        arguments.values = values.data_ptr()
        if weights is not None:
            weights = weights.to(dtype).resolve_neg().contiguous()
            arguments.weights = weights.data_ptr()
        workspace = torch.empty(2 * nodes, dtype=dtype)
        arguments.scale = workspace.data_ptr()
        arguments.diagonal = arguments.scale + nodes * workspace.element_size() if nodes else None
    else:
        order = torch.empty(room, dtype=torch.int64)
        arguments.edge = order.data_ptr()
    if begin is None:
        arguments.receivers, arguments.receiver_step = receivers.data_ptr(), receivers.stride(0)
    else:
        arguments.begin = begin.data_ptr()
    status = _sort()(ctypes.byref(arguments))
    if status:
        raise ValueError(_fault(status, source, shape))
    if edge_weights is not None:
        values = edge_weights.index_select(0, order)
    pattern = FreshPattern(indptr, indices, nodes, cols, values.shape[0] if loops == NO_LOOPS else int(indptr[-1]))
    return FreshAdjacency(pattern, values if values.shape[0] == pattern.nnz else values[:pattern.nnz])


def _fault(status: int, source: _Source, shape: tuple[int, int]) -> str:
    """Say what is wrong with a graph."""
    if status == NOT_CSR:
        return "the adjacency matrix is not valid in CSR: pass A.to_sparse_coo().coalesce().to_sparse_csr()"
    name, numbers = (("receiver", source.receivers), ("sender", source.senders))[status - 1]
    return _out_of_range(name, numbers, shape[status - 1])


def _out_of_range(name: str, numbers: torch.Tensor, count: int) -> str:
    return f"{name}s range from {int(numbers.min())} to {int(numbers.max())}: expected 0 to {count - 1}"


class _FreshGraph(ctypes.Structure):
    """The struct FreshGraph of kernels/cpu/fresh_graph.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("receivers", "senders", "begin", "weights")),
        *((name, ctypes.c_int64) for name in ("edges", "receiver_step", "sender_step", "rows", "cols")),
        ("loop", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values", "edge", "scale", "diagonal")),
        *((name, ctypes.c_int32) for name in ("loops", "scaling", "wide", "is_double")),
    )


@cache
def _sort() -> Any:
    function = compile_cpp(["cpu/fresh_graph.cpp"]).sparloom_fresh_graph
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function
