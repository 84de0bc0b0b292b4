"""Featurizers: sparse convolutions over the pattern of a matrix give one vector per matrix.

`InputFeaturizer` is COGNATE's (table 5) and reads a whole matrix on a coarse grid, `WindowFeaturizer` convolves windows
of the matrix at several resolutions instead, `WacoFeaturizer` is WACO's. All read the size of the matrix, which global
averages lose, as a side vector (`SideFeatures`) and may standardise their averages (`Standardise`). `PatternStatistics`
is a side vector of many statistics.
"""

import hashlib
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn

from sparloom.data import MatrixInput
from sparloom.data.windows import KINDS, Window
from sparloom.errors import MissingArtifact
from sparloom.models.sparseconv import LEVEL_DEPTH, MapCache, SparseBackend, level_channels
from sparloom.sparse import STATISTICS, signed_logarithm

Norm = Literal["none", "standard"]
MAX_DEVIATIONS = 5.0
"""Standardised features are clipped to this many standard deviations."""

EPSILON = 1e-6
SIZES = 3  # rows, columns, nonzeros
MILLION = 1e6
OPTIONS = {"pooling": ("last", "multiscale"), "cells": ("ones", "counts")}
MAX_MAPS = 512  # a map has at most 4096 sites, up to 1 MiB
MAX_STRIDED_MAPS = 256  # a map has at most 4096 sites on each level, up to 2 MiB in all
MAX_AVERAGES = 4096  # of matrices, at most some KiB each


class Standardise(nn.Module):
    """Centre and scale the logarithms of nonnegative features over the training matrices.

    `fit` sets mean and variance. From then on both track the features during training, as the convolutions change,
    until `tracking` is unset; a network loaded from a file is not fitted, so its moments stay. No gradient passes
    through the moments. Processes that train together track the features of all processes in the same order, as one
    process would that is given their batches in turn.

    Rationale: global averages of rectified channels are nonnegative, so all matrices may share a large offset. Read
    raw, it could outweigh the differences between matrices and the size features; `swapped_accuracy` tells whether it
    does.

    Args:
        gain: factor on the result; below 1, the many channels weigh less against the few size features.
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
        """Set mean and variance from these matrices and start tracking."""
        logs = torch.cat(list(features)).log1p()
        self.mean.copy_(logs.mean(0))
        self.variance.copy_(logs.var(0, unbiased=False))
        self.tracking = True

    def forward(self, features: Float[Tensor, "matrices width"]) -> Float[Tensor, "matrices width"]:
        logs = features.log1p()
        if not (self.training and self.tracking):
            return self._scale(logs)
        rank, batches = _all_gather(logs.detach())
        for batch in batches[:rank + 1]:
            self._track(batch)
        scaled = self._scale(logs)
        for batch in batches[rank + 1:]:
            self._track(batch)
        return scaled

    def _scale(self, logs: Tensor) -> Tensor:
        deviations = (logs - self.mean) / (self.variance.sqrt() + EPSILON)
        return deviations.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS) * self.gain

    def _track(self, logs: Tensor) -> None:
        """Move the running moments towards those of the newest matrices."""
        step = logs.mean(0) - self.mean
        scatter = (logs - self.mean).square().mean(0)
        self.mean.add_(step, alpha=self.momentum)
        self.variance.lerp_(scatter, self.momentum)


def _all_gather(logs: Tensor) -> tuple[int, list[Tensor]]:
    """Return the rank of this process and the features of all processes, which have equal shapes."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, [logs]
    batches = [torch.empty_like(logs) for _ in range(distributed.get_world_size())]
    distributed.all_gather(batches, logs.contiguous())
    return distributed.get_rank(), batches


