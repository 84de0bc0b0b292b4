"""What graph layers share: options of PyTorch Geometric's MessagePassing, lazy sizes, and aggregation over senders."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Literal, get_args

import torch
from torch.nn.parameter import UninitializedParameter

from sparloom.nn.edges import AggregationMatrices, CsrTuple, Flow, aggregation_matrices, check_weights
from sparloom.nn.fresh_graph import FreshGraph, FreshMatrices
from sparloom.nn.graph import MESSAGE_PASSING_DEFAULTS, Graph, cached_graph, recurring_graph
from sparloom.nn.sparse import spmm
from sparloom.nn.torch_integration import (
    SUPPORTED_DEVICES,
    CompiledModule,
    autocast_operands,
    dtype_remedy,
    dynamo_is_active,
    eager,
    has_default_forward,
)

Aggregation = Literal["mean", "sum", "add", "max", "min"]
AGGREGATIONS = get_args(Aggregation)
LINEAR_AGGREGATIONS = ("mean", "sum", "add")

Features = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]
"""Of all nodes, or of senders and receivers; receivers without features have None."""
Channels = int | tuple[int, int]
"""Columns of the features; -1: as many as those of the first call have."""


class GraphLayer(CompiledModule):
    """Base class of layers that aggregate features of the senders of each node.

    Args:
        flow: "target_to_source": receivers are above senders in edge_index.
        options: other options of PyTorch Geometric's MessagePassing; only their defaults are supported.
    """

    required_attributes: ClassVar[Mapping[str, Any]] = {
        **{name: value for name, value in MESSAGE_PASSING_DEFAULTS.items() if name != "flow"}, "decomposed_layers": 1,
        "aggr_kwargs": None}
    supported_aggregations: ClassVar[tuple[str, ...]] = AGGREGATIONS
    linear_class: ClassVar[type[torch.nn.Module]] = torch.nn.Linear
    """Of the submodules whose weights are read without calling them."""

    def __init__(self, *, flow: Flow = "source_to_target", **options: Any) -> None:
        super().__init__()
        self.flow = flow
        for name, value in options.items():
            if name not in self.required_attributes and name != "aggr":
                raise TypeError(f"{type(self).__name__} has no argument {name!r}")
            setattr(self, name, value)

    def validated(self, name: str, value: Any) -> Any:
        """Refuse unsupported aggregations and flows."""
        if name == "aggr" and (not isinstance(value, str) or value not in self.supported_aggregations):
            raise ValueError(f"aggr={value!r}: expected one of {', '.join(self.supported_aggregations)}")
        if name == "flow" and value not in get_args(Flow):
            raise ValueError(f"flow={value!r}: expected one of {', '.join(get_args(Flow))}")
        return value

    def reset_parameters(self) -> None:
        """Reset the parameters of the linear layers, uniformly within 1 / sqrt(in_channels)."""
        for layer in self.children():
            layer.reset_parameters()


def channel_pair(in_channels: Any, out_channels: Any) -> tuple[int, int]:
    """Check the numbers of channels and return those of senders and receivers."""
    pair = tuple(in_channels) if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
    if len(pair) != 2 or any(isinstance(each, bool) or not isinstance(each, Integral) for each in pair):
        raise TypeError(f"in_channels={in_channels!r}: expected an int, or those of senders and of receivers")
    if isinstance(out_channels, bool) or not isinstance(out_channels, Integral):
        raise TypeError(f"out_channels={out_channels!r}: expected an int")
    if out_channels < 1 or any(each < 1 and each != -1 for each in pair):
        raise ValueError(f"in_channels={in_channels}, out_channels={out_channels}: all must be at least 1; in_channels "
                         "may be -1, the columns of the first features")
    return pair


class LazyLinear(torch.nn.LazyLinear):
    """A linear layer of unknown width; the first call makes it a torch.nn.Linear with weights drawn by `reset`."""

    def __init__(self, out_features: int, bias: bool, reset: Callable[[torch.nn.Linear], None] | None) -> None:
        super().__init__(out_features, bias)
        self.reset = reset

    def reset_parameters(self) -> None:
        """Draw the parameters, once the width is known."""
        if self.has_uninitialized_params() or self.in_features == 0:
            return
        if getattr(self, "reset", None) is None:
            super().reset_parameters()
        else:
            self.reset(self)


def linear(
    in_channels: int, out_channels: int, *, bias: bool, reset: Callable[[torch.nn.Linear], None] | None = None,
) -> torch.nn.Linear:
    """Make a linear layer, a lazy one if in_channels is -1.

    Args:
        reset: draws its weights when the width becomes known (default: as torch.nn.Linear).
    """
    if in_channels == -1:
        return LazyLinear(out_channels, bias, reset)
    return torch.nn.Linear(in_channels, out_channels, bias=bias)


def reset_glorot(layer: torch.nn.Linear) -> None:
    """Draw the weight as Glorot and Bengio do."""
    limit = math.sqrt(6 / sum(layer.weight.shape))
    torch.nn.init.uniform_(layer.weight, -limit, limit)


def initialise_lazy(layer: torch.nn.Module, x: torch.Tensor | None) -> None:
    """Give a lazy linear layer the width of the features that it will be applied to; does nothing to others."""
    if isinstance(stored_weight(layer), UninitializedParameter) and x is not None:
        layer(x.detach()[:0])


def stored_weight(layer: torch.nn.Module) -> torch.Tensor | None:
    """Return the weight of a linear layer; None if a parametrization computes it, which is done once per call."""
    return layer._parameters.get("weight", layer.__dict__.get("weight"))


Matrices = AggregationMatrices | FreshMatrices


def prepare_aggregation(
    x: Features, edge_index: Any, size: tuple[int | None, int | None] | None = None, *, flow: Flow, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, Matrices]:
    """Check the arguments of a layer.

    Args:
        x: (nodes, channels), or those of senders and of receivers, float32.
        edge_index: a Graph, or edges to make one from, on the device of x.
        size: numbers of senders and receivers (default: rows of x).
        linear: a submodule whose weight multiplies features of senders.
        edge_weight: (edges,), with edge_index only (default: ones).
        has_weights: the values of a SparseTensor are weights, not ignored; those of other matrices always are.

    Returns:
        Features of senders and of receivers, and the matrices of the graph.
    """
    find = cached_graph if torch.compiler.is_compiling() or dynamo_is_active() else recurring_graph
    return _prepare_aggregation(x, edge_index, size, flow=flow, find=find, **options)


@eager
def _prepare_aggregation(
    x: Features, edge_index: Any, size: tuple[int | None, int | None] | None, *, flow: Flow, find: Callable[..., Any],
    linear: torch.nn.Module | None = None, edge_weight: torch.Tensor | None = None, has_weights: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, Matrices]:
    bipartite = isinstance(x, tuple)
    if bipartite and len(x) != 2:
        raise TypeError(f"x has {len(x)} parts: expected features of senders and of receivers")
    if bipartite and flow == "target_to_source":
        raise ValueError("flow='target_to_source' needs one kind of node: pass edge_index.flip(0) to a layer with the "
                         "default flow")
    source, target = x if bipartite else (x, x)
    _check_features(source, linear)
    graph = _graph(source, target, edge_index, size, flow=flow, find=find)
    weighted = has_weights or type(edge_index) is torch.Tensor or not hasattr(edge_index, "sparse_sizes")
    if isinstance(graph, FreshGraph):
        def prepared() -> AggregationMatrices:
            return _prepare_aggregation(x, edge_index, size, flow=flow, find=cached_graph, linear=linear,
                                        edge_weight=edge_weight, has_weights=has_weights)[2]

        return source, target, FreshMatrices(graph, _flat(edge_weight), weighted, prepared)
    if edge_weight is None:
        if weighted:
            return source, target, graph.aggregation()
        return source, target, aggregation_matrices(replace(graph.edges, weights=None), graph.pattern())
    check_weights(edge_weight, "edge_weight")
    if graph.edges.compressed:
        raise ValueError("edge_weight was passed with a sparse matrix: put the weights into the matrix")
    edge_weight = _flat(edge_weight)
    if edge_weight.shape != graph.edges.rows.shape:
        raise ValueError(f"edge_weight has shape {tuple(edge_weight.shape)} for {graph.edges.rows.numel()} edges: "
                         "expected one weight per edge")
    edges = replace(graph.edges, weights=edge_weight.cpu())
    return source, target, aggregation_matrices(edges, graph.pattern())


def _flat(edge_weight: Any) -> Any:
    """Return weights (edges, 1) as (edges,), as PyTorch Geometric accepts them."""
    is_column = isinstance(edge_weight, torch.Tensor) and edge_weight.dim() == 2 and edge_weight.shape[1] == 1
    return edge_weight.reshape(-1) if is_column else edge_weight


def _check_features(x: Any, linear: torch.nn.Module | None) -> None:
    """Check the features of senders."""
    weight = None if linear is None else stored_weight(linear)
    channels = weight.shape[1] if weight is not None and not isinstance(weight, UninitializedParameter) else None
    expected = f"(nodes, {'in_channels' if channels is None else channels})"
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        kind = f"a tensor of layout {x.layout}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x is {kind}: expected a dense tensor {expected}")
    converted, = autocast_operands(x)
    if x.device.type not in SUPPORTED_DEVICES:
        raise ValueError(f"x is on {x.device}: only CPU and CUDA tensors are supported: pass x.cpu() or x.cuda()")
    if converted.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}, but this layer computes in torch.float32: "
                        f"{dtype_remedy(x, 'pass x.float()')}")
    if weight is not None and autocast_operands(weight)[0].dtype != torch.float32:
        raise TypeError(f"the weight is {weight.dtype}, but this layer computes in torch.float32: use layer.float()")
    if x.dim() != 2 or channels not in (None, x.shape[1]):
        raise ValueError(f"x has shape {tuple(x.shape)}: expected {expected}")


def _graph(
    source: torch.Tensor, target: torch.Tensor | None, edge_index: Any, size: tuple[int | None, int | None] | None, *,
    flow: Flow, find: Callable[..., Any],
) -> Graph | FreshGraph:
    """Find the graph and check that it has a node for each row of the features."""
    given = (None, None) if size is None else tuple(size)
    if size is None and target is None and hasattr(edge_index, "sparse_size"):  # an EdgeIndex
        given = edge_index.sparse_size()
    counts = source.shape[0], given[1] if target is None else target.shape[0]
    for name, count, wanted in zip(("senders", "receivers"), counts, given, strict=True):
        if wanted not in (None, count):
            raise ValueError(f"x has {count} rows of {name}, but size={given} was passed: expected {wanted}")
    if isinstance(edge_index, Graph):
        graph = edge_index
    else:
        if counts[1] is None and getattr(edge_index, "layout", None) == torch.strided:
            counts = source.shape[0], source.shape[0]
        graph = find(edge_index, counts[0] if counts[0] == counts[1] else counts, flow)
    if graph.senders != source.shape[0] or (target is not None and graph.nodes != target.shape[0]):
        if graph.senders == graph.nodes and target is source:
            raise ValueError(f"x has {source.shape[0]} rows, but the graph has {graph.nodes} nodes: expected one row "
                             "per node")
        rows = source.shape[0], None if target is None else target.shape[0]
        raise ValueError(f"x has {rows[0]} rows of senders and {rows[1]} of receivers, but the graph has "
                         f"{graph.senders} senders and {graph.nodes} receivers")
    if source.device != graph.device:
        raise ValueError(f"x is on {source.device} and the graph on {graph.device}: make the graph from "
                         "edge_index.to(x.device)")
    return graph


def aggregate(matrices: Matrices, sent: torch.Tensor, aggr: Aggregation) -> torch.Tensor:
    """Aggregate features of senders, (senders, width), to (receivers, width); 0 for nodes without senders.

    The gradient of a maximum or minimum goes to the first of several equal senders.
    """
    if isinstance(matrices, FreshMatrices):
        if aggr in LINEAR_AGGREGATIONS:
            sent, = autocast_operands(sent)
            adjacency = matrices.adjacency(sent.dtype, mean=aggr == "mean")
            return adjacency.matmul(sent, adjacency.values)
        matrices = matrices.prepared()
    if aggr in ("max", "min"):
        if matrices.max is None:
            sender, receiver = matrices.duplicate_edge
            raise ValueError(f"the edge from {sender} to {receiver} occurs more than once, with weights, of which the "
                             "maximum is ambiguous: pass a matrix with each edge once")
        return spmm(matrices.max, sent, reduce="max") if aggr == "max" else -spmm(matrices.max, -sent, reduce="max")
    return spmm(_linear_matrix(matrices, aggr), sent)


def aggregate_and_transform(
    matrices: Matrices, sent: torch.Tensor, aggr: Aggregation, linear: torch.nn.Module,
    linear_class: type[torch.nn.Module] = torch.nn.Linear,
    root: tuple[torch.nn.Module, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Apply a linear layer to aggregated features; before the aggregation if the result has fewer columns.

    Args:
        linear_class: whose forward only applies the weight and the bias.
        root: another linear layer, and features of receivers that it is applied to; its result is added.
    """
    if root is not None:
        initialise_lazy(*root)
        if _is_fused(matrices, aggr) and root[0].bias is None and all(
                has_default_forward(layer, linear_class) for layer in (linear, root[0])):
            weight = linear.weight
            return matrices.adjacency(sent.dtype, mean=aggr == "mean").convolve_with_root(
                sent, weight, linear.bias, root=root[1], root_weight=root[0].weight,
                aggregate_first=weight.shape[1] <= weight.shape[0])
        return aggregate_and_transform(matrices, sent, aggr, linear, linear_class) + root[0](root[1])
    if aggr in ("max", "min") or not has_default_forward(linear, linear_class):
        return linear(aggregate(matrices, sent, aggr))
    weight, bias = linear.weight, linear.bias
    aggregate_first = weight.shape[1] <= weight.shape[0]
    if _is_fused(matrices, aggr):
        adjacency = matrices.adjacency(sent.dtype, mean=aggr == "mean")
        return adjacency.convolve(sent, weight, bias, aggregate_first=aggregate_first)
    if aggregate_first:
        return torch.nn.functional.linear(aggregate(matrices, sent, aggr), weight, bias)
    transformed = sent @ weight.T
    result = aggregate(matrices, transformed, aggr)
    return (result if bias is None else result + bias).to(transformed.dtype)


def _is_fused(matrices: Matrices, aggr: Aggregation) -> bool:
    """Tell whether one operation aggregates and transforms; autocast computes products of layers in half precision."""
    return isinstance(matrices, FreshMatrices) and aggr in LINEAR_AGGREGATIONS and not torch.is_autocast_enabled("cpu")


def _linear_matrix(matrices: AggregationMatrices, aggr: Aggregation) -> CsrTuple:
    if aggr not in LINEAR_AGGREGATIONS:
        raise ValueError(f"aggr={aggr!r}: expected one of {', '.join(AGGREGATIONS)}")
    return matrices.mean if aggr == "mean" else matrices.sum
