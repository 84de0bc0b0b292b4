"""Graphs that layers share: parsed once, with a matrix for each normalisation and dtype."""

from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from threading import RLock
from typing import Any, get_args

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from sparloom.forks import forkable
from sparloom.jit import ChangeDetector, ResultPool
from sparloom.nn.content_hash import content_hash, sampled_hash
from sparloom.nn.convolution import Adjacency, CpuAdjacency, DeviceAdjacency, PlanOptions, Propagation
from sparloom.nn.custom_ops import in_functorch, is_differentiated, without_functorch
from sparloom.nn.edges import (
    AdjacencyPattern,
    AggregationMatrices,
    Edges,
    Flow,
    Normalisation,
    Size,
    adjacency_pattern,
    aggregation_matrices,
    check_square,
    checked_edge_weight,
    normalise,
    parse_edges,
    plain_edges,
)
from sparloom.nn.fresh_graph import FreshGraph, fresh_graph
from sparloom.nn.torch_integration import SUPPORTED_DEVICES, autocast_operands, dtype_remedy, eager
from sparloom.tuning import Fuse, PlanCache

FUSED_DEVICES = ("cpu",)  # on which the products of a convolution are fused
USES = 64  # calls of layers after which a graph is prepared
FEWEST_EDGES = 1 << 15  # of a graph that is prepared: of smaller ones, a call of a prepared product costs too much
INDEX_TYPES = (np.int32, np.int64)
POOL_SHARE = 1 / 8  # of the machine's memory, for reusable results of one graph

_LOCK = forkable(RLock())  # reentrant: a finaliser may interrupt a call in the same thread

MESSAGE_PASSING_DEFAULTS = {
    "flow": "source_to_target", "node_dim": -2, "aggr_module": None, "message": None, "aggregate": None, "update": None,
    "propagate": None, "message_and_aggregate": None, "edge_update": None,
}
"""Attributes that control message passing in PyTorch Geometric, and the only values that our layers support."""


