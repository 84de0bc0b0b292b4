"""The interface of sparse convolution libraries, with a backend in PyTorch and one on MinkowskiEngine.

`TorchBackend`, the default, gathers, multiplies per offset and sums per site. MinkowskiEngine 0.5.4, the library of the
paper, is optional and built from source (docs/howto/minkowski.md). Networks of both have the same weights and give the
same results, up to rounding.
"""

import collections.abc
import ctypes
import importlib
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sparloom.models.sparseconv.maps import CENTRE, Level, Pool, SparseMap, build_map
from sparloom.models.sparseconv.strided import (
    StridedMap,
    build_strided_map,
    split_by_offset,
    strided_conv_relu,
    sum_per_site,
)

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # options of glibc's mallopt, from malloc.h
RETAINED_BYTES = 2**30
PAD_BYTES = 2**26
BUILD_MINKOWSKI = ('pip install --no-build-isolation --no-deps "-C--global-option=--blas=openblas --cpu_only" '
                   "MinkowskiEngine==0.5.4")

log = logging.getLogger(__name__)


class SparseBackend(Protocol):
    """Submanifold convolution, 2x2 max-pooling and strided convolution over the sites of a batch of patterns.

    A map, an object of the backend, serves either pooling, where every level has the 2x2 cells of the one before, or
    strided convolutions. Weights have the shape (k * k, inputs, outputs) with offsets in row-major order, as the taps
    of conv2d; backends with another order permute them, so weights can be shared between backends.
    """

    def build_map(
        self, coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None = None, *, channels: Sequence[int]
    ) -> Any:
        """Build the map of one or several matrices, see `maps.build_map`."""

    def build_strided_map(self, coords: Sequence[np.ndarray], *, steps: int) -> Any:
        """Build the map of one or several matrices for strided convolutions, see `strided.build_strided_map`."""

    def input_conv(self, weight: Tensor, bias: Tensor | None, sites: Any) -> Tensor:
        """Convolve the input features with a 5x5 kernel, then ReLU: (sites, outputs)."""

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: Any, level: int) -> Tensor:
        """Convolve with a 3x3 kernel at a level (0 = finest), then ReLU: (sites of the level, outputs)."""

    def strided_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: Any, level: int) -> Tensor:
        """Convolve from a level to the next with a 3x3 kernel of stride 2, then ReLU: (sites of the next, outputs)."""

    def max_pool(self, x: Tensor, sites: Any, level: int) -> Tensor:
        """Take the maximum over the aligned 2x2 cells of a level; only one winner gets the gradient."""

    def global_mean(self, x: Tensor, sites: Any, level: int) -> Tensor:
        """Average over the sites of every matrix: (matrices, channels)."""


class TorchBackend:
    """Convolve over lists of pairs on CPU or GPU, in float32 or float64."""

    def build_map(
        self, coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None = None, *, channels: Sequence[int]
    ) -> SparseMap:
        return build_map(coords, features, channels=channels)

    def build_strided_map(self, coords: Sequence[np.ndarray], *, steps: int) -> StridedMap:
        return build_strided_map(coords, steps=steps)

    def input_conv(self, weight: Tensor, bias: Tensor | None, sites: SparseMap | StridedMap) -> Tensor:
        taps, inputs, outputs = weight.shape
        flat = weight.reshape(taps * inputs, outputs)
        product = sites.patches @ flat if bias is None else torch.addmm(bias, sites.patches, flat)
        return torch.relu_(product)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: SparseMap, level: int) -> Tensor:
        return _ConvRelu.apply(x, weight, bias, sites.levels[level])

    def strided_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: StridedMap, level: int) -> Tensor:
        return strided_conv_relu(x, weight, bias, sites.steps[level])

    def max_pool(self, x: Tensor, sites: SparseMap, level: int) -> Tensor:
        """Among equal children of a cell, the first in row-major order wins."""
        return _MaxPool.apply(x, sites.pools[level])

    def global_mean(self, x: Tensor, sites: SparseMap | StridedMap, level: int) -> Tensor:
        """Return 0 for a matrix without sites."""
        parts = x.split(sites.levels[level].segments)
        return torch.stack([part.mean(0) if len(part) else part.sum(0) for part in parts])


