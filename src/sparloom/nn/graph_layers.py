"""Graph layers: drop-in replacements for those of PyTorch Geometric."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch

from sparloom.nn.convolution import Adjacency, DeviceAdjacency
from sparloom.nn.edges import AggregationMatrices, Normalisation
from sparloom.nn.graph import (
    MESSAGE_PASSING_DEFAULTS,
    Graph,
    aggregation_inputs,
    cached_graph,
    check_channels,
    check_features,
    check_nodes,
)
from sparloom.nn.sparse import csr_attention, spmm
from sparloom.nn.torch_integration import (
    CompiledModule,
    autocast_operands,
    check_bool,
    check_positive_ints,
    eager,
    has_default_forward,
)

First = Literal["auto", "transform", "aggregate"]
GCN_DTYPES = {"cpu": (torch.float32, torch.float64), "cuda": (torch.float32,)}  # by device type

AGGREGATIONS = ("mean", "sum", "add", "max")


class GCNConv(CompiledModule):
    """D^-1/2 (A + I) D^-1/2 X W^T + b, a drop-in replacement for torch_geometric.nn.GCNConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. On the CPU the sparse and the dense product are fused, forward and backward.

    Args:
        in_channels: columns of X; -1 is not supported.
        improved: A + 2 I. Departure: also for an edge_index without weights, where PyTorch Geometric 2.8 uses A + I.
        cached: keep the first normalised matrix for all later calls, whatever graph they pass. Without it a matrix is
            still normalised once per tensor, until the tensor is written to.
        first: "transform": A (X W^T), on the CPU planned by `sparloom.tuning.plan_pair`; "aggregate": (A X) W^T,
            where A X is saved and spares a sparse product in the backward pass; "auto": "aggregate" unless the result
            has fewer columns than X.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels"})
    required_attributes: ClassVar[Mapping[str, Any]] = {**MESSAGE_PASSING_DEFAULTS, "aggr": "add"}

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, cached: bool = False,
        add_self_loops: bool | None = None, normalize: bool = True, bias: bool = True, *, first: First = "auto",
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        if first not in get_args(First):
            raise ValueError(f"first={first!r}: expected one of {', '.join(get_args(First))}")
        add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self._check_self_loops()
        self.aggregate_first = in_channels <= out_channels if first == "auto" else first == "aggregate"
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def validated(self, name: str, value: Any) -> Any:
        """Drop the cached matrix if it would be normalised differently now."""
        if name in ("improved", "add_self_loops", "normalize") and value is not self.__dict__.get(name):
            self._cached = None
        return value

    def reset_parameters(self) -> None:
        """Reset the weight (Glorot) and the bias (0), and drop the cached matrix."""
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
            x: (nodes, in_channels), float32 or, on the CPU, float64 like the weight; under torch.autocast also float16
                or bfloat16.
            edge_index: a Graph, which layers share, or edges to make one from, on the device of x.
            edge_weight: (edges,), with edge_index only (default: ones).

        Returns:
            (nodes, out_channels) of the dtype of x; float32 under torch.autocast.
        """
        check_features(x, self.in_channels)
        x, weight, bias = autocast_operands(x.resolve_neg(), self.lin.weight.resolve_neg(), self.bias)
        _check_features(x, weight, bias)
        adjacency = self._cached
        if adjacency is None:
            graph = edge_index if isinstance(edge_index, Graph) else cached_graph(edge_index, x.shape[0])
            adjacency = graph.adjacency(self.normalisation, x.dtype, edge_weight)
            if self.cached and self.normalize:
                self._cached = adjacency
        check_nodes(x, adjacency)
        if adjacency.dtype != x.dtype:
            adjacency = self._cached = adjacency.to(x.dtype)
        aggregate_first = self.aggregate_first
        if not has_default_forward(self.lin, torch.nn.Linear):  # calling it may recompute the weight, or more
            x, = autocast_operands(self.lin(x))
            weight, aggregate_first = torch.eye(x.shape[1], dtype=x.dtype, device=x.device), True
        return adjacency.convolve(x, weight, bias, aggregate_first=aggregate_first)

    @property
    def normalisation(self) -> Normalisation:
        """Return how this layer normalises the adjacency matrix."""
        self._check_self_loops()
        return Normalisation((2.0 if self.improved else 1.0) if self.add_self_loops else 0.0, self.normalize)

    def _check_self_loops(self) -> None:
        if self.add_self_loops and not self.normalize:
            raise ValueError("add_self_loops=True needs normalize=True: normalize, or add the self-loops to the "
                             "graph and pass add_self_loops=False")

    def extra_repr(self) -> str:
        """Return the channels."""
        return f"{self.in_channels}, {self.out_channels}"


def _check_features(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.device != weight.device or x.device.type not in GCN_DTYPES:
        raise ValueError(f"x is on {x.device} and the weight on {weight.device}: both must be on the same CPU or CUDA "
                         "device")
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (nodes, {weight.shape[1]})")
    if x.dtype != weight.dtype or x.dtype not in GCN_DTYPES[x.device.type]:
        raise TypeError(f"x is {x.dtype} and the weight {weight.dtype}: both must be float32, or both float64"
                        f"{'' if x.device.type == 'cpu' else ', on the CPU'}")
    if bias is not None and (bias.dtype != x.dtype or bias.device != x.device):
        raise TypeError(f"the bias is {bias.dtype} on {bias.device} and x {x.dtype} on {x.device}: dtypes and devices "
                        f"must match: use layer.to({x.dtype})")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"the bias has shape {tuple(bias.shape)}: expected ({weight.shape[0]},)")


class _AggregatingLayer(CompiledModule):
    """Base class of layers whose parameters are those of their linear layers."""

    def reset_parameters(self) -> None:
        """Reset the parameters, uniformly within 1 / sqrt(in_channels)."""
        for layer in self.children():
            layer.reset_parameters()


class SAGEConv(_AggregatingLayer):
    """W1 x_i + W2 mean of x_j over the senders j of i, a drop-in replacement for torch_geometric.nn.SAGEConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. The kernel that aggregates is chosen by measurement, see `sparloom.nn.spmm`.

    Args:
        in_channels: columns of X. Departure: -1 and tuples (bipartite graphs) are not supported.
        aggr: "mean", "sum" or its alias "add", or "max", of each column; 0 for nodes without senders.
        project: replace x_j by relu(W3 x_j + b).

    Source: Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs. If the result has fewer
    columns than X, W2 is applied before the mean or sum, which then costs less. Departure: the gradient of a maximum
    goes to the first of several equal senders; PyTorch Geometric divides it among them if the graph is an edge_index.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels"})
    required_attributes = MESSAGE_PASSING_DEFAULTS

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

    def validated(self, name: str, value: Any) -> Any:
        """Refuse unsupported aggregations, and parts whose parameters do not exist."""
        if name == "aggr" and value not in AGGREGATIONS:
            raise ValueError(f"aggr={value!r}: expected one of {', '.join(AGGREGATIONS)}")
        part = {"root_weight": "lin_r", "project": "lin"}.get(name)
        if part and name in self.__dict__:
            check_bool(name, value, has_parameters=part in self._modules)
        return value

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | Graph) -> torch.Tensor:
        """Aggregate features over a graph.

        Args:
            x: (nodes, in_channels), float32; under torch.autocast also float16 or bfloat16.
            edge_index: a Graph, which layers share, or edges to make one from, on the device of x; the values of a
                sparse matrix are weights.

        Returns:
            (nodes, out_channels); under torch.autocast of its dtype, as in PyTorch Geometric.
        """
        matrices = aggregation_inputs(x, edge_index, self.in_channels, self.lin_l)
        sent = self.lin(x).relu() if self.project else x
        result = self._max(matrices, sent) if self.aggr == "max" else self._linear(matrices, sent)
        if self.root_weight:
            result = result + self.lin_r(x)
        return torch.nn.functional.normalize(result, dim=-1) if self.normalize else result

    def _max(self, matrices: AggregationMatrices, sent: torch.Tensor) -> torch.Tensor:
        if matrices.max is None:
            sender, receiver = matrices.duplicate_edge
            raise ValueError(f"the edge from {sender} to {receiver} occurs more than once, with weights, of which the "
                             "maximum is ambiguous: pass a matrix with each edge once")
        return self.lin_l(spmm(matrices.max, sent, reduce="max"))

    def _linear(self, matrices: AggregationMatrices, sent: torch.Tensor) -> torch.Tensor:
        if self.aggr not in ("mean", "sum", "add"):
            raise ValueError(f"aggr={self.aggr!r}: expected one of {', '.join(AGGREGATIONS)}")
        matrix = matrices.mean if self.aggr == "mean" else matrices.sum
        if self.in_channels <= self.out_channels or not has_default_forward(self.lin_l, torch.nn.Linear):
            return self.lin_l(spmm(matrix, sent))
        transformed, bias = sent @ self.lin_l.weight.T, self.lin_l.bias
        result = spmm(matrix, transformed)
        return (result if bias is None else result + bias).to(transformed.dtype)

    def extra_repr(self) -> str:
        """Return the channels and the aggregation."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class TransformerConv(_AggregatingLayer):
    """W1 x_i + attention from node i to its senders, a drop-in replacement for torch_geometric.nn.TransformerConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. The forward pass stores no scores, see `sparloom.nn.csr_attention`.

    Args:
        in_channels: columns of X. Departure: -1 and tuples (bipartite graphs) are not supported.
        beta, dropout, edge_dim: False, 0 and None only: gates, dropout and edge features are not supported.

    Source: Shi et al., Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels", "heads", "concat"})
    required_attributes: ClassVar[Mapping[str, Any]] = {
        **MESSAGE_PASSING_DEFAULTS, "aggr": "add", "beta": False, "dropout": 0, "edge_dim": None, "lin_beta": None,
        "lin_edge": None}

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, beta: bool = False,
        dropout: float = 0.0, edge_dim: int | None = None, bias: bool = True, root_weight: bool = True,
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        check_positive_ints(heads=heads)
        for name, value, supported in (("beta", beta, False), ("dropout", dropout, 0), ("edge_dim", edge_dim, None)):
            if value != supported:
                raise ValueError(f"{name}={value}: gates, dropout and edge features are not supported: pass "
                                 f"{supported}")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.root_weight = concat, root_weight
        width = heads * out_channels
        self.lin_key = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_query = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_value = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_skip = torch.nn.Linear(in_channels, width if concat else out_channels, bias=bias)
        self.reset_parameters()

    def validated(self, name: str, value: Any) -> Any:
        """Check the type of root_weight."""
        if name == "root_weight" and name in self.__dict__:
            check_bool(name, value)
        return value

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_attr: None = None) -> torch.Tensor:
        """Attend from each node to its senders.

        Args:
            x: (nodes, in_channels), float32; under torch.autocast also float16 or bfloat16.
            edge_index: a Graph, which layers share, or edges to make one from, on the device of x; without duplicate
                edges. The values of a sparse matrix are ignored.
            edge_attr: None only.

        Returns:
            (nodes, heads * out_channels), or (nodes, out_channels) without `concat`; under torch.autocast of its dtype,
            as in PyTorch Geometric.
        """
        if edge_attr is not None:
            raise ValueError("edge_attr: edge features are not supported: omit it, or use PyTorch Geometric's layer")
        matrices = aggregation_inputs(x, edge_index, self.in_channels, self.lin_value)
        if matrices.duplicate_edge is not None:
            sender, receiver = matrices.duplicate_edge
            raise ValueError(f"the edge from {sender} to {receiver} occurs more than once, but attention would count "
                             "it once: pass torch.unique(edge_index, dim=1)")
        query, key, value = (layer(x).unflatten(1, (self.heads, self.out_channels))
                             for layer in (self.lin_query, self.lin_key, self.lin_value))
        result = csr_attention(matrices.sum, query, key, value).to(value.dtype)
        result = result.flatten(1) if self.concat else result.mean(1)
        return result + self.lin_skip(x) if self.root_weight else result

    def extra_repr(self) -> str:
        """Return the channels and heads."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