class Graph:
    """A graph, for layers of any width; schedules are made at first use and shared by all layers.

    Layers compute on the device of `edges`. The graph is sorted and normalised on the CPU, once; trainable edge weights
    are copied to the CPU and back in every step. Copies and pickles hold the edges only, with detached weights.

    Args:
        edges: edge_index, (2, edges) integers with senders above receivers, or a sparse matrix (nodes, nodes) in CSR,
            CSC or COO with a row for each receiver; on the CPU or an NVIDIA GPU; also an EdgeIndex or a SparseTensor.
            It is copied.
        nodes: default: those that an EdgeIndex states, or the largest node in edge_index plus one. A tuple: a bipartite
            graph of so many senders and receivers.
        fuse: "auto", "never" or "always", see `sparloom.tuning.plan_pair`; "never" computes all products separately, as
            on a GPU.
        cache: of decisions about fusion (default: the cache of this user).
        flow: "target_to_source": receivers are above senders in edge_index.
    """

    def __init__(
        self, edges: torch.Tensor, nodes: Size = None, *, fuse: Fuse = "auto", cache: PlanCache | None = None,
        flow: Flow = "source_to_target",
    ) -> None:
        if fuse not in get_args(Fuse):
            raise ValueError(f"fuse={fuse!r}: expected one of {', '.join(get_args(Fuse))}")
        self.edges = parse_edges(edges, nodes, flow)
        self._options = PlanOptions(fuse, cache)
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, which make schedules and normalised matrices of their own."""
        return {"edges": self.edges, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        """Reset all that is derived from the edges."""
        self._pool = ResultPool(POOL_SHARE)
        self._patterns: dict[bool, tuple[AdjacencyPattern, Propagation, Propagation]] = {}
        self._adjacencies: dict[tuple[Normalisation, torch.dtype], tuple[Hashable, Adjacency | DeviceAdjacency]] = {}
        self._aggregation: dict[torch.dtype, AggregationMatrices] = {}
        self.fresh: FreshGraph | None = None
        """The same graph as it was used before it was prepared."""
        self._lock = forkable(RLock())  # reentrant: a finaliser may interrupt a call in the same thread

    @property
    def nodes(self) -> int:
        """Number of nodes; of those that receive, in a bipartite graph."""
        return self.edges.nodes

    @property
    def senders(self) -> int:
        """Number of nodes that send; equal to `nodes` unless the graph is bipartite."""
        return self.edges.senders

    @property
    def device(self) -> torch.device:
        """Device on which layers compute."""
        return self.edges.device

    def adjacency(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor | None = None,
    ) -> Adjacency | DeviceAdjacency:
        """Return the normalised matrix; the same object for equal weights, unless they need a gradient.

        Args:
            edge_weight: (edges,), with edge_index only (default: ones).

        Raises:
            TypeError, ValueError: edge_weight has the wrong shape, layout or device, or the graph is a sparse matrix,
                which has weights of its own.
        """
        edges = self.edges
        check_square(edges.senders, edges.nodes)
        if edge_weight is not None:
            checked_edge_weight(edge_weight, edges.rows.numel(), edges.compressed, self.device)
            edges = replace(edges, weights=edge_weight.cpu())
        with self._lock:
            if edges.weights is not None and is_differentiated(edges.weights):
                with torch.inference_mode(False):
                    return self._build(normalise(edges, normalisation, dtype), normalisation.self_loop != 0)
            cached_content, made = self._adjacencies.get((normalisation, dtype), (None, None))
            if made is not None and cached_content is None and edge_weight is None:
                return made
            with torch.inference_mode(False), without_functorch():
                content = content_hash(edge_weight)
                if made is None or cached_content != content:
                    made = self._build(normalise(edges, normalisation, dtype), normalisation.self_loop != 0)
                    self._adjacencies[normalisation, dtype] = content, made
        return made

    def aggregation(self, dtype: torch.dtype = torch.float32) -> AggregationMatrices:
        """Return the matrices for aggregation without normalisation; the same object unless weights need a gradient."""
        with self._lock:
            if dtype in self._aggregation:
                return self._aggregation[dtype]
            with torch.inference_mode(False), without_functorch():
                made = aggregation_matrices(self.edges, self._products(self.edges, has_loops=False)[0], dtype)
            if self.edges.weights is None or not self.edges.weights.requires_grad:
                self._aggregation[dtype] = made
        return made

    def pattern(self) -> AdjacencyPattern:
        """Return the pattern of the matrices for aggregation."""
        with self._lock:
            return self._products(self.edges, has_loops=False)[0]

    def _build(self, edges: Edges, has_loops: bool) -> Adjacency | DeviceAdjacency:
        pattern, forward, backward = self._products(edges, has_loops=has_loops)
        values = pattern.values(edges.weights)
        if self.device.type not in FUSED_DEVICES:
            return DeviceAdjacency(pattern.operand(values))
        return Adjacency(values, pattern.transposition, forward, backward)

    def _products(self, edges: Edges, *, has_loops: bool) -> tuple[AdjacencyPattern, Propagation, Propagation]:
        """Return the sorted edges and their products, made once."""
        if has_loops not in self._patterns:
            with without_functorch():
                pattern = adjacency_pattern(edges)
            forward = Propagation(pattern.pattern, self._options, self._pool)
            same = pattern.transposed is pattern.pattern
            backward = forward if same else Propagation(pattern.transposed, self._options, self._pool)
            self._patterns[has_loops] = pattern, forward, backward
        return self._patterns[has_loops]


def cached_graph(edges: torch.Tensor, nodes: Size, flow: Flow = "source_to_target") -> Graph:
    """Return the graph of this tensor, cached while the tensor lives and its contents are unchanged.

    The values of a sparse matrix are compared completely, indices as by `sparloom.nn.content_hash.sampled_hash`.
    """
    plain = plain_edges(edges, nodes, flow)
    if not isinstance(plain, torch.Tensor) or plain.requires_grad:
        return Graph(plain, nodes, flow=flow)
    with without_functorch(), _LOCK:
        graphs, key = _known_graphs(edges, plain), (nodes, flow)
        if not isinstance(graphs.get(key), Graph):
            graphs[key] = Graph(plain, nodes, flow=flow)
        return graphs[key]


def recurring_graph(edges: torch.Tensor, nodes: Size, flow: Flow = "source_to_target") -> Graph | FreshGraph:
    """Return the graph of this tensor, which is not prepared before layers have used it so often that it pays off.

    It is cached like `cached_graph`.
    """
    plain = plain_edges(edges, nodes, flow)
    if not isinstance(plain, torch.Tensor) or plain.requires_grad or in_functorch():
        return cached_graph(edges, nodes, flow)
    with _LOCK:
        graphs, key = _known_graphs(edges, plain), (nodes, flow)
        graph = graphs.get(key)
        if graph is None:
            graph = fresh_graph(plain, nodes, flow) or Graph(plain, nodes, flow=flow)
        elif isinstance(graph, FreshGraph) and graph.uses >= USES and graph.edges >= FEWEST_EDGES:
            fresh, graph = graph, Graph(plain, nodes, flow=flow)
            graph.fresh = fresh
        graphs[key] = graph
        return graph


def _known_graphs(edges: torch.Tensor, plain: torch.Tensor) -> dict[tuple[Size, Flow], Graph | FreshGraph]:
    """Return what is cached for this tensor and its present content, to be added to."""
    cached = _graphs().get(edges)
    if cached is not None and cached.is_unchanged(plain):
        return cached.graphs
    content = _content(plain)
    graphs = {} if cached is None or cached.content != content else cached.graphs
    _graphs()[edges] = _CachedGraphs(content, graphs, edges if plain is edges else None)
    return graphs


class _CachedGraphs:
    """The graphs of a tensor with its present content.

    Args:
        edges: the tensor, to notice changes without hashing it; None: hash it in every call.
    """

    def __init__(self, content: Hashable, graphs: dict[tuple[Size, Flow], Graph | FreshGraph], edges: Any) -> None:
        self.content, self.graphs = content, graphs
        self._memory: np.ndarray | None = None
        if edges is not None and edges.layout == torch.strided and edges.is_cpu and not edges.is_inference():
            array = np.from_dlpack(edges.detach())  # `numpy()` would forbid to resize the tensor
            if array.dtype in INDEX_TYPES and array.size and array.flags.c_contiguous:
                self._memory = array  # an alias, which does not keep `edges` alive
                self._state, self._watch = _state(edges), ChangeDetector({"edges": array})

    def is_unchanged(self, edges: torch.Tensor) -> bool:
        """Tell whether PyTorch counted no write, and the parts that are looked at are as they were."""
        return self._memory is not None and _state(edges) == self._state and not self._watch.changed()


def _state(edges: torch.Tensor) -> tuple[Any, ...]:
    """Describe the memory of a tensor, and how often PyTorch has written to it."""
    return edges._version, edges.data_ptr(), edges.shape, edges.stride()


def _content(edges: torch.Tensor) -> Hashable:
    if edges.layout == torch.sparse_csr:
        return sampled_hash(edges.crow_indices(), edges.col_indices()), content_hash(edges.values())
    if edges.layout == torch.sparse_coo:
        return edges.is_coalesced(), sampled_hash(edges._indices()), content_hash(edges._values())
    if edges.layout == torch.sparse_csc:
        return sampled_hash(edges.ccol_indices(), edges.row_indices()), content_hash(edges.values())
    return sampled_hash(edges) if edges.layout == torch.strided else None


@cache
def _graphs() -> WeakIdKeyDictionary:
    return WeakIdKeyDictionary()


def fuses_on(device: torch.device) -> bool:
    """Return whether layers on this device run kernels of their own for whole layers."""
    return device.type in FUSED_DEVICES


def check_features(x: torch.Tensor, channels: int) -> None:
    """Check that features are one dense tensor; those of bipartite graphs, a tuple, are not supported."""
    if isinstance(x, tuple):
        raise TypeError(f"x is a tuple of {len(x)}: bipartite graphs are not supported: expected a dense tensor "
                        f"(nodes, {channels})")
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        kind = f"a tensor of layout {x.layout}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x is {kind}: expected a dense tensor (nodes, {channels})")


def check_nodes(x: torch.Tensor, graph: Graph | FreshGraph | CpuAdjacency | DeviceAdjacency) -> None:
    """Check that features have a row for each node, on the device of the graph."""
    if x.shape[0] != graph.nodes:
        raise ValueError(f"x has {x.shape[0]} rows, but the graph has {graph.nodes} nodes: expected one row per node")
    if x.device != graph.device:
        raise ValueError(f"x is on {x.device} and the graph on {graph.device}: make the graph from "
                         "edge_index.to(x.device)")


@eager
def aggregation_inputs(
    x: torch.Tensor, edge_index: torch.Tensor | Graph, channels: int, linear: torch.nn.Linear,
) -> AggregationMatrices:
    """Check the inputs of a layer and return the matrices of the graph.

    Args:
        x: (nodes, channels) float32.
        edge_index: a Graph, or edges to make one from, on the device of x.
        linear: a submodule whose weight multiplies x.
    """
    check_features(x, channels)
    x, = autocast_operands(x)
    if x.device.type not in SUPPORTED_DEVICES:
        raise ValueError(f"x is on {x.device}: only CPU and CUDA tensors are supported: pass x.cpu() or x.cuda()")
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}, but this layer computes in torch.float32: "
                        f"{dtype_remedy(x, 'pass x.float()')}")
    weight = linear._parameters.get("weight")  # reading the attribute would run parametrizations again
    if weight is not None and autocast_operands(weight)[0].dtype != torch.float32:
        raise TypeError(f"the weight is {weight.dtype}, but this layer computes in torch.float32: use layer.float()")
    if x.dim() != 2 or x.shape[1] != channels:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (nodes, {channels})")
    graph = edge_index if isinstance(edge_index, Graph) else cached_graph(edge_index, x.shape[0])
    check_nodes(x, graph)
    return graph.aggregation()
