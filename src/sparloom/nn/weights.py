"""Parameters in the storage of compiled programs, packed again when they have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from sparloom.ragged import Layer, Weight

__all__ = ["PackedWeights", "Parameters"]

Parameters = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class _Packed:
    """What was packed.

    Args:
        source: on the same memory, which so belongs to no other tensor.
        version: how often it had been written in place; None where torch does not count.
    """

    source: torch.Tensor | None
    version: int | None
    array: np.ndarray

    def is_of(self, parameter: torch.Tensor | None) -> bool:
        if parameter is None or self.source is None:
            return parameter is None and self.source is None
        return (self.version is not None and self.version == _version(parameter)
                and self.source.data_ptr() == parameter.data_ptr())


class PackedWeights:
    """Packs the parameters of one module for the programs of a layer.

    What is written into them through `parameter.data` or a NumPy array on their memory is not seen; optimisers and
    `load_state_dict` write otherwise. Copies of the module pack anew.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Layer, str, str], _Packed] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PackedWeights, ()

    def forward(self, layer: Layer, parameters: Parameters) -> dict[str, np.ndarray]:
        """Give the weights of the forward programs, by name.

        Args:
            parameters: by the names of the layer; those that are None are zeros.

        Raises:
            TypeError, ValueError: one is not of float32, or not on the CPU.
        """
        return {name: self._packed((layer, "forward", name), weight, parameters[name])
                for name, weight in layer.forward_weights.items()}

    def backward(self, layer: Layer, parameters: Parameters) -> dict[str, np.ndarray]:
        """Give the weights of the program of gradients, as `forward`."""
        return {name: self._packed((layer, "backward", name), weight, parameters[name])
                for name, weight in layer.backward_weights.items()}

    def _packed(self, key: tuple[Layer, str, str], weight: Weight, parameter: torch.Tensor | None) -> np.ndarray:
        found = self._kept.get(key)
        if found is None or not found.is_of(parameter):
            source = None if parameter is None else _checked(key[-1], parameter.detach())
            values = np.zeros(weight.shape, np.float32) if source is None else source.numpy()
            array = weight.packed(values, None if found is None else found.array)
            version = None if parameter is None else _version(parameter)
            found = self._kept[key] = _Packed(source, version, array)
        return found.array


def _checked(name: str, parameter: torch.Tensor) -> torch.Tensor:
    if parameter.device.type != "cpu":
        raise ValueError(f"parameter {name} on {parameter.device}: this layer computes on the CPU: use .cpu()")
    if parameter.dtype != torch.float32:
        raise TypeError(f"parameter {name} of {parameter.dtype}: this layer computes in torch.float32: use .float()")
    return parameter


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
