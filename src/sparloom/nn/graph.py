"""A graph that layers share: where its edges are, and what was made of them for each normalisation and type."""

from dataclasses import replace
from threading import RLock
from typing import Any, get_args

import torch

from sparloom.forks import forkable
from sparloom.jit import ResultPool
from sparloom.nn.connections import Connections, connections_of
from sparloom.nn.convolution import Adjacency
from sparloom.nn.derivatives import is_followed, outside_transforms
from sparloom.nn.device_convolution import DeviceAdjacency
from sparloom.nn.edges import Edges, check_weights, edges_of
from sparloom.nn.normalise import Normalisation, normalised
from sparloom.nn.propagation import Planning, Propagation
from sparloom.nn.structure import Structure, structure_of
from sparloom.nn.unchanged import Unchanged
from sparloom.tuning import Fuse, PlanCache

__all__ = ["Graph"]

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
