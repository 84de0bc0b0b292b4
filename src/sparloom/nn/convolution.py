"""The graph convolution on the CPU, with gradients of any order: D = A X W^T + b, its products fused in either order.

What is differentiated again, in forward mode or by torch.func is made of products by A and by A^T, one by one.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.autograd import forward_ad

from sparloom.nn.derivatives import check_batched, in_transform, looped, tangent_of
from sparloom.nn.propagation import Propagation
from sparloom.sparse import SparseMatrix

__all__ = ["Adjacency"]

BLOCK = 1 << 16  # nonzeros at once: bounds the memory of the gradient of A


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A normalised adjacency matrix and what multiplies by it.

    Args:
        values: (nnz,), may need a gradient.
        turned: (nnz,) int64, nonzero of A for each of its transpose.
        forward, backward: products by A and by its transpose.
    """

    values: torch.Tensor
    turned: torch.Tensor
    forward: Propagation
    backward: Propagation

    @cached_property
    def matrix(self) -> SparseMatrix:
        """A, without gradient."""
        return self.forward.matrix(self.values)

    @cached_property
    def transposed(self) -> SparseMatrix:
        """A^T, without gradient."""
        return self.backward.matrix(self.values.detach().index_select(0, self.turned))

    @property
    def nodes(self) -> int:
        """Rows and columns."""
        return self.forward.pattern.rows

    @property
    def dtype(self) -> torch.dtype:
        """Type of its values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.values.device

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold: values as an array, without their history.

        A tensor that is sent to another process moves to shared memory, away from the array that lies on it.
        """
        return {"values": self.values.detach().numpy(), "turned": self.turned.numpy(), "forward": self.forward,
                "backward": self.backward}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = {name: torch.from_numpy(state[name]) for name in ("values", "turned")}
        self.__dict__.update(state | tensors)

    def to(self, dtype: torch.dtype) -> "Adjacency":
        """Convert the values."""
        return Adjacency(self.values.to(dtype), self.turned, self.forward, self.backward)

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, aggregate_first: bool,
    ) -> torch.Tensor:
        """Compute A X W^T + b, (nodes, out), with gradients of X, W, b and the values of A.

        Args:
            x: X, (nodes, in).
            weight: W, (out, in).
            bias: b, (out,).
            aggregate_first: (A X) W^T, else A (X W^T).
        """
        check_batched(x, "GCNConv")
        if in_transform() or (forward_ad._current_level >= 0 and any(
                tangent_of(tensor) is not None for tensor in (x, weight, bias, self.values))):
            sent = x if aggregate_first else x @ weight.T
            result = self.multiplied(sent, self.values)
            result = result @ weight.T if aggregate_first else result
            return result if bias is None else result + bias
        function = _AggregateFirst if aggregate_first else _TransformFirst
        return function.apply(x.contiguous(), weight.contiguous(), bias, self.values, self)

    def multiplied(self, y: torch.Tensor, values: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
        """Compute A Y or A^T Y, (nodes, width), with derivatives by Y and the values of A in both modes."""
        check_batched(y, "GCNConv")
        return _Product.apply(y, values, self, transposed)

    def gradients(
        self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, values: torch.Tensor, *,
        needed: tuple[bool, ...],
    ) -> tuple[torch.Tensor | None, ...]:
        """Compute the gradients of X, W, b and values that are needed, by products with gradients of their own."""
        with torch.autocast(grad.device.type, enabled=False):
            turned = self.multiplied(grad, values, transposed=True) if needed[0] or needed[1] else None
            return (turned @ weight if needed[0] else None, turned.T @ x if needed[1] else None,
                    grad.sum(0) if needed[2] else None,
                    _values_gradient(grad, x, weight, self) if needed[3] else None, None)


class _Product(torch.autograd.Function):
    """A Y or A^T Y."""

    @staticmethod
    def forward(y: torch.Tensor, values: torch.Tensor, adjacency: Adjacency, transposed: bool) -> torch.Tensor:
        nodes = adjacency.backward if transposed else adjacency.forward
        own = adjacency.values
        if not torch._C._functorch.is_functorch_wrapped_tensor(own) and values.data_ptr() == own.data_ptr():
            matrix = adjacency.transposed if transposed else adjacency.matrix
        else:
            matrix = nodes.matrix(values.index_select(0, adjacency.turned) if transposed else values)
        result = nodes.empty(y.shape[1], y.dtype)
        nodes.run(matrix, y=y.contiguous(), g=result)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        y, values, ctx.adjacency, ctx.is_transposed = inputs
        ctx.save_for_backward(y, values)
        ctx.save_for_forward(y, values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, values = ctx.saved_tensors
        wants_y, wants_values, *_ = ctx.needs_input_grad
        ends = (y, grad) if ctx.is_transposed else (grad, y)
        return (ctx.adjacency.multiplied(grad, values, transposed=not ctx.is_transposed) if wants_y else None,
                _at_nonzeros(*ends, ctx.adjacency) if wants_values else None, None, None)

    @staticmethod
    def jvp(ctx: Any, slope: torch.Tensor | None, rise: torch.Tensor | None, *_: None) -> torch.Tensor:
        y, values = ctx.saved_tensors
        parts = [ctx.adjacency.multiplied(*pair, transposed=ctx.is_transposed)
                 for pair in ((slope, values), (y, rise)) if pair[0] is not None and pair[1] is not None]
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[torch.Tensor, int]:
        return looped(_Product, info, in_dims, given)


class _TransformFirst(torch.autograd.Function):
    """D = A (X W^T) + b. With G = A^T dD: dX = G W, dW = G^T X, db = sums of dD; rows of G stay in the cache."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, values: torch.Tensor,
        adjacency: Adjacency,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, values)
        ctx.adjacency = adjacency
        result = adjacency.forward.transform_first(adjacency.matrix, x, weight, c_transposed=True)
        return result if bias is None else result.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, values = ctx.saved_tensors
        adjacency = ctx.adjacency
        check_batched(grad, "GCNConv")
        if torch.is_grad_enabled() or in_transform():
            return adjacency.gradients(grad, x, weight, values, needed=ctx.needs_input_grad)
        grad = grad.contiguous()
        wants_x, wants_weight, wants_bias, wants_values, _ = ctx.needs_input_grad
        dx, dw, db = _wanted(x, weight, grad, adjacency, ctx.needs_input_grad)
        if wants_x or wants_weight:
            adjacency.backward.run(
                adjacency.transposed, y=grad, c=weight if wants_x else None, d=dx, right=x if wants_weight else None,
                s=dw, summed=grad if wants_bias else None, sums=db)
        elif wants_bias:
            adjacency.backward.run(summed=grad, sums=db)
        return dx, dw, db, _values_gradient(grad, x, weight, adjacency) if wants_values else None, None


class _AggregateFirst(torch.autograd.Function):
    """D = P W^T + b with P = A X, kept: dW = dD^T P, dX = (A^T dD) W, db = sums of dD; dW needs no sparse product."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, values: torch.Tensor,
        adjacency: Adjacency,
    ) -> torch.Tensor:
        nodes = adjacency.forward
        propagated = nodes.empty(x.shape[1], x.dtype) if ctx.needs_input_grad[1] else None
        result = nodes.empty(weight.shape[0], x.dtype)
        nodes.run(adjacency.matrix, y=x, g=propagated, c=weight, c_transposed=True, bias=bias, d=result)
        ctx.save_for_backward(x, weight, values, propagated)
        ctx.adjacency = adjacency
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, values, propagated = ctx.saved_tensors
        adjacency = ctx.adjacency
        check_batched(grad, "GCNConv")
        if torch.is_grad_enabled() or in_transform():
            return adjacency.gradients(grad, x, weight, values, needed=ctx.needs_input_grad)
        grad = grad.contiguous()
        wants_x, wants_weight, wants_bias, wants_values, _ = ctx.needs_input_grad
        dx, dw, db = _wanted(x, weight, grad, adjacency, ctx.needs_input_grad)
        if wants_x or wants_weight or wants_bias:
            adjacency.backward.run(
                adjacency.transposed if wants_x else None, y=grad if wants_x else None, c=weight if wants_x else None,
                d=dx, left=grad if wants_weight else None, right=propagated, s=dw, summed=grad if wants_bias else None,
                sums=db)
        return dx, dw, db, _values_gradient(grad, x, weight, adjacency) if wants_values else None, None


def _wanted(
    x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, adjacency: Adjacency, needed: tuple[bool, ...],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Allocate the gradients that are needed, of X, W and b."""
    return (adjacency.backward.empty(x.shape[1], x.dtype) if needed[0] else None,
            torch.empty_like(weight) if needed[1] else None,
            grad.new_empty(grad.shape[1]) if needed[2] else None)


def _values_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, adjacency: Adjacency,
) -> torch.Tensor:
    """dA(i,j) = dD(i,:) . (X W^T)(j,:) at the nonzeros of A, (nnz,)."""
    with torch.autocast(x.device.type, enabled=False):  # the user's may be on while gradients are computed
        return _at_nonzeros(grad, x @ weight.T, adjacency)


def _at_nonzeros(left: torch.Tensor, right: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
    """Compute L(i,:) . R(j,:) at the nonzeros of A, (nnz,)."""
    pattern = adjacency.forward.pattern
    rows, cols = torch.from_numpy(pattern.row_ids()), torch.from_numpy(pattern.indices)
    with torch.autocast(left.device.type, enabled=False):
        parts = [torch.einsum("ek,ek->e", left[rows[part]], right[cols[part]])
                 for part in (slice(start, start + BLOCK) for start in range(0, pattern.nnz, BLOCK))]
    return torch.cat(parts) if parts else left.new_zeros(0)
