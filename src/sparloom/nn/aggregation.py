"""Aggregation over the senders of each node: checks of graphs and features, and the operations that compute it.

Sums and means of a graph that layers were not given as a `Graph` run by the operations of fresh graphs. A linear layer
is applied where features have fewer columns: before the aggregation or after it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from sparloom.nn.edges import (
    AggregationMatrices,
    CsrTuple,
    Flow,
    aggregation_matrices,
    check_weights,
    is_edge_index,
    stated_size,
)
from sparloom.nn.fresh_graph import FreshGraph, FreshMatrices
from sparloom.nn.graph import Graph, cached_graph, recurring_graph
from sparloom.nn.message_passing import (
    AGGREGATIONS,
    Aggregation,
    Features,
    initialise_lazy,
    is_product,
    stored_weight,
)
from sparloom.nn.sparse import spmm
from sparloom.nn.torch_integration import (
    SUPPORTED_DEVICES,
    autocast_operands,
    dtype_remedy,
    dynamo_is_active,
    eager,
    has_default_forward,
)

DTYPES = {"cpu": (torch.float32, torch.float64), "cuda": (torch.float32,)}  # by device type
LINEAR_AGGREGATIONS = ("mean", "sum", "add")

Matrices = AggregationMatrices | FreshMatrices


def prepare_aggregation(
    x: Features, edge_index: Any, size: tuple[int | None, int | None] | None = None, *, flow: Flow, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, Matrices]:
    """Check the arguments of a layer.

    Args:
        x: (nodes, channels), or those of senders and of receivers, float32 or, on the CPU, float64.
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
    dtype = _checked_dtype(source, linear)
    graph = _graph(source, target, edge_index, size, flow=flow, find=find)
    weighted = has_weights or type(edge_index) is torch.Tensor or not hasattr(edge_index, "sparse_sizes")
    recurs = find is recurring_graph and isinstance(graph, Graph) and graph.fresh is not None
    if recurs or isinstance(graph, FreshGraph):
        def prepared() -> AggregationMatrices:
            return _prepare_aggregation(x, edge_index, size, flow=flow, find=cached_graph, linear=linear,
                                        edge_weight=edge_weight, has_weights=has_weights)[2]

        fresh = graph.fresh if recurs else graph
        return source, target, FreshMatrices(fresh, _flat(edge_weight), weighted, prepared)
    if edge_weight is None:
        if weighted:
            return source, target, graph.aggregation(dtype)
        return source, target, aggregation_matrices(replace(graph.edges, weights=None), graph.pattern(), dtype)
    check_weights(edge_weight, "edge_weight")
    if graph.edges.compressed:
        raise ValueError("edge_weight was passed with a sparse matrix: put the weights into the matrix")
    edge_weight = _flat(edge_weight)
    if edge_weight.shape != graph.edges.rows.shape:
        raise ValueError(f"edge_weight has shape {tuple(edge_weight.shape)} for {graph.edges.rows.numel()} edges: "
                         "expected one weight per edge")
    edges = replace(graph.edges, weights=edge_weight.cpu())
    return source, target, aggregation_matrices(edges, graph.pattern(), dtype)


def _flat(edge_weight: Any) -> Any:
    """Return weights (edges, 1) as (edges,), as PyTorch Geometric accepts them."""
    is_column = isinstance(edge_weight, torch.Tensor) and edge_weight.dim() == 2 and edge_weight.shape[1] == 1
    return edge_weight.reshape(-1) if is_column else edge_weight


