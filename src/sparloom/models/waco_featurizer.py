"""WACO's input featurizer: strided sparse convolutions whose averages at every depth are put side by side."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.sparseconv import MapCache, SparseBackend
from sparloom.models.standardise import Norm, norm_of

__all__ = ["WacoFeaturizer"]

MAPS = 256  # a map has at most 4096 sites on each level, up to 2 MiB in all


class WacoFeaturizer(nn.Module):
    """A 5x5 convolution with stride 1, then 3x3 convolutions with stride 2; every output is averaged, then a head.

    ReLU after each, no bias, no normalisation between them. The head reads layers * channels numbers, 448 in WACO, and
    the side vector. Takes the place of `InputFeaturizer` in COGNATE (its ablation in figure 7).

    Source: WACO, model.py of its repository.

    Args:
        layers, channels: 14 and 32 in WACO.
        hidden, width: sizes of the head, 256 and 128 in WACO.
        side_width: of the vector that joins the averages, 0 for none.
        norm, gain: of the averages, see `Standardise`; "none" in WACO, gain is not read.
        backend: the convolution library.
    """

    def __init__(
        self, *, layers: int, channels: int, hidden: int, width: int, side_width: int, norm: Norm, gain: float,
        backend: SparseBackend,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers={layers} of the featurizer is below 1")
        self.width, self.backend = width, backend
        self._maps = MapCache(MAPS)
        self.settings: dict[str, Any] = {
            "layers": layers, "channels": channels, "hidden": hidden, "width": width, "side_width": side_width,
            "norm": norm, "gain": gain,
        }
        shapes = [(25, 1, channels), *[(9, channels, channels)] * (layers - 1)]
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.norm = norm_of(norm, layers * channels, gain=gain)
        self.head = nn.Sequential(
            nn.Linear(layers * channels + side_width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the convolutions as WACO does: normal, variance 2 / (taps * outputs)."""
        with torch.no_grad():
            for weight in self.weights:
                weight.normal_(0, math.sqrt(2 / (weight.shape[0] * weight.shape[2])), generator=generator)

    def convolutions(self) -> list[nn.Parameter]:
        """List the parameters below the head."""
        return list(self.weights)

    def pool(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over all matrices at once; averages of all layers, the first layer first."""
        sites, (first, *others) = self._sites(inputs), self.weights
        x = self.backend.input_conv(first, None, sites)
        means = [self.backend.global_mean(x, sites, 0)]
        for level, weight in enumerate(others):
            x = self.backend.strided_conv(x, weight, None, sites, level)
            means.append(self.backend.global_mean(x, sites, level + 1))
        return torch.cat(means, dim=1)

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Fix mean and variance of the averages over the given matrices, if they are normalised; done once."""
        with torch.no_grad():
            self.norm.fit(self.pool([item]) for item in inputs)

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices w"]:
        """Embed matrices."""
        return self.head(torch.cat([self.norm(self.pool(inputs)), side], dim=1))

    def _sites(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch, or find it where it was built before."""
        device, steps = self.weights[0].device, len(self.weights) - 1
        key = (device, steps, *((item.digest, item.quantum) for item in inputs))
        coords = [item.coords for item in inputs]
        return self._maps.get(key, lambda: self.backend.build_strided_map(coords, steps=steps).to(device))
