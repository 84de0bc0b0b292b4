"""Make a model of PyTorch Geometric compute by sparloom, in place, and undo it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sparloom.nn.guard import Guard, Team

__all__ = ["Acceleration", "accelerate", "restore"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerChoice:
    """What was done with one layer.

    Args:
        name: in the model, "" for the model itself.
        kind: its class in PyTorch Geometric.
        reason: why it was left; None: it computes by sparloom.
    """

    name: str
    kind: str
    reason: str | None
    layer: weakref.ref[torch.nn.Module] = field(repr=False)
    guard: Guard | None = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.kind}): {self._state()}"

    def _state(self) -> str:
        if self.reason is not None:
            return f"left: {self.reason}"
        layer = self.layer()
        declined = "" if layer is None else layer.__dict__.get("_sparloom_declined", "")
        timed = [] if self.guard is None else [
            f"{verdict.speedup:.2f} times as fast ({key}){'' if verdict.speedup >= 1 else ': the original is used'}"
            for key, verdict in self.guard.verdicts.items()]
        parts = [*timed, *([f"some calls are computed by the original: {declined}"] if declined else [])]
        return "accelerated" if not parts else "accelerated; " + "; ".join(parts)


class Acceleration:
    """Report of `accelerate`: what was done with each layer of PyTorch Geometric, and what was timed since.

    Args:
        model: the model.
        choices: by name of the layer.
    """

    def __init__(self, model: torch.nn.Module, choices: Mapping[str, LayerChoice]) -> None:
        self._model, self._kind = weakref.ref(model), type(model).__name__
        self._choices = dict(choices)

    @property
    def replaced(self) -> list[str]:
        """Names of the layers that compute by sparloom."""
        return [name for name, choice in self._choices.items() if choice.reason is None]

    @property
    def left(self) -> dict[str, str]:
        """Names of the other layers of PyTorch Geometric, and why each was left."""
        return {name: choice.reason for name, choice in self._choices.items() if choice.reason is not None}

    @property
    def speedups(self) -> dict[str, dict[str, float]]:
        """By name of the layer and class of sizes: how many times as fast as the original it was; what is timed yet."""
        return {name: {str(key): verdict.speedup for key, verdict in choice.guard.verdicts.items()}
                for name, choice in self._choices.items() if choice.guard is not None}

    def restore(self) -> None:
        """Make the model compute by PyTorch Geometric again, see `restore`."""
        model = self._model()
        if model is not None:
            restore(model)

    def __repr__(self) -> str:
        counts = f"{len(self.replaced)} of {len(self._choices)} layers accelerated"
        return "\n  ".join([f"{self._kind}: {counts}", *map(str, self._choices.values())])


def accelerate(model: torch.nn.Module, *, strict: bool = False, check: bool = True) -> Acceleration:
    """Make the layers of a PyTorch Geometric model compute by sparloom, in place.

    Layers stay the same objects with the same parameters, hooks, buffers and names: state dicts, optimisers, copies,
    pickles and references are not affected. Only their class changes, to a subclass of their own. Calls that sparloom
    does not support, of bfloat16 features for example, are computed by PyTorch Geometric as before.

    Args:
        model: any module; its layers, at any depth, or the layer itself.
        strict: raise an error if a layer of PyTorch Geometric cannot be replaced, and replace none then.
        check: time each layer against the original in alternating calls, forward and backward, and go back to the
            original where it is faster; this takes at most the first 20 calls of each class of sizes. Nothing is
            computed twice. Copies and pickles keep what is decided. It does nothing inside torch.compile, torch.func
            and checkpoints. False: nothing is ever timed.

    Returns:
        What was replaced, and what was left and why.

    Raises:
        ImportError: torch_geometric is not installed.
        TypeError: the model is not a module.
        ValueError: with `strict`, layers cannot be replaced; names them.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    layers = _layers()
    found = [(name, layer, _refusal(layer)) for name, layer in _message_passing(model)]
    left = [f"{name or type(layer).__name__} ({reason})" for name, layer, reason in found if reason is not None]
    if strict and left:
        raise ValueError(f"{len(left)} of {len(found)} layers cannot be accelerated: {'; '.join(left)}: pass "
                         "strict=False to leave them")
    choices, team = {}, Team()
    for name, layer, reason in found:
        kind = getattr(layer, "original", type(layer)).__name__
        watch = None
        if reason is None:
            layers.restore_layer(layer)
            watch = Guard(name or kind, team) if check else None
            layers.replace_layer(layer, watch)
        choices[name] = LayerChoice(name, kind, reason, weakref.ref(layer), watch)
    report = Acceleration(model, choices)
    log.info("%r", report)
    return report


def restore(model: torch.nn.Module) -> None:
    """Make all layers of a model compute by PyTorch Geometric again; undoes `accelerate`."""
    layers = _layers()
    for layer in model.modules():
        if isinstance(layer, layers.Accelerated):
            layers.restore_layer(layer)


def _layers() -> Any:
    """Import the layers, which takes seconds if torch_geometric is not imported yet."""
    try:
        from sparloom.nn import accelerated_layers
    except ImportError as error:
        raise ImportError("models of PyTorch Geometric need torch_geometric: pip install torch_geometric") from error
    return accelerated_layers


def _message_passing(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Return the layers of PyTorch Geometric in a model."""
    kind = _layers().geometric.MessagePassing
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, kind))


def _refusal(layer: Any) -> str | None:
    """Say why a layer cannot be accelerated."""
    layers = _layers()
    classes = layers.accelerated_classes()
    kind = getattr(layer, "original", type(layer)) if isinstance(layer, layers.Accelerated) else type(layer)
    if kind in classes:
        return classes[kind].refusal(layer)
    base = next((each for each in kind.__mro__ if each in classes), None)
    if base is None:
        return "sparloom has no such layer"
    changed = [name for name in layers.METHODS if name in kind.__dict__ and name not in layers.TEMPLATES]
    overridden = f" that overrides {', '.join(changed)}" if changed else ""
    return f"a subclass of {base.__name__}{overridden}"
