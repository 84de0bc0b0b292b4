"""A graph that layers share: where its edges are, and what was made of them for each normalisation and type.

Graphs of tensors that layers have seen: layers that get one tensor share what was made of it.

What layers that aggregate over a graph are given: features, and a graph in any of its forms.
"""

from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from numbers import Integral
from threading import RLock
from typing import Any, get_args

import torch
from torch.utils.weak import WeakIdKeyDictionary

from sparloom.forks import forkable
from sparloom.jit import ResultPool
from sparloom.nn.convolution import Adjacency, DeviceAdjacency, Planning, Propagation
from sparloom.nn.custom_ops import is_followed, outside_transforms
from sparloom.nn.edges import (
    Connections,
    Edges,
    Normalisation,
    Structure,
    check_weights,
    connections_of,
    edges_of,
    normalised,
    structure_of,
)
from sparloom.nn.torch_integration import DEVICES, autocast_operands, eager, remedy
from sparloom.nn.version_guard import Unchanged, content_of, indices_of
from sparloom.tuning import Fuse, PlanCache

__all__ = ["MESSAGES", "Graph", "check_channels", "check_features", "graph_of", "neighbours_of"]

FUSED = ("cpu",)  # devices on which the products of a convolution are
NO_WEIGHTS = Unchanged.of(None)
KEPT_SHARE = 1 / 8  # of the memory of the machine, for products of one graph that are no more


class Graph:
    """A graph, for layers of any widths; schedules are made at the first use and serve all of them.

    Layers compute on the device that it was given on. It is sorted and normalised on the CPU, once; weights that learn
    travel there and back in every step. Copies and pickles hold the edges alone, weights as numbers that do not learn.

    Args:
        edges: edge_index, (2, edges) integers with senders above receivers, or a sparse matrix (nodes, nodes) in CSR or
            COO with a row for each receiver; on the CPU or an NVIDIA GPU. What is changed in it later is not seen.
        nodes: one more than the largest number in edge_index unless given.
        fuse: "auto", "never" or "always", see `sparloom.tuning.plan_pair`; "never" keeps all products apart, as they
            are on a GPU.
        cache: where decisions about fusion are kept; the folder of this user unless given.

    Raises:
        TypeError, ValueError: what was given is no graph; the message says why.
    """

    def __init__(
        self, edges: torch.Tensor, nodes: int | None = None, *, fuse: Fuse = "auto", cache: PlanCache | None = None,
    ) -> None:
        if fuse not in get_args(Fuse):
            raise ValueError(f"fuse={fuse!r}: give one of {', '.join(get_args(Fuse))}")
        self.edges = edges_of(edges, nodes)
        self._planning = Planning(fuse, cache)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold; they make schedules and normalised matrices of their own."""
        return {"edges": self.edges, "_planning": self._planning}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Start with nothing made."""
        self._pool = ResultPool(KEPT_SHARE)
        self._structures: dict[bool, tuple[Structure, Propagation, Propagation]] = {}
        self._adjacencies: dict[tuple[Normalisation, torch.dtype], tuple[Unchanged, Adjacency | DeviceAdjacency]] = {}
        self._connections: Connections | None = None
        self._lock = forkable(RLock())  # a finaliser may interrupt a call of the same thread

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.edges.nodes

    @property
    def device(self) -> torch.device:
        """Where layers compute."""
        return self.edges.device

    def adjacency(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor | None = None,
    ) -> Adjacency | DeviceAdjacency:
        """Give the normalised matrix; the same object again for the same weights, unless they need a gradient.

        Args:
            edge_weight: (edges,), beside edge_index only; ones unless given.

        Raises:
            ValueError: another number of weights, weights beside a sparse matrix, which has its own, or elsewhere.
        """
        edges = self.edges
        if edge_weight is not None:
            check_weights(edge_weight, "edge_weight")
            if edges.compressed:
                raise ValueError("edge_weight beside a sparse matrix: put the weights into the matrix")
            if edge_weight.shape != edges.rows.shape:
                raise ValueError(f"edge_weight has shape {tuple(edge_weight.shape)} for {edges.rows.numel()} edges: "
                                 f"give one per edge")
            if edge_weight.layout != torch.strided:
                raise TypeError(f"edge_weight of layout {edge_weight.layout}: give a dense tensor, one number per edge")
            if edge_weight.device != self.device:
                raise ValueError(f"edge_weight on {edge_weight.device} and the graph on {self.device}: move one of "
                                 "them")
            edges = replace(edges, weights=edge_weight.cpu())
        with self._lock:
            if edges.weights is not None and is_followed(edges.weights):
                with torch.inference_mode(False):
                    return self._made(normalised(edges, normalisation, dtype), normalisation.self_loop != 0)
            before, made = self._adjacencies.get((normalisation, dtype), (None, None))
            if before == NO_WEIGHTS and edge_weight is None:
                return made
            with torch.inference_mode(False), outside_transforms():
                held = Unchanged.of(edge_weight)
                if before != held:
                    made = self._made(normalised(edges, normalisation, dtype), normalisation.self_loop != 0)
                    self._adjacencies[normalisation, dtype] = held, made
        return made

    def connections(self) -> Connections:
        """Give the edges as they are, for layers that aggregate; the same object again, unless weights learn."""
        with self._lock:
            if self._connections is not None:
                return self._connections
            with torch.inference_mode(False), outside_transforms():
                made = connections_of(self.edges, self._parts(self.edges, looped=False)[0])
            if self.edges.weights is None or not self.edges.weights.requires_grad:
                self._connections = made
        return made

    def _made(self, edges: Edges, looped: bool) -> Adjacency | DeviceAdjacency:
        structure, forward, backward = self._parts(edges, looped=looped)
        values = structure.values(edges.weights)
        if self.device.type not in FUSED:
            return DeviceAdjacency(structure.operand(values))
        return Adjacency(values, structure.turned, forward, backward)

    def _parts(self, edges: Edges, *, looped: bool) -> tuple[Structure, Propagation, Propagation]:
        """Sort the edges of a normalised matrix, once."""
        if looped not in self._structures:
            with outside_transforms():
                structure = structure_of(edges)
            forward = Propagation(structure.pattern, self._planning, self._pool)
            same = structure.transposed is structure.pattern
            backward = forward if same else Propagation(structure.transposed, self._planning, self._pool)
            self._structures[looped] = structure, forward, backward
        return self._structures[looped]


