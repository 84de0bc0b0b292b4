"""Graph layers that sum, average or maximise features of senders: drop-in replacements of PyTorch Geometric's."""

from dataclasses import replace
from typing import Any

import torch

from sparloom.nn.aggregation import (
    GraphMatrices,
    Matrices,
    aggregate,
    aggregate_and_transform,
    prepare_aggregation,
)
from sparloom.nn.custom_ops import is_differentiated
from sparloom.nn.message_passing import (
    Aggregation,
    Channels,
    Features,
    GraphLayer,
    channel_pair,
    initialise_lazy,
    linear,
)
from sparloom.nn.torch_integration import check_bool, has_default_forward

Size = tuple[int | None, int | None] | None
Prepared = tuple[torch.Tensor, torch.Tensor | None, Matrices]
"""Features of senders and of receivers, and the matrices of the graph."""


class SAGEConv(GraphLayer):
    """W1 x_i + W2 mean of x_j over the senders j of i, a drop-in replacement for torch_geometric.nn.SAGEConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding.

    Args:
        in_channels: columns of X; a tuple: those of senders and of receivers; -1: those of the first call.
        aggr: "mean", "sum" or its alias "add", "max" or "min", of each column; 0 for nodes without senders. Departure:
            modules and lists of aggregations are not supported.
        project: replace x_j by relu(W3 x_j + b).
        options: `flow`, see `Graph`; other options of PyTorch Geometric's MessagePassing must have their defaults.

    Source: Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs. If the result has fewer
    columns than X, W2 is applied before the mean or sum, which then costs less. Departure: the gradient of a maximum
    goes to the first of several equal senders; PyTorch Geometric divides it among them if the graph is an edge_index.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels"})

    def __init__(
        self, in_channels: Channels, out_channels: int, aggr: Aggregation = "mean", normalize: bool = False,
        root_weight: bool = True, project: bool = False, bias: bool = True, **options: Any,
    ) -> None:
        super().__init__(**options)
        senders, receivers = channel_pair(in_channels, out_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        if project:
            if senders == -1:
                raise ValueError("in_channels=-1 with project=True: the projection needs a known width: pass it")
            self.lin = torch.nn.Linear(senders, senders)
        self.lin_l = linear(senders, out_channels, bias=bias)
        if root_weight:
            self.lin_r = linear(receivers, out_channels, bias=False)
        self.reset_parameters()

    def validated(self, name: str, value: Any) -> Any:
        """Refuse unsupported aggregations, and parts whose parameters do not exist."""
        part = {"root_weight": "lin_r", "project": "lin"}.get(name)
        if part and name in self.__dict__:
            check_bool(name, value, has_parameters=part in self._modules)
        return super().validated(name, value)

    def forward(self, x: Features, edge_index: Any, size: Size = None) -> torch.Tensor:
        """Aggregate features over a graph.

        Args:
            x: (nodes, in_channels), float32 or, on the CPU, float64 like the weights; under torch.autocast also float16
                or bfloat16. A tuple: features of senders and of receivers of a bipartite graph; receivers may have
                none, None.
            edge_index: a Graph, which layers share, or edges to make one from, on the device of x; the values of a
                sparse matrix are weights.
            size: numbers of senders and receivers (default: rows of x).

        Returns:
            (receivers, out_channels); under torch.autocast of its dtype, as in PyTorch Geometric.
        """
        return self.convolve(*self.prepare(x, edge_index, size))

    def prepare(self, x: Features, edge_index: Any, size: Size = None) -> Prepared:
        """Check the arguments of `forward`; return what `convolve` takes."""
        return prepare_aggregation(x, edge_index, size, flow=self.flow, linear=self.lin_l)

    def convolve(
        self, source: torch.Tensor, target: torch.Tensor | None, matrices: Matrices,
    ) -> torch.Tensor:
        """Compute the result from checked arguments."""
        sent = self.lin(source).relu() if self.project and "lin" in self._modules else source
        initialise_lazy(self.lin_l, sent)
        root = (self.lin_r, target) if self.root_weight and target is not None else None
        result = aggregate_and_transform(matrices, sent, self.aggr, self.lin_l, self.linear_class, root)
        return torch.nn.functional.normalize(result, dim=-1) if self.normalize else result

    def extra_repr(self) -> str:
        """Return the channels and the aggregation."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GraphConv(GraphLayer):
    """W1 x_i + W2 sum of e_ji x_j over the senders j of i, a drop-in replacement for torch_geometric.nn.GraphConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding.

    Args:
        in_channels, aggr, options: as of `SAGEConv`.

    Source: Morris et al., Weisfeiler and Leman Go Neural: Higher-order Graph Neural Networks. Departure: as in
    `SAGEConv` for maxima; edges that occur more than once must not have weights then.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels"})

    def __init__(
        self, in_channels: Channels, out_channels: int, aggr: Aggregation = "add", bias: bool = True, **options: Any,
    ) -> None:
        super().__init__(**options)
        senders, receivers = channel_pair(in_channels, out_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.lin_rel = linear(senders, out_channels, bias=bias)
        self.lin_root = linear(receivers, out_channels, bias=False)
        self.reset_parameters()

    def forward(
        self, x: Features, edge_index: Any, edge_weight: torch.Tensor | None = None, size: Size = None,
    ) -> torch.Tensor:
        """Aggregate features over a graph.

        Args:
            x, edge_index, size: as of `SAGEConv`.
            edge_weight: (edges,), with edge_index only (default: ones).

        Returns:
            (receivers, out_channels).
        """
        return self.convolve(*self.prepare(x, edge_index, edge_weight, size))

    def prepare(
        self, x: Features, edge_index: Any, edge_weight: torch.Tensor | None = None, size: Size = None,
    ) -> Prepared:
        """Check the arguments of `forward`; return what `convolve` takes."""
        return prepare_aggregation(x, edge_index, size, flow=self.flow, linear=self.lin_rel, edge_weight=edge_weight,
                                   has_weights=True)

    def convolve(
        self, source: torch.Tensor, target: torch.Tensor | None, matrices: Matrices,
    ) -> torch.Tensor:
        """Compute the result from checked arguments."""
        initialise_lazy(self.lin_rel, source)
        root = None if target is None else (self.lin_root, target)
        return aggregate_and_transform(matrices, source, self.aggr, self.lin_rel, self.linear_class, root)

    def extra_repr(self) -> str:
        """Return the channels."""
        return f"{self.in_channels}, {self.out_channels}"


class GINConv(GraphLayer):
    """nn((1 + eps) x_i + sum of x_j over the senders j of i), a drop-in replacement for torch_geometric.nn.GINConv.

    Arguments and parameters are those of PyTorch Geometric; results and gradients agree up to rounding.

    Args:
        nn: maps (nodes, in_channels) to (nodes, out_channels).
        eps: first value of eps.
        train_eps: make eps a parameter.
        options: `aggr` (default: "add") and `flow`, as of `SAGEConv`.

    Source: Xu et al., How Powerful are Graph Neural Networks? Departure: as in `SAGEConv` for maxima.
    """

    def __init__(self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **options: Any) -> None:
        aggr = options.pop("aggr", "add")
        super().__init__(**options)
        self.aggr, self.nn, self.initial_eps = aggr, nn, eps
        if train_eps:
            self.eps = torch.nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset eps and the parameters of `nn`, where its modules have `reset_parameters`."""
        _reset(self.nn)
        self.eps.data.fill_(self.initial_eps)

    def forward(self, x: Features, edge_index: Any, size: Size = None) -> torch.Tensor:
        """Aggregate features over a graph.

        Args:
            x, edge_index, size: as of `SAGEConv`.

        Returns:
            What `nn` makes of (receivers, in_channels).
        """
        return self.convolve(*self.prepare(x, edge_index, size))

    def prepare(self, x: Features, edge_index: Any, size: Size = None) -> Prepared:
        """Check the arguments of `forward`; return what `convolve` takes."""
        return prepare_aggregation(x, edge_index, size, flow=self.flow)

    def convolve(
        self, source: torch.Tensor, target: torch.Tensor | None, matrices: Matrices,
    ) -> torch.Tensor:
        """Compute the result from checked arguments."""
        if isinstance(matrices, GraphMatrices) and target is source and self.aggr in ("add", "sum") and (
                not is_differentiated(self.eps)):
            matrices = replace(matrices, self_loop=1 + float(self.eps))
            return _aggregated_and_mapped(matrices, source, self.aggr, self.nn)
        result = aggregate(matrices, source, self.aggr)
        if target is not None:
            result = result + (1 + self.eps) * target
        return self.nn(result)


def _aggregated_and_mapped(
    matrices: GraphMatrices, source: torch.Tensor, aggr: Aggregation, nn: torch.nn.Module,
) -> torch.Tensor:
    """Aggregate and apply `nn`; its first linear layer and the aggregation are one operation."""
    if type(nn) is torch.nn.Linear:
        return aggregate_and_transform(matrices, source, aggr, nn)
    is_sequence = type(nn) is torch.nn.Sequential and has_default_forward(nn, torch.nn.Sequential)
    if not is_sequence or not len(nn) or type(nn[0]) is not torch.nn.Linear:
        return nn(aggregate(matrices, source, aggr))
    result = aggregate_and_transform(matrices, source, aggr, nn[0])
    for module in nn[1:]:
        result = module(result)
    return result


def _reset(module: Any) -> None:
    """Reset a module, or else its parts, as PyTorch Geometric does."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    elif isinstance(module, torch.nn.Module):
        for part in module.children():
            _reset(part)
