"""Layers of PyTorch Geometric that compute by sparloom.

Each is a subclass with another `forward`. `sparloom.nn.accelerate` changes the class of a layer to it and back, so
that the layer, its parameters, hooks and names remain the same objects. What sparloom does not support is computed by
the original `forward`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch_geometric.nn as geometric

from sparloom.errors import Unsupported
from sparloom.nn import aggregating_layers, attention_layers, graph_layers, relational_layers
from sparloom.nn.aggregating_layers import Prepared, Size
from sparloom.nn.attention_layers import AttentionLayer
from sparloom.nn.convolution import Adjacency, DeviceAdjacency
from sparloom.nn.edges import Normalisation
from sparloom.nn.fresh_graph import FreshMatrices
from sparloom.nn.graph import Graph, check_features
from sparloom.nn.guard import Guard, size_class
from sparloom.nn.message_passing import AGGREGATIONS, Features, initialise_lazy
from sparloom.nn.tensor_backend import tensor_backend
from sparloom.nn.torch_integration import eager, has_default_forward

MODULES = {"mean": geometric.aggr.MeanAggregation, "sum": geometric.aggr.SumAggregation,
           "add": geometric.aggr.SumAggregation, "max": geometric.aggr.MaxAggregation,
           "min": geometric.aggr.MinAggregation}
"""By name of the aggregation."""

OVERRIDABLE = ("forward", "propagate", "message", "aggregate", "message_and_aggregate", "update", "edge_update",
               "edge_updater")
HOOKS = tuple(f"_{part}_forward_{kind}hooks" for part in (
    "propagate", "message", "aggregate", "message_and_aggregate", "edge_update") for kind in ("pre_", ""))
STATE = ("_sparloom_guard", "_sparloom_cached", "_sparloom_declined", "_sparloom_ways")
"""What this package stores in a layer."""

KEPT = ("validated", "reset_parameters", "forward", "extra_repr")
"""Methods that a layer of PyTorch Geometric has of its own."""


class Accelerated:
    """Base class of layers that compute by sparloom.

    Args:
        original: the class of PyTorch Geometric.
    """

    original: ClassVar[type[geometric.MessagePassing]]
    linear_class: ClassVar[type[torch.nn.Module]] = geometric.Linear
    aggregations: ClassVar[tuple[str, ...]] = AGGREGATIONS

    def forward(self, x: Any, edge_index: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        """Compute as `original`, by the faster implementation once both were timed."""
        guard = self.__dict__["_sparloom_guard"]
        if guard is None or torch.compiler.is_compiling():
            return self._own(x, edge_index, *arguments, **options)
        if guard.outcome is not None:
            self.__dict__["_sparloom_guard"] = None
            if not guard.outcome:
                back(self)
            return self.forward(x, edge_index, *arguments, **options)
        key = size_class(x, edge_index)
        if key is None:
            return self._own(x, edge_index, *arguments, **options)
        return guard.call(
            key, lambda x: self._prepared(x, edge_index, *arguments, **options), self.convolve,
            lambda x: self.original.forward(self, x, edge_index, *arguments, **options), x, self.parameters())

    def _own(self, *arguments: Any, **options: Any) -> torch.Tensor:
        if torch.compiler.is_exporting():
            return self.original.forward(self, *arguments, **options)
        prepared = self._prepared(*arguments, **options)
        return self.original.forward(self, *arguments, **options) if prepared is None else self.convolve(*prepared)

    def _prepared(self, *arguments: Any, **options: Any) -> tuple[Any, ...] | None:
        """Return the arguments of `convolve`; None: sparloom does not support this call."""
        return _prepare(self, arguments, options) if not torch._C._is_tracing() else None

    @classmethod
    def refusal(cls, layer: geometric.MessagePassing) -> str | None:
        """Say why a layer of this kind cannot be accelerated."""
        changed = [name for name in OVERRIDABLE if name != "propagate" and name in layer.__dict__]
        hooks = [name for name in HOOKS if getattr(layer, name)]
        if changed:
            return f"its {changed[0]} was replaced"
        if hooks:
            return f"hooks are registered on its {hooks[0].split('_forward')[0][1:]}"
        if layer.explain:
            return "an explainer watches its messages"
        if layer.decomposed_layers != 1:
            return f"decomposed_layers={layer.decomposed_layers}"
        if layer.aggr not in cls.aggregations:
            return f"aggr={layer.aggr!r} is not supported (supported: {', '.join(cls.aggregations)})"
        kind = MODULES[layer.aggr]
        if type(layer.aggr_module) is not kind or not has_default_forward(layer.aggr_module, kind):
            return "its aggr_module was replaced or has hooks"
        return None

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Compile the templates of PyTorch Geometric for the original class, when a copy is made."""
        kind, self.__class__ = type(self), self.original
        try:
            self._set_jittable_templates(raise_on_error)
        finally:
            self.__class__ = kind

    def __prepare_scriptable__(self) -> geometric.MessagePassing:
        """Let torch.jit.script compile the original layer, with the same parameters."""
        return back(copy.copy(self))


