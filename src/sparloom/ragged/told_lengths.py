"""Lengths that come with values: as the mask of a padded array, or as cu_seqlens of a packed one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparloom.ir import Const
from sparloom.ragged.tables import At, Length
from sparloom.ragged.tensor import Tensor

__all__ = ["checked_mask", "checked_starts", "jagged_length", "told_length"]


def jagged_length(tensor: Tensor) -> Length | None:
    """Find the length function of a tensor [batch, row(batch), constant extents..]; None if it has another form."""
    match tensor.axes:
        case ((batch, _), (_, At(Length() as length, args)), *behind) if args == (batch,):
            if all(isinstance(extent, Const) for _, extent in behind):
                return length
    return None


def told_length(tensor: Tensor, *, told_by: str, told: bool) -> Length:
    """Find the length function whose entries a mask or cu_seqlens tell.

    Args:
        told_by: "a mask" or "cu_seqlens".
        told: whether there are any.

    Raises:
        ValueError: there are none, or the tensor has another form than [batch, row(batch), constant extents..].
    """
    length = jagged_length(tensor)
    if length is None:
        raise ValueError(f"tensor {tensor.name} without a structure: {told_by} would tell the lengths of "
                         f"[batch, row(batch), constant extents..] only: give a structure")
    if not told:
        raise ValueError(f"tensor {tensor.name} without a structure: give one, or {told_by}, from which lengths follow")
    return length


def checked_mask(tensor: Tensor, mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Check that the elements of every slice of the last dimension are its first ones.

    Args:
        mask: true where there is an element.
        shape: that it has to have.

    Raises:
        ValueError: it is not bool, or has another shape; names a slice in which an element follows one that is missing.
    """
    if mask.dtype != bool or mask.shape != shape:
        raise ValueError(f"tensor {tensor.name} from a mask of {mask.dtype} and shape {mask.shape}: it takes bool of "
                         f"shape {shape}, true where there is an element")
    slices = np.atleast_1d(mask)
    holes = np.argwhere(slices[..., 1:] & ~slices[..., :-1]).tolist()
    if holes:
        *at, missing = holes[0]
        raise ValueError(f"tensor {tensor.name} from a mask whose slice {tuple(at)} has element {missing + 1}, but not "
                         f"{missing}: a slice has its first elements, without holes")
    return mask


def checked_starts(tensor: Tensor, cu_seqlens: np.ndarray | Sequence[int]) -> np.ndarray:
    """Check that slices begin at 0, each where the one before ends: int64.

    Raises:
        ValueError: names the entry that is wrong.
    """
    given = np.asarray(cu_seqlens)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise ValueError(f"tensor {tensor.name} from cu_seqlens of {given.dtype} and shape {given.shape}: they are "
                         f"integers, one more than there are slices")
    starts = given.astype(np.int64)
    if starts[0] != 0:
        raise ValueError(f"tensor {tensor.name} from cu_seqlens that start with {starts[0]}: they start with 0")
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if falls.size:
        entry = int(falls[0]) + 1
        raise ValueError(f"tensor {tensor.name} from cu_seqlens whose entry {entry} is {starts[entry]}, after "
                         f"{starts[entry - 1]}: they do not fall")
    return starts
