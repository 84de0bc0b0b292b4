"""Products of a graph convolution, fused, on tensors: what is planned for one matrix and kept.

The graph convolution on the CPU, with gradients of any order: D = A X W^T + b, its products fused in either order.

What is differentiated again, in forward mode or by torch.func is made of products by A and by A^T, one by one.

The graph convolution on a GPU: D = A X W^T + b by a sparse and a dense product, each apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from sparloom.forks import forkable
from sparloom.fusion import RowPass, RowSteps
from sparloom.jit import NativeCall, ResultPool
from sparloom.nn.custom_ops import check_batched, in_transform, looped, tangent_of
from sparloom.nn.edges import Operand
from sparloom.nn.sparse import spmm
from sparloom.nn.torch_integration import torch_threads
from sparloom.ops import GemmSpmm, Operands
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Fuse, PairPlan, PlanCache, plan_pair

__all__ = ["Adjacency", "DeviceAdjacency", "Planning", "Propagation"]

NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True)
class Planning:
    """How plans are made.

    Args:
        fuse: "never" keeps every product apart from the next, with the same kernels.
        cache: where decisions are kept; None: the folder of this user.
    """

    fuse: Fuse
    cache: PlanCache | None


class Propagation:
    """Multiplies by the matrices of one pattern A (nodes, nodes); plans are made at the first use and stay.

    Threads may share it; their calls run one after the other. A call by a signal handler or a finaliser that interrupts
    another call in the same thread has plans and workspaces of its own.
    """

    def __init__(self, pattern: Pattern, planning: Planning, pool: ResultPool) -> None:
        self.pattern, self.planning = pattern, planning
        self.plans: dict[tuple[int, int, bool, str, int], PairPlan] = {}
        """By inner width, width, whether C is transposed, type and threads."""
        self._pool = pool
        self._calls: dict[tuple[int, int, bool, str, int], NativeCall] = {}
        self._passes: dict[tuple[Hashable, ...], tuple[NativeCall, ...]] = {}
        self._lock = forkable(RLock())
        self._twin: Propagation | None = None

    def __reduce__(self) -> tuple[type[Propagation], tuple[Pattern, Planning, ResultPool]]:
        """Copy and pickle what plans are made of; they are made anew, by the decisions that are kept."""
        return Propagation, (self.pattern, self.planning, self._pool)

    def matrix(self, values: torch.Tensor) -> SparseMatrix:
        """Give the pattern values, (nnz,), without a copy."""
        array = values.detach().numpy()
        return SparseMatrix(self.pattern, array, array.dtype)

    def transform_first(self, matrix: SparseMatrix, b: torch.Tensor, c: torch.Tensor, *, c_transposed: bool
                        ) -> torch.Tensor:
        """Compute A (B C) by tile fusion.

        Args:
            b: (nodes, inner).
            c: (inner, width), or (width, inner) with `c_transposed`.
        """
        op = GemmSpmm(dtype=matrix.dtype.name, c_transposed=c_transposed)
        operands = Operands(matrix, {"B": b.detach().numpy(), "C": c.detach().numpy()})
        width, threads = op.width(operands), torch_threads()
        result = self.empty(width, b.dtype)
        key = (b.shape[1], width, c_transposed, op.dtype, threads)
        own = self._own()
        with own._lock:
            if key not in own._calls:
                own.plans[key] = plan_pair(op, operands, fuse=self.planning.fuse, threads=threads,
                                           cache=self.planning.cache)
                own._calls[key] = own.plans[key].executor.bind(operands, result.numpy())
            else:
                own.plans[key].executor.rebind(own._calls[key], operands, result.numpy())
            own._calls[key]()
        return result

    def run(
        self, matrix: SparseMatrix | None = None, *, c_transposed: bool = False, **tensors: torch.Tensor | None,
    ) -> None:
        """Take steps over the rows of A, fused or one after the other.

        Args:
            matrix, c_transposed: see `RowSteps`.
            tensors: by the names of `RowSteps`, contiguous; those that are None are left out.

        Raises:
            ValueError: one is not contiguous, or of another type than the first one.
        """
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        threads, dtype = torch_threads(), next(iter(given.values())).dtype
        for name, tensor in given.items():
            if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.is_neg():
                raise ValueError(f"{name} of {tensor.dtype} with strides {tensor.stride()}: kernels read contiguous "
                                 f"tensors of {dtype}: pass {name}.to({dtype}).resolve_neg().contiguous()")
        key = (threads, dtype, matrix is None, c_transposed, *((name, tensor.shape) for name, tensor in given.items()))
        own = self._own()
        with own._lock:
            calls = own._passes.get(key)
            if calls is None:
                calls = own._passes[key] = own._bound(matrix, given, c_transposed, threads)
            for call in calls:
                _point(call, matrix, given)
                call()

    def _own(self) -> Propagation:
        """Give this, or a twin where this thread is in the middle of a call."""
        if not self._lock._is_owned():
            return self
        if self._twin is None:
            self._twin = Propagation(self.pattern, self.planning, self._pool)
        return self._twin._own()

    def _bound(
        self, matrix: SparseMatrix | None, given: Mapping[str, torch.Tensor], c_transposed: bool, threads: int,
    ) -> tuple[NativeCall, ...]:
        """Bind one pass, or one for each product."""
        steps = RowSteps(matrix, c_transposed=c_transposed, **{
            name: tensor.detach().numpy() for name, tensor in given.items()})
        run = RowPass(self.pattern, threads=threads)
        if self.planning.fuse != "never":
            return (run.bind(steps),)
        if matrix is not None and steps.g is None:
            steps = replace(steps, g=self.empty(steps.width, given["y"].dtype).numpy())
        return tuple(run.bind(part) for part in steps.apart())

    def empty(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate (nodes, width)."""
        return torch.from_numpy(self._pool.empty((self.pattern.rows, width), NUMBERS[dtype]))


