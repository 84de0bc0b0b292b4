"""Graph layers that attend from each node to its senders: drop-in replacements for those of PyTorch Geometric."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch.nn.parameter import UninitializedParameter

from sparloom.nn.attention_edges import (
    FILL_REDUCTIONS,
    AttentionEdges,
    attention_edges,
    given_features,
    is_matrix,
    weighted_edges,
    with_loop_features,
)
from sparloom.nn.edges import is_edge_index, plain_edges, stated_size
from sparloom.nn.graph import Graph
from sparloom.nn.graph_attention import DTYPES, Attended, AttentionOperands, dropout_seed, graph_attention
from sparloom.nn.message_passing import (
    Channels,
    Features,
    GraphLayer,
    LazyLinear,
    channel_pair,
    initialise_lazy,
    is_product,
    linear,
    reset_glorot,
    stored_weight,
)
from sparloom.nn.torch_integration import (
    autocast_operands,
    check_bool,
    check_positive_ints,
    check_real,
    dtype_remedy,
    eager,
)

Wanted = Literal["none", "used", "whole"]


class AttentionLayer(GraphLayer):
    """Base class of layers that attend to senders."""

    fixed_attributes = frozenset({"in_channels", "out_channels", "heads", "concat", "edge_dim"})
    supported_aggregations = ("add", "sum")

    def __init__(
        self, in_channels: Channels, out_channels: int, *, heads: int, concat: bool, edge_dim: int | None,
        dropout: float, **options: Any,
    ) -> None:
        super().__init__(**{"aggr": "add"} | options)
        channel_pair(in_channels, out_channels)
        check_positive_ints(heads=heads)
        if edge_dim not in (None, -1):
            check_positive_ints(edge_dim=edge_dim)
        self.in_channels = tuple(in_channels) if isinstance(in_channels, list) else in_channels
        self.out_channels, self.heads, self.concat, self.edge_dim = out_channels, heads, concat, edge_dim
        self.dropout = dropout

    def validated(self, name: str, value: Any) -> Any:
        """Check options that may change after construction."""
        if name == "dropout":
            check_real(name, value)
            if not 0 <= value <= 1:
                raise ValueError(f"dropout={value}: expected a probability, 0 to 1")
        elif name == "negative_slope":
            check_real(name, value)
        elif name in ("add_self_loops", "share_weights", "root_weight", "concat"):
            check_bool(name, value)
        elif name == "fill_value":
            _check_fill(value)
        elif name == "residual" and name in self.__dict__:
            check_bool(name, value, has_parameters=self.res is not None)
        return super().validated(name, value)

    @eager
    def edges_of(
        self, graph: Any, x_src: torch.Tensor, x_dst: torch.Tensor | None, *, size: Any = None, loops: bool,
    ) -> AttentionEdges:
        """Return the edges of a graph.

        Args:
            size: numbers of senders and receivers, where x does not say.
            loops: with self-loops of nodes that are both.
        """
        if x_src is not x_dst and self.flow == "target_to_source":
            raise ValueError("flow='target_to_source' needs one kind of node: pass edge_index.flip(0) to a layer with "
                             "the default flow")
        senders, receivers = x_src.shape[0], None if x_dst is None else x_dst.shape[0]
        sizes = (None, None) if size is None else tuple(size)
        for name, count, expected in zip(("senders", "receivers"), (senders, receivers), sizes, strict=True):
            if None not in (expected, count) and expected != count:
                raise ValueError(f"x has {count} rows of {name}, but size={sizes} was passed: expected {expected}")
        receivers = sizes[1] if receivers is None else receivers
        plain_edges(graph, (senders, receivers), self.flow)
        if receivers is None:
            receivers = graph.nodes if isinstance(graph, Graph) else stated_size(graph, self.flow)[1]
            if receivers is None or (loops and is_edge_index(graph)):  # which new self-loops enlarge
                receivers = max(senders, receivers or 0)
        return attention_edges(graph, receivers, senders, loops=min(receivers, senders) if loops else 0, flow=self.flow)

    @eager
    def edge_features(self, edge_attr: Any, graph: Any, edges: AttentionEdges) -> torch.Tensor | None:
        """Check features of edges, (edges,) or (edges, edge_dim), and add those of self-loops."""
        if edge_attr is None and self.edge_dim is not None:
            edge_attr = given_features(graph)
        if edge_attr is None:
            return None
        if self.edge_dim is None:
            raise ValueError("edge_attr was passed to a layer without edge features: construct it with edge_dim")
        if not isinstance(edge_attr, torch.Tensor) or edge_attr.layout != torch.strided:
            raise TypeError(f"edge_attr is {type(edge_attr).__name__}: expected a dense tensor (edges, edge_dim)")
        edge_attr, = autocast_operands(edge_attr.unsqueeze(1) if edge_attr.dim() == 1 else edge_attr)
        weight = stored_weight(self.lin_edge)
        wanted = None if weight is None or isinstance(weight, UninitializedParameter) else weight.shape[1]
        if edge_attr.dim() != 2 or edge_attr.shape[0] != edges.given or wanted not in (None, edge_attr.shape[1]):
            raise ValueError(f"edge_attr has shape {tuple(edge_attr.shape)}: expected ({edges.given}, {self.edge_dim})")
        if edges.loops and is_matrix(graph):
            raise ValueError("edge_attr was passed with a sparse matrix, to which self-loops are added: pass "
                             "edge_index, or add the self-loops and their features with add_self_loops=False")
        initialise_lazy(self.lin_edge, edge_attr)
        return with_loop_features(edge_attr, graph, edges, getattr(self, "fill_value", 0.0))

    def attend(
        self, score: Literal["additive", "leaky", "dot"], edges: AttentionEdges, weights: Wanted, **operands: Any,
    ) -> Attended:
        """Attend with dropout while training, see `graph_attention`."""
        dropping = self.training and self.dropout > 0
        return graph_attention(score, edges.order, AttentionOperands(
            **operands, dropout=float(self.dropout) if dropping else 0.0, seed=dropout_seed() if dropping else None),
            weights=weights)

    def kernel_bias(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the bias of concatenated heads, which the kernel adds; None: there is none, or heads are averaged."""
        if self.bias is None or not self.concat:
            return None
        bias = autocast_operands(self.bias)[0].to(dtype)
        return bias.expand(self.heads * self.out_channels).view(self.heads, self.out_channels)

    def joined(self, result: torch.Tensor) -> torch.Tensor:
        """Concatenate or average heads."""
        return result.flatten(1) if self.concat else result.mean(1)

    def with_residual(self, heads: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Join heads; add the residual, and the bias unless the kernel has added it."""
        result = self.joined(heads)
        if residual is not None:
            result = result + residual
        return result if self.bias is None or self.concat else result + self.bias

    def extra_repr(self) -> str:
        """Return the channels and heads."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


def _check_fill(value: Any) -> None:
    if isinstance(value, str):
        if value not in FILL_REDUCTIONS:
            raise ValueError(f"fill_value={value!r}: expected a number, a tensor or one of "
                             f"{', '.join(FILL_REDUCTIONS)}")
    elif not isinstance(value, torch.Tensor):
        check_real("fill_value", value)


def pair_of(x: Features) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the features of senders and of receivers, the same object unless they were passed as a pair."""
    if not isinstance(x, tuple):
        return x, x
    if len(x) != 2:
        raise TypeError(f"x has {len(x)} parts: expected features of senders and of receivers")
    return x[0], x[1]


@eager
def check_nodes_of(x: Any, layer: torch.nn.Module) -> None:
    """Check features of nodes, (nodes, channels), which a linear layer transforms."""
    weight = stored_weight(layer)
    lazy = isinstance(weight, UninitializedParameter)
    channels = None if weight is None or lazy else weight.shape[1]
    shape = f"(nodes, {'in_channels' if channels is None else channels})"
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        kind = f"a tensor of layout {x.layout}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x is {kind}: expected a dense tensor {shape}")
    if x.device.type != "cpu":
        raise ValueError(f"x is on {x.device}: only CPU tensors are supported: pass x.cpu(), or use PyTorch "
                         "Geometric's layer")
    dtype = autocast_operands(x)[0].dtype
    if dtype not in DTYPES:
        raise TypeError(f"x is {x.dtype}, but this layer computes in torch.float32 or torch.float64: "
                        f"{dtype_remedy(x, 'pass x.float()')}")
    if weight is not None and not lazy and autocast_operands(weight)[0].dtype != dtype:
        raise TypeError(f"x is {x.dtype} and the weight {weight.dtype}: both must be float32, or both float64: use "
                        f"layer.to({x.dtype})")
    if x.dim() != 2 or channels not in (None, x.shape[1]):
        raise ValueError(f"x has shape {tuple(x.shape)}: expected {shape}")


def _reset_glorot(layer: torch.nn.Linear) -> None:
    """Draw the weight as Glorot and Bengio do, and the bias uniformly within 1 / sqrt(inputs)."""
    reset_glorot(layer)
    if layer.bias is not None:
        limit = 1 / math.sqrt(layer.in_features)
        torch.nn.init.uniform_(layer.bias, -limit, limit)


def _glorot_linear(in_channels: int, out_channels: int, *, bias: bool = False) -> torch.nn.Linear:
    return linear(in_channels, out_channels, bias=bias, reset=_reset_glorot)


def _reset_glorot_layers(*layers: torch.nn.Module | None) -> None:
    """Draw the parameters of linear layers, except those of lazy ones, whose widths are unknown."""
    for layer in layers:
        if layer is not None and not isinstance(layer, LazyLinear):
            _reset_glorot(layer)


def _glorot(tensor: torch.Tensor | None) -> None:
    if tensor is not None:
        limit = math.sqrt(6 / (tensor.shape[-2] + tensor.shape[-1]))
        torch.nn.init.uniform_(tensor, -limit, limit)


class GATConv(AttentionLayer):
    """Weighted sums of W x_j over the senders j of i, a drop-in replacement for torch_geometric.nn.GATConv.

    Weights are a softmax over the senders of leaky(a1 . W x_j + a2 . W x_i + a3 . W3 e_ij), by head. Arguments,
    initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients agree up to
    rounding. No messages are stored, see `sparloom.nn.graph_attention`.

    Args:
        in_channels: columns of X; a tuple: those of senders and of receivers; -1: those of the first call.
        dropout: probability with which the weight of an edge in a head is 0 while training. Departure: masks are drawn
            in another way; for the same seed of torch they differ from PyTorch Geometric's, with the same distribution.
        edge_dim: columns of the features of edges; W3 is applied to a3 instead of every edge.
        fill_value: features of self-loops: a number, a tensor, or how to reduce those of other edges of the receiver.
        residual: add W4 x_i.
        options: `flow`, see `Graph`; other options of PyTorch Geometric's MessagePassing must have their defaults.

    Source: Velickovic et al., Graph Attention Networks.
    """

    def __init__(
        self, in_channels: Channels, out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True, edge_dim: int | None = None,
        fill_value: float | torch.Tensor | str = "mean", bias: bool = True, residual: bool = False, **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads=heads, concat=concat, edge_dim=edge_dim, dropout=dropout,
                         **options)
        senders, receivers = channel_pair(in_channels, out_channels)
        self.negative_slope, self.add_self_loops = negative_slope, add_self_loops
        self.fill_value, self.residual = fill_value, residual
        width = heads * out_channels
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(self.in_channels, tuple):
            self.lin_src = _glorot_linear(senders, width)
            self.lin_dst = _glorot_linear(receivers, width)
        else:
            self.lin = _glorot_linear(senders, width)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None
        self.register_parameter("att_edge", None)
        if edge_dim is not None:
            self.lin_edge = _glorot_linear(edge_dim, width)
            self.att_edge = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        total = width if concat else out_channels
        self.res = _glorot_linear(receivers, total) if residual else None
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(total)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weights (Glorot) and the bias (0)."""
        _reset_glorot_layers(self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res)
        for parameter in (self.att_src, self.att_dst, self.att_edge):
            _glorot(parameter)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self, x: Features, edge_index: torch.Tensor | Graph, edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None, return_attention_weights: bool | None = None,
    ) -> Any:
        """Attend from each node to its senders.

        Args:
            x: (nodes, in_channels), float32 or float64 like the weights, under torch.autocast also float16 or bfloat16;
                or a pair for a bipartite graph, whose receivers may be None.
            edge_index: a Graph, which layers share, or edges, see `Graph`; those that occur several times count
                separately, and the values of a sparse matrix are ignored.
            edge_attr: (edges, edge_dim) in the order of edge_index.
            size: senders and receivers, where x does not say.
            return_attention_weights: True: also return the edges and their weights, (edges, heads).

        Returns:
            (receivers, heads * out_channels), or (receivers, out_channels) without `concat`; float32 under
            torch.autocast.
        """
        x_src, x_dst = pair_of(x)
        first, second = (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)
        check_nodes_of(x_src, first)
        if x_dst is not None:
            check_nodes_of(x_dst, second)
        edges = self.edges_of(edge_index, x_src, x_dst, size=size, loops=self.add_self_loops)
        residual = None if not self.residual or x_dst is None else self.res(x_dst)
        sent = first(x_src)
        shared = x_src is x_dst and first is second and (x is x_src or is_product(first, self.linear_class))
        received = sent if shared else None if x_dst is None else second(x_dst)
        values, targets, att_src, att_dst = autocast_operands(
            sent.unflatten(1, (self.heads, self.out_channels)), None if received is sent or received is None
            else received.unflatten(1, (self.heads, self.out_channels)), self.att_src, self.att_dst)
        factors = att_src if received is None else torch.cat(
            (att_src, att_dst) if att_src.shape == att_dst.shape else torch.broadcast_tensors(att_src, att_dst))
        attended = self.attend(
            "additive", edges, "used" if return_attention_weights else "none", values=values, targets=targets,
            slope=self.negative_slope, factors=factors, bias=self.kernel_bias(values.dtype),
            edge_scores=self._edge_scores(edge_attr, edge_index, edges))
        result = self.with_residual(attended.values, residual)
        return (result, weighted_edges(edge_index, edges, attended.weights)) if return_attention_weights else result

    def _edge_scores(self, edge_attr: Any, graph: Any, edges: AttentionEdges) -> torch.Tensor | None:
        """Compute a3 . W3 e of all edges as (a3 W3) e, so that nothing is as wide as the heads are together."""
        features = self.edge_features(edge_attr, graph, edges)
        if features is None:
            return None
        if not is_product(self.lin_edge, self.linear_class):
            features, att_edge = autocast_operands(self.lin_edge(features), self.att_edge)
            return (features.unflatten(1, (self.heads, self.out_channels)) * att_edge).sum(-1)
        weight, att_edge = autocast_operands(self.lin_edge.weight, self.att_edge)
        folded = (weight.unflatten(0, (self.heads, self.out_channels)) * att_edge[0].unsqueeze(2)).sum(1)
        return exact_product(features, folded.T)


