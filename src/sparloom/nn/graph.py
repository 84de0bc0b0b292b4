"""Graphs that layers share: parsed once, with a matrix for each normalisation and dtype."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache, cached_property
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from sparloom.forks import forkable
from sparloom.jit import ChangeDetector
from sparloom.nn.content_hash import content_hash, sampled_hash
from sparloom.nn.convolution import Adjacency, TileFusion
from sparloom.nn.custom_ops import is_differentiated, without_functorch
from sparloom.nn.edges import (
    MAX_NODES,
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
from sparloom.nn.sorted_edges import (
    ADDED,
    CPU,
    MEAN,
    NO_LOOPS,
    REPLACED,
    SYMMETRIC,
    UNSCALED,
    EdgePattern,
    EdgeSource,
    sorted_edges,
    sorted_matrix,
)
from sparloom.nn.torch_integration import SUPPORTED_DEVICES, autocast_operands, dtype_remedy, eager
from sparloom.tuning import PlanCache

T = TypeVar("T")

FUSED_DEVICES = ("cpu",)  # on which the core computes whole layers
INDEX_TYPES = (np.int32, np.int64)
CALLS_TO_WATCH = 3  # of a tensor, before which its content is hashed: most are those of mini-batches
MAX_MATRICES = 16  # of one graph; an eps of GINConv that changes makes a new one every time

_LOCK = forkable(RLock())  # reentrant: a finaliser may interrupt a call in the same thread

MESSAGE_PASSING_DEFAULTS = {
    "flow": "source_to_target", "node_dim": -2, "aggr_module": None, "message": None, "aggregate": None, "update": None,
    "propagate": None, "message_and_aggregate": None, "edge_update": None,
}
"""Attributes that control message passing in PyTorch Geometric, and the only values that our layers support."""


class Graph:
    """A graph, for layers of any width; its matrices are made at first use and shared by all layers.

    Layers compute on the device of `edges`. The graph is sorted and normalised on the CPU, once; on a GPU, trainable
    edge weights are copied to the CPU and back in every step. Copies and pickles hold the edges only, with detached
    weights.

    Args:
        edges: edge_index, (2, edges) integers with senders above receivers, or a sparse matrix (nodes, nodes) in CSR,
            CSC or COO with a row for each receiver; on the CPU or an NVIDIA GPU; also an EdgeIndex or a SparseTensor.
            It is copied.
        nodes: default: those that an EdgeIndex states, or the largest node in edge_index plus one. A tuple: a bipartite
            graph of so many senders and receivers.
        cache: of decisions about tile fusion, which layers with first="transform" use (default: the cache of this
            user).
        flow: "target_to_source": receivers are above senders in edge_index.
    """

    def __init__(
        self, edges: torch.Tensor, nodes: Size = None, *, cache: PlanCache | None = None,
        flow: Flow = "source_to_target",
    ) -> None:
        self._set(parse_edges(edges, nodes, flow), cache)

    @classmethod
    def of_memory(cls, edges: torch.Tensor, nodes: Size, flow: Flow) -> "Graph | None":
        """Make a graph that reads the memory of `edges`, which must not change while it is used, and plans nothing.

        Returns:
            None for edges that must be converted or refused.
        """
        senders, receivers = nodes if isinstance(nodes, tuple) and len(nodes) == 2 else (nodes, nodes)
        if type(senders) is not int or type(receivers) is not int or not 0 <= min(senders, receivers) <= max(
                senders, receivers) <= MAX_NODES:
            return None
        source = EdgeSource.of(edges, (receivers, senders), flow) if fuses_on(edges.device) else None
        if source is None:
            return None
        graph = cls.__new__(cls)
        graph.nodes, graph.senders, graph._source, graph._tiles, graph._is_fused = receivers, senders, source, {}, True
        graph._reset()
        return graph

    def _set(self, edges: Edges, cache: PlanCache | None) -> None:
        self.edges, self._cache = edges, cache
        self.nodes, self.senders = edges.nodes, edges.senders
        self._source = EdgeSource(edges.rows, edges.cols, None, edges.weights, edges.compressed)
        self._is_fused = fuses_on(edges.device)
        self._tiles = {loops: TileFusion(cache) for loops in (NO_LOOPS, REPLACED, ADDED)}
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, which make matrices of their own."""
        return {"edges": self.edges, "_cache": self.__dict__.get("_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(state["edges"], state["_cache"])

    def _reset(self) -> None:
        """Reset all that is derived from the edges."""
        self._patterns: dict[int, EdgePattern | AdjacencyPattern] = {}  # by the loops in them
        self._adjacencies: dict[Hashable, tuple[Hashable, Adjacency]] = {}
        self._aggregation: dict[torch.dtype, AggregationMatrices] = {}
        self.derived: dict[Hashable, Any] = {}
        """What layers made of the edges."""

    @cached_property
    def edges(self) -> Edges:
        """The edges as passed: in any order, with possible duplicates."""
        return self._source.edges((self.nodes, self.senders))

    @property
    def device(self) -> torch.device:
        """Device on which layers compute."""
        return CPU if self._is_fused else self.edges.device

    def adjacency(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor | None = None,
    ) -> Adjacency:
        """Return the normalised matrix; the same object for equal weights, unless they need a gradient.

        Args:
            edge_weight: (edges,), with edge_index only (default: ones).

        Raises:
            TypeError, ValueError: edge_weight has the wrong shape, layout or device, or the graph is a sparse matrix,
                which has weights of its own.
        """
        check_square(self.senders, self.nodes)
        loops = NO_LOOPS if not normalisation.self_loop else ADDED if self._source.compressed else REPLACED

        def make(weights: torch.Tensor | None) -> Adjacency:
            if not self._is_fused or (weights is not None and is_differentiated(weights)):
                return self._recorded(weights, loops, lambda edges: normalise(edges, normalisation, dtype))
            return self._sorted(weights, dtype, loops=loops, scaling=SYMMETRIC if normalisation.symmetric else UNSCALED,
                                self_loop=normalisation.self_loop)

        return self._cached((normalisation, dtype), edge_weight, make)

    def aggregating(
        self, dtype: torch.dtype, edge_weight: torch.Tensor | None = None, *, mean: bool, weighted: bool = True,
        self_loop: float = 0.0,
    ) -> Adjacency:
        """Return the matrix that sums over the senders of each node, or averages over its edges; on the CPU only.

        Args:
            edge_weight: see `adjacency`.
            weighted: the values of a sparse matrix are weights, not ignored.
            self_loop: weight of self-loops that are added to a sum, also to those that the graph has.
        """
        loops = ADDED if self_loop else NO_LOOPS

        def make(weights: torch.Tensor | None) -> Adjacency:
            if weights is None or not is_differentiated(weights):
                return self._sorted(weights, dtype, loops=loops, scaling=MEAN if mean else UNSCALED,
                                    self_loop=self_loop)
            weights, rows = weights.to(dtype), self.edges.rows
            if mean:
                weights = weights / torch.bincount(rows, minlength=self.nodes).clamp(min=1)[rows]
            added = Normalisation(self_loop, symmetric=False)
            return self._recorded(weights, loops, lambda edges: normalise(
                replace(edges, compressed=True), added, dtype))

        return self._cached((mean, dtype, weighted, self_loop), edge_weight, make, weighted=weighted)

    def _cached(
        self, key: Hashable, edge_weight: torch.Tensor | None, make: Callable[[torch.Tensor | None], Adjacency], *,
        weighted: bool = True,
    ) -> Adjacency:
        """Return what `make` makes of the weights, from the cache if they are those of the last call."""
        if edge_weight is not None:
            checked_edge_weight(edge_weight, self._source.senders.numel(), self._source.compressed, self.device)
        cached_content, adjacency = self._adjacencies.get(key, (None, None))
        if adjacency is not None and cached_content is None and edge_weight is None:
            return adjacency
        weights = edge_weight if edge_weight is not None else self._source.weights if weighted else None
        with _LOCK, torch.inference_mode(False):
            if weights is not None and is_differentiated(weights):
                return make(weights)
            with without_functorch():
                content = content_hash(edge_weight)
                cached_content, adjacency = self._adjacencies.get(key, (None, None))
                if adjacency is None or cached_content != content:
                    adjacency = make(weights)
                    if len(self._adjacencies) >= MAX_MATRICES:
                        self._adjacencies.clear()
                    self._adjacencies[key] = content, adjacency
        return adjacency

    def _sorted(self, weights: torch.Tensor | None, dtype: torch.dtype, *, loops: int, **options: Any) -> Adjacency:
        shape = self.nodes, self.senders
        pattern, values = sorted_matrix(self._source, shape, weights, dtype, loops=loops, **options)
        return Adjacency(pattern, values, self._tiles.get(loops))

    def _recorded(
        self, weights: torch.Tensor | None, loops: int, normalised: Callable[[Edges], Edges],
    ) -> Adjacency:
        """Make a matrix by operations of torch, which autograd records."""
        if loops not in self._patterns:
            with without_functorch():
                edges = normalised(replace(self.edges, weights=None))
                if self._is_fused:
                    source = EdgeSource(edges.rows, edges.cols, None, None, edges.compressed)
                    self._patterns[loops] = sorted_edges(source, (self.nodes, self.senders))
                else:
                    self._patterns[loops] = self._pattern if loops == NO_LOOPS else adjacency_pattern(edges)
        pattern = self._patterns[loops]
        edges = normalised(replace(self.edges, weights=None if weights is None else weights.cpu()))
        return Adjacency(pattern, pattern.values(edges.weights).to(self.device), self._tiles.get(loops))

    def aggregation(
        self, dtype: torch.dtype = torch.float32, edge_weight: torch.Tensor | None = None, *, weighted: bool = True,
    ) -> AggregationMatrices:
        """Return the sorted matrices for aggregation without normalisation; the same object without weights.

        Args:
            edge_weight, weighted: see `aggregating`.
        """
        if edge_weight is not None:
            checked_edge_weight(edge_weight, self._source.senders.numel(), self._source.compressed, self.device)
        edges = self.edges
        plain = edge_weight is None and weighted and (edges.weights is None or not edges.weights.requires_grad)
        with _LOCK:
            if plain and dtype in self._aggregation:
                return self._aggregation[dtype]
            if edge_weight is not None:
                return aggregation_matrices(replace(edges, weights=edge_weight.cpu()), self._pattern, dtype)
            with torch.inference_mode(False), without_functorch():
                made = aggregation_matrices(edges if weighted else replace(edges, weights=None), self._pattern, dtype)
            if plain:
                self._aggregation[dtype] = made
        return made

    @cached_property
    def _pattern(self) -> AdjacencyPattern:
        """Pattern of the matrices for aggregation."""
        with torch.inference_mode(False), without_functorch():
            return adjacency_pattern(self.edges)


def cached_graph(edges: torch.Tensor, nodes: Size, flow: Flow = "source_to_target") -> Graph:
    """Return the graph of this tensor, see `cached_for_edges`."""
    plain = plain_edges(edges, nodes, flow)
    if not isinstance(plain, torch.Tensor) or plain.requires_grad:
        return Graph(plain, nodes, flow=flow)
    return cached_for_edges(edges, plain, (nodes, flow), lambda: (
        Graph.of_memory(plain, nodes, flow) or Graph(plain, nodes, flow=flow)))


def cached_for_edges(edges: Any, plain: torch.Tensor, key: Hashable, make: Callable[[], T]) -> T:
    """Return what is made of edges, cached while their tensor lives and its contents are unchanged.

    The values of a sparse matrix are compared completely, indices as by `sparloom.nn.content_hash.sampled_hash`.

    Args:
        edges: as the user passed them.
        plain: the tensor in them.
        key: what is made.
    """
    with without_functorch(), _LOCK:
        cached = _cache().get(edges)
        if cached is None or not cached.is_unchanged(plain):
            content = _content(plain.detach())
            made = {} if cached is None or cached.content != content else cached.made
            cached = _cache()[edges] = _CachedForEdges(content, made, watchable=plain is edges)
        if key not in cached.made:
            with torch.inference_mode(False):
                cached.made[key] = make()
        return cached.made[key]


class _CachedForEdges:
    """What was made of a tensor with its present content.

    Args:
        made: by key.
        watchable: whether the tensor is what the user holds, so that a few parts of it may be looked at instead of
            hashing it.
    """

    def __init__(self, content: Hashable, made: dict[Hashable, Any], *, watchable: bool) -> None:
        self.content, self.made, self._watchable = content, made, watchable
        self._calls = 0
        self._watch: ChangeDetector | None = None

    def is_unchanged(self, edges: torch.Tensor) -> bool:
        """Tell whether the content is as it was; of one that recurs, whether writes are counted or seen in parts."""
        if self._watch is not None:
            return _state(edges) == self._state and not self._watch.changed()
        self._calls += 1
        unchanged = self.content == _content(edges.detach())
        if unchanged and self._watchable and self._calls >= CALLS_TO_WATCH:
            self._start_watching(edges)
        return unchanged

    def _start_watching(self, edges: torch.Tensor) -> None:
        self._watchable = False
        if edges.layout == torch.strided and edges.is_cpu and not edges.is_inference():
            array = np.from_dlpack(edges.detach())  # `numpy()` would forbid to resize the tensor
            if array.dtype in INDEX_TYPES and array.size and array.flags.c_contiguous:
                self._memory = array  # an alias, which does not keep `edges` alive
                self._state, self._watch = _state(edges), ChangeDetector({"edges": array})


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
def _cache() -> WeakIdKeyDictionary:
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


def check_nodes(x: torch.Tensor, graph: Graph | Adjacency) -> None:
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
