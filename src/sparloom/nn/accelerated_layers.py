"""Layers of PyTorch Geometric that compute by sparloom.

Each is a subclass with another `forward`. `sparloom.nn.accelerate` changes the class of a layer to it and back, so
that the layer, its parameters, hooks and names remain the same objects. What sparloom does not support is computed by
the original `forward`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, get_args

import torch
import torch_geometric.nn as geometric
import torch_geometric.nn.conv.gcn_conv as geometric_gcn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.parameter import UninitializedParameter

from sparloom.errors import Unsupported
from sparloom.nn import aggregating_layers, attention_layers, graph_layers, relational_layers
from sparloom.nn.aggregating_layers import Prepared, Size
from sparloom.nn.aggregation import GraphMatrices
from sparloom.nn.attention_layers import AttentionLayer
from sparloom.nn.convolution import Adjacency
from sparloom.nn.edges import Flow, Normalisation
from sparloom.nn.graph import check_features
from sparloom.nn.guard import Guard, size_class
from sparloom.nn.message_passing import AGGREGATIONS, Features, initialise_lazy, stored_weight
from sparloom.nn.tensor_backend import tensor_backend
from sparloom.nn.torch_integration import autocast_operands, eager, has_default_forward, is_original

MODULES = {"mean": geometric.aggr.MeanAggregation, "sum": geometric.aggr.SumAggregation,
           "add": geometric.aggr.SumAggregation, "max": geometric.aggr.MaxAggregation,
           "min": geometric.aggr.MinAggregation}
"""By name of the aggregation."""

TEMPLATES = ("propagate", "edge_updater")
"""Methods that PyTorch Geometric compiles for each class."""

METHODS = ("forward", *TEMPLATES, "message", "aggregate", "message_and_aggregate", "update", "edge_update",
           "_check_input", "_collect", "_lift", "_set_size", "_index_select", "_index_select_safe")
"""Methods that a call of a layer of PyTorch Geometric runs."""

HOOKS = tuple(f"_{part}_forward_{kind}hooks" for part in (
    "propagate", "message", "aggregate", "message_and_aggregate", "edge_update") for kind in ("pre_", ""))
STATE = ("_sparloom_guard", "_sparloom_declined")
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
    node_dims: ClassVar[tuple[int, ...]] = (-2, 0)

    def forward(self, x: Any, edge_index: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        """Compute as `original`, by the faster implementation once both were timed."""
        guard = self.__dict__["_sparloom_guard"]
        if guard is None or torch.compiler.is_compiling() or self._draws():
            return self._own(x, edge_index, *arguments, **options)
        if guard.outcome or (guard.outcome is False and _widened(edge_index) is edge_index):
            self.__dict__["_sparloom_guard"] = None
            if not guard.outcome:
                restore_layer(self)
            return self.forward(x, edge_index, *arguments, **options)
        key = size_class(x, edge_index)
        if key is None:
            return self._own(x, edge_index, *arguments, **options)
        return guard.call(
            key, lambda x: self._prepared(x, edge_index, *arguments, **options), self.convolve,
            lambda x: self._original(x, edge_index, *arguments, **options), x, self.parameters())

    def _draws(self) -> bool:
        """Tell whether a call draws random numbers, of which both implementations draw others: it is never timed."""
        return False

    def _own(self, *arguments: Any, **options: Any) -> torch.Tensor:
        prepared = None if torch.compiler.is_exporting() else self._prepared(*arguments, **options)
        return self._original(*arguments, **options) if prepared is None else self.convolve(*prepared)

    def _original(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """Compute by PyTorch Geometric, with indices of int64: torch's gradients for those of int32 are wrong."""
        return self.original.forward(self, *map(_widened, arguments), **{
            name: _widened(each) for name, each in options.items()})

    def _prepared(self, *arguments: Any, **options: Any) -> tuple[Any, ...] | None:
        """Return the arguments of `convolve`; None: sparloom does not support this call."""
        return _prepare(self, arguments, options) if not torch._C._is_tracing() else None

    @classmethod
    def refusal(cls, layer: geometric.MessagePassing) -> str | None:
        """Say why a layer of this kind cannot be accelerated."""
        changed = cls._methods().replaced(layer)
        hooks = [name for name in HOOKS if getattr(layer, name)]
        if changed is not None:
            return f"its {changed} was replaced"
        if _has_any_global_hook():
            return "hooks are registered on all modules"
        if hooks:
            return f"hooks are registered on its {hooks[0].split('_forward')[0][1:]}"
        if layer.explain:
            return "an explainer watches its messages"
        if layer.decomposed_layers != 1:
            return f"decomposed_layers={layer.decomposed_layers}"
        if layer.aggr not in cls.aggregations:
            return f"aggr={layer.aggr!r} is not supported (supported: {', '.join(cls.aggregations)})"
        kind = MODULES[layer.aggr]
        if type(layer.aggr_module) is not kind or not has_default_forward(layer.aggr_module, kind) or (
                "reduce" in layer.aggr_module.__dict__) or not is_original(
                    kind.reduce, geometric.Aggregation.__module__):
            return "its aggr_module was replaced or has hooks"
        if layer.node_dim not in cls.node_dims or layer.flow not in get_args(Flow):
            return f"node_dim={layer.node_dim}, flow={layer.flow!r}"
        return cls.contradiction(layer)

    @classmethod
    def contradiction(cls, layer: geometric.MessagePassing) -> str | None:
        """Say which attributes were changed so that the original computes something else from them than `convolve`."""
        return None if layer.fuse else "fuse=False"

    @classmethod
    @cache
    def _methods(cls) -> _Methods:
        return _Methods(cls.original)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Compile the templates of PyTorch Geometric for the original class, when a copy is made."""
        kind, self.__class__ = type(self), self.original
        try:
            self._set_jittable_templates(raise_on_error)
        finally:
            self.__class__ = kind

    def __prepare_scriptable__(self) -> geometric.MessagePassing:
        """Let torch.jit.script compile the original layer, with the same parameters."""
        return restore_layer(copy.copy(self))


class _Methods:
    """The methods of a class of PyTorch Geometric that a call runs; notices that one was replaced.

    Args:
        kind: the class.
    """

    def __init__(self, kind: type[geometric.MessagePassing]) -> None:
        self._owners = {"", *(base.__name__ for base in kind.__mro__)}  # "": of templates
        self._read = operator.attrgetter(*METHODS[1:])  # without `forward`, which an accelerated class has of its own
        self._kind, self._checked = kind, ()
        self._names = frozenset((*METHODS, "collect", "edge_collect"))

    def replaced(self, layer: geometric.MessagePassing) -> str | None:
        """Return the name of a method of a layer, or of its class, that is not PyTorch Geometric's."""
        functions = self._kind.forward, *self._read(type(layer))
        if functions != self._checked:  # also when templates were compiled
            for name, function in zip(METHODS, functions, strict=True):
                if not self._is_original(function):
                    return name
            self._checked = functions
        if self._names.isdisjoint(layer.__dict__):
            return None
        return next((name for name in layer.__dict__ if name in self._names and not self._is_bound(name, layer)), None)

    def _is_original(self, function: Any) -> bool:
        module = getattr(function, "__globals__", {}).get("__name__", "")
        return module.startswith("torch_geometric.") and function.__qualname__.rpartition(".")[0] in self._owners

    def _is_bound(self, name: str, layer: geometric.MessagePassing) -> bool:
        """Return whether a layer only has a template of its class, as after explaining it."""
        method = layer.__dict__[name]
        templates = [getattr(self._kind, f"{prefix}{name}", None) for prefix in ("_orig_", "_jinja_")]
        return getattr(method, "__self__", None) is layer and method.__func__ in templates


