"""Batches of sequences of different lengths: packed tokens with lengths, and jagged nested tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparloom.nn.custom_ops import without_functorch
from sparloom.nn.torch_integration import autocast_operands, dtype_remedy, unscriptable
from sparloom.ragged import Length, RaggedTensor, Structure, Tensor, jagged_length, structure_of, tokens_of

Lengths = Structure | torch.Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Packed tokens and the structure of their sequences.

    Args:
        x: (tokens, width), contiguous, float32.
        offsets: of the nested tensor that the tokens were passed as, if any.
    """

    x: torch.Tensor
    structure: Structure
    offsets: torch.Tensor | None = None

    def like(self, result: torch.Tensor) -> torch.Tensor:
        """Return a result for the same tokens in the form in which they were passed."""
        return result if self.offsets is None else torch.nested.nested_tensor_from_jagged(result, self.offsets)


def parse_tokens(tokens: torch.Tensor, lengths: Lengths | None, width: int) -> TokenBatch:
    """Check the arguments of a layer.

    Args:
        tokens: (tokens, width), the sequences concatenated, or jagged nested (batch, length, width).
        lengths: of the sequences, (batch,), or a structure that has them as LENGTHS; None with a nested tensor.

    Raises:
        TypeError: tokens are not a float32 tensor, or lengths are missing.
        ValueError: shapes do not match, or a tensor is not on the CPU; the message says how.
    """
    tokens, = autocast_operands(tokens)
    if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.float32:
        kind = tokens.dtype if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        remedy = f": {dtype_remedy(tokens, 'pass tokens.float()')}" if isinstance(tokens, torch.Tensor) else ""
        raise TypeError(f"tokens are {kind}: expected a torch.float32 tensor{remedy}")
    if tokens.device.type != "cpu":
        raise ValueError(f"tokens are on {tokens.device}: this layer supports the CPU only: pass tokens.cpu()")
    if tokens.is_nested:
        return _parse_nested(tokens, lengths, width)
    if lengths is None:
        raise TypeError(f"tokens of shape {tuple(tokens.shape)} without lengths: pass the length of every sequence, "
                        "or a nested tensor")
    _check_shape(tokens, width)
    structure = lengths if isinstance(lengths, Structure) else structure_of(_length_vector(lengths))
    return TokenBatch(_checked_tokens(tokens, structure).resolve_neg().contiguous(), structure)


def _parse_nested(tokens: torch.Tensor, lengths: Lengths | None, width: int) -> TokenBatch:
    if lengths is not None:
        raise TypeError("lengths were passed with a nested tensor, which has lengths of its own: omit them")
    if tokens.layout != torch.jagged or tokens.dim() != 3 or tokens._ragged_idx != 1:
        raise ValueError(f"the nested tensor has layout {tokens.layout} and {tokens.dim()} dimensions: make it by "
                         f"torch.nested.nested_tensor(..., layout=torch.jagged), (batch, length, {width})")
    if tokens.lengths() is not None:
        raise ValueError("the nested tensor is not contiguous: pass nested.contiguous()")
    values, offsets = tokens.values(), tokens.offsets()
    _check_shape(values, width)
    structure = structure_of(np.diff(offsets.numpy()))
    return TokenBatch(_checked_tokens(values, structure).resolve_neg().contiguous(), structure, offsets)


def _length_vector(lengths: torch.Tensor | np.ndarray | Sequence[int]) -> np.ndarray:
    if isinstance(lengths, torch.Tensor):
        if lengths.device.type != "cpu":
            raise ValueError(f"lengths are on {lengths.device}: this layer supports the CPU only: pass lengths.cpu()")
        if lengths.layout != torch.strided:
            raise TypeError(f"lengths have layout {lengths.layout}: expected a dense tensor: pass lengths.to_dense()")
        with without_functorch():
            return lengths.numpy(force=True)
    return np.asarray(lengths)


def _check_shape(tokens: torch.Tensor, width: int) -> None:
    if tokens.layout != torch.strided:
        raise TypeError(f"tokens have layout {tokens.layout}: expected a dense tensor: pass tokens.to_dense()")
    if tokens.dim() != 2 or tokens.shape[1] != width:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}: expected (tokens, {width})")


def _checked_tokens(tokens: torch.Tensor, structure: Structure) -> torch.Tensor:
    """Check that the lengths add up to the number of tokens."""
    expected = tokens_of(structure)
    if tokens.shape[0] != expected:
        raise ValueError(f"the lengths add up to {expected}, but there are {tokens.shape[0]} tokens")
    return tokens


@unscriptable
def from_nested(tensor: Tensor, nested: torch.Tensor, structure: Structure | None = None) -> RaggedTensor:
    """Convert a jagged nested tensor; no copy if the storage of `tensor` is unpadded.

    Args:
        tensor: [batch, row(batch), constant extents..], row by a length function of batch alone.
        nested: torch.nested tensor of layout torch.jagged, contiguous, on the CPU, of the dtype of `tensor`.
        structure: of these lengths (default: made from them).

    Raises:
        ValueError: nested or tensor has another form, or the lengths differ from those of the structure.
    """
    length = _length(tensor)
    if not nested.is_nested or nested.layout != torch.jagged:
        raise ValueError(f"tensor {tensor.name}: the source has layout {nested.layout}: make it by "
                         f"torch.nested.nested_tensor(..., layout=torch.jagged)")
    if nested.lengths() is not None or nested.device.type != "cpu":
        raise ValueError(f"tensor {tensor.name}: the nested tensor is on {nested.device} or not contiguous: pass "
                         "nested.contiguous().cpu()")
    values, lengths = nested.values().detach(), np.diff(nested.offsets().numpy())
    if structure is None:
        structure = Structure({length: lengths})
    elif not np.array_equal(structure.table(length), lengths):
        raise ValueError(f"tensor {tensor.name}: the lengths of the nested tensor differ from those of the structure: "
                         "make a structure for each")
    packed = np.ascontiguousarray(values.numpy())
    if not (tensor.padding or tensor.full or tensor.bulk):
        return RaggedTensor(tensor, structure, packed.reshape(-1))
    return RaggedTensor.from_packed(tensor, structure, packed)


@unscriptable
def to_nested(value: RaggedTensor) -> torch.Tensor:
    """Copy to a jagged nested tensor."""
    _length(value.tensor)
    packed, starts = value.to_packed()
    return torch.nested.nested_tensor_from_jagged(torch.from_numpy(packed), torch.from_numpy(starts.astype(np.int64)))


def _length(tensor: Tensor) -> Length:
    """Return the length function of a tensor that torch.nested can hold."""
    length = jagged_length(tensor)
    if length is None:
        raise ValueError(f"tensor {tensor.name} has no jagged form: torch.nested supports one ragged dimension, the "
                         "second, whose lengths depend on the first, followed by constant ones")
    return length
