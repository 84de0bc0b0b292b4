"""Draws that are the same on every machine: PCG64 doubles, and only operations that IEEE 754 rounds exactly."""

from collections.abc import Sequence

import numpy as np

from sparloom.sparse.pattern import Pattern

__all__ = ["NNZ_LIMIT", "below", "between", "permutation", "pick", "relabel", "symmetric"]

NNZ_LIMIT = 1_000_000  # about as many nonzeros as one synthetic matrix may have


def below(limit: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` integers from 0 to limit - 1."""
    return (rng.random(count) * limit).astype(np.int64)


def between(low: int, high: int, rng: np.random.Generator) -> int:
    """Draw one integer from low to high, both included; low where high is less."""
    return low + int(rng.random() * max(1, high - low + 1))


def pick(options: Sequence[float], rng: np.random.Generator) -> float:
    """Draw one of the options."""
    return options[int(rng.random() * len(options))]


def permutation(count: int, rng: np.random.Generator) -> np.ndarray:
    """Shuffle 0 to count - 1."""
    return np.argsort(rng.random(count), kind="stable")


def symmetric(rows: np.ndarray, cols: np.ndarray, extent: int) -> Pattern:
    """Make a square pattern from pairs: each both ways, and the whole diagonal."""
    every = np.arange(extent)
    return Pattern.from_coo(
        np.concatenate((rows, cols, every)), np.concatenate((cols, rows, every)), (extent, extent))


def relabel(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Renumber the rows and columns of a square pattern alike, at random."""
    label = permutation(pattern.rows, rng)
    return Pattern.from_coo(label[pattern.row_ids()], label[pattern.indices], pattern.shape)
