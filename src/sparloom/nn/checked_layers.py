"""Remember the layers of a packed model as they were when they were last checked.

A call with few tokens takes almost as long as its checks in Python: hooks, replaced modules, parameters, and their
content. `CheckedLayers` tells in one pass over all layers that none of these has changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparloom.nn.content_hash import PLAIN_TENSORS, SpanFingerprint
from sparloom.nn.ragged_programs import SAMPLED_BLOCKS, PackedProgramWeights

Place = tuple[Mapping[str, Any], str, Any]
"""A mapping, a key, and the value that it had."""


@dataclass(frozen=True)
class CheckedLayer:
    """What the checks of one layer found.

    Args:
        called: modules whose parameters its program reads instead of calling them.
        tensors: parameters that the program reads.
        layout: of the weights that were packed from them, see `sparloom.ragged.Layer.forward_layout`.
    """

    layer: torch.nn.Module
    called: Sequence[torch.nn.Module]
    tensors: Sequence[torch.Tensor]
    layout: int
    weights: PackedProgramWeights


class CheckedLayers:
    """Packed weights of layers, valid as long as `unchanged` is true.

    Neither layers nor packed weights are kept alive.

    Args:
        checked: layers that are called one after the other, with parameters that are plain tensors of their modules.
    """

    def __init__(self, checked: Sequence[CheckedLayer]) -> None:
        self._layers = [weakref.ref(each.layer) for each in checked]
        self.weights = {id(each.layer): (each.layout, weakref.ref(each.weights)) for each in checked}
        modules = [module for each in checked for module in each.layer.modules()]
        called = [module for each in checked for module in each.called]
        self._tensors = [tensor for each in checked for tensor in each.tensors]
        self._matrices = [tensor for tensor in self._tensors if tensor.dim() > 1]
        homes = {id(tensor): (module._parameters, name) for module in modules
                 for name, tensor in module._parameters.items()}
        self._places: list[Place] = [
            *((module._modules, name, child) for module in modules for name, child in module._modules.items()),
            *((*homes[id(tensor)], tensor) for tensor in self._tensors)]
        self._classes = [(module, type(module)) for module in called]
        self._attributes = [module.__dict__ for module in called]
        self._hooks = [hooks for module in called for hooks in (
            module._forward_pre_hooks, module._forward_hooks, module._backward_hooks, module._backward_pre_hooks)]
        self._counts = self._counted()
        self._fingerprint = SpanFingerprint(self._tensors, sample=SAMPLED_BLOCKS)

    @classmethod
    def of(cls, checked: Sequence[CheckedLayer]) -> CheckedLayers | None:
        """Remember layers; None if the parameters of one are not plain ones of its modules, such as computed ones."""
        for each in checked:
            own = set(map(id, each.layer.parameters()))
            for tensor in each.tensors:
                if id(tensor) not in own or type(tensor) not in PLAIN_TENSORS or not tensor.is_cpu or (
                        tensor.is_inference() or tensor.is_neg() or not tensor.is_contiguous()):
                    return None
        return cls(checked)

    def unchanged(self, layers: Sequence[torch.nn.Module]) -> bool:
        """Tell whether these are the layers, with the same modules, parameters and content, and no hooks were added.

        The content is compared as by `sampled_hash`.
        """
        return (len(layers) == len(self._layers)
                and all([known() is layer for known, layer in zip(self._layers, layers, strict=True)])
                and all([mapping.get(name) is value for mapping, name, value in self._places])
                and all([module.__class__ is kind for module, kind in self._classes])
                and not any(self._hooks) and not any(["forward" in each for each in self._attributes])
                and all([matrix.is_contiguous() for matrix in self._matrices])
                and self._counted() == self._counts and self._fingerprint.unchanged())

    def _counted(self) -> tuple[list[int], list[int]]:
        return [tensor.data_ptr() for tensor in self._tensors], [tensor._version for tensor in self._tensors]
