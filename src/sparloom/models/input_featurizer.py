"""The input featurizer: sparse convolutions over the pattern, then one vector per matrix (COGNATE table 5)."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sparloom.data import MatrixInput
from sparloom.models.featurizer import Featurizer
from sparloom.models.sparseconv import SparseBackend, level_channels
from sparloom.models.standardise import Norm

__all__ = ["InputFeaturizer"]

BLOCK = 3
MAPS = 512  # a map has at most 4096 sites, up to 1 MiB
READINGS = {"pooling": ("last", "multiscale"), "cells": ("ones", "counts")}


class InputFeaturizer(Featurizer):
    """Twelve convolutions in blocks of three with a 2x2 max-pool between blocks, global averages, and a head.

    The first kernel is 5x5, the others 3x3; ReLU after each, no normalisation between them.

    Args:
        channels: outputs of every layer, a multiple of three layers.
        pooling: the head reads the global average of the last block ("last", table 5) or of every block
            ("multiscale", the text of §3.1).
        cells: input of a site: 1 (the paper), or 1 and log2(1 + nonzeros in the cell) ("counts").
        bias: whether convolutions add one; WACO's do not.
        hidden, width: sizes of the head, WACO's matrix embedding 256 -> 128 (table 6 lists its output).
        side_width, norm, gain, backend: see `Featurizer`.
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
        for name, given in (("pooling", pooling), ("cells", cells)):
            if given not in READINGS[name]:
                raise ValueError(f"{name}={given!r} is not one of {', '.join(READINGS[name])}")
        if len(channels) % BLOCK or not channels:
            raise ValueError(f"{len(channels)} layers do not make blocks of {BLOCK}: give a multiple of {BLOCK}")
        inputs = (1 if cells == "ones" else 2, *channels[:-1])
        taps = (25, *(9,) * (len(channels) - 1))
        super().__init__(
            readings={"channels": list(channels), "pooling": pooling, "cells": cells, "bias": bias},
            shapes=list(zip(taps, inputs, channels, strict=True)), bias=bias,
            pooled=channels[-1] if pooling == "last" else sum(channels[BLOCK - 1 :: BLOCK]), hidden=hidden, width=width,
            side_width=side_width, norm=norm, gain=gain, backend=backend, maps=MAPS)
        self.channels, self.pooling, self.cells = tuple(channels), pooling, cells

    @property
    def level_channels(self) -> tuple[int, ...]:
        """Widest layer of every level."""
        return level_channels(self.channels)

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

    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        features = None if self.cells == "ones" else [_counted(item) for item in inputs]
        return self.backend.build_map([item.coords for item in inputs], features, channels=self.level_channels)


def _counted(item: MatrixInput) -> Float[np.ndarray, "sites 2"]:
    counts = item.counts.astype(np.float32)
    return np.stack([np.ones_like(counts), np.log2(1 + counts)], axis=1)
