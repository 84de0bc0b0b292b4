"""The input featurizer: sparse convolutions over the pattern, then one vector per matrix (COGNATE table 5)."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.sparseconv import MapCache, SparseBackend, level_channels
from sparloom.models.standardise import Norm, norm_of

__all__ = ["InputFeaturizer"]

BLOCK = 3
READINGS = {"pooling": ("last", "multiscale"), "cells": ("ones", "counts")}


class InputFeaturizer(nn.Module):
    """Twelve convolutions in blocks of three with a 2x2 max-pool between blocks, global averages, and a head.

    The first kernel is 5x5, the others 3x3; ReLU after each, no normalisation between them.

    Args:
        channels: outputs of every layer, a multiple of three layers.
        pooling: the head reads the global average of the last block ("last", table 5) or of every block
            ("multiscale", the text of §3.1).
        cells: input of a site: 1 (the paper), or 1 and log2(1 + nonzeros in the cell) ("counts").
        bias: whether convolutions add one; WACO's do not.
        hidden, width: sizes of the head, WACO's matrix embedding 256 -> 128 (table 6 lists its output).
        side_width: of the vector that joins the pooled one, 0 for none.
        norm, gain: of the pooled vector, see `Standardise`; "none": as WACO, gain is not read.
        backend: the convolution library.
    """

    def __init__(
        self,
        *,
        channels: Sequence[int],
        pooling: Literal["last", "multiscale"],
        cells: Literal["ones", "counts"],
        bias: bool,
        hidden: int,
        width: int,
        side_width: int,
        norm: Norm,
        gain: float,
        backend: SparseBackend,
    ) -> None:
        super().__init__()
        for name, given in (("pooling", pooling), ("cells", cells)):
            if given not in READINGS[name]:
                raise ValueError(f"{name}={given!r} is not one of {', '.join(READINGS[name])}")
        if len(channels) % BLOCK or not channels:
            raise ValueError(f"{len(channels)} layers do not make blocks of {BLOCK}: give a multiple of {BLOCK}")
        self.channels, self.pooling, self.cells, self.width = tuple(channels), pooling, cells, width
        self.backend = backend
        self._maps = MapCache()
        self.settings: dict[str, Any] = {
            "channels": list(channels), "pooling": pooling, "cells": cells, "bias": bias, "hidden": hidden,
            "width": width, "side_width": side_width, "norm": norm, "gain": gain,
        }
        inputs = (self.cell_channels, *channels[:-1])
        taps = (25, *(9,) * (len(channels) - 1))
        self.weights = nn.ParameterList(
            torch.empty(k, i, o) for k, i, o in zip(taps, inputs, channels, strict=True)
        )
        self.biases = nn.ParameterList(torch.empty(o) for o in channels) if bias else None
        pooled = channels[-1] if pooling == "last" else sum(channels[BLOCK - 1 :: BLOCK])
        self.norm = norm_of(norm, pooled, gain=gain)
        self.head = nn.Sequential(nn.Linear(pooled + side_width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    @property
    def cell_channels(self) -> int:
        """Numbers per site that the first layer reads."""
        return 1 if self.cells == "ones" else 2

    @property
    def level_channels(self) -> tuple[int, ...]:
        """Widest layer of every level."""
        return level_channels(self.channels)

    def reset(self, generator: torch.Generator) -> None:
        """Draw the convolutions as WACO does: normal, variance 2 / (taps * outputs)."""
        with torch.no_grad():
            for weight in self.weights:
                weight.normal_(0, math.sqrt(2 / (weight.shape[0] * weight.shape[2])), generator=generator)
            for bias in self.biases or ():
                bias.zero_()

    def convolutions(self) -> list[nn.Parameter]:
        """List the parameters below the head."""
        return [*self.weights, *(self.biases or ())]

    def pool(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over all matrices at once."""
        return self.pool_map(self._sites(inputs))

    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend."""
        means, x, last = [], None, len(self.weights) - 1
        for layer, weight in enumerate(self.weights):
            level, bias = layer // BLOCK, None if self.biases is None else self.biases[layer]
            if layer == 0:
                x = self.backend.input_conv(weight, bias, sites)
            else:
                x = self.backend.conv(x, weight, bias, sites, level)
            if layer == last or (layer % BLOCK == BLOCK - 1 and self.pooling == "multiscale"):
                means.append(self.backend.global_mean(x, sites, level))
            if layer % BLOCK == BLOCK - 1 and layer != last:
                x = self.backend.max_pool(x, sites, level)
        return torch.cat(means, dim=1)

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Fix mean and variance of the pooled features over the given matrices, if they are normalised; done once."""
        with torch.no_grad():
            self.norm.fit(self.pool([item]) for item in inputs)

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices w"]:
        """Embed matrices."""
        return self.head(torch.cat([self.norm(self.pool(inputs)), side], dim=1))

    def _sites(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch, or find it where it was built before."""
        device = self.weights[0].device
        key = (device, self.cells, *((item.digest, item.quantum) for item in inputs))
        return self._maps.get(key, lambda: self._build(inputs).to(device))

    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        features = None if self.cells == "ones" else [_counted(item) for item in inputs]
        return self.backend.build_map([item.coords for item in inputs], features, channels=self.level_channels)


def _counted(item: MatrixInput) -> Float[np.ndarray, "sites 2"]:
    counts = item.counts.astype(np.float32)
    return np.stack([np.ones_like(counts), np.log2(1 + counts)], axis=1)
