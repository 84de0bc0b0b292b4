"""The graph convolution of Kipf and Welling as a layer, in place of PyTorch Geometric's."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch

from sparloom.nn.autocast import autocast_operands
from sparloom.nn.convolution import Adjacency
from sparloom.nn.device_convolution import DeviceAdjacency
from sparloom.nn.eager import eager
from sparloom.nn.graph import Graph
from sparloom.nn.hooks import is_plain
from sparloom.nn.known import graph_of
from sparloom.nn.neighbours import MESSAGES, check_channels, check_features
from sparloom.nn.normalise import Normalisation
from sparloom.nn.transforms import Layer

__all__ = ["GCNConv"]

First = Literal["auto", "transform", "aggregate"]
TYPES = {"cpu": (torch.float32, torch.float64), "cuda": (torch.float32,)}  # of numbers, by device


class GCNConv(Layer):
    """D^-1/2 (A + I) D^-1/2 X W^T + b, takes the place of torch_geometric.nn.GCNConv.

    Arguments, initial weights, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. On the CPU the sparse and the dense product are fused, forward and backward.

    Args:
        in_channels: columns of X; not -1.
        out_channels: columns of the result.
        improved: A + 2 I. Departure: also for an edge_index without weights, where PyTorch Geometric 2.8 takes A + I.
        cached: keep the first normalised matrix for good, whatever graph is given later. Without it the same tensors,
            unwritten, are not normalised twice either.
        add_self_loops: as `normalize` unless given.
        normalize: otherwise the matrix is taken as it is.
        bias: whether there is b.
        first: "transform": A (X W^T), on the CPU planned by `sparloom.tuning.plan_pair`; "aggregate": (A X) W^T,
            where A X is kept and saves a sparse product backward; "auto": the latter unless the result has fewer
            columns than X.

    Copies and pickles take the cached matrix with them, as numbers: weights of edges do not learn through it there.

    Raises:
        TypeError: channels of two kinds of nodes.
        ValueError: channels below 1, self-loops without normalisation, or an unknown `first`.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks; Loop Fusion in Matrix
    Multiplications with Sparse Dependence, §6.1, which transforms first.
    """

    sizes = frozenset({"in_channels", "out_channels"})
    only: ClassVar[Mapping[str, Any]] = {**MESSAGES, "aggr": "add"}

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, cached: bool = False,
        add_self_loops: bool | None = None, normalize: bool = True, bias: bool = True, *, first: First = "auto",
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        if first not in get_args(First):
            raise ValueError(f"first={first!r} is not one of {', '.join(get_args(First))}")
        add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self._check_self_loops()
        self.aggregate_first = in_channels <= out_channels if first == "auto" else first == "aggregate"
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def accepted(self, name: str, value: Any) -> Any:
        """Forget the cached matrix where another one is wanted now."""
        if name in ("improved", "add_self_loops", "normalize") and value is not self.__dict__.get(name):
            self._cached = None
        return value

    def reset_parameters(self) -> None:
        """Draw the weights anew (Glorot), set the bias to 0 and forget the cached matrix."""
        limit = math.sqrt(6 / (self.in_channels + self.out_channels))
        torch.nn.init.uniform_(self.lin.weight, -limit, limit)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._cached: Adjacency | DeviceAdjacency | None = None

    @eager
    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Convolve features over a graph.

        Args:
            x: (nodes, in_channels), float32 or, on the CPU, float64 as the weights; under torch.autocast also of half
                precision.
            edge_index: a Graph, which layers share, or what one is made of, where x is.
            edge_weight: (edges,) beside edge_index; ones unless given.

        Returns:
            (nodes, out_channels), a tensor of its own, of the type of x; float32 under torch.autocast.

        Raises:
            TypeError, ValueError: x, graph and layer do not fit together; the message says how.
        """
        check_features(x, self.in_channels)
        x, weight, bias = autocast_operands(x.resolve_neg(), self.lin.weight.resolve_neg(), self.bias)
        _check_features(x, weight, bias)
        adjacency = self._cached
        if adjacency is None:
            graph = edge_index if isinstance(edge_index, Graph) else graph_of(edge_index, x.shape[0])
            adjacency = graph.adjacency(self.normalisation, x.dtype, edge_weight)
            if self.cached and self.normalize:
                self._cached = adjacency
        if x.shape[0] != adjacency.nodes:
            raise ValueError(f"x has {x.shape[0]} rows for a graph of {adjacency.nodes} nodes: give one row per node")
        if x.device != adjacency.device:
            raise ValueError(f"x on {x.device} and the graph on {adjacency.device}: make the graph of "
                             "edge_index.to(x.device)")
        if adjacency.dtype != x.dtype:
            adjacency = self._cached = adjacency.to(x.dtype)
        aggregate_first = self.aggregate_first
        if not is_plain(self.lin, torch.nn.Linear):  # a call may make the weight anew, or do more than multiply
            x, = autocast_operands(self.lin(x))
            weight, aggregate_first = torch.eye(x.shape[1], dtype=x.dtype, device=x.device), True
        return adjacency.convolve(x, weight, bias, aggregate_first=aggregate_first)

    @property
    def normalisation(self) -> Normalisation:
        """What this layer makes of an adjacency matrix."""
        self._check_self_loops()
        return Normalisation((2.0 if self.improved else 1.0) if self.add_self_loops else 0.0, self.normalize)

    def _check_self_loops(self) -> None:
        if self.add_self_loops and not self.normalize:
            raise ValueError("add_self_loops without normalize: add them to the graph and give add_self_loops=False, "
                             "or normalise")

    def extra_repr(self) -> str:
        """Show the channels."""
        return f"{self.in_channels}, {self.out_channels}"


def _check_features(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.device != weight.device or x.device.type not in TYPES:
        raise ValueError(f"x on {x.device} and weights on {weight.device}: this layer computes where both are, on the "
                         "CPU or an NVIDIA GPU: move one of them")
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}: it must be (nodes, {weight.shape[1]})")
    if x.dtype != weight.dtype or x.dtype not in TYPES[x.device.type]:
        raise TypeError(f"x of {x.dtype} and weights of {weight.dtype}: both must be float32, or both float64"
                        f"{'' if x.device.type == 'cpu' else ', on the CPU'}")
    if bias is not None and (bias.dtype != x.dtype or bias.device != x.device):
        raise TypeError(f"bias of {bias.dtype} on {bias.device} and x of {x.dtype} on {x.device}: both must be of one "
                        f"type, on one device: use layer.to({x.dtype})")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}: it must be ({weight.shape[0]},)")