def _checked_dtype(x: Any, linear: torch.nn.Module | None) -> torch.dtype:
    """Check the features of senders and return the dtype of products with them."""
    weight = None if linear is None else stored_weight(linear)
    channels = weight.shape[1] if weight is not None and not isinstance(weight, UninitializedParameter) else None
    expected = f"(nodes, {'in_channels' if channels is None else channels})"
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        kind = f"a tensor of layout {x.layout}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x is {kind}: expected a dense tensor {expected}")
    converted, = autocast_operands(x)
    if x.device.type not in SUPPORTED_DEVICES:
        raise ValueError(f"x is on {x.device}: only CPU and CUDA tensors are supported: pass x.cpu() or x.cuda()")
    if converted.dtype not in DTYPES[x.device.type]:
        supported = " or ".join(map(str, DTYPES[x.device.type]))
        raise TypeError(f"x is {x.dtype}, but this layer computes in {supported}: "
                        f"{dtype_remedy(x, 'pass x.float()')}")
    if weight is not None and autocast_operands(weight)[0].dtype != converted.dtype:
        raise TypeError(f"x is {x.dtype}, but the weight is {weight.dtype}: use layer.to({x.dtype}), or pass x.float() "
                        "to a layer of float32")
    if x.dim() != 2 or channels not in (None, x.shape[1]):
        raise ValueError(f"x has shape {tuple(x.shape)}: expected {expected}")
    return converted.dtype


def _graph(
    source: torch.Tensor, target: torch.Tensor | None, edge_index: Any, size: tuple[int | None, int | None] | None, *,
    flow: Flow, find: Callable[..., Any],
) -> Graph | FreshGraph:
    """Find the graph and check that it has a node for each row of the features."""
    sizes = (None, None) if size is None else tuple(size)
    if size is None and target is None and is_edge_index(edge_index):
        sizes = stated_size(edge_index, flow)
    counts = source.shape[0], sizes[1] if target is None else target.shape[0]
    for name, count, expected in zip(("senders", "receivers"), counts, sizes, strict=True):
        if expected not in (None, count):
            raise ValueError(f"x has {count} rows of {name}, but size={sizes} was passed: expected {expected}")
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


def aggregate(
    matrices: Matrices, sent: torch.Tensor, aggr: Aggregation,
) -> torch.Tensor:
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
        if _is_fused(matrices, sent, aggr) and has_default_forward(linear, linear_class) and is_product(
                root[0], linear_class):
            adjacency = matrices.adjacency(sent.dtype, mean=aggr == "mean")
            (weight, bias), root_weight = _weight_and_bias(linear), root[0].weight
            return adjacency.convolve_with_root(sent, weight, bias, root=root[1], root_weight=root_weight,
                                                aggregate_first=weight.shape[1] <= weight.shape[0])
        return aggregate_and_transform(matrices, sent, aggr, linear, linear_class) + root[0](root[1])
    if aggr in ("max", "min") or not has_default_forward(linear, linear_class):
        return linear(aggregate(matrices, sent, aggr))
    weight, bias = _weight_and_bias(linear)
    aggregate_first = weight.shape[1] <= weight.shape[0]
    if _is_fused(matrices, sent, aggr):
        adjacency = matrices.adjacency(sent.dtype, mean=aggr == "mean")
        return adjacency.convolve(sent, weight, bias, aggregate_first=aggregate_first)
    if aggregate_first:
        return torch.nn.functional.linear(aggregate(matrices, sent, aggr), weight, bias)
    transformed = sent @ weight.T
    result = aggregate(matrices, transformed, aggr)
    return (result if bias is None else result + bias).to(transformed.dtype)


def _weight_and_bias(linear: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Read both once, as they may be computed; a bias of one number is repeated, as a linear layer does."""
    weight, bias = linear.weight, linear.bias
    return weight, None if bias is None else bias.expand(len(weight))


def _is_fused(matrices: Matrices, sent: torch.Tensor, aggr: Aggregation) -> bool:
    """Tell whether one operation aggregates and transforms; autocast computes products of layers in half precision."""
    return (isinstance(matrices, FreshMatrices) and aggr in LINEAR_AGGREGATIONS
            and not torch.is_autocast_enabled("cpu"))


def _linear_matrix(matrices: AggregationMatrices, aggr: Aggregation) -> CsrTuple:
    if aggr not in LINEAR_AGGREGATIONS:
        raise ValueError(f"aggr={aggr!r}: expected one of {', '.join(AGGREGATIONS)}")
    return matrices.mean if aggr == "mean" else matrices.sum
