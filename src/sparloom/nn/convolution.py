"""The graph convolution on the CPU, with gradients: D = A X W^T + b, its products fused in either order."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sparloom.nn.propagation import Propagation
from sparloom.sparse import SparseMatrix

__all__ = ["Adjacency"]

BLOCK = 1 << 16  # nonzeros at once: bounds the memory of the gradient of A


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A normalised adjacency matrix and what multiplies by it.

    Args:
        values: (nnz,), may need a gradient.
        forward, backward: products by A and by its transpose.
        matrix, transposed: A and its transpose, without gradient.
    """

    values: torch.Tensor
    forward: Propagation
    backward: Propagation
    matrix: SparseMatrix
    transposed: SparseMatrix

    @property
    def nodes(self) -> int:
        """Rows and columns."""
        return self.matrix.pattern.rows

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
        return {name: value for name, value in self.__dict__.items() if name != "values"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, values=torch.from_numpy(state["matrix"].values))

    def to(self, dtype: torch.dtype) -> "Adjacency":
        """Convert the values."""
        values = self.values.to(dtype)
        matrix = self.forward.matrix(values)
        return Adjacency(values, self.forward, self.backward, matrix, self.transposed.astype(matrix.dtype))

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
        function = _AggregateFirst if aggregate_first else _TransformFirst
        return function.apply(x.contiguous(), weight.contiguous(), bias, self.values, self)


class _TransformFirst(torch.autograd.Function):
    """D = A (X W^T) + b. With G = A^T dD: dX = G W, dW = G^T X, db = sums of dD; rows of G stay in the cache."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, values: torch.Tensor,
        adjacency: Adjacency,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.adjacency = adjacency
        result = adjacency.forward.transform_first(adjacency.matrix, x, weight, c_transposed=True)
        return result if bias is None else result.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        adjacency, grad = ctx.adjacency, grad.contiguous()
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
        ctx.save_for_backward(x, weight, propagated)
        ctx.adjacency = adjacency
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, propagated = ctx.saved_tensors
        adjacency, grad = ctx.adjacency, grad.contiguous()
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
    pattern = adjacency.forward.pattern
    rows, cols = torch.from_numpy(pattern.row_ids()), torch.from_numpy(pattern.indices)
    with torch.autocast(x.device.type, enabled=False):  # the user's may be on while gradients are computed
        transformed = x @ weight.T
        parts = [torch.einsum("ek,ek->e", grad[rows[part]], transformed[cols[part]])
                 for part in (slice(start, start + BLOCK) for start in range(0, pattern.nnz, BLOCK))]
    return torch.cat(parts) if parts else adjacency.values.new_zeros(0)
