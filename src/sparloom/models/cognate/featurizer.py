"""Centring and scaling over matrices: what tells matrices apart, without what they share.

The size of a matrix, which global averages of convolutions lose (WACO's side vector).

What both featurizers have in common: convolutions over sites, global averages, a head.

The input featurizer: sparse convolutions over the pattern, then one vector per matrix (COGNATE table 5).

WACO's input featurizer: strided sparse convolutions whose averages at every depth are put side by side.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn

from sparloom.data import MatrixInput
from sparloom.models.sparseconv import MapCache, SparseBackend, level_channels

__all__ = [
    "Featurizer", "InputFeaturizer", "NoNorm", "Norm", "SideFeatures", "Standardise", "WacoFeaturizer", "make_norm",
]

Norm = Literal["none", "standard"]
REACH = 5.0  # standard deviations beyond which a feature counts no further
TINY = 1e-6


class NoNorm(nn.Module):
    """Leave features as they are."""

    def fit(self, features: Iterable[Tensor]) -> None:
        """Look at none of them."""

    def forward(self, features: Tensor) -> Tensor:
        return features


class Standardise(nn.Module):
    """Centre and scale nonnegative features over the matrices of training, in logarithms.

    `fit` takes mean and variance from matrices. From then on they follow the features in training, as convolutions
    change them, until `tracking` is unset; a network that is loaded from a file was not fitted, so its moments stay.
    Neither passes a gradient. Processes that train together follow the features of all, one after the other, as one
    process would to which their batches are given in turn.

    Reasoning: global averages of rectified channels are nonnegative, so they may have much in common on all matrices.
    Read raw, that could outweigh what tells matrices apart, and the sizes beside it; `swapped_accuracy` says whether it
    does.

    Args:
        width: of the features.
        gain: of the result; below 1, channels, which are many, weigh less against the few features beside them.
        momentum: weight of the newest matrices in mean and variance while tracking.
    """

    def __init__(self, width: int, *, gain: float, momentum: float = 0.01) -> None:
        super().__init__()
        self.gain, self.momentum = gain, momentum
        self.tracking = False
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    @torch.no_grad()
    def fit(self, features: Iterable[Float[Tensor, "matrices width"]]) -> None:
        """Take mean and variance of all these matrices; in training they follow the features from now on."""
        logs = torch.cat(list(features)).log1p()
        self.mean.copy_(logs.mean(0))
        self.variance.copy_(logs.var(0, unbiased=False))
        self.tracking = True

    def forward(self, features: Float[Tensor, "matrices width"]) -> Float[Tensor, "matrices width"]:
        logs = features.log1p()
        if not (self.training and self.tracking):
            return self._scaled(logs)
        own, every = _gathered(logs.detach())
        for seen in every[:own + 1]:
            self._track(seen)
        scaled = self._scaled(logs)
        for seen in every[own + 1:]:
            self._track(seen)
        return scaled

    def _scaled(self, logs: Tensor) -> Tensor:
        return ((logs - self.mean) / (self.variance.sqrt() + TINY)).clamp(-REACH, REACH) * self.gain

    def _track(self, logs: Tensor) -> None:
        """Move the running moments towards the newest matrices."""
        step = logs.mean(0) - self.mean
        scatter = (logs - self.mean).square().mean(0)
        self.mean.add_(step, alpha=self.momentum)
        self.variance.lerp_(scatter, self.momentum)


def make_norm(name: Norm, width: int, *, gain: float) -> NoNorm | Standardise:
    """Make the normalisation of pooled features that an option names.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in ("none", "standard"):
        raise ValueError(f"norm={name!r} is not one of none, standard")
    return Standardise(width, gain=gain) if name == "standard" else NoNorm()


