"""Convolution with stride 2 in PyTorch alone: gather, one GEMM per offset, sum per site."""

import torch
from torch import Tensor

from sparloom.models.sparseconv.strided import Stride

__all__ = ["strided_conv_relu"]


def strided_conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, step: Stride) -> Tensor:
    """Convolve fine sites to coarse ones with a 3x3 kernel, then ReLU: (coarse sites, outputs)."""
    return _StridedConvRelu.apply(x, weight, bias, step)


class _StridedConvRelu(torch.autograd.Function):
    """relu(bias + sum over o of x[2 v + o] @ weight[o]); keeps only its input and its output."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, step: Stride) -> Tensor:
        taps, gathered = weight.unbind(), x.index_select(0, step.source)
        products = x.new_empty(len(gathered), weight.shape[2])
        for tap, given, made in zip(step.taps, *_groups(step, gathered, products), strict=True):
            torch.mm(given, taps[tap], out=made)
        out = _sum_per_site(products, step.by_target, step.target_bags)
        if bias is not None:
            out += bias
        out.relu_()
        ctx.step = step
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        step, (x, weight, out) = ctx.step, ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        above, below = grad.index_select(0, step.target), x.index_select(0, step.source)
        products = x.new_empty(len(above), weight.shape[1])
        weight_grad = torch.zeros_like(weight)
        taps, tap_grads = [tap.t() for tap in weight.unbind()], weight_grad.unbind()
        for tap, g, inputs, made in zip(step.taps, *_groups(step, above, below, products), strict=True):
            torch.mm(inputs.t(), g, out=tap_grads[tap])
            torch.mm(g, taps[tap], out=made)
        x_grad = _sum_per_site(products, step.by_source, step.source_bags)
        return x_grad, weight_grad, grad.sum(0) if ctx.needs_input_grad[2] else None, None


def _groups(step: Stride, *buffers: Tensor) -> list[tuple[Tensor, ...]]:
    """Cut buffers with one row per pair into their offsets."""
    return [buffer.split_with_sizes(step.counts) if step.counts else () for buffer in buffers]


def _sum_per_site(products: Tensor, order: Tensor, bags: Tensor) -> Tensor:
    """Add up the pairs of every site, offsets in ascending order: the same sum in every run."""
    if not len(order):
        return products.new_zeros(len(bags) - 1, products.shape[1])
    return torch.embedding_bag(products, order, bags, False, 0, False, None, True)[0]
