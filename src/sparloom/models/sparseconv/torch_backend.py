"""Sparse convolution in PyTorch alone: gather, one GEMM per offset, sum per site; the default backend."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparloom.models.sparseconv.maps import CENTRE, Block, Level, Pool, SparseMap, build_map
from sparloom.models.sparseconv.strided import StridedMap, build_strided_map
from sparloom.models.sparseconv.strided_torch import strided_conv_relu

__all__ = ["TorchBackend"]


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
