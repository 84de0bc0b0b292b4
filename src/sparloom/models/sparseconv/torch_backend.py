"""What a featurizer asks of a sparse convolution library.

Sparse convolution in PyTorch alone: gather, one GEMM per offset, sum per site; the default backend.

Advice to the C allocator: keep freed memory, as every pass asks for the same buffers again.
"""

import ctypes
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sparloom.models.sparseconv.maps import CENTRE, Block, Level, Pool, SparseMap, build_map
from sparloom.models.sparseconv.strided import StridedMap, build_strided_map, strided_conv_relu

__all__ = ["SparseBackend", "TorchBackend", "retain_memory"]


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


class TorchBackend:
    """Convolve on the sites with pair lists; CPU and GPU, float32 and float64."""

    def build_map(
        self, coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None = None, *, channels: Sequence[int]
    ) -> SparseMap:
        """See `build_map` of the maps."""
        return build_map(coords, features, channels=channels)

    def build_strided_map(self, coords: Sequence[np.ndarray], *, steps: int) -> StridedMap:
        """See `build_strided_map` of the strided maps."""
        return build_strided_map(coords, steps=steps)

    def input_conv(self, weight: Tensor, bias: Tensor | None, sites: SparseMap | StridedMap) -> Tensor:
        """Convolve the input of the map with a 5x5 kernel, then ReLU; the input itself gets no gradient."""
        taps, inputs, outputs = weight.shape
        flat = weight.reshape(taps * inputs, outputs)
        product = sites.patches @ flat if bias is None else torch.addmm(bias, sites.patches, flat)
        return torch.relu_(product)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: SparseMap, level: int) -> Tensor:
        """Convolve with a 3x3 kernel at a level, then ReLU."""
        return _ConvRelu.apply(x, weight, bias, sites.levels[level])

    def strided_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: StridedMap, level: int) -> Tensor:
        """Convolve from a level to the next with a 3x3 kernel of stride 2, then ReLU."""
        return strided_conv_relu(x, weight, bias, sites.steps[level])

    def max_pool(self, x: Tensor, sites: SparseMap, level: int) -> Tensor:
        """Take the maximum over each 2x2 cell of `level`; of equal children the first in row-major order wins."""
        return _MaxPool.apply(x, sites.pools[level])

    def global_mean(self, x: Tensor, sites: SparseMap | StridedMap, level: int) -> Tensor:
        """Average over the sites of every matrix: (matrices, channels); 0 for a matrix without sites."""
        parts = x.split(sites.levels[level].segments)
        return torch.stack([part.mean(0) if len(part) else part.sum(0) for part in parts])


class _ConvRelu(torch.autograd.Function):
    """relu(bias + sum over o of x[u + o] @ weight[o]); keeps only its input and its output.

    Backward needs no list of its own: the neighbours of u at offset o are the sites that have u at offset -o.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, level: Level) -> Tensor:
        out = x @ weight[CENTRE] if bias is None else torch.addmm(bias, x, weight[CENTRE])
        taps = weight.unbind()
        for block in level.blocks:
            gathered = x.index_select(0, block.source)
            products = x.new_empty(len(gathered), weight.shape[2])
            for tap, given, made in zip(block.taps, *_groups(block, gathered, products), strict=True):
                torch.mm(given, taps[tap], out=made)
            out[slice(*block.rows)] += _sum_per_site(products, block)
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
            for tap, g, inputs, made in zip(block.taps, *_groups(block, above, below, products), strict=True):
                tap_grads[8 - tap].addmm_(inputs.t(), g)
                torch.mm(g, taps[8 - tap], out=made)
            x_grad[slice(*block.rows)] += _sum_per_site(products, block)
        return x_grad, weight_grad, grad.sum(0) if ctx.needs_input_grad[2] else None, None


class _MaxPool(torch.autograd.Function):
    """Maximum over children: the first child is copied, later ones replace it only where they are larger."""

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


def _groups(block: Block, *buffers: Tensor) -> list[tuple[Tensor, ...]]:
    """Cut buffers with one row per pair into their offsets."""
    return [buffer.split_with_sizes(block.counts) for buffer in buffers]


def _sum_per_site(products: Tensor, block: Block) -> Tensor:
    """Add up the pairs of every site, offsets in ascending order: the same sum in every run."""
    return torch.embedding_bag(products, block.order, block.bags, False, 0, False, None, True)[0]


log = logging.getLogger(__name__)

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
LARGE = 2**30
PAD = 2**26


def retain_memory() -> bool:
    """Let glibc serve buffers up to 1 GiB from memory it has instead of mapping (and zeroing) fresh pages each time.

    Halves the time of a pass over 100,000 scattered sites. Holds for the whole process and cannot be undone.

    Returns:
        Whether the C library took the advice; others than glibc do not.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        log.debug("the C library has no mallopt: passes may spend time on page faults")
        return False
    return all([mallopt(MMAP_THRESHOLD, LARGE), mallopt(TRIM_THRESHOLD, LARGE), mallopt(TOP_PAD, PAD)])