def _widened(value: Any) -> Any:
    """Return indices of int32 as int64: of edges, types, numbers of nodes and compressed matrices."""
    if isinstance(value, tuple):
        return tuple(map(_widened, value))
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout == torch.sparse_csr and value.col_indices().dtype == torch.int32:
        return torch.sparse_csr_tensor(value.crow_indices().long(), value.col_indices().long(), value.values(),
                                       value.shape, check_invariants=False)
    return value.long() if value.layout == torch.strided and value.dtype == torch.int32 else value


def restore_layer(layer: Accelerated) -> geometric.MessagePassing:
    """Change the class of a layer back to the original; does nothing to others."""
    kind = type(layer)
    if "original" in kind.__dict__:
        layer.__class__ = layer.original
    elif isinstance(layer, Accelerated):  # parametrize has made a class for this layer alone
        kind.__bases__ = tuple(getattr(base, "original", base) for base in kind.__bases__)
    for name in STATE:
        layer.__dict__.pop(name, None)
    return layer


def replace_layer(layer: geometric.MessagePassing, guard: Guard | None) -> None:
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
    except (TypeError, ValueError, AttributeError, IndexError, Unsupported) as error:
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
    if isinstance(matrices, GraphMatrices):
        matrices = matrices.sorted(autocast_operands(features[0])[0].dtype)
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

    @classmethod
    def contradiction(cls, layer: geometric.MessagePassing) -> str | None:
        """Name a bias of another shape, which the original repeats, and a normalisation that was replaced."""
        if not is_original(geometric_gcn.gcn_norm, geometric_gcn.__name__):
            return "gcn_norm was replaced"
        bias = layer._parameters.get("bias")
        other = bias is not None and bias.shape != (layer.out_channels,)
        return f"bias of shape {tuple(bias.shape)}" if other else super().contradiction(layer)

    def prepare(
        self, x: torch.Tensor, edge_index: Any, edge_weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Adjacency]:
        """Check the arguments of `forward`; return what `convolve` takes."""
        check_features(x, self.in_channels)
        initialise_lazy(self.lin, x)
        loop = 2.0 if self.improved and (edge_weight is not None or _is_matrix(edge_index)) else 1.0
        normalisation = Normalisation(loop if self.add_self_loops and self.normalize else 0.0, self.normalize)
        cached = None
        if self.normalize:
            cached = self._cached_edge_index if isinstance(edge_index, torch.Tensor) else self._cached_adj_t
        if cached is not None:
            edge_index, edge_weight = cached if isinstance(cached, tuple) else (cached, None)
            normalisation = Normalisation(0.0, symmetric=False)
        elif self.cached and self.normalize:
            raise ValueError("the first call of a layer with cached=True makes the cache")
        return self.checked(x, lambda x: graph_layers.normalised(
            x, edge_index, edge_weight, normalisation, self.flow))


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
    node_dims = (0,)
    prepare = relational_layers.RGCNConv.prepare
    convolve = relational_layers.RGCNConv.convolve
    _transform_blocks = relational_layers.RGCNConv._transform_blocks


