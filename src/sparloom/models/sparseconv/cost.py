"""Floating-point operations of the featurizer, counted from the sites before anything is trained."""

from collections.abc import Sequence

import numpy as np

from sparloom.models.sparseconv.maps import SparseMap, build_map

__all__ = ["CHANNELS", "conv_flops", "level_channels", "map_flops"]

CHANNELS = (32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256)  # COGNATE table 5
BLOCK = 3  # convolutions between two poolings


def level_channels(channels: Sequence[int]) -> tuple[int, ...]:
    """Widest layer of every level, blocks of three layers each; what a map cuts its blocks by."""
    return tuple(max(channels[start:start + BLOCK]) for start in range(0, len(channels), BLOCK))


def map_flops(sites: SparseMap, channels: Sequence[int] = CHANNELS) -> float:
    """Count one forward and backward pass over existing (site, neighbour) pairs, 2 operations per multiply-add.

    Every layer has three products: outputs, input gradients, weight gradients. The first layer has two, as its input
    needs no gradient. Pooling, activations and the head are left out.
    """
    total = 4.0 * sites.patch_pairs * sites.features.shape[1] * channels[0]
    for layer in range(1, len(channels)):
        level = sites.levels[layer // BLOCK]
        total += 6.0 * (level.sites + level.pairs) * channels[layer - 1] * channels[layer]
    return total


def conv_flops(coords: np.ndarray, channels: Sequence[int] = CHANNELS) -> float:
    """Count the operations of one forward and backward pass over a pattern with these sites (n, 2)."""
    return map_flops(build_map([coords], channels=level_channels(channels)), channels)
