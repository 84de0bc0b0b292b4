"""Dense values in the storage that a schedule chose for them: weights in panels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparloom.ir import DTYPES, Const
from sparloom.ragged.layout import stored
from sparloom.ragged.rearrange import Change, FusedDims, SplitDim, Stored
from sparloom.ragged.tensor import Tensor

__all__ = ["arranged"]


def arranged(tensor: Tensor, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Copy values to the storage of a tensor of constant extents.

    As `RaggedTensor.from_padded`, by views instead of lists of coordinates: in milliseconds where that takes seconds.

    Args:
        values: of the shape of the tensor, at any strides.
        out: written in place of a new array, if given.

    Returns:
        Flat, of the tensor's type; padding is 0.

    Raises:
        ValueError: an extent varies, or values have another shape.
    """
    kept = stored(tensor)
    if tensor.bulk or not all(isinstance(extent, Const) for _, extent in (*tensor.axes, *kept.axes)):
        raise ValueError(f"tensor {tensor.name} has extents that vary: use RaggedTensor.from_padded")
    shape = tuple(int(extent.value) for _, extent in tensor.axes)
    if values.shape != shape:
        raise ValueError(f"tensor {tensor.name} from values of shape {values.shape}: it has {shape}")
    multiples = dict(tensor.padding)
    for place, (dim, _) in enumerate(tensor.axes):
        values = _padded(values, place, multiples.get(dim, 1))
    names = stored(replace(tensor, changes=()))
    for change in tensor.changes:
        values = _changed(values, names, change, tensor.name)
        names = change.applied(tensor.name, names)
    if out is None:
        out = np.empty(values.size, DTYPES[tensor.type.scalar])
    np.copyto(out.reshape(values.shape), values, casting="same_kind")
    return out


def _changed(values: np.ndarray, names: Stored, change: Change, owner: str) -> np.ndarray:
    """Look at an array in the dimensions after a change.

    Args:
        names: of the dimensions before.
    """
    match change:
        case SplitDim(name, factor):
            at = names.position(owner, name)
            values = _padded(values, at, factor)
            return values.reshape((*values.shape[:at], values.shape[at] // factor, factor, *values.shape[at + 1:]))
        case FusedDims(outer):
            at = names.position(owner, outer)
            return values.reshape((*values.shape[:at], values.shape[at] * values.shape[at + 1], *values.shape[at + 2:]))
    here = [names.position(owner, name) for name in change.names]
    order = list(range(values.ndim))
    for to, at in zip(sorted(here), here, strict=True):
        order[to] = at
    return values.transpose(order)


def _padded(values: np.ndarray, place: int, multiple: int) -> np.ndarray:
    """Make an extent a multiple, by zeros behind."""
    missing = -values.shape[place] % multiple
    if not missing:
        return values
    return np.pad(values, [(0, missing if axis == place else 0) for axis in range(values.ndim)])