def _gathered(logs: Tensor) -> tuple[int, list[Tensor]]:
    """Number of this process among those that train together, and the features of all, which have one shape."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, [logs]
    every = [torch.empty_like(logs) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, logs.contiguous())
    return distributed.get_rank(), every


COUNT = 3
MILLION = 1e6


class SideFeatures(nn.Module):
    """Rows, columns and nonzeros, standardised over the training matrices of the source, through a small network.

    Source: WACO; COGNATE's table 6 is silent. Departure: logarithms, as sizes span six decades.

    Args:
        scale: sizes enter as log(1 + x), or linearly as in WACO, in millions: mean and deviation in ones would exceed
            65504, the largest number of a checkpoint in float16.
        hidden, width: sizes of the two layers, 64 and 32 in WACO; width 0 leaves the side vector out.
    """

    def __init__(self, *, scale: Literal["log1p", "linear"], hidden: int, width: int) -> None:
        super().__init__()
        if scale not in ("log1p", "linear"):
            raise ValueError(f"scale={scale!r} is not one of log1p, linear")
        self.scale, self.width = scale, width
        self.settings: dict[str, Any] = {"scale": scale, "hidden": hidden, "width": width}
        self.register_buffer("mean", torch.zeros(COUNT))
        self.register_buffer("deviation", torch.ones(COUNT))
        self.layers = nn.Sequential(nn.Linear(COUNT, hidden), nn.ReLU(), nn.Linear(hidden, width)) if width else None

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Take mean and deviation from the given matrices; training leaves them as they are."""
        raw = torch.from_numpy(self._read(inputs))
        deviation = raw.std(0, unbiased=False)
        self.mean.copy_(raw.mean(0))
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1))

    def forward(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        if self.layers is None:
            return self.mean.new_zeros(len(inputs), 0)
        raw = torch.from_numpy(self._read(inputs)).to(self.mean.device)
        return self.layers(((raw - self.mean) / self.deviation).clamp(-REACH, REACH))

    def _read(self, inputs: Sequence[MatrixInput]) -> Float[np.ndarray, "matrices 3"]:
        numbers = np.array([(*item.shape, item.nnz) for item in inputs], np.float64).reshape(-1, COUNT)
        return (np.log1p(numbers) if self.scale == "log1p" else numbers / MILLION).astype(np.float32)


class Featurizer(nn.Module, ABC):
    """Convolve patterns, average over sites, normalise, and read the averages beside the side vector with a head.

    Args:
        readings: settings of the subclass.
        shapes: (taps, inputs, outputs) of every convolution.
        bias: whether convolutions add one.
        pooled: width of the averages.
        hidden, width: sizes of the head.
        side_width: of the vector that joins the averages, 0 for none.
        norm, gain: of the averages, see `Standardise`; "none": as WACO, gain is not read.
        backend: the convolution library.
        maps: how many maps are kept.
    """

    def __init__(
        self,
        *,
        readings: Mapping[str, Any],
        shapes: Sequence[tuple[int, int, int]],
        bias: bool,
        pooled: int,
        hidden: int,
        width: int,
        side_width: int,
        norm: Norm,
        gain: float,
        backend: SparseBackend,
        maps: int,
    ) -> None:
        super().__init__()
        self.width, self.backend = width, backend
        self._maps = MapCache(maps)
        self.settings: dict[str, Any] = {
            **readings, "hidden": hidden, "width": width, "side_width": side_width, "norm": norm, "gain": gain,
        }
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.biases = nn.ParameterList(torch.empty(outputs) for *_, outputs in shapes) if bias else None
        self.norm = make_norm(norm, pooled, gain=gain)
        self.head = nn.Sequential(nn.Linear(pooled + side_width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the convolutions as WACO does: normal, variance 2 / (taps * outputs); biases are 0."""
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

    @abstractmethod
    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend."""

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Take mean and variance of the averages from the given matrices, if they are normalised; see `Standardise`."""
        with torch.no_grad():
            self.norm.fit(self.pool([item]) for item in inputs)

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices w"]:
        """Embed matrices."""
        return self.head(torch.cat([self.norm(self.pool(inputs)), side], dim=1))

    @abstractmethod
    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch."""

    def _sites(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch, or find it where it was built before."""
        device = self.weights[0].device
        key = (device, *((item.digest, item.quantum) for item in inputs))
        return self._maps.get(key, lambda: self._build(inputs).to(device))


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


STRIDED_MAPS = 256  # a map has at most 4096 sites on each level, up to 2 MiB in all


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
            backend=backend, maps=STRIDED_MAPS)

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
