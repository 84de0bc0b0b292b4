"""Ragged operands, and what NumPy makes of them, sequence after sequence."""

from collections.abc import Callable, Mapping

import numpy as np

from sparloom.ragged import LENGTHS, RaggedTensor, Structure, Tensor

__all__ = ["by_sequence", "drawn", "scale"]


def drawn(tensor: Tensor, structure: Structure, rng: np.random.Generator) -> RaggedTensor:
    """Draw normal values for all of its storage."""
    return RaggedTensor(tensor, structure, rng.standard_normal(structure.size(tensor), dtype=np.float32))


def by_sequence(oracle: Callable[..., np.ndarray], values: Mapping[str, RaggedTensor]) -> np.ndarray:
    """Compute every sequence in float64; returns the elements in order."""
    first = next(iter(values.values()))
    sequences = range(np.size(first.structure.table(LENGTHS)))
    slices = ({name: value.slice(number).astype(np.float64) for name, value in values.items()} for number in sequences)
    return np.concatenate([oracle(**each).reshape(-1) for each in slices])


def scale(values: Mapping[str, RaggedTensor]) -> float:
    """Multiply the largest magnitudes of all operands."""
    return float(np.prod([np.abs(value.data).max() for value in values.values()], dtype=np.float64))