class _ConvRelu(torch.autograd.Function):
    """relu(bias + sum over o of x[u + o] @ weight[o]); saves only input and output for backward.

    Backward reuses the pairs: v is the neighbour of u at offset o where u is the neighbour of v at offset -o.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, level: Level) -> Tensor:
        out = x @ weight[CENTRE] if bias is None else torch.addmm(bias, x, weight[CENTRE])
        taps = weight.unbind()
        for block in level.blocks:
            gathered = x.index_select(0, block.source)
            products = x.new_empty(len(gathered), weight.shape[2])
            for tap, inputs, product in zip(block.taps, *split_by_offset(block, gathered, products), strict=True):
                torch.mm(inputs, taps[tap], out=product)
            out[slice(*block.rows)] += sum_per_site(products, block.order, block.bags)
        out.relu_()
        ctx.level = level
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, weight, out = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        x_grad = grad @ weight[CENTRE].t()
        weight_grad = torch.zeros_like(weight)
        torch.mm(x.t(), grad, out=weight_grad[CENTRE])
        taps, tap_grads = [tap.t() for tap in weight.unbind()], weight_grad.unbind()
        for block in ctx.level.blocks:
            above, below = grad.index_select(0, block.source), x.index_select(0, block.target)
            products = x.new_empty(len(below), weight.shape[1])
            groups = zip(block.taps, *split_by_offset(block, above, below, products), strict=True)
            for tap, g, inputs, product in groups:
                tap_grads[8 - tap].addmm_(inputs.t(), g)
                torch.mm(g, taps[8 - tap], out=product)
            x_grad[slice(*block.rows)] += sum_per_site(products, block.order, block.bags)
        return x_grad, weight_grad, grad.sum(0) if ctx.needs_input_grad[2] else None, None


class _MaxPool(torch.autograd.Function):
    """Maximum over children: the first child is copied, later ones replace it where they are larger."""

    @staticmethod
    def forward(ctx, x: Tensor, pool: Pool) -> Tensor:
        out = x.index_select(0, pool.first)
        winners = []
        for parents, children in pool.extra:
            best, rival = out.index_select(0, parents), x.index_select(0, children)
            winners.append(rival > best)
            out.index_copy_(0, parents, torch.maximum(best, rival))
        ctx.pool, ctx.sites = pool, len(x)
        ctx.save_for_backward(*winners)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        pool = ctx.pool
        left = grad.clone() if pool.extra else grad
        x_grad = grad.new_empty(ctx.sites, grad.shape[1])
        for (parents, children), won in reversed(list(zip(pool.extra, ctx.saved_tensors, strict=True))):
            share = left.index_select(0, parents)
            x_grad.index_copy_(0, children, share * won)
            left.index_copy_(0, parents, share.masked_fill_(won, 0))
        x_grad.index_copy_(0, pool.first, left)
        return x_grad, None


def retain_memory() -> bool:
    """Let glibc reuse freed memory for buffers up to 1 GiB instead of mapping and zeroing fresh pages in every pass.

    Halves the time of a pass over 100,000 scattered sites. Affects the whole process and cannot be undone.

    Returns:
        Whether the C library accepted the settings; only glibc does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        log.debug("the C library has no mallopt: passes may spend time on page faults")
        return False
    return all([mallopt(MMAP_THRESHOLD, RETAINED_BYTES), mallopt(TRIM_THRESHOLD, RETAINED_BYTES),
                mallopt(TOP_PAD, PAD_BYTES)])


