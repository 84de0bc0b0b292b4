"""What graph layers share: options of PyTorch Geometric's MessagePassing, and sizes that the first call tells."""

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, ClassVar, Literal, get_args

import torch
from torch.nn.parameter import UninitializedParameter

from sparloom.nn.edges import Flow
from sparloom.nn.graph import MESSAGE_PASSING_DEFAULTS
from sparloom.nn.torch_integration import CompiledModule, has_default_forward

Aggregation = Literal["mean", "sum", "add", "max", "min"]
AGGREGATIONS = get_args(Aggregation)

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
    """Return the weight of a linear layer, (outputs, inputs).

    None for other modules, and if a parametrization computes the weight, which is done once per call.
    """
    weight = layer._parameters.get("weight", layer.__dict__.get("weight"))
    lazy = isinstance(weight, UninitializedParameter)
    return weight if lazy or (isinstance(weight, torch.Tensor) and weight.dim() == 2) else None


def is_product(layer: torch.nn.Module, linear_class: type[torch.nn.Module]) -> bool:
    """Return whether calling a layer only multiplies by its weight, so that reading the weight can replace the call."""
    return has_default_forward(layer, linear_class) and layer.bias is None
