"""Products of graphs that are seen for the first time, by the native core; nothing is planned or written to disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad

from sparloom.nn.convolution import CpuAdjacency, convolution_gradients, convolved
from sparloom.nn.core_calls import PatternProducts
from sparloom.nn.custom_ops import forward_tangent, in_functorch, refuse_legacy_vmap


@dataclass(frozen=True, eq=False)
class FreshPattern:
    """Pattern in CSR with the columns of a row in any order, and possible duplicates.

    Args:
        indptr: (rows + 1,) int64.
        columns: (nnz or more,) int32.
    """

    indptr: torch.Tensor
    columns: torch.Tensor
    rows: int
    cols: int
    nnz: int

    @cached_property
    def products(self) -> PatternProducts:
        """Products by matrices of this pattern."""
        return PatternProducts(self.indptr, self.columns[:self.nnz], self.cols)

    @property
    def indices(self) -> np.ndarray:
        """Columns of the nonzeros, (nnz,) int32."""
        return self.columns.numpy()[:self.nnz]

    def row_ids(self) -> np.ndarray:
        """Row of every nonzero, (nnz,) int32."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), np.diff(self.indptr.numpy()))


class FreshProducts:
    """Products by the matrices of one pattern or by their transposes, like `Propagation`: one after the other.

    Args:
        pattern: of the matrices, whose values are always in its order.
        transposed: multiply by the transposes.
    """

    def __init__(self, pattern: FreshPattern, *, transposed: bool = False) -> None:
        self.pattern, self._transposed = pattern, transposed
        self._rows = pattern.cols if transposed else pattern.rows

    def empty(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate (rows, width)."""
        return torch.empty(self._rows, width, dtype=dtype)

    def transform_first(
        self, values: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, c_transposed: bool,
    ) -> torch.Tensor:
        """Compute A (B C), see `Propagation.transform_first`."""
        c = c.T if c_transposed else c
        sent = torch.mm(b, c, out=b.new_empty(b.shape[0], c.shape[1]))  # in the type of both, also under autocast
        result = self.empty(sent.shape[1], sent.dtype)
        self.run(values, y=sent, g=result)
        return result

    def run(
        self, values: torch.Tensor | None = None, *, c_transposed: bool = False, **tensors: torch.Tensor | None,
    ) -> None:
        """Run steps over the rows of A, see `Propagation.run`."""
        g = tensors.get("g")
        if values is not None:
            y = tensors["y"]
            g = self.empty(y.shape[1], y.dtype) if g is None else g
            self.pattern.products.multiply(values, y, g, transposed=self._transposed)
        d, s, sums = (tensors.get(name) for name in ("d", "s", "sums"))
        if d is not None:
            c, bias = tensors["c"].T if c_transposed else tensors["c"], tensors.get("bias")
            if bias is None:
                torch.mm(g, c, out=d)
            else:
                torch.addmm(bias, g, c, out=d)
        if s is not None:
            left = tensors.get("left")
            torch.mm((g if left is None else left).T, tensors["right"], out=s)
        if sums is not None:
            torch.sum(tensors["summed"], 0, out=sums)


class FreshAdjacency(CpuAdjacency):
    """A normalised adjacency matrix whose products need no preparation.

    Args:
        values: (nnz,), may require a gradient.
    """

    def __init__(self, pattern: FreshPattern, values: torch.Tensor) -> None:
        self.pattern, self.values = pattern, values
        self.forward = FreshProducts(pattern)

    def convolve_with_root(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, root: torch.Tensor,
        root_weight: torch.Tensor, aggregate_first: bool,
    ) -> torch.Tensor:
        """Compute A X W^T + b + R V^T, with gradients of all of them, see `convolve`.

        Args:
            root: R, (nodes, columns).
            root_weight: V, (out, columns).
        """
        refuse_legacy_vmap(x, "SAGEConv")
        self.check_operands(x=x, weight=weight, bias=bias, root=root, root_weight=root_weight)
        operands = (x, weight, bias, self.values, root, root_weight)
        if in_functorch() or (forward_ad._current_level >= 0 and any(
                forward_tangent(tensor) is not None for tensor in operands)):
            return self.convolve(x, weight, bias, aggregate_first=aggregate_first) + root @ root_weight.T
        same = root is x
        x, weight, bias, root_weight = (
            each if each is None else each.resolve_neg().contiguous() for each in (x, weight, bias, root_weight))
        root = x if same else root.resolve_neg().contiguous()
        return _RootedConvolution.apply(
            x, weight, bias, self.values, root, root_weight, _Rooted(self, aggregate_first, same))

    @cached_property
    def matrix(self) -> torch.Tensor:
        """The values, detached; they stand for the matrix and for its transpose."""
        return self.values.detach()

    @property
    def transposed(self) -> torch.Tensor:
        """The same values, see `matrix`."""
        return self.matrix

    @cached_property
    def backward(self) -> FreshProducts:
        """Products by the transpose."""
        return FreshProducts(self.pattern, transposed=True)

    def matrix_of(self, values: torch.Tensor, *, transposed: bool) -> torch.Tensor:
        """Return what stands for the matrix with these values, and for its transpose: the values."""
        return values.detach()


class _Rooted(NamedTuple):
    """What a convolution with a root needs besides tensors.

    Args:
        same: the root is X.
    """

    adjacency: FreshAdjacency
    aggregate_first: bool
    same: bool


class _RootedConvolution(torch.autograd.Function):
    """D = A X W^T + b + R V^T, where dR = dD V and dV = dD^T R; the rest as in the convolution without a root."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, values: torch.Tensor,
        root: torch.Tensor, root_weight: torch.Tensor, options: _Rooted,
    ) -> torch.Tensor:
        adjacency = options.adjacency
        result, propagated = convolved(
            x, weight, bias, adjacency, aggregate_first=options.aggregate_first,
            needed=ctx.needs_input_grad)
        ctx.save_for_backward(x, weight, values, propagated, root, root_weight)
        ctx.options = options
        return result.addmm_(root, root_weight.T)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, values, propagated, root, root_weight = ctx.saved_tensors
        refuse_legacy_vmap(grad, "SAGEConv")
        adjacency, needed = ctx.options.adjacency, ctx.needs_input_grad
        needs_root, needs_root_weight = needed[4:6]
        if torch.is_grad_enabled() or in_functorch():
            with torch.autocast("cpu", enabled=False):
                own = (grad @ root_weight if needs_root else None, grad.T @ root if needs_root_weight else None)
            gradients = adjacency.gradients(grad, x, weight, values, needed=needed)
            return (*gradients[:4], *own, None)
        grad = grad.resolve_neg().contiguous()
        dx, *others = convolution_gradients(grad, x, weight, propagated, adjacency, needed=needed)
        d_root = None
        if needs_root and ctx.options.same and dx is not None:
            dx.addmm_(grad, root_weight)
        elif needs_root:
            d_root = torch.mm(grad, root_weight, out=torch.empty_like(root))  # in their type, also under autocast
        d_root_weight = torch.mm(grad.T, root, out=torch.empty_like(root_weight)) if needs_root_weight else None
        return dx, *others, d_root, d_root_weight, None