def exact_product(left: torch.Tensor, right: torch.Tensor, equation: str = "ij,jk->ik") -> torch.Tensor:
    """Multiply as torch.einsum does, in the dtype of the operands also under torch.autocast."""
    with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
        return left @ right if equation == "ij,jk->ik" else torch.einsum(equation, left, right)


class GATv2Conv(AttentionLayer):
    """Weighted sums of W1 x_j over the senders j of i, a drop-in replacement for torch_geometric.nn.GATv2Conv.

    Weights are a softmax over the senders of a . leaky(W1 x_j + W2 x_i + W3 e_ij), by head. Arguments, initialisation,
    names and shapes of parameters are those of PyTorch Geometric; results and gradients agree up to rounding. No
    messages are stored: W3 e_ij is computed in the kernel, in the forward pass and again in the backward pass, see
    `sparloom.nn.graph_attention`.

    Args:
        share_weights: W1 = W2.
        in_channels, dropout, edge_dim, fill_value, residual, options: as of `GATConv`.

    Source: Brody, Alon and Yahav, How Attentive are Graph Attention Networks?
    """

    fixed_attributes = AttentionLayer.fixed_attributes | {"share_weights"}

    def __init__(
        self, in_channels: Channels, out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True, edge_dim: int | None = None,
        fill_value: float | torch.Tensor | str = "mean", bias: bool = True, share_weights: bool = False,
        residual: bool = False, **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads=heads, concat=concat, edge_dim=edge_dim, dropout=dropout,
                         **options)
        senders, receivers = channel_pair(in_channels, out_channels)
        self.negative_slope, self.add_self_loops = negative_slope, add_self_loops
        self.fill_value, self.residual, self.share_weights = fill_value, residual, share_weights
        width = heads * out_channels
        self.lin_l = _glorot_linear(senders, width, bias=bias)
        self.lin_r = self.lin_l if share_weights else _glorot_linear(receivers, width, bias=bias)
        self.att = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else _glorot_linear(edge_dim, width)
        total = width if concat else out_channels
        self.res = _glorot_linear(receivers, total) if residual else None
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(total)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weights (Glorot), their biases (within 1 / sqrt(in_channels)) and the bias (0)."""
        _reset_glorot_layers(self.lin_l, self.lin_r, self.lin_edge, self.res)
        _glorot(self.att)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self, x: Features, edge_index: torch.Tensor | Graph, edge_attr: torch.Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Attend from each node to its senders.

        Args:
            x: (nodes, in_channels), or a pair for a bipartite graph; dtypes as of `GATConv.forward`.
            edge_index, edge_attr, return_attention_weights: as of `GATConv.forward`.

        Returns:
            As `GATConv.forward`.
        """
        x_l, x_r = pair_of(x)
        check_nodes_of(x_l, self.lin_l)
        check_nodes_of(x_r, self.lin_r)
        edges = self.edges_of(edge_index, x_l, x_r, loops=self.add_self_loops)
        residual = self.res(x_r) if self.residual else None
        sent = self.lin_l(x_l)
        received = sent if self.share_weights and x is x_l else self.lin_r(x_r)
        features = self.edge_features(edge_attr, edge_index, edges)
        sent, received, att = autocast_operands(sent, received, self.att)
        attended = self.attend(
            "leaky", edges, "used" if return_attention_weights else "none", slope=self.negative_slope, factors=att,
            bias=self.kernel_bias(sent.dtype),
            values=sent.unflatten(1, (self.heads, self.out_channels)),
            targets=received.unflatten(1, (self.heads, self.out_channels)),
            **self.transformed_edges(features))
        result = self.with_residual(attended.values, residual)
        return (result, weighted_edges(edge_index, edges, attended.weights)) if return_attention_weights else result

    def transformed_edges(self, features: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return features of edges and the weight, (edge_dim, heads, width), by which the kernel multiplies them."""
        if features is None:
            return {}
        features, weight = factors_of(self.lin_edge, features, self.linear_class)
        return {"edge_features": features, "edge_weight": weight.T.unflatten(1, (self.heads, self.out_channels))}


def factors_of(
    layer: torch.nn.Module, features: torch.Tensor, linear_class: type[torch.nn.Module],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return F and W of what a layer computes, F W^T: its input and weight, or else its result and the identity."""
    if is_product(layer, linear_class):
        return features, autocast_operands(layer.weight)[0]
    features, = autocast_operands(layer(features))
    return features, torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
