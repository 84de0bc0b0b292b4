"""Batches of sequences of different lengths, as layers take them: packed tokens with lengths, or nested tensors.

Ragged tensors from and to torch.nested, in its jagged layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparloom.nn.custom_ops import outside_transforms
from sparloom.nn.torch_integration import autocast_operands, remedy, unscriptable
from sparloom.ragged import Length, RaggedTensor, Structure, Tensor, jagged_length, structure_of, tokens_of

__all__ = ["Batch", "Lengths", "batch_of", "from_nested", "to_nested"]

Lengths = Structure | torch.Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens and where sequences begin.

    Args:
        x: (tokens, width), contiguous, float32.
        offsets: of the nested tensor that it is from.
    """

    x: torch.Tensor
    structure: Structure
    offsets: torch.Tensor | None = None

    def like(self, result: torch.Tensor) -> torch.Tensor:
        """Give a result for the same tokens the form that they came in."""
        return result if self.offsets is None else torch.nested.nested_tensor_from_jagged(result, self.offsets)


def batch_of(tokens: torch.Tensor, lengths: Lengths | None, width: int) -> Batch:
    """Read the arguments of a layer.

    Args:
        tokens: (tokens, width), the sequences one after the other, or jagged nested (batch, length, width).
        lengths: of the sequences, (batch,), or a structure that has them as LENGTHS; None beside a nested tensor.

    Raises:
        TypeError: tokens are no float32 tensor, or lengths are missing.
        ValueError: they do not fit together or to the width, or are not on the CPU; the message says how.
    """
    tokens, = autocast_operands(tokens)
    if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.float32:
        given = tokens.dtype if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        conversion = remedy(tokens, "use .float()") if isinstance(tokens, torch.Tensor) else "use .float()"
        raise TypeError(f"tokens of {given}: this layer takes tensors of torch.float32: {conversion}")
    if tokens.device.type != "cpu":
        raise ValueError(f"tokens on {tokens.device}: this layer computes on the CPU: use .cpu()")
    if tokens.is_nested:
        return _nested(tokens, lengths, width)
    if lengths is None:
        raise TypeError(f"tokens of shape {tuple(tokens.shape)} without lengths: give the length of every sequence, or "
                        f"a nested tensor")
    _check_shape(tokens, width)
    structure = lengths if isinstance(lengths, Structure) else structure_of(_vector(lengths))
    return Batch(_checked(tokens, structure).resolve_neg().contiguous(), structure)


def _nested(tokens: torch.Tensor, lengths: Lengths | None, width: int) -> Batch:
    if lengths is not None:
        raise TypeError("lengths beside a nested tensor, which has them: leave them out")
    if tokens.layout != torch.jagged or tokens.dim() != 3 or tokens._ragged_idx != 1:
        raise ValueError(f"a nested tensor of layout {tokens.layout} with {tokens.dim()} dimensions: make it by "
                         f"torch.nested.nested_tensor(..., layout=torch.jagged), (batch, length, {width})")
    if tokens.lengths() is not None:
        raise ValueError("a nested tensor with holes: pass nested.contiguous()")
    values, offsets = tokens.values(), tokens.offsets()
    _check_shape(values, width)
    structure = structure_of(np.diff(offsets.numpy()))
    return Batch(_checked(values, structure).resolve_neg().contiguous(), structure, offsets)


def _vector(lengths: torch.Tensor | np.ndarray | Sequence[int]) -> np.ndarray:
    if isinstance(lengths, torch.Tensor):
        if lengths.device.type != "cpu":
            raise ValueError(f"lengths on {lengths.device}: this layer computes on the CPU: use .cpu()")
        if lengths.layout != torch.strided:
            raise TypeError(f"lengths of layout {lengths.layout}: give a dense tensor: use .to_dense()")
        with outside_transforms():
            return lengths.numpy(force=True)
    return np.asarray(lengths)


def _check_shape(tokens: torch.Tensor, width: int) -> None:
    if tokens.layout != torch.strided:
        raise TypeError(f"tokens of layout {tokens.layout}: this layer takes dense tensors: use .to_dense()")
    if tokens.dim() != 2 or tokens.shape[1] != width:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}: this layer takes (tokens, {width})")


def _checked(tokens: torch.Tensor, structure: Structure) -> torch.Tensor:
    """Tokens, of which there are as many as the lengths say."""
    wanted = tokens_of(structure)
    if tokens.shape[0] != wanted:
        raise ValueError(f"{tokens.shape[0]} tokens for sequences of {wanted} in all: lengths add up to the tokens")
    return tokens


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