class FastRGCNConv(Accelerated, geometric.FastRGCNConv):
    """FastRGCNConv, which computes the same as RGCNConv."""

    original = geometric.FastRGCNConv
    aggregations = ("add", "sum", "mean")
    node_dims = (0,)
    prepare = relational_layers.RGCNConv.prepare
    convolve = relational_layers.RGCNConv.convolve
    _transform_blocks = relational_layers.RGCNConv._transform_blocks

    @classmethod
    def contradiction(cls, layer: geometric.MessagePassing) -> str | None:
        """Accept all; the original sets `fuse` itself."""


def _with_methods(*sources: type) -> Callable[[type], type]:
    """Copy the methods of own layers, which `forward` there calls, to an accelerated class."""
    def decorate(kind: type) -> type:
        for source in sources:
            for name, method in vars(source).items():
                if callable(method) and not name.startswith("__") and name not in KEPT and not hasattr(kind, name):
                    setattr(kind, name, method)
        return kind

    return decorate


PROJECTIONS = ("lin", "lin_src", "lin_dst", "lin_l", "lin_r", "lin_key", "lin_query", "lin_value", "lin_edge")
"""Linear layers whose results are divided among heads."""


class _Attending(Accelerated):
    """Base class of layers that attend to senders.

    Their arguments are checked by the same functions as in `forward` of the own layers, which finds the edges that
    these made.
    """

    aggregations = ("add", "sum")
    node_dims = (0,)
    projections: ClassVar[tuple[str, str]]
    """Names of the linear layers of senders and receivers."""

    def _draws(self) -> bool:
        return bool(self.training and self.dropout)

    @classmethod
    def contradiction(cls, layer: geometric.MessagePassing) -> str | None:
        """Name attributes that disagree with the parts of the layer, and a dropout that is no probability."""
        if not 0 <= layer.dropout <= 1:
            return f"dropout={layer.dropout}"
        for option, part in (("residual", "res"), ("edge_dim", "lin_edge")):
            value = getattr(layer, option, None)
            if isinstance(value, torch.Tensor) or (hasattr(layer, option) and bool(value) != (
                    getattr(layer, part) is not None)):
                return f"{option}={value} and {part}={getattr(layer, part)}"
        heads, width = layer.heads, layer.out_channels
        weights = {name: stored_weight(layer._modules[name]) for name in PROJECTIONS if layer._modules.get(name)}
        shapes = {name: (heads * width, weight.shape[1]) for name, weight in weights.items() if weight is not None
                  and not isinstance(weight, UninitializedParameter)}
        shapes |= {name: (1, heads, width) for name in ("att", "att_src", "att_dst", "att_edge")}
        shapes["bias"] = (heads * width if layer.concat else width,)
        for name, shape in shapes.items():
            tensor = weights.get(name, layer._parameters.get(name))
            if tensor is not None and tensor.shape != shape:
                return f"{name} has shape {tuple(tensor.shape)} for heads={heads}, out_channels={width}"
        return None

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
