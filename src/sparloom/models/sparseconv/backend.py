"""What a featurizer asks of a sparse convolution library."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

__all__ = ["SparseBackend"]


class SparseBackend(Protocol):
    """Submanifold convolution, 2x2 max-pooling and strided convolution over the sites of a batch of patterns.

    A map serves either pooling, where every level has 2x2 cells of the one before, or strided convolutions.

    Weights have the shape (k * k, inputs, outputs), offsets in row-major order as the taps of conv2d; backends that
    number them otherwise permute, so one set of weights serves all. The map is the backend's own object.
    """

    def build_map(
        self, coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None = None, *, channels: Sequence[int]
    ) -> Any:
        """Prepare one or several matrices (see `build_map`); `channels` is the widest layer of every level."""

    def build_strided_map(self, coords: Sequence[np.ndarray], *, steps: int) -> Any:
        """Prepare one or several matrices for `steps` strided convolutions (see `build_strided_map`)."""

    def input_conv(self, weight: Tensor, bias: Tensor | None, sites: Any) -> Tensor:
        """Convolve the input features with a 5x5 kernel, then ReLU: (sites, outputs)."""

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: Any, level: int) -> Tensor:
        """Convolve with a 3x3 kernel at a level (0 = finest), then ReLU: (sites of the level, outputs)."""

    def strided_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: Any, level: int) -> Tensor:
        """Convolve from a level to the next with a 3x3 kernel of stride 2, then ReLU: (sites of the next, outputs)."""

    def max_pool(self, x: Tensor, sites: Any, level: int) -> Tensor:
        """Take the maximum over the aligned 2x2 cells of a level; one winner gets the gradient."""

    def global_mean(self, x: Tensor, sites: Any, level: int) -> Tensor:
        """Average over the sites of every matrix: (matrices, channels)."""