def graph_of(edges: torch.Tensor, nodes: int) -> Graph:
    """Give the graph that was made of this tensor, as long as it lives and holds what it held, or make it.

    Values of a sparse matrix are compared as a whole, indices as `sparloom.nn.version_guard.indices_of` says.
    """
    if not isinstance(edges, torch.Tensor) or edges.requires_grad:
        return Graph(edges, nodes)
    with outside_transforms(), _lock():
        held = _content(edges)
        before, graph = _graphs().get(edges, (None, None))
        if graph is None or graph.nodes != nodes or before != held:
            graph = Graph(edges, nodes)
            _graphs()[edges] = held, graph
    return graph


def _content(edges: torch.Tensor) -> Hashable:
    if edges.layout == torch.sparse_csr:
        return indices_of(edges.crow_indices(), edges.col_indices()), content_of(edges.values())
    if edges.layout == torch.sparse_coo:
        return edges.is_coalesced(), indices_of(edges._indices()), content_of(edges._values())
    return indices_of(edges) if edges.layout == torch.strided else None


@cache
def _graphs() -> WeakIdKeyDictionary:
    return WeakIdKeyDictionary()


@cache
def _lock() -> AbstractContextManager[bool]:
    return forkable(RLock())  # a finaliser may interrupt a call of the same thread


MESSAGES = {
    "flow": "source_to_target", "node_dim": -2, "aggr_module": None, "message": None, "aggregate": None, "update": None,
    "propagate": None, "message_and_aggregate": None, "edge_update": None,
}
"""Attributes by which layers of PyTorch Geometric pass messages, and the one value that ours know."""


def check_channels(in_channels: int, out_channels: int) -> None:
    """Refuse what is not one number of columns for all nodes.

    Raises:
        TypeError: a tuple, for two kinds of nodes.
        ValueError: below 1.
    """
    if isinstance(in_channels, bool) or not isinstance(in_channels, Integral):
        raise TypeError(f"in_channels={in_channels!r}: this layer has one kind of nodes: give an int")
    if isinstance(out_channels, bool) or not isinstance(out_channels, Integral):
        raise TypeError(f"out_channels={out_channels!r}: give an int")
    if min(in_channels, out_channels) < 1:
        raise ValueError(f"{in_channels} input and {out_channels} output channels: give at least 1 of each")


def check_features(x: torch.Tensor, channels: int) -> None:
    """Refuse features of several kinds of nodes, and what is no dense tensor.

    Raises:
        TypeError: x is one of them.
    """
    if isinstance(x, tuple):
        raise TypeError(f"x is a tuple of {len(x)}: this layer has one kind of nodes: give one dense "
                        f"tensor, (nodes, {channels})")
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        what = f"layout {x.layout}" if isinstance(x, torch.Tensor) else f"type {type(x).__name__}"
        raise TypeError(f"x of {what}: give a dense tensor, (nodes, {channels})")


@eager
def neighbours_of(
    x: torch.Tensor, edge_index: torch.Tensor | Graph, channels: int, linear: torch.nn.Linear,
) -> Connections:
    """Find the connections between the nodes that features belong to.

    Args:
        x: (nodes, channels) float32.
        edge_index: a Graph, or what one is made of, where x is.
        linear: a layer whose weights multiply x.

    Raises:
        TypeError, ValueError: they do not fit together; the message says how.
    """
    check_features(x, channels)
    x, = autocast_operands(x)
    if x.device.type not in DEVICES:
        raise ValueError(f"x on {x.device}: this layer computes on the CPU and on NVIDIA GPUs: use .cpu() or .cuda()")
    if x.dtype != torch.float32:
        raise TypeError(f"x of {x.dtype}: this layer computes in torch.float32: {remedy(x, 'use .float()')}")
    weight = linear._parameters.get("weight")  # not the attribute, which a parametrization would compute once more
    if weight is not None and autocast_operands(weight)[0].dtype != torch.float32:
        raise TypeError(f"weights of {weight.dtype}: this layer computes in torch.float32: use layer.float()")
    if x.dim() != 2 or x.shape[1] != channels:
        raise ValueError(f"x has shape {tuple(x.shape)}: it must be (nodes, {channels})")
    graph = edge_index if isinstance(edge_index, Graph) else graph_of(edge_index, x.shape[0])
    if x.shape[0] != graph.nodes:
        raise ValueError(f"x has {x.shape[0]} rows for a graph of {graph.nodes} nodes: give one row per node")
    if x.device != graph.device:
        raise ValueError(f"x on {x.device} and the graph on {graph.device}: make the graph of edge_index.to(x.device)")
    return graph.connections()
