"""Batches of sequences of different lengths: packed tokens with lengths, jagged nested tensors, padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from sparloom.errors import Unsupported
from sparloom.nn.custom_ops import without_functorch
from sparloom.nn.torch_integration import autocast_operands, dtype_remedy
from sparloom.ragged import (
    LENGTHS,
    Structure,
    structure_of,
    tokens_of,
)

Lengths = Structure | torch.Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Packed tokens and the structure of their sequences.

    Args:
        x: (tokens, width), contiguous, float32.
        offsets: of the nested tensor that the tokens were passed as, if any.
        others: further arrays by token that a program reads, by name.
    """

    x: torch.Tensor
    structure: Structure
    offsets: torch.Tensor | None = None
    others: Mapping[str, np.ndarray] = field(default_factory=dict)

    def arrays(self, x: torch.Tensor) -> dict[str, np.ndarray]:
        """Return x and what else a program reads of the tokens, by name."""
        return {"x": x.detach().contiguous().numpy(), **self.others}

    def without_tokens(self) -> TokenBatch:
        """Return the batch with an empty x: what a program reads besides x and weights."""
        return replace(self, x=torch.empty(0), offsets=None)

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


@dataclass(frozen=True, eq=False)
class Sequences:
    """Packed sequences, as layers read them.

    Args:
        structure: of their lengths.
        mask: (tokens,) float32, 0 for tokens to which no other one attends; None: there are none.
    """

    structure: Structure
    mask: np.ndarray | None = None

    def pieces(self, most: int) -> list[tuple[Sequences, slice]]:
        """Cut them into pieces of whole sequences.

        Args:
            most: tokens of a piece, unless it is a single sequence.

        Returns:
            Sequences and tokens of each piece that has any.
        """
        lengths = np.asarray(self.structure.table(LENGTHS), np.int64)
        ends, found, first, begin = np.cumsum(lengths), [], 0, 0
        while first < lengths.size:
            last = max(first + 1, int(np.searchsorted(ends, begin + most, side="right")))
            end = int(ends[last - 1])
            if end > begin:
                mask = None if self.mask is None else self.mask[begin:end]
                part = replace(self, structure=structure_of(lengths[first:last]), mask=mask)
                found.append((part, slice(begin, end)))
            first, begin = last, end
        return found


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """The tokens of a padded batch that are computed, sequence after sequence.

    A batch without any has one token of its own, which is in no result: some modules need one.

    Args:
        sequences: their lengths are possibly 0.
        shape: (batch, length) of the padded batch.
        places: (tokens,) int64, of the tokens in the flattened padded batch; None: all are computed.
    """

    sequences: Sequences
    shape: tuple[int, int]
    places: torch.Tensor | None

    @classmethod
    def of(cls, mask: torch.Tensor | None, shape: tuple[int, int], *, spans: bool = False) -> PackedBatch:
        """Read an attention mask.

        Tokens without attention may stand anywhere: left, right or between others.

        Args:
            mask: (batch, length), 1 or True for real tokens; None: all are.
            shape: of the tokens.
            spans: tokens between real ones are computed, too, so that distances are those of the padded batch.

        Raises:
            Unsupported: it is no tensor of this shape on the CPU, or has other values than 0 and 1.
        """
        if mask is None:
            return cls._with_a_token([shape[1]] * shape[0], shape, None)
        real = _real_tokens(mask, shape)
        used = real
        if spans and real.numel():
            count = real.to(torch.int64).cumsum(1)
            used = (count > 0) & ((count < count[:, -1:]) | real)
        places = None if bool(used.all()) else used.reshape(-1).nonzero()[:, 0]
        packed = cls._with_a_token(used.sum(1).tolist(), shape, places)
        if bool((used == real).all()):
            return packed
        seen = real[used].to(torch.float32).numpy()
        return replace(packed, sequences=replace(packed.sequences, mask=seen))

    @classmethod
    def of_flattened(cls, positions: torch.Tensor) -> PackedBatch:
        """Read rows of several sequences, as collators without padding make them.

        Args:
            positions: (batch, length) int64; a sequence begins where they do not go on by 1.
        """
        begins = torch.ones(positions.shape, dtype=torch.bool)
        begins[:, 1:] = positions.diff(dim=1) != 1
        edges = [*begins.flatten().nonzero()[:, 0].tolist(), positions.numel()]
        return cls._with_a_token(np.diff(edges).tolist(), tuple(positions.shape), None)

    @classmethod
    def _with_a_token(cls, lengths: list[int], shape: tuple[int, int], places: torch.Tensor | None) -> PackedBatch:
        if sum(lengths):
            return cls(Sequences(structure_of(lengths)), shape, places)
        return cls(Sequences(structure_of([1])), shape, torch.zeros(0, dtype=torch.int64))

    def begins_with_padding(self) -> bool:
        """Tell whether the first computed token of a text is not the first one of its row."""
        lengths = np.asarray(self.sequences.structure.table(LENGTHS), np.int64)
        if self.places is None or not len(self.places):
            return False
        firsts = self.places.numpy()[(lengths.cumsum() - lengths)[lengths > 0]]
        return bool((firsts % self.shape[1] != 0).any())

    def gather(self, padded: torch.Tensor) -> torch.Tensor:
        """Take the tokens.

        Args:
            padded: (batch, length, ...); a batch of 1 stands for all.

        Returns:
            (1, tokens, ...).
        """
        padded = padded.expand(*self.shape, *padded.shape[2:]).flatten(0, 1)
        if self.places is None:
            return padded[None]
        if not len(self.places):
            return padded.new_zeros(1, 1, *padded.shape[1:])
        return padded.index_select(0, self.places)[None]

    def scatter(self, packed: torch.Tensor) -> torch.Tensor:
        """Put tokens, (1, tokens, ...), in their places; others are 0, in (batch, length, ...)."""
        rest, (batch, length), mask = packed.shape[2:], self.shape, self.sequences.mask
        if self.places is None and mask is None:
            return packed.reshape(batch, length, *rest)
        places = torch.arange(batch * length) if self.places is None else self.places
        tokens = packed[0, : len(places)]
        if mask is not None:
            real = torch.from_numpy(mask > 0)
            places, tokens = places[real], tokens[real]
        return packed.new_zeros(batch * length, *rest).index_copy(0, places, tokens).view(batch, length, *rest)


def _real_tokens(mask: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Check an attention mask and convert it to bool."""
    if not isinstance(mask, torch.Tensor) or mask.device.type != "cpu" or tuple(mask.shape) not in (
            shape, (1, shape[1])):
        raise Unsupported(f"attention_mask is no tensor of shape {shape} on the CPU")
    if mask.dtype != torch.bool:
        if not bool(((mask == 1) | (mask == 0)).all()):
            raise Unsupported("attention_mask has other values than 1 for real tokens and 0 for padding")
        mask = mask == 1
    return mask.expand(shape)