def back(layer: Accelerated) -> geometric.MessagePassing:
    """Change the class of a layer back to the original; does nothing to others."""
    if isinstance(layer, Accelerated):
        layer.__class__ = layer.original
    for name in STATE:
        layer.__dict__.pop(name, None)
    return layer


def forth(layer: geometric.MessagePassing, guard: Guard | None) -> None:
    """Change the class of a layer to that which computes by sparloom."""
    layer.__dict__["_sparloom_guard"] = guard
    layer.__class__ = accelerated_classes()[type(layer)]


def accelerated_classes() -> Mapping[type, type[Accelerated]]:
    """Return the classes of PyTorch Geometric that have an accelerated one."""
    known = [*Accelerated.__subclasses__(), *_Attending.__subclasses__()]
    return MappingProxyType({each.original: each for each in known if "original" in each.__dict__})


@eager
def _prepare(layer: Accelerated, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...] | None:
    try:
        if layer.refusal(layer) is not None:
            return None
        _check_dtypes(arguments, options)
        prepared = layer.prepare(*arguments, **options)
        if isinstance(prepared[0], torch.Tensor) and not prepared[0].is_cpu:
            tensor_backend(prepared[0].device)
    except (TypeError, ValueError, Unsupported) as error:
        layer.__dict__["_sparloom_declined"] = str(error)
        return None
    return prepared


