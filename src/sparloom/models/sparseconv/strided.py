"""Convolutions with stride 2: maps from finer to coarser sites, and the convolution in PyTorch.

    out[v] = sum over offsets o of x[2 v + o] @ weight[o]        2 v + o must be a site

v runs over the distinct u // 2 of the finer sites u, the occupied cells of the grid that is twice as coarse. A kernel
is centred on the first of the four fine cells of v: it covers these four and the row above and the column to the left,
but not the next cell. These are MinkowskiEngine's rules; on a full grid, they equal a dense convolution with stride 2
and padding 1. Offsets are in row-major order, as in `maps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from sparloom.models.sparseconv.maps import Block, Level, cell_keys, input_patches, row_stride, stack_matrices, to_int32


@dataclass(frozen=True)
class Stride:
    """Pairs (fine site, coarse site) under a 3x3 kernel with stride 2, grouped by offset.

    Args:
        taps: offset of each nonempty group.
        counts: number of pairs per group, in the order of `taps`.
        source, target: (pairs,) int32, fine and coarse site.
        by_target, by_source: (pairs,) int32, indices of the pairs sorted by target or source.
        target_bags, source_bags: (sites + 1,) int32, offset of each site's run in them.
    """

    taps: tuple[int, ...]
    counts: tuple[int, ...]
    source: Tensor
    target: Tensor
    by_target: Tensor
    target_bags: Tensor
    by_source: Tensor
    source_bags: Tensor

    def to(self, device: torch.device) -> "Stride":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)})


@dataclass(frozen=True)
class StridedMap:
    """Sites of a batch of patterns after each strided convolution, and the pairs in between.

    Args:
        patches: (sites, 25) 1 for each site under the 5x5 kernel of the first layer, else 0.
        levels: sites after each step, finest first; `pairs` counts the pairs of the step before.
        steps: pairs from each level to the next.
    """

    patches: Tensor
    levels: tuple[Level, ...]
    steps: tuple[Stride, ...]

    def to(self, device: torch.device | str) -> "StridedMap":
        """Copy to a device; returns self if it is there already."""
        device = torch.device(device)
        if self.patches.device == device:
            return self
        return replace(self, patches=self.patches.to(device), steps=tuple(step.to(device) for step in self.steps))


def build_strided_map(
    coords: Sequence[Int[np.ndarray, "n 2"]], *, steps: int, dtype: torch.dtype = torch.float32
) -> StridedMap:
    """Build the map of one or several matrices.

    Args:
        coords: distinct sites of each matrix in any order, 0 <= row, col < 2**28.
        steps: number of convolutions with stride 2 after the first layer.

    Raises:
        ValueError: a site occurs twice or is negative.
    """
    rows, cols, owner, values = stack_matrices(coords, None, steps=2**steps)
    patches, _ = input_patches(cell_keys(rows, cols, row_stride(cols)), row_stride(cols), values)
    levels, made = [_level(owner, len(coords), 0)], []
    for _ in range(steps):
        coarse = _coarsened(rows, cols, owner)
        made.append(_step(rows, cols, coarse[:2]))
        rows, cols, owner = coarse
        levels.append(_level(owner, len(coords), len(made[-1].source)))
    return StridedMap(torch.from_numpy(patches).to(dtype), tuple(levels), tuple(made))


def _level(owner: np.ndarray, matrices: int, pairs: int) -> Level:
    segments = tuple(np.bincount(owner, minlength=matrices).tolist())
    return Level(sites=owner.size, pairs=pairs, segments=segments, blocks=())


def _coarsened(rows: np.ndarray, cols: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the occupied cells of the grid that is twice as coarse, row by row."""
    rows, cols = rows // 2, cols // 2
    _, first = np.unique(cell_keys(rows, cols, row_stride(cols)), return_index=True)
    return rows[first], cols[first], owner[first]


def _step(rows: np.ndarray, cols: np.ndarray, coarse: tuple[np.ndarray, np.ndarray]) -> Stride:
    """Find the sites among the nine fine cells under the kernel of every coarse site."""
    stride = row_stride(cols)
    keys, centres = cell_keys(rows, cols, stride), cell_keys(2 * coarse[0], 2 * coarse[1], stride)
    taps, sources, targets = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for tap in range(9 if keys.size else 0):
        wanted = centres + (tap // 3 - 1) * stride + tap % 3 - 1
        index = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        found = np.flatnonzero(keys[index] == wanted)
        if found.size:
            taps.append(tap)
            targets.append(found)
            sources.append(index[found])
    source, target = np.concatenate(sources), np.concatenate(targets)
    by_target, target_bags = _runs(target, len(centres))
    by_source, source_bags = _runs(source, len(keys))
    return Stride(
        taps=tuple(taps), counts=tuple(map(len, targets[1:])), source=to_int32(source), target=to_int32(target),
        by_target=by_target, target_bags=target_bags, by_source=by_source, source_bags=source_bags,
    )


def _runs(site: np.ndarray, sites: int) -> tuple[Tensor, Tensor]:
    """Sort pairs by source or target, offsets ascending within each; returns the order and the starts of runs."""
    bags = np.concatenate([[0], np.cumsum(np.bincount(site, minlength=sites))])
    return to_int32(np.argsort(site, kind="stable")), to_int32(bags)


def strided_conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, step: Stride) -> Tensor:
    """Convolve fine sites to coarse ones with a 3x3 kernel, then ReLU: (coarse sites, outputs)."""
    return _StridedConvRelu.apply(x, weight, bias, step)


class _StridedConvRelu(torch.autograd.Function):
    """relu(bias + sum over o of x[2 v + o] @ weight[o]); saves only input and output for backward."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, step: Stride) -> Tensor:
        taps, gathered = weight.unbind(), x.index_select(0, step.source)
        products = x.new_empty(len(gathered), weight.shape[2])
        for tap, inputs, product in zip(step.taps, *split_by_offset(step, gathered, products), strict=True):
            torch.mm(inputs, taps[tap], out=product)
        out = sum_per_site(products, step.by_target, step.target_bags)
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
        for tap, g, inputs, product in zip(step.taps, *split_by_offset(step, above, below, products), strict=True):
            torch.mm(inputs.t(), g, out=tap_grads[tap])
            torch.mm(g, taps[tap], out=product)
        x_grad = sum_per_site(products, step.by_source, step.source_bags)
        return x_grad, weight_grad, grad.sum(0) if ctx.needs_input_grad[2] else None, None


def split_by_offset(pairs: Block | Stride, *buffers: Tensor) -> list[tuple[Tensor, ...]]:
    """Split buffers with one row per pair by offset."""
    return [buffer.split_with_sizes(pairs.counts) if pairs.counts else () for buffer in buffers]


def sum_per_site(products: Tensor, order: Tensor, bags: Tensor) -> Tensor:
    """Sum the pairs of every site, offsets ascending, so that every run gives the same sum."""
    if not len(order):
        return products.new_zeros(len(bags) - 1, products.shape[1])
    return torch.embedding_bag(products, order, bags, False, 0, False, None, True)[0]
