"""The graph convolution of Kipf and Welling as a layer, in place of PyTorch Geometric's.

The GraphSAGE operator as a layer, in place of PyTorch Geometric's.

The graph transformer operator as a layer, in place of PyTorch Geometric's.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch

from sparloom.nn.convolution import Adjacency, DeviceAdjacency
from sparloom.nn.edges import Connections, Normalisation
from sparloom.nn.graph import MESSAGES, Graph, check_channels, check_features, graph_of, neighbours_of
from sparloom.nn.sparse import csr_attention, spmm
from sparloom.nn.torch_integration import Layer, autocast_operands, check_counts, check_flag, eager, is_plain

__all__ = ["GCNConv", "SAGEConv", "TransformerConv"]

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


AGGREGATIONS = ("mean", "sum", "add", "max")


class SAGEConv(Layer):
    """W1 x_i + W2 mean of x_j over the senders j of i, takes the place of torch_geometric.nn.SAGEConv.

    Arguments, initial weights, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. Which sparse kernel aggregates is measured, see `sparloom.nn.spmm`.

    Args:
        in_channels: columns of X. Departure: neither -1 nor a tuple, senders and receivers are the same nodes.
        out_channels: columns of the result.
        aggr: "mean", "sum", also called "add", or "max", of each column; nodes that nobody sends to get 0.
        normalize: rows of the result are divided by their Euclidean norm.
        root_weight: whether there is W1.
        project: senders send relu(W3 x_j + b) in place of x_j.
        bias: whether there is one.

    Raises:
        TypeError, ValueError: an argument that this layer cannot follow; the message says which.

    Source: Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs. Where the result has fewer
    columns than X, W2 is applied before the mean or sum, which so has less to do. Departure: of senders with the same
    largest number one gets all of the gradient, the first; PyTorch Geometric divides it among those of an edge_index.
    """

    sizes = frozenset({"in_channels", "out_channels"})
    only = MESSAGES

    def __init__(
        self, in_channels: int, out_channels: int, aggr: str = "mean", normalize: bool = False,
        root_weight: bool = True, project: bool = False, bias: bool = True,
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        if project:
            self.lin = torch.nn.Linear(in_channels, in_channels)
        self.lin_l = torch.nn.Linear(in_channels, out_channels, bias=bias)
        if root_weight:
            self.lin_r = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.reset_parameters()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse other aggregations, and parts that have no parameters here."""
        if name == "aggr" and value not in AGGREGATIONS:
            raise ValueError(f"aggr={value!r}: this layer has {', '.join(AGGREGATIONS)}")
        part = {"root_weight": "lin_r", "project": "lin"}.get(name)
        if part and name in self.__dict__:
            check_flag(name, value, parameters=part in self._modules)
        return value

    def reset_parameters(self) -> None:
        """Draw the parameters anew, uniformly within 1 / sqrt(in_channels)."""
        for layer in self.children():
            layer.reset_parameters()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | Graph) -> torch.Tensor:
        """Aggregate features over a graph.

        Args:
            x: (nodes, in_channels), float32; under torch.autocast also of half precision.
            edge_index: a Graph, which layers share, or what one is made of, where x is; values of a sparse matrix are
                weights.

        Returns:
            (nodes, out_channels); under torch.autocast of its type, as by PyTorch Geometric.

        Raises:
            TypeError, ValueError: x, graph and layer do not fit together; the message says how.
        """
        connections = neighbours_of(x, edge_index, self.in_channels, self.lin_l)
        sent = self.lin(x).relu() if self.project else x
        result = self._largest(connections, sent) if self.aggr == "max" else self._linear(connections, sent)
        if self.root_weight:
            result = result + self.lin_r(x)
        return torch.nn.functional.normalize(result, dim=-1) if self.normalize else result

    def _largest(self, connections: Connections, sent: torch.Tensor) -> torch.Tensor:
        if connections.maxima is None:
            sender, receiver = connections.repeated
            raise ValueError(f"the edge from {sender} to {receiver} is there more than once, with weights: the largest "
                             "product is not that of their sum, pass a matrix with each once")
        return self.lin_l(spmm(connections.maxima, sent, reduce="max"))

    def _linear(self, connections: Connections, sent: torch.Tensor) -> torch.Tensor:
        if self.aggr not in ("mean", "sum", "add"):
            raise ValueError(f"aggr={self.aggr!r}: this layer has {', '.join(AGGREGATIONS)}")
        matrix = connections.means if self.aggr == "mean" else connections.sums
        if self.in_channels <= self.out_channels or not is_plain(self.lin_l, torch.nn.Linear):
            return self.lin_l(spmm(matrix, sent))
        transformed, bias = sent @ self.lin_l.weight.T, self.lin_l.bias
        result = spmm(matrix, transformed)
        return (result if bias is None else result + bias).to(transformed.dtype)

    def extra_repr(self) -> str:
        """Show the channels."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class TransformerConv(Layer):
    """W1 x_i + attention of node i to its senders, takes the place of torch_geometric.nn.TransformerConv.

    Arguments, initial weights, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. No score is stored on the way forward, see `sparloom.nn.csr_attention`.

    Args:
        in_channels: columns of X. Departure: neither -1 nor a tuple, senders and receivers are the same nodes.
        out_channels: columns of a head.
        heads: at least 1.
        concat: the result has the columns of all heads; otherwise their mean.
        beta: False: there is no gate between W1 x and attention.
        dropout: 0; there is no other.
        edge_dim: None: edges have no features.
        bias: whether projections have one.
        root_weight: whether W1 x is added.

    Raises:
        TypeError, ValueError: an argument that this layer cannot follow; the message says which.

    Source: Shi et al., Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification.
    """

    sizes = frozenset({"in_channels", "out_channels", "heads", "concat"})
    only: ClassVar[Mapping[str, Any]] = {
        **MESSAGES, "aggr": "add", "beta": False, "dropout": 0, "edge_dim": None, "lin_beta": None, "lin_edge": None}

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, beta: bool = False,
        dropout: float = 0.0, edge_dim: int | None = None, bias: bool = True, root_weight: bool = True,
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        check_counts(heads=heads)
        for name, given, only in (("beta", beta, False), ("dropout", dropout, 0), ("edge_dim", edge_dim, None)):
            if given != only:
                raise ValueError(f"{name}={given}: this layer has neither gate, dropout nor edge features: give {only}")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.root_weight = concat, root_weight
        width = heads * out_channels
        self.lin_key = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_query = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_value = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_skip = torch.nn.Linear(in_channels, width if concat else out_channels, bias=bias)
        self.reset_parameters()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse a root weight that is neither added nor left out."""
        if name == "root_weight" and name in self.__dict__:
            check_flag(name, value)
        return value

    def reset_parameters(self) -> None:
        """Draw the parameters anew, uniformly within 1 / sqrt(in_channels)."""
        for layer in self.children():
            layer.reset_parameters()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_attr: None = None) -> torch.Tensor:
        """Let nodes attend to those that send to them.

        Args:
            x: (nodes, in_channels), float32; under torch.autocast also of half precision.
            edge_index: a Graph, which layers share, or what one is made of, where x is; no edge twice. Values of a
                sparse matrix are not read.
            edge_attr: None.

        Returns:
            (nodes, heads * out_channels), or (nodes, out_channels) without `concat`; under torch.autocast of its type,
            as by PyTorch Geometric.

        Raises:
            TypeError, ValueError: x, graph and layer do not fit together; the message says how.
        """
        if edge_attr is not None:
            raise ValueError("edge_attr: this layer has no edge features: leave it out, or use PyTorch Geometric's")
        connections = neighbours_of(x, edge_index, self.in_channels, self.lin_value)
        if connections.repeated is not None:
            sender, receiver = connections.repeated
            raise ValueError(f"the edge from {sender} to {receiver} is there more than once, and attention would weigh "
                             "it once: pass torch.unique(edge_index, dim=1)")
        query, key, value = (layer(x).unflatten(1, (self.heads, self.out_channels))
                             for layer in (self.lin_query, self.lin_key, self.lin_value))
        result = csr_attention(connections.sums, query, key, value).to(value.dtype)
        result = result.flatten(1) if self.concat else result.mean(1)
        return result + self.lin_skip(x) if self.root_weight else result

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
