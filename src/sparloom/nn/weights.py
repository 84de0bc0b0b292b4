"""Parameters in the storage of compiled programs, packed again when their content is another."""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from sparloom.jit import aligned
from sparloom.nn.unchanged import fingerprint
from sparloom.ragged import Layer, Weight

__all__ = ["Packed", "PackedWeights", "Parameters", "packed_views"]

Parameters = Mapping[str, torch.Tensor | None]
Weights = Mapping[str, Weight]

LINE = 16  # floats: weights begin at a cache line


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights that a program reads; they stay as they are for as long as this object, or its `memory`, lives.

    Args:
        content: fingerprint of the parameters.
        memory: all weights, one behind the other.
        weights: views of it, by name.
    """

    content: tuple[int, int]
    memory: np.ndarray
    weights: dict[str, np.ndarray]


class PackedWeights:
    """Packs the parameters of one module for the programs of a layer.

    Every call compares the content of the parameters with what was packed, so no write is missed, however it was done.
    Memory that a call still reads, or that gradients will be computed with, is not written again: there is new memory
    then. Copies of the module pack anew. Needs no lock: calls of several threads pack at worst twice.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Layer, str], Packed] = {}
        self._spare: dict[tuple[Layer, str], list[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PackedWeights, ()

    def inference(self, layer: Layer, parameters: Parameters) -> Packed:
        """Give the weights of the forward programs.

        Args:
            parameters: by the names of the layer; those that are None are zeros.

        Raises:
            TypeError, ValueError: one is not of float32, or not on the CPU.
        """
        arrays = {name: _array(name, parameter) for name, parameter in parameters.items()}
        return self._packed((layer, "forward"), layer.forward_weights, arrays, _content(arrays))

    def training(self, layer: Layer, parameters: Parameters) -> tuple[Packed, Packed]:
        """Give the weights of the forward programs and of the program of gradients, as `inference`."""
        arrays = {name: _array(name, parameter) for name, parameter in parameters.items()}
        content = _content(arrays)
        return (self._packed((layer, "forward"), layer.forward_weights, arrays, content),
                self._packed((layer, "backward"), layer.backward_weights, arrays, content))

    def _packed(self, key: tuple[Layer, str], weights: Weights, arrays: Mapping[str, np.ndarray | None],
                content: tuple[int, int]) -> Packed:
        kept = self._kept.get(key)
        if kept is not None and kept.content == content:
            return kept
        del kept
        self._kept.pop(key, None)  # its memory becomes spare now, unless a call still reads it
        memory = self._memory(key, sum(map(_room, weights.values())))
        views = packed_views(weights, memory)
        for name, weight in weights.items():
            if arrays[name] is None:
                views[name].fill(0)
            else:
                _check_shape(name, arrays[name], weight)
                weight.packed(arrays[name], views[name])
        found = self._kept[key] = Packed(content, memory, views)
        return found

    def _memory(self, key: tuple[Layer, str], size: int) -> np.ndarray:
        """Allocate memory that becomes spare when the array that is returned, and all tensors on it, are gone."""
        spare = self._spare.setdefault(key, [])
        whole = spare.pop() if spare else aligned((size,), np.float32)
        memory = whole[:]
        weakref.finalize(memory, _give_back, spare, whole).atexit = False
        return memory


def packed_views(weights: Weights, memory: np.ndarray) -> dict[str, np.ndarray]:
    """Find weights in the memory of a `Packed`, by name."""
    views, begin = {}, 0
    for name, weight in weights.items():
        views[name] = memory[begin : begin + weight.elements]
        begin += _room(weight)
    return views


def _room(weight: Weight) -> int:
    return -(-weight.elements // LINE) * LINE


def _give_back(spare: list[np.ndarray], memory: np.ndarray) -> None:
    if not spare:
        spare.append(memory)


def _check_shape(name: str, array: np.ndarray, weight: Weight) -> None:
    """Refuse a matrix with as many elements, but other rows."""
    if array.size != math.prod(weight.shape) or array.shape[0] not in itertools.accumulate(weight.shape, operator.mul):
        raise ValueError(f"parameter {name} has shape {array.shape}: this layer takes as many elements as "
                         f"{weight.shape}, {math.prod(weight.shape)}, in rows of these dimensions")


def _content(arrays: Mapping[str, np.ndarray | None]) -> tuple[int, int]:
    return fingerprint([np.zeros(0, np.float32) if array is None else array for array in arrays.values()])


def _array(name: str, parameter: torch.Tensor | None) -> np.ndarray | None:
    if parameter is None:
        return None
    if parameter.device.type != "cpu":
        raise ValueError(f"parameter {name} on {parameter.device}: this layer computes on the CPU: use .cpu()")
    if parameter.dtype != torch.float32:
        raise TypeError(f"parameter {name} of {parameter.dtype}: this layer computes in torch.float32: use .float()")
    array = parameter.numpy(force=True)
    return array if array.flags.c_contiguous and array.flags.aligned else np.require(array, requirements=["C", "A"])
