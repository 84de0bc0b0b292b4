"""Structures of batches of sequences, by their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sparloom.ragged.encoder import LENGTHS
from sparloom.ragged.structure import Structure, length_vector

__all__ = ["structure_of", "tokens_of"]

REMEMBERED = 16  # structures; layers of a model ask for one after the other


def structure_of(lengths: np.ndarray | Sequence[int]) -> Structure:
    """Give the structure of a batch; the same again while the last 16 lengths that were asked for include these.

    Args:
        lengths: (batch,) integers of at least 0.

    Raises:
        TypeError: lengths are no numbers.
        ValueError: lengths are of another form, negative, or no integers.
    """
    return _structure(length_vector(lengths).astype(np.int64).tobytes())


def tokens_of(structure: Structure) -> int:
    """Count the tokens of a batch.

    Raises:
        TypeError: no structure.
        ValueError: the structure has no LENGTHS.
    """
    if not isinstance(structure, Structure):
        raise TypeError(f"structure of type {type(structure).__name__}: give structure_of(lengths)")
    return int(np.sum(structure.table(LENGTHS)))


@lru_cache(maxsize=REMEMBERED)
def _structure(lengths: bytes) -> Structure:
    return Structure({LENGTHS: np.frombuffer(lengths, np.int64)})
