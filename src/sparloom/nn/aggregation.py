"""Aggregation over the senders of each node: checks of graphs and features, and the operations that compute it.

On the CPU sums and means, with the linear layers around them, are single operations, see `sparloom.nn.convolution`. A
linear layer is applied where features have fewer columns: before the aggregation or after it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from sparloom.nn.convolution import Adjacency
from sparloom.nn.edges import AggregationMatrices, CsrTuple, Flow, is_edge_index, stated_size
from sparloom.nn.graph import Graph, cached_graph, fuses_on
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


@dataclass(frozen=True, eq=False)
class GraphMatrices:
    """The matrices of a graph on the CPU for aggregation, made on demand.

    Args:
        edge_weight, weighted, self_loop: see `Graph.aggregating`.
    """

    graph: Graph
    edge_weight: torch.Tensor | None
    weighted: bool
    self_loop: float = 0.0

    def linear(self, dtype: torch.dtype, aggr: Aggregation) -> Adjacency:
        """Return the matrix that sums or averages."""
        return self.graph.aggregating(dtype, self.edge_weight, mean=aggr == "mean", weighted=self.weighted,
                                      self_loop=self.self_loop)

    def sorted(self, dtype: torch.dtype) -> AggregationMatrices:
        """Return the sorted matrices, which also tell maxima."""
        return self.graph.aggregation(dtype, self.edge_weight, weighted=self.weighted)


Matrices = AggregationMatrices | GraphMatrices


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
    is_compiling = torch.compiler.is_compiling() or dynamo_is_active()
    return _prepare_aggregation(x, edge_index, size, flow=flow, is_compiling=is_compiling, **options)


@eager
def _prepare_aggregation(
    x: Features, edge_index: Any, size: tuple[int | None, int | None] | None, *, flow: Flow, is_compiling: bool,
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
    graph = _graph(source, target, edge_index, size, flow=flow)
    weighted = has_weights or type(edge_index) is torch.Tensor or not hasattr(edge_index, "sparse_sizes")
    matrices = GraphMatrices(graph, _flat(edge_weight), weighted)
    if is_compiling or not fuses_on(graph.device):
        return source, target, matrices.sorted(dtype)
    return source, target, matrices


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
    flow: Flow,
) -> Graph:
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
        graph = cached_graph(edge_index, counts[0] if counts[0] == counts[1] else counts, flow)
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
    if isinstance(matrices, GraphMatrices):
        sent, = autocast_operands(sent)
        if aggr in LINEAR_AGGREGATIONS:
            return matrices.linear(sent.dtype, aggr).aggregate(sent)
        matrices = matrices.sorted(sent.dtype)
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
        if not (_is_fused(matrices, aggr) and has_default_forward(linear, linear_class) and is_product(
                root[0], linear_class)):
            return aggregate_and_transform(matrices, sent, aggr, linear, linear_class) + root[0](root[1])
    if aggr in ("max", "min") or not has_default_forward(linear, linear_class):
        return linear(aggregate(matrices, sent, aggr))
    weight, bias = _weight_and_bias(linear)
    aggregate_first = weight.shape[1] <= weight.shape[0]
    if _is_fused(matrices, aggr):
        return matrices.linear(sent.dtype, aggr).convolve(
            sent, weight, bias, order="aggregate" if aggregate_first else "transform",
            root=None if root is None else root[1], root_weight=None if root is None else root[0].weight)
    if aggregate_first:
        return torch.nn.functional.linear(aggregate(matrices, sent, aggr), weight, bias)
    transformed = sent @ weight.T
    result = aggregate(matrices, transformed, aggr)
    return (result if bias is None else result + bias).to(transformed.dtype)


def _weight_and_bias(linear: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Read both once, as they may be computed; a bias of one number is repeated, as a linear layer does."""
    weight, bias = linear.weight, linear.bias
    return weight, None if bias is None else bias.expand(len(weight))


def _is_fused(matrices: Matrices, aggr: Aggregation) -> bool:
    """Tell whether one operation aggregates and transforms; autocast computes products of layers in half precision."""
    return (isinstance(matrices, GraphMatrices) and aggr in LINEAR_AGGREGATIONS
            and not torch.is_autocast_enabled("cpu"))


def _linear_matrix(matrices: AggregationMatrices, aggr: Aggregation) -> CsrTuple:
    if aggr not in LINEAR_AGGREGATIONS:
        raise ValueError(f"aggr={aggr!r}: expected one of {', '.join(AGGREGATIONS)}")
    return matrices.mean if aggr == "mean" else matrices.sum
