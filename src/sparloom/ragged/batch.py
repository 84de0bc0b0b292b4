"""Structures of batches of sequences, by their lengths."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sparloom.ragged.structure import Structure
from sparloom.ragged.tokens import LENGTHS

__all__ = ["structure_of", "tokens_of"]

REMEMBERED = 16  # structures; layers of a model ask for one after the other


def structure_of(lengths: np.ndarray) -> Structure:
    """Give the structure of a batch; the same again while the last 16 lengths that were asked for include these.

    Args:
        lengths: (batch,) integers of at least 0.

    Raises:
        ValueError: lengths are of another form, negative, or no integers.
    """
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(f"lengths are an array of {lengths.ndim} dimensions of {lengths.dtype}: give a vector of "
                         f"integers, one per sequence")
    return _structure(lengths.astype(np.int64).tobytes())


def tokens_of(structure: Structure) -> int:
    """Count the tokens of a batch.

    Raises:
        ValueError: the structure has no LENGTHS.
    """
    return int(np.sum(structure.table(LENGTHS)))


@lru_cache(maxsize=REMEMBERED)
def _structure(lengths: bytes) -> Structure:
    return Structure({LENGTHS: np.frombuffer(lengths, np.int64)})
