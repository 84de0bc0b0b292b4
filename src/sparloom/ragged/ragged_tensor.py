"""Values of a ragged tensor, and the forms in which others keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.ir import DTYPES
from sparloom.ragged.coordinates import coordinates, places
from sparloom.ragged.dimensions import free
from sparloom.ragged.evaluate import evaluate
from sparloom.ragged.layout import largest
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.told_lengths import checked_mask, checked_starts, told_length

__all__ = ["RaggedTensor"]


@dataclass(frozen=True, eq=False)
class RaggedTensor:
    """The storage of a tensor for one structure.

    Args:
        data: (structure.size(tensor),) of the tensor's type; what is in padding has no meaning.

    Raises:
        ValueError: data has another size or type.
    """

    tensor: Tensor
    structure: Structure
    data: np.ndarray

    def __post_init__(self) -> None:
        wanted, dtype = self.structure.size(self.tensor), np.dtype(DTYPES[self.tensor.type.scalar])
        if self.data.size != wanted or self.data.dtype != dtype:
            raise ValueError(f"tensor {self.tensor.name} from {self.data.size} {self.data.dtype}: its storage has "
                             f"{wanted} elements of {dtype}")
        object.__setattr__(self, "data", self.data.reshape(-1))

    @classmethod
    def zeros(cls, tensor: Tensor, structure: Structure) -> RaggedTensor:
        """Make one whose elements, and padding, are 0."""
        return cls(tensor, structure, np.zeros(structure.size(tensor), DTYPES[tensor.type.scalar]))

    @classmethod
    def from_padded(cls, tensor: Tensor, structure: Structure | None, padded: np.ndarray, *,
                    mask: np.ndarray | None = None) -> RaggedTensor:
        """Take elements out of a dense array.

        Args:
            structure: None to make one of the lengths that the mask tells, for tensors [batch, row(batch), constant
                extents..].
            padded: as many dimensions as the tensor, each at least as long as its largest slice.
            mask: where there is an element, as `to_padded` gives it, but of the extents of `padded`.

        Raises:
            ValueError: an extent is too small; a slice of the mask has holes, or it has not the elements of the
                structure; or there is neither structure nor mask.
        """
        if padded.ndim != len(tensor.axes):
            raise ValueError(f"tensor {tensor.name} from an array of shape {padded.shape}: it has {len(tensor.axes)} "
                             f"dimensions")
        if mask is not None:
            checked_mask(tensor, mask, padded.shape[: _varying(tensor)])
        if structure is None:
            length = told_length(tensor, told_by="a mask", told=mask is not None)
            structure = Structure({length: mask.sum(axis=1)})
        result = cls.zeros(tensor, structure)
        found, flat = places(tensor, structure)
        shape = result._largest()
        if any(has < needs for has, needs in zip(padded.shape, shape, strict=True)):
            raise ValueError(f"tensor {tensor.name} from an array of shape {padded.shape}: it needs at least {shape}")
        if mask is not None:
            _check_elements(tensor, mask, found)
        result.data[flat] = padded[tuple(found.values())]
        return result

    def to_padded(self, fill: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Make a dense array and its mask.

        Args:
            fill: where there is no element.

        Returns:
            Array of the largest extents, and bool array that is true where there is an element; the mask has the
            dimensions up to the last that varies, and is to be broadcast over those behind.
        """
        found, flat = places(self.tensor, self.structure)
        shape = self._largest()
        padded = np.full(shape, fill, self.data.dtype)
        padded[tuple(found.values())] = self.data[flat]
        return padded, _mask(found, shape[: _varying(self.tensor)])

    @classmethod
    def from_packed(cls, tensor: Tensor, structure: Structure | None, packed: np.ndarray, *,
                    cu_seqlens: np.ndarray | Sequence[int] | None = None) -> RaggedTensor:
        """Take the elements in order, without padding: (tokens, ..) of FlashAttention's varlen form, or flat.

        Args:
            structure: None to make one of the lengths that cu_seqlens tell, for tensors [batch, row(batch), constant
                extents..].
            cu_seqlens: where slices begin, and the number of tokens, as `to_packed` gives them.

        Raises:
            ValueError: there are not as many elements as the tensor has; cu_seqlens do not rise from 0, end elsewhere
                than the tokens, or are not those of the structure; or there are neither structure nor cu_seqlens.
        """
        starts = None if cu_seqlens is None else checked_starts(tensor, cu_seqlens)
        if structure is None:
            length = told_length(tensor, told_by="cu_seqlens", told=starts is not None)
            structure = Structure({length: np.diff(starts)})
        result = cls.zeros(tensor, structure)
        _, flat = places(tensor, structure)
        if starts is not None:
            _check_starts(tensor, starts, result._starts())
        if packed.size != flat.size:
            end = "" if starts is None else f", as cu_seqlens end with {starts[-1]} tokens"
            raise ValueError(f"tensor {tensor.name} from {packed.size} packed elements: it has {flat.size}{end}")
        result.data[flat] = packed.reshape(-1)
        return result

    def to_packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the elements in order, without padding.

        Returns:
            Array (slices of the last varying dimension, constant extents behind..), and cu_seqlens: int32, where the
            slices of each coordinate before begin, one entry more than there are of those.
        """
        flat = places(self.tensor, self.structure)[1]
        behind = [int(self.structure.number(extent)) for _, extent in self.tensor.axes[_varying(self.tensor):]]
        packed = self.data[flat].reshape(-1, *behind) if flat.size else np.empty((0, *behind), self.data.dtype)
        return packed, self._starts()

    def slice(self, *coordinate: int) -> np.ndarray:
        """Copy what belongs to coordinates of the first dimensions, as a dense array over the others.

        Raises:
            ValueError: slices inside vary among themselves, or the coordinate does not exist.
        """
        fixed = {dim.name: value for (dim, _), value in zip(self.tensor.axes, coordinate, strict=False)}
        shape = []
        for number, (dim, extent) in enumerate(self.tensor.axes):
            if free(extent) - set(fixed):
                raise ValueError(f"tensor {self.tensor.name} has no dense slice at {coordinate}: the extent of "
                                 f"{dim.name} varies inside: use to_padded()")
            length = int(evaluate(extent, fixed, self.structure.table))
            if number >= len(coordinate):
                shape.append(length)
            elif not 0 <= coordinate[number] < length:
                raise ValueError(f"tensor {self.tensor.name} has no slice at {coordinate}: {dim.name} has {length}")
        found, flat = places(self.tensor, self.structure)
        chosen = np.ones(flat.size, dtype=bool)
        for name, value in fixed.items():
            chosen &= found[name] == value
        return self.data[flat[chosen]].reshape(shape)

    def stored_as(self, tensor: Tensor) -> RaggedTensor:
        """Move the elements to another storage of the same tensor."""
        result = RaggedTensor.zeros(tensor, self.structure)
        result.data[places(tensor, self.structure)[1]] = self.data[places(self.tensor, self.structure)[1]]
        return result

    def _largest(self) -> tuple[int, ...]:
        axes = self.tensor.axes
        return tuple(self.structure.number(largest(extent, axes)) for _, extent in axes)

    def _starts(self) -> np.ndarray:
        """Where slices of the last varying dimension begin."""
        varying = _varying(self.tensor)
        if varying == 0:
            return np.zeros(1, dtype=np.int32)
        before = coordinates(self.tensor.axes[: varying - 1], self.structure)
        extents = evaluate(self.tensor.axes[varying - 1][1], before, self.structure.table)
        return np.concatenate(([0], np.cumsum(extents))).astype(np.int32)


def _varying(tensor: Tensor) -> int:
    """Count the dimensions up to the last that varies with another."""
    return max((place + 1 for place, (_, extent) in enumerate(tensor.axes) if free(extent)), default=0)


def _mask(found: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Mark the coordinates of all elements in the first dimensions."""
    mask = np.zeros(shape, dtype=bool)
    mask[tuple(found.values())[: len(shape)]] = True
    return mask


def _check_elements(tensor: Tensor, mask: np.ndarray, found: Mapping[str, np.ndarray]) -> None:
    """Let a mask have the elements of a structure."""
    wrong = np.argwhere(mask != _mask(found, mask.shape)).tolist()
    if wrong:
        at = tuple(wrong[0])
        raise ValueError(f"tensor {tensor.name} from a mask that is {bool(mask[at])} at {at}: the structure has "
                         f"{'no' if mask[at] else 'an'} element there")


def _check_starts(tensor: Tensor, starts: np.ndarray, own: np.ndarray) -> None:
    """Let cu_seqlens be those of a structure."""
    if starts.size != own.size:
        raise ValueError(f"tensor {tensor.name} from {starts.size} cu_seqlens: the structure has {own.size}")
    wrong = np.flatnonzero(starts != own)
    if wrong.size:
        entry = int(wrong[0])
        raise ValueError(f"tensor {tensor.name} from cu_seqlens whose entry {entry} is {starts[entry]}: the structure "
                         f"has {own[entry]} there")