def _point(call: NativeCall, matrix: SparseMatrix | None, given: Mapping[str, torch.Tensor]) -> None:
    """Let a call work on these tensors, as far as it takes them."""
    arguments = call.arguments
    if arguments.a.begin:
        arguments.a.values = matrix.values.ctypes.data
    for name, tensor in given.items():
        if getattr(arguments, name):
            setattr(arguments, name, tensor.data_ptr())


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

    def to(self, dtype: torch.dtype) -> Adjacency:
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
        bias = None if bias is None else bias.resolve_neg().contiguous()
        return function.apply(x.resolve_neg().contiguous(), weight.resolve_neg().contiguous(), bias, self.values, self)

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
        nodes.run(matrix, y=y.resolve_neg().contiguous(), g=result)
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
        grad = grad.resolve_neg().contiguous()
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
        grad = grad.resolve_neg().contiguous()
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


@dataclass(frozen=True, eq=False)
class DeviceAdjacency:
    """A normalised adjacency matrix on a GPU; what multiplies by it is decided as for `sparloom.nn.spmm`.

    Args:
        matrix: A; its values may need a gradient.
    """

    matrix: Operand

    @property
    def nodes(self) -> int:
        """Rows and columns."""
        return self.matrix[3][0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of its values."""
        return self.matrix[2].dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.matrix[0].device

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold: values as numbers, which torch copies only without their history."""
        return {"matrix": tuple(each.detach() if isinstance(each, torch.Tensor) else each for each in self.matrix)}

    def to(self, dtype: torch.dtype) -> DeviceAdjacency:
        """Convert the values."""
        crow, col, values, shape = self.matrix
        return DeviceAdjacency((crow, col, values.to(dtype), shape))

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, aggregate_first: bool,
    ) -> torch.Tensor:
        """Compute A X W^T + b, see `sparloom.nn.convolution.Adjacency`."""
        result = spmm(self.matrix, x) @ weight.T if aggregate_first else spmm(self.matrix, x @ weight.T)
        return (result if bias is None else result + bias).to(x.dtype)
