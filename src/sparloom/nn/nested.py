"""Ragged tensors from and to torch.nested, in its jagged layout."""

import numpy as np
import torch

from sparloom.nn.transforms import unscriptable
from sparloom.ragged import Length, RaggedTensor, Structure, Tensor, jagged_length

__all__ = ["from_nested", "to_nested"]


@unscriptable
def from_nested(tensor: Tensor, nested: torch.Tensor, structure: Structure | None = None) -> RaggedTensor:
    """Take the values of a jagged nested tensor; no copy where the storage of `tensor` is unpadded.

    Args:
        tensor: [batch, row(batch), constant extents..], row by a length function of batch alone.
        nested: torch.nested of layout torch.jagged, on the CPU, of the type of `tensor`, without holes.
        structure: of these lengths, if there is one; else it is made from them.

    Raises:
        ValueError: nested or tensor have another form, or the lengths are not those of the structure.
    """
    length = _length(tensor)
    if not nested.is_nested or nested.layout != torch.jagged:
        raise ValueError(f"tensor {tensor.name} from a tensor of layout {nested.layout}: make it by "
                         f"torch.nested.nested_tensor(..., layout=torch.jagged)")
    if nested.lengths() is not None or nested.device.type != "cpu":
        raise ValueError(f"tensor {tensor.name} from a nested tensor on {nested.device}, or with holes: pass "
                         f"nested.contiguous().cpu()")
    values, lengths = nested.values().detach(), np.diff(nested.offsets().numpy())
    if structure is None:
        structure = Structure({length: lengths})
    elif not np.array_equal(structure.table(length), lengths):
        raise ValueError(f"tensor {tensor.name} from a nested tensor of other lengths than the structure: make a "
                         f"structure of each")
    packed = np.ascontiguousarray(values.numpy())
    if not (tensor.padding or tensor.full or tensor.bulk):
        return RaggedTensor(tensor, structure, packed.reshape(-1))
    return RaggedTensor.from_packed(tensor, structure, packed)


@unscriptable
def to_nested(value: RaggedTensor) -> torch.Tensor:
    """Copy to a jagged nested tensor.

    Raises:
        ValueError: the tensor is not of the form [batch, row(batch), constant extents..].
    """
    _length(value.tensor)
    packed, starts = value.to_packed()
    return torch.nested.nested_tensor_from_jagged(torch.from_numpy(packed), torch.from_numpy(starts.astype(np.int64)))


def _length(tensor: Tensor) -> Length:
    """The length function of a tensor that torch.nested can hold."""
    length = jagged_length(tensor)
    if length is None:
        raise ValueError(f"tensor {tensor.name} has no jagged form: torch.nested has one ragged dimension, the second, "
                         f"whose lengths depend on the first, and constant ones behind it")
    return length