def _check_dtypes(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse weights and features of edges of another dtype than x, which PyTorch Geometric promotes."""
    x = options.get("x", arguments[0] if arguments else None)
    x = x[0] if isinstance(x, tuple) and x else x
    dtype = x.dtype if isinstance(x, torch.Tensor) else None
    for each in (*arguments[2:], *options.values()):
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dtype != dtype and (
                not torch.is_autocast_enabled(each.device.type)):
            raise TypeError(f"x is {dtype} and another argument {each.dtype}: dtypes are not promoted")


def _with_maximum(layer: Accelerated, prepared: Prepared) -> Prepared:
    """Refuse maxima over weighted edges of which some occur several times."""
    if layer.aggr not in ("max", "min"):
        return prepared
    *features, matrices = prepared
    matrices = matrices.prepared() if isinstance(matrices, FreshMatrices) else matrices
    if matrices.max is None:
        raise ValueError("edges with weights occur more than once, of which the maximum is ambiguous")
    return *features, matrices


class GCNConv(Accelerated, geometric.GCNConv):
    """GCNConv. With `cached=True` the matrix that PyTorch Geometric normalised and cached is used."""

    original = geometric.GCNConv
    aggregations = ("add", "sum")
    first = "auto"
    convolve = eager(graph_layers.GCNConv.convolve)
    checked = graph_layers.GCNConv.checked

    def prepare(
        self, x: torch.Tensor, edge_index: Any, edge_weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Adjacency | DeviceAdjacency]:
        """Check the arguments of `forward`; return what `convolve` takes."""
        check_features(x, self.in_channels)
        initialise_lazy(self.lin, x)
        if self.cached and self.normalize:
            return self.checked(x, self._cached_adjacency)
        loop = 2.0 if self.improved and (edge_weight is not None or _is_matrix(edge_index)) else 1.0
        made = Normalisation(loop if self.add_self_loops else 0.0, self.normalize)
        return self.checked(x, lambda x: graph_layers.normalised(x, edge_index, edge_weight, made, self.flow))

    def _cached_adjacency(self, x: torch.Tensor) -> Adjacency | DeviceAdjacency:
        cached = self._cached_edge_index if self._cached_adj_t is None else (self._cached_adj_t, None)
        if cached is None:
            raise ValueError("the first call of a layer with cached=True makes the cache")
        source, adjacency = self.__dict__.get("_sparloom_cached", (None, None))
        if source is not cached[0] or adjacency.dtype != x.dtype:
            graph = Graph(cached[0], x.shape[0], flow=self.flow)
            adjacency = graph.adjacency(Normalisation(0.0, symmetric=False), x.dtype, cached[1])
            self.__dict__["_sparloom_cached"] = cached[0], adjacency
        return adjacency


def _is_matrix(edge_index: Any) -> bool:
    return not isinstance(edge_index, torch.Tensor) or edge_index.layout != torch.strided


class SAGEConv(Accelerated, geometric.SAGEConv):
    """SAGEConv."""

    original = geometric.SAGEConv
    convolve = aggregating_layers.SAGEConv.convolve

    def prepare(self, x: Features, edge_index: Any, size: Size = None) -> Prepared:
        """Check the arguments of `forward`; return what `convolve` takes."""
        return _with_maximum(self, aggregating_layers.SAGEConv.prepare(self, x, edge_index, size))


class GraphConv(Accelerated, geometric.GraphConv):
    """GraphConv."""

    original = geometric.GraphConv
    convolve = aggregating_layers.GraphConv.convolve

    def prepare(
        self, x: Features, edge_index: Any, edge_weight: torch.Tensor | None = None, size: Size = None,
    ) -> Prepared:
        """Check the arguments of `forward`; return what `convolve` takes."""
        return _with_maximum(self, aggregating_layers.GraphConv.prepare(self, x, edge_index, edge_weight, size))


class GINConv(Accelerated, geometric.GINConv):
    """GINConv."""

    original = geometric.GINConv
    convolve = aggregating_layers.GINConv.convolve

    def prepare(self, x: Features, edge_index: Any, size: Size = None) -> Prepared:
        """Check the arguments of `forward`; return what `convolve` takes."""
        return _with_maximum(self, aggregating_layers.GINConv.prepare(self, x, edge_index, size))


class RGCNConv(Accelerated, geometric.RGCNConv):
    """RGCNConv."""

    original = geometric.RGCNConv
    prepare = relational_layers.RGCNConv.prepare
    convolve = relational_layers.RGCNConv.convolve
    _transform_blocks = relational_layers.RGCNConv._transform_blocks


class FastRGCNConv(Accelerated, geometric.FastRGCNConv):
    """FastRGCNConv, which computes the same as RGCNConv."""

    original = geometric.FastRGCNConv
    aggregations = ("add", "sum", "mean")
    prepare = relational_layers.RGCNConv.prepare
    convolve = relational_layers.RGCNConv.convolve
    _transform_blocks = relational_layers.RGCNConv._transform_blocks


def _with_methods(*sources: type) -> Callable[[type], type]:
    """Copy the methods of own layers, which `forward` there calls, to an accelerated class."""
    def decorate(kind: type) -> type:
        for source in sources:
            for name, method in vars(source).items():
                if callable(method) and not name.startswith("__") and name not in KEPT and not hasattr(kind, name):
                    setattr(kind, name, method)
        return kind

    return decorate


class _Attending(Accelerated):
    """Base class of layers that attend to senders.

    Their arguments are checked by the same functions as in `forward` of the own layers, which finds the edges that
    these made.
    """

    aggregations = ("add", "sum")
    projections: ClassVar[tuple[str, str]]
    """Names of the linear layers of senders and receivers."""

    def prepare(self, x: Any, edge_index: Any, edge_attr: torch.Tensor | None = None, *arguments: Any, **options: Any
                ) -> tuple[Any, ...]:
        """Check the arguments of `forward` and return them, named ones in their order."""
        source, target = attention_layers.pair_of(x)
        for each, name in zip((source, target), self._linear_names(), strict=True):
            if each is not None:
                attention_layers.check_nodes_of(each, getattr(self, name))
        edges = self.edges_of(edge_index, source, target, size=options.get("size", arguments[0] if arguments and (
            isinstance(arguments[0], tuple)) else None), loops=getattr(self, "add_self_loops", False))
        if edge_attr is not None or self.edge_dim is not None:
            self.edge_features(edge_attr, edge_index, edges)
        return x, edge_index, edge_attr, arguments, options

    def _linear_names(self) -> tuple[str, str]:
        return self.projections

    def convolve(self, x: Any, edge_index: Any, edge_attr: Any, arguments: Any, options: Any) -> Any:
        """Compute the result from checked arguments."""
        return self.own_forward(x, edge_index, edge_attr, *arguments, **options)


@_with_methods(AttentionLayer, attention_layers.GATConv)
class GATConv(_Attending, geometric.GATConv):
    """GATConv."""

    original = geometric.GATConv
    own_forward = attention_layers.GATConv.forward

    def _linear_names(self) -> tuple[str, str]:
        return ("lin_src", "lin_dst") if self.lin is None else ("lin", "lin")


@_with_methods(AttentionLayer, attention_layers.GATv2Conv)
class GATv2Conv(_Attending, geometric.GATv2Conv):
    """GATv2Conv."""

    original = geometric.GATv2Conv
    projections = ("lin_l", "lin_r")
    own_forward = attention_layers.GATv2Conv.forward


@_with_methods(AttentionLayer, graph_layers.TransformerConv)
class TransformerConv(_Attending, geometric.TransformerConv):
    """TransformerConv."""

    original = geometric.TransformerConv
    projections = ("lin_value", "lin_query")
    own_forward = graph_layers.TransformerConv.forward
