"""WACO's input featurizer: strided sparse convolutions whose averages at every depth are put side by side."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sparloom.data import MatrixInput
from sparloom.models.featurizer import Featurizer
from sparloom.models.sparseconv import SparseBackend
from sparloom.models.standardise import Norm

__all__ = ["WacoFeaturizer"]

MAPS = 256  # a map has at most 4096 sites on each level, up to 2 MiB in all


class WacoFeaturizer(Featurizer):
    """A 5x5 convolution with stride 1, then 3x3 convolutions with stride 2; every output is averaged, then a head.

    ReLU after each, no bias, no normalisation between them. The head reads layers * channels numbers, 448 in WACO, and
    the side vector. Takes the place of `InputFeaturizer` in COGNATE (its ablation in figure 7).

    Source: WACO, model.py of its repository.

    Args:
        layers, channels: 14 and 32 in WACO.
        hidden, width: sizes of the head, 256 and 128 in WACO.
        side_width, norm, gain, backend: see `Featurizer`.
    """

    def __init__(
        self, *, layers: int, channels: int, hidden: int, width: int, side_width: int, norm: Norm, gain: float,
        backend: SparseBackend,
    ) -> None:
        if layers < 1:
            raise ValueError(f"layers={layers} of the featurizer is below 1")
        super().__init__(
            readings={"layers": layers, "channels": channels},
            shapes=[(25, 1, channels), *[(9, channels, channels)] * (layers - 1)], bias=False,
            pooled=layers * channels, hidden=hidden, width=width, side_width=side_width, norm=norm, gain=gain,
            backend=backend, maps=MAPS)

    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend; averages of all layers, the first layer first."""
        first, *others = self.weights
        x = self.backend.input_conv(first, None, sites)
        means = [self.backend.global_mean(x, sites, 0)]
        for level, weight in enumerate(others):
            x = self.backend.strided_conv(x, weight, None, sites, level)
            means.append(self.backend.global_mean(x, sites, level + 1))
        return torch.cat(means, dim=1)

    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        return self.backend.build_strided_map([item.coords for item in inputs], steps=len(self.weights) - 1)