@dataclass(frozen=True)
class MinkowskiMap:
    """Coordinates in a coordinate manager of MinkowskiEngine, which chooses the order of sites.

    Args:
        features: (sites, channels) in the order of the first level.
        keys: coordinate map key of every level.
        owners: index of the matrix of each site, (sites,) per level.
        kernels: kernel generators by size and stride.
    """

    manager: Any
    features: Tensor
    keys: tuple[Any, ...]
    owners: tuple[Tensor, ...]
    matrices: int
    kernels: dict[tuple[int, int], Any]

    def to(self, device: torch.device | str) -> "MinkowskiMap":
        """Return self on the CPU; raise ValueError on other devices."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"MinkowskiBackend runs only on the CPU, not on {device}: give trainer=cpu, or use "
                             "TorchBackend (backend=torch)")
        return self


class MinkowskiBackend:
    """Convolve with MinkowskiEngine on the CPU, in float32.

    In its kernels the row offset varies fastest, so weights are permuted. Among equal children of a pooled cell, the
    one that gets the gradient may differ from that of `TorchBackend`.

    Raises:
        ImportError: MinkowskiEngine is not installed.
    """

    def __init__(self) -> None:
        import_minkowski()

    def build_map(
        self, coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None = None, *, channels: Sequence[int]
    ) -> MinkowskiMap:
        """Pass coordinates to a new coordinate manager and halve them level by level.

        Raises:
            ValueError: a matrix has no sites, which MinkowskiEngine does not support.
        """
        return _build(coords, features, halvings=len(channels) - 1)

    def build_strided_map(self, coords: Sequence[np.ndarray], *, steps: int) -> MinkowskiMap:
        return _build(coords, None, halvings=steps)

    def input_conv(self, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap) -> Tensor:
        return _convolve(sites.features, weight, bias, sites, 0)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap, level: int) -> Tensor:
        return _convolve(x, weight, bias, sites, level)

    def strided_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap, level: int) -> Tensor:
        return _convolve(x, weight, bias, sites, level, stride=2)

    def max_pool(self, x: Tensor, sites: MinkowskiMap, level: int) -> Tensor:
        module = importlib.import_module("MinkowskiEngine.MinkowskiPooling")
        pool, mode = module.MinkowskiLocalPoolingFunction.apply, module.PoolingMode.LOCAL_MAX_POOLING
        return pool(x, mode, sites.kernels[2, 2], sites.keys[level], sites.keys[level + 1], sites.manager)

    def global_mean(self, x: Tensor, sites: MinkowskiMap, level: int) -> Tensor:
        """Sum in float64: one sum after the other would lose digits over thousands of equal sites."""
        owner = sites.owners[level]
        counts = torch.bincount(owner, minlength=sites.matrices)
        total = x.new_zeros(sites.matrices, x.shape[1], dtype=torch.float64).index_add(0, owner, x.double())
        return (total / counts[:, None]).to(x.dtype)


def import_minkowski() -> ModuleType:
    """Import MinkowskiEngine, with `collections.Sequence` for version 0.5.4, which Python removed in 3.10.

    Raises:
        ImportError: it is not installed or does not load; the message says how to build it.
    """
    lacking = not hasattr(collections, "Sequence")
    if lacking:
        collections.Sequence = collections.abc.Sequence
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("MinkowskiEngine")
    except ImportError as error:
        raise ImportError(
            f"{error}: MinkowskiEngine has no wheels. With g++, libopenblas-dev and torch installed, build it by "
            f"{BUILD_MINKOWSKI} (docs/howto/minkowski.md), or use TorchBackend (backend=torch), which gives the same "
            "results"
        ) from None
    finally:
        if lacking:
            del collections.Sequence


def _build(
    coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None, *, halvings: int
) -> MinkowskiMap:
    """Pass coordinates to a new coordinate manager and halve them."""
    engine = import_minkowski()
    if not all(len(sites) for sites in coords):
        raise ValueError("a matrix has no sites, which MinkowskiEngine does not support: use TorchBackend "
                         "(backend=torch)")
    owner = np.repeat(np.arange(len(coords)), [len(sites) for sites in coords])
    stacked = np.column_stack([owner, np.concatenate(coords)]).astype(np.int32)
    values = np.ones((len(owner), 1)) if features is None else np.concatenate(features)
    tensor = engine.SparseTensor(torch.from_numpy(values.astype(np.float32)), torch.from_numpy(stacked))
    manager, keys = tensor.coordinate_manager, [tensor.coordinate_map_key]
    for _ in range(halvings):
        keys.append(manager.stride(keys[-1], 2))
    kernels = {(size, stride): engine.KernelGenerator(kernel_size=size, stride=stride, dimension=2)
               for size, stride in ((5, 1), (3, 1), (3, 2), (2, 2))}
    return MinkowskiMap(
        manager=manager, features=tensor.F, keys=tuple(keys), matrices=len(coords), kernels=kernels,
        owners=tuple(manager.get_coordinates(key)[:, 0].long() for key in keys),
    )


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap, level: int, *, stride: int = 1
) -> Tensor:
    module = importlib.import_module("MinkowskiEngine.MinkowskiConvolution")
    convolve, mode = module.MinkowskiConvolutionFunction.apply, module.ConvolutionMode.DEFAULT
    size = round(len(weight) ** 0.5)
    transposed = weight.unflatten(0, (size, size)).transpose(0, 1).flatten(0, 1).contiguous()
    below, above = sites.keys[level], sites.keys[level + stride - 1]
    out = convolve(x, transposed, sites.kernels[size, stride], mode, below, above, sites.manager)
    return torch.relu(out if bias is None else out + bias)