class SideVector(nn.Module, ABC):
    """Embed numbers of a matrix, standardised over the source's training matrices, with a small network.

    Args:
        numbers: of a matrix.
        hidden, width: sizes of the two layers; width 0 leaves the side vector out.
        settings: further settings of the subclass.
    """

    def __init__(self, *, numbers: int, hidden: int, width: int, **settings: Any) -> None:
        super().__init__()
        self.numbers, self.width = numbers, width
        self.settings: dict[str, Any] = {**settings, "hidden": hidden, "width": width}
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))
        self.layers = nn.Sequential(nn.Linear(numbers, hidden), nn.ReLU(), nn.Linear(hidden, width)) if width else None

    @abstractmethod
    def read(self, inputs: Sequence[MatrixInput]) -> Float[np.ndarray, "matrices numbers"]:
        """Return the numbers of matrices, float32."""

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Set mean and deviation from these matrices; training does not change them."""
        raw = torch.from_numpy(self.read(inputs))
        deviation = raw.std(0, unbiased=False)
        self.mean.copy_(raw.mean(0))
        self.deviation.copy_(torch.where(deviation > EPSILON, deviation, 1))

    def forward(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        if self.layers is None:
            return self.mean.new_zeros(len(inputs), 0)
        raw = torch.from_numpy(self.read(inputs)).to(self.mean.device)
        return self.layers(((raw - self.mean) / self.deviation).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS))


class SideFeatures(SideVector):
    """Embed rows, columns and nonzeros.

    Source: WACO; COGNATE's table 6 does not describe it. Departure: logarithms, since sizes span six decades.

    Args:
        scale: "log1p" reads log(1 + x); "linear" reads millions, as in WACO (mean and deviation of plain counts would
            exceed 65504, the largest value of a float16 checkpoint).
        hidden, width: sizes of the two layers, 64 and 32 in WACO; width 0 leaves the side vector out.
    """

    def __init__(self, *, scale: Literal["log1p", "linear"], hidden: int, width: int) -> None:
        if scale not in ("log1p", "linear"):
            raise ValueError(f"scale={scale!r} is not one of log1p, linear")
        super().__init__(numbers=SIZES, hidden=hidden, width=width, scale=scale)
        self.scale = scale

    def read(self, inputs: Sequence[MatrixInput]) -> Float[np.ndarray, "matrices 3"]:
        """Return rows, columns and nonzeros at the scale."""
        numbers = np.array([(*item.shape, item.nnz) for item in inputs], np.float64).reshape(-1, SIZES)
        return (np.log1p(numbers) if self.scale == "log1p" else numbers / MILLION).astype(np.float32)


class PatternStatistics(SideVector):
    """Embed all statistics of the pattern, sizes among them, beside what the convolutions see.

    Rationale: the convolutions read at most 4,096 cells of a matrix and hardly see how rows vary, how much is reused
    or how unequal blocks are, which decide what is fast. COGNATE has no such input.

    Args:
        hidden, width: sizes of the two layers; width 0 leaves the side vector out.
        statistics: names of those that are read, of `sparloom.sparse.STATISTICS`.
    """

    def __init__(self, *, hidden: int, width: int, statistics: Sequence[str] = STATISTICS) -> None:
        unknown = [name for name in statistics if name not in STATISTICS]
        if unknown:
            raise ValueError(f"no statistic {unknown[0]!r}: there are {', '.join(STATISTICS)}")
        super().__init__(numbers=len(statistics), hidden=hidden, width=width, statistics=list(statistics))
        self._columns = [STATISTICS.index(name) for name in statistics]

    def read(self, inputs: Sequence[MatrixInput]) -> Float[np.ndarray, "matrices statistics"]:
        """Return logarithms of the statistics with their signs.

        Raises:
            MissingArtifact: a matrix has none; names it and the remedy.
        """
        absent = next((item.name for item in inputs if item.statistics is None), None)
        if absent is not None:
            raise MissingArtifact(f"no statistics of {absent}, which this network reads", experiment="prepare_inputs")
        numbers = np.array([item.statistics for item in inputs], np.float64).reshape(-1, len(STATISTICS))
        return signed_logarithm(numbers[:, self._columns]).astype(np.float32)


class Featurizer(nn.Module, ABC):
    """Convolve patterns, average over sites, normalise, and feed averages and side vector to a two-layer head.

    Averages that need no gradients, those of frozen convolutions among them, are computed once per matrix and kept.

    Args:
        shapes: (taps, inputs, outputs) of every convolution.
        bias: add a bias to every convolution.
        pooled: number of averages of a matrix.
        hidden, width: sizes of the head's layers.
        side_width: width of the side vector, 0 for none.
        norm, gain: normalisation of the averages, see `Standardise`; "none", as in WACO, ignores the gain.
        maps: number of convolution maps that are cached.
    """

    def __init__(
        self,
        *,
        options: Mapping[str, Any],
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
        self.width, self.pooled, self.backend = width, pooled, backend
        self._maps = MapCache(maps)
        self._averages = MapCache(MAX_AVERAGES)  # shared by copies, as maps are
        self._digested: tuple[list[nn.Parameter], list[tuple[int, int]], bytes] = ([], [], b"")
        self.settings: dict[str, Any] = {
            **options, "hidden": hidden, "width": width, "side_width": side_width, "norm": norm, "gain": gain,
        }
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.biases = nn.ParameterList(torch.empty(outputs) for *_, outputs in shapes) if bias else None
        if norm not in ("none", "standard"):
            raise ValueError(f"norm={norm!r} is not one of none, standard")
        self.norm = Standardise(pooled, gain=gain) if norm == "standard" else nn.Identity()
        self.head = nn.Sequential(nn.Linear(pooled + side_width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the convolutions as WACO does: normal, variance 2 / (taps * outputs); set biases to 0."""
        with torch.no_grad():
            for weight in self.weights:
                weight.normal_(0, math.sqrt(2 / (weight.shape[0] * weight.shape[2])), generator=generator)
            for bias in self.biases or ():
                bias.zero_()

    def convolutions(self) -> list[nn.Parameter]:
        return [*self.weights, *(self.biases or ())]

    def pool(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over all matrices at once."""
        return self.pool_map(self._map(inputs))

    @abstractmethod
    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend."""

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Fit the normalisation of the averages to these matrices; see `Standardise`."""
        if isinstance(self.norm, Standardise):
            with torch.no_grad():
                self.norm.fit(self.averages_of([item]) for item in inputs)

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices w"]:
        return self.head(torch.cat([self.norm(self.averages_of(inputs)), side], dim=1))

    def averages_of(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices pooled"]:
        """Return `pool(inputs)`, from memory where no gradients are needed."""
        if torch.is_grad_enabled() and any(each.requires_grad for each in self.convolutions()):
            return self.pool(inputs)
        return self._averages.get((self._weights_digest(), self._key(inputs)), lambda: self.pool(inputs).detach())

    def _weights_digest(self) -> bytes:
        """Hash the convolutions; again only after one was replaced, moved or changed, since it takes tens of ms."""
        tensors = self.convolutions()
        state = [(each.data_ptr(), each._version) for each in tensors]
        known, then, digest = self._digested
        if state != then or not all(map(operator.is_, tensors, known)):
            hashed = hashlib.sha256()
            for each in tensors:
                hashed.update(each.detach().cpu().numpy().data)
            digest = hashed.digest()
            self._digested = tensors, state, digest
        return digest

    @abstractmethod
    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch."""

    def _map(self, inputs: Sequence[MatrixInput]) -> Any:
        """Return the map of a batch from the cache, or build it."""
        return self._maps.get(self._key(inputs), lambda: self._build(inputs).to(self.weights[0].device))

    def _key(self, inputs: Sequence[MatrixInput]) -> tuple[Any, ...]:
        return (self.weights[0].device, *((item.digest, item.quantum) for item in inputs))


class InputFeaturizer(Featurizer):
    """Twelve convolutions in blocks of three with 2x2 max-pooling between blocks, global averages, and a head.

    The first kernel is 5x5, the others are 3x3. A ReLU follows each convolution; there is no normalisation in between.

    Args:
        channels: outputs of every layer; the number of layers is a multiple of three.
        pooling: the head reads the global average of the last block ("last", table 5) or of every block
            ("multiscale", the text of §3.1).
        cells: input of a site: 1 ("ones", the paper), or 1 and log2(1 + nonzeros in the cell) ("counts").
        bias: add a bias to every convolution; WACO has none.
        hidden, width: sizes of the head, 256 and 128 as in WACO's matrix embedding (table 6 lists its output).
        side_width, norm, gain, backend: see `Featurizer`.
    """

    kinds = 1  # of sites that are averaged apart

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
        for name, value in (("pooling", pooling), ("cells", cells)):
            if value not in OPTIONS[name]:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(OPTIONS[name])}")
        if len(channels) % LEVEL_DEPTH or not channels:
            raise ValueError(f"{len(channels)} layers do not make blocks of {LEVEL_DEPTH}: "
                             f"give a multiple of {LEVEL_DEPTH}")
        inputs = (1 if cells == "ones" else 2, *channels[:-1])
        taps = (25, *(9,) * (len(channels) - 1))
        super().__init__(
            options={"channels": list(channels), "pooling": pooling, "cells": cells, "bias": bias},
            shapes=list(zip(taps, inputs, channels, strict=True)), bias=bias,
            pooled=self.kinds * (channels[-1] if pooling == "last" else sum(channels[LEVEL_DEPTH - 1::LEVEL_DEPTH])),
            hidden=hidden, width=width, side_width=side_width, norm=norm, gain=gain, backend=backend, maps=MAX_MAPS)
        self.channels, self.pooling, self.cells = tuple(channels), pooling, cells

    @property
    def level_channels(self) -> tuple[int, ...]:
        """Number of channels of the widest layer of every level."""
        return level_channels(self.channels)

    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend."""
        means, x, last = [], None, len(self.weights) - 1
        for layer, weight in enumerate(self.weights):
            level, bias = layer // LEVEL_DEPTH, None if self.biases is None else self.biases[layer]
            if layer == 0:
                x = self.backend.input_conv(weight, bias, sites)
            else:
                x = self.backend.conv(x, weight, bias, sites, level)
            if layer == last or (layer % LEVEL_DEPTH == LEVEL_DEPTH - 1 and self.pooling == "multiscale"):
                means.append(self.backend.global_mean(x, sites, level))
            if layer % LEVEL_DEPTH == LEVEL_DEPTH - 1 and layer != last:
                x = self.backend.max_pool(x, sites, level)
        return torch.cat(means, dim=1)

    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        return self._build_sites(inputs)

    def _build_sites(self, grids: Sequence[MatrixInput | Window]) -> Any:
        features = None if self.cells == "ones" else [_cell_counts(grid.counts) for grid in grids]
        return self.backend.build_map([grid.coords for grid in grids], features, channels=self.level_channels)


def _cell_counts(counts: np.ndarray) -> Float[np.ndarray, "sites 2"]:
    counts = counts.astype(np.float32)
    return np.stack([np.ones_like(counts), np.log2(1 + counts)], axis=1)


@dataclass(frozen=True)
class WindowMap:
    """Windows of a batch of matrices.

    Args:
        sites: map of the backend with the sites of every window; None: there are no windows.
        shares: (matrices * kinds, windows), weights that average the windows of each kind of a matrix.
    """

    sites: Any
    shares: Tensor

    def to(self, device: torch.device | str) -> "WindowMap":
        return WindowMap(self.sites if self.sites is None else self.sites.to(device), self.shares.to(device))


class WindowFeaturizer(InputFeaturizer):
    """The convolutions of `InputFeaturizer` over windows of a matrix, averaged over the windows of each kind.

    The windows of `sparloom.data.cut_windows` show rows, tiles and the whole matrix at their own resolutions; all are
    convolved by the same weights. The head reads the averages of each kind one after the other; those of a kind that a
    matrix has no window of are 0.

    Rationale: one grid of at most 4,096 cells over a matrix does not tell how rows vary and columns are reused, which
    decide what is fast; linear probes of `finetune_*` measure what is seen. COGNATE has no windows.
    """

    kinds = len(KINDS)

    def pool_map(self, sites: WindowMap) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over all windows."""
        if sites.sites is None:
            return sites.shares.new_zeros(len(sites.shares) // self.kinds, self.pooled)
        means = super().pool_map(sites.sites)
        return (sites.shares.to(means.dtype) @ means).reshape(-1, self.kinds * means.shape[1])

    def _build(self, inputs: Sequence[MatrixInput]) -> WindowMap:
        absent = next((item.name for item in inputs if item.windows is None), None)
        if absent is not None:
            raise MissingArtifact(f"no windows of {absent}, which this network reads", experiment="prepare_inputs")
        windows = [window for item in inputs for window in item.windows]
        kinds = np.array([number * len(KINDS) + KINDS.index(window.kind)
                          for number, item in enumerate(inputs) for window in item.windows], np.int64)
        shares = np.zeros((len(inputs) * len(KINDS), len(windows)), np.float32)
        shares[kinds, np.arange(len(windows))] = 1 / np.bincount(kinds, minlength=len(shares))[kinds]
        return WindowMap(self._build_sites(windows) if windows else None, torch.from_numpy(shares))


class WacoFeaturizer(Featurizer):
    """A 5x5 convolution with stride 1, 3x3 convolutions with stride 2, global averages of all of them, and a head.

    A ReLU follows each convolution; there are no biases and no normalisation in between. The head reads the
    layers * channels averages (448 in WACO) and the side vector. Replaces `InputFeaturizer` in an ablation of COGNATE
    (figure 7).

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
            options={"layers": layers, "channels": channels},
            shapes=[(25, 1, channels), *[(9, channels, channels)] * (layers - 1)], bias=False,
            pooled=layers * channels, hidden=hidden, width=width, side_width=side_width, norm=norm, gain=gain,
            backend=backend, maps=MAX_STRIDED_MAPS)

    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend and return the averages of all layers, first layer first."""
        first, *others = self.weights
        x = self.backend.input_conv(first, None, sites)
        means = [self.backend.global_mean(x, sites, 0)]
        for level, weight in enumerate(others):
            x = self.backend.strided_conv(x, weight, None, sites, level)
            means.append(self.backend.global_mean(x, sites, level + 1))
        return torch.cat(means, dim=1)

    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        return self.backend.build_strided_map([item.coords for item in inputs], steps=len(self.weights) - 1)
