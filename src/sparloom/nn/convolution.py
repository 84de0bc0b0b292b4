"""The graph convolution D = A X W^T + b, with gradients.

On the CPU its products are fused, in either order; derivatives of gradients, forward mode and torch.func use separate
products by A and A^T. On a GPU the sparse and the dense product are always separate.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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
from sparloom.nn.custom_ops import (
    forward_tangent,
    in_functorch,
    is_plain,
    product_rule,
    refuse_legacy_vmap,
    vmap_by_loop,
)
from sparloom.nn.edges import CsrTuple
from sparloom.nn.sparse import spmm
from sparloom.nn.torch_integration import check_shapes, torch_threads
from sparloom.ops import GemmSpmm, Operands
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Fuse, PairPlan, PlanCache, plan_pair

MATRIX_AXES = 2
NUMPY_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}

BLOCK = 1 << 16  # nonzeros per block, which bounds the memory of the gradient of A


@dataclass(frozen=True)
class PlanOptions:
    """Settings by which plans are made.

    Args:
        fuse: "never" computes every product separately, with the same kernels.
        cache: of decisions; None: the cache of this user.
    """

    fuse: Fuse
    cache: PlanCache | None


class Propagation:
    """Products by the matrices of one pattern A (nodes, nodes); plans are made at first use and cached.

    Threads may share it; their calls run one after the other. A call from a signal handler or a finaliser that
    interrupts another call in the same thread uses plans and workspaces of its own.
    """

    def __init__(self, pattern: Pattern, options: PlanOptions, pool: ResultPool) -> None:
        self.pattern, self.options = pattern, options
        self.plans: dict[tuple[int, int, bool, str, int], PairPlan] = {}
        """Keyed by inner width, width, whether C is transposed, dtype and threads."""
        self._pool = pool
        self._calls: dict[tuple[int, int, bool, str, int], NativeCall] = {}
        self._passes: dict[tuple[Hashable, ...], tuple[NativeCall, ...]] = {}
        self._lock = forkable(RLock())
        self._twin: Propagation | None = None

    def __reduce__(self) -> tuple[type[Propagation], tuple[Pattern, PlanOptions, ResultPool]]:
        """Copy and pickle the inputs of plans; copies plan again, using cached decisions."""
        return Propagation, (self.pattern, self.options, self._pool)

    def matrix(self, values: torch.Tensor) -> SparseMatrix:
        """Combine the pattern with values, (nnz,), without a copy."""
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
        active = self._active()
        with active._lock:
            if key not in active._calls:
                active.plans[key] = plan_pair(op, operands, fuse=self.options.fuse, threads=threads,
                                           cache=self.options.cache)
                active._calls[key] = active.plans[key].executor.bind(operands, result.numpy())
            else:
                active.plans[key].executor.rebind(active._calls[key], operands, result.numpy())
            active._calls[key]()
        return result

    def run(
        self, matrix: SparseMatrix | None = None, *, c_transposed: bool = False, **tensors: torch.Tensor | None,
    ) -> None:
        """Run steps over the rows of A, fused or one after the other.

        Args:
            matrix, c_transposed: see `RowSteps`.
            tensors: by the names of `RowSteps`, contiguous; None: omitted.
        """
        inputs = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        threads, dtype = torch_threads(), next(iter(inputs.values())).dtype
        for name, tensor in inputs.items():
            if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.is_neg():
                raise ValueError(f"{name} is {tensor.dtype} with strides {tensor.stride()}: kernels read contiguous "
                                 f"{dtype} tensors: pass {name}.to({dtype}).resolve_neg().contiguous()")
        key = (threads, dtype, matrix is None, c_transposed, *((name, tensor.shape) for name, tensor in inputs.items()))
        active = self._active()
        with active._lock:
            calls = active._passes.get(key)
            if calls is None:
                calls = active._passes[key] = active._bind(matrix, inputs, c_transposed, threads)
            for call in calls:
                _set_addresses(call, matrix, inputs)
                call()

    def _active(self) -> Propagation:
        """Return self, or a twin if this thread is inside a call."""
        if not self._lock._is_owned():
            return self
        if self._twin is None:
            self._twin = Propagation(self.pattern, self.options, self._pool)
        return self._twin._active()

    def _bind(
        self, matrix: SparseMatrix | None, inputs: Mapping[str, torch.Tensor], c_transposed: bool, threads: int,
    ) -> tuple[NativeCall, ...]:
        """Bind one pass, or one for each product."""
        steps = RowSteps(matrix, c_transposed=c_transposed, **{
            name: tensor.detach().numpy() for name, tensor in inputs.items()})
        run = RowPass(self.pattern, threads=threads)
        if self.options.fuse != "never":
            return (run.bind(steps),)
        if matrix is not None and steps.g is None:
            steps = replace(steps, g=self.empty(steps.width, inputs["y"].dtype).numpy())
        return tuple(run.bind(part) for part in steps.apart())

    def empty(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate (nodes, width)."""
        return torch.from_numpy(self._pool.empty((self.pattern.rows, width), NUMPY_DTYPES[dtype]))


def _set_addresses(call: NativeCall, matrix: SparseMatrix | None, inputs: Mapping[str, torch.Tensor]) -> None:
    """Point the arguments of a call to these tensors."""
    arguments = call.arguments
    if arguments.a.begin:
        arguments.a.values = matrix.values.ctypes.data
    for name, tensor in inputs.items():
        if getattr(arguments, name):
            setattr(arguments, name, tensor.data_ptr())


class _Normalised:
    """A normalised adjacency matrix, with `values`."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Device of the values."""
        return self.values.device


class CpuAdjacency(_Normalised):
    """Base class of normalised adjacency matrices on the CPU: their products, with gradients.

    Subclasses have `values` (nnz,), which may require a gradient; `forward` and `backward`, the products by matrices of
    the pattern of A and of its transpose, like `Propagation`; `matrix` and `transposed`, A and its transpose as these
    take them; and `matrix_of`, the same for other values.
    """

    @property
    def nodes(self) -> int:
        """Rows: nodes that receive."""
        return self.forward.pattern.rows

    @property
    def is_square(self) -> bool:
        """Whether the nodes that receive are those that send."""
        return self.forward.pattern.rows == self.forward.pattern.cols

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
        refuse_legacy_vmap(x, "GCNConv")
        self.check_operands(x=x, weight=weight, bias=bias)
        if in_functorch() or (forward_ad._current_level >= 0 and any(
                forward_tangent(tensor) is not None for tensor in (x, weight, bias, self.values))):
            sent = x if aggregate_first else x @ weight.T
            result = self.matmul(sent, self.values)
            result = result @ weight.T if aggregate_first else result
            return result if bias is None else result + bias
        x, weight, bias = (None if each is None else each.resolve_neg().contiguous() for each in (x, weight, bias))
        return _Convolution.apply(x, weight, bias, self.values, self, aggregate_first)

    def matmul(self, y: torch.Tensor, values: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
        """Compute A Y or A^T Y, (nodes, width), with gradients of Y and the values of A in both modes."""
        refuse_legacy_vmap(y, "GCNConv")
        pattern = self.forward.pattern
        check_shapes({"x": y}, {"x": (pattern.rows if transposed else pattern.cols, y.shape[-1])}, self._context)
        return (_PlainProduct if is_plain() else _Product).apply(y, values, self, transposed)

    def check_operands(
        self, *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, root: torch.Tensor | None = None,
        root_weight: torch.Tensor | None = None,
    ) -> None:
        """Refuse operands of a convolution whose shapes disagree with the matrix or with each other."""
        pattern, outputs = self.forward.pattern, weight.shape[0]
        if (x.shape == (pattern.cols, weight.shape[-1]) and weight.dim() == MATRIX_AXES
                and (bias is None or bias.shape == (outputs,)) and (root is None or (
                    root.shape == (pattern.rows, root_weight.shape[-1])
                    and root_weight.shape == (outputs, root.shape[-1])))):
            return  # the usual case
        columns = 0 if root is None else root.shape[-1]
        check_shapes({"x": x, "weight": weight, "bias": bias, "root": root, "root_weight": root_weight}, {
            "x": (pattern.cols, weight.shape[-1]), "weight": (outputs, x.shape[-1]), "bias": (outputs,),
            "root": (pattern.rows, columns), "root_weight": (outputs, columns)}, self._context)

    @property
    def _context(self) -> str:
        pattern = self.forward.pattern
        return f"{pattern.cols} senders and {pattern.rows} receivers"

    def gradients(
        self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, values: torch.Tensor, *,
        needed: tuple[bool, ...],
    ) -> tuple[torch.Tensor | None, ...]:
        """Compute the needed gradients of X, W, b and values from products that are differentiable themselves."""
        with torch.autocast(grad.device.type, enabled=False):
            transposition = self.matmul(grad, values, transposed=True) if needed[0] or needed[1] else None
            return (transposition @ weight if needed[0] else None, transposition.T @ x if needed[1] else None,
                    grad.sum(0) if needed[2] else None,
                    values_gradient(grad, x, weight, self) if needed[3] else None, None)


@dataclass(frozen=True, eq=False)
class Adjacency(CpuAdjacency):
    """A normalised adjacency matrix whose products are planned.

    Args:
        values: (nnz,), may require a gradient.
        transposition: (nnz,) int64, position in A of each nonzero of its transpose.
        forward, backward: products by A and by its transpose.
    """

    values: torch.Tensor
    transposition: torch.Tensor
    forward: Propagation
    backward: Propagation

    @cached_property
    def matrix(self) -> SparseMatrix:
        """A, detached."""
        return self.forward.matrix(self.values)

    @cached_property
    def transposed(self) -> SparseMatrix:
        """A^T, detached."""
        return self.matrix_of(self.values, transposed=True)

    def matrix_of(self, values: torch.Tensor, *, transposed: bool) -> SparseMatrix:
        """Combine the pattern with other values, (nnz,), or its transpose with them."""
        if transposed:
            return self.backward.matrix(values.detach().index_select(0, self.transposition))
        return self.forward.matrix(values)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, with values as a detached array.

        A tensor that is sent to another process moves to shared memory, away from the array on the same memory.
        """
        return {"values": self.values.detach().numpy(), "transposition": self.transposition.numpy(),
                "forward": self.forward, "backward": self.backward}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = {name: torch.from_numpy(state[name]) for name in ("values", "transposition")}
        self.__dict__.update(state | tensors)

    def to(self, dtype: torch.dtype) -> Adjacency:
        """Convert the values."""
        return Adjacency(self.values.to(dtype), self.transposition, self.forward, self.backward)


class _Product(torch.autograd.Function):
    """A Y or A^T Y."""

    @staticmethod
    def forward(y: torch.Tensor, values: torch.Tensor, adjacency: CpuAdjacency, transposed: bool) -> torch.Tensor:
        nodes = adjacency.backward if transposed else adjacency.forward
        own = adjacency.values
        if not torch._C._functorch.is_functorch_wrapped_tensor(own) and values.data_ptr() == own.data_ptr():
            matrix = adjacency.transposed if transposed else adjacency.matrix
        else:
            matrix = adjacency.matrix_of(values, transposed=transposed)
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
        needs_y, needs_values, *_ = ctx.needs_input_grad
        ends = (y, grad) if ctx.is_transposed else (grad, y)
        return (ctx.adjacency.matmul(grad, values, transposed=not ctx.is_transposed) if needs_y else None,
                _sampled_product(*ends, ctx.adjacency) if needs_values else None, None, None)

    @staticmethod
    def jvp(ctx: Any, y_tangent: torch.Tensor | None, values_tangent: torch.Tensor | None, *_: None) -> torch.Tensor:
        return product_rule(lambda *factors: ctx.adjacency.matmul(*factors, transposed=ctx.is_transposed),
                            ctx.saved_tensors, (y_tangent, values_tangent))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[torch.Tensor, int]:
        return vmap_by_loop(_Product, info, in_dims, inputs)


class _PlainProduct(torch.autograd.Function):
    """The same without transforms of torch, whose support makes each call look up a signature."""

    @staticmethod
    def forward(
        ctx: Any, y: torch.Tensor, values: torch.Tensor, adjacency: CpuAdjacency, transposed: bool,
    ) -> torch.Tensor:
        ctx.adjacency, ctx.is_transposed = adjacency, transposed
        ctx.save_for_backward(y if ctx.needs_input_grad[1] else None, values)
        return _Product.forward(y, values, adjacency, transposed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Product.backward(ctx, grad)


class _Convolution(torch.autograd.Function):
    """D = A (X W^T) + b, where rows of G = A^T dD stay in the cache: dX = G W, dW = G^T X, db = column sums of dD.

    Or, aggregated first, D = P W^T + b with P = A X. If dX is not needed, P is saved: dW = dD^T P needs no sparse
    product.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, values: torch.Tensor,
        adjacency: CpuAdjacency, aggregate_first: bool,
    ) -> torch.Tensor:
        result, propagated = convolved(
            x, weight, bias, adjacency, aggregate_first=aggregate_first, needed=ctx.needs_input_grad)
        ctx.save_for_backward(x, weight, values, propagated)
        ctx.adjacency = adjacency
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, values, propagated = ctx.saved_tensors
        refuse_legacy_vmap(grad, "GCNConv")
        if torch.is_grad_enabled() or in_functorch():
            return (*ctx.adjacency.gradients(grad, x, weight, values, needed=ctx.needs_input_grad), None)
        grad = grad.resolve_neg().contiguous()
        return (*convolution_gradients(grad, x, weight, propagated, ctx.adjacency, needed=ctx.needs_input_grad), None,
                None)


def convolved(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, adjacency: CpuAdjacency, *,
    aggregate_first: bool, needed: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute D = A X W^T + b from contiguous tensors.

    Args:
        needed: whether gradients of X and W will be.

    Returns:
        D and, if the gradient of W will be computed from it, A X. Where dX is needed, too, G = A^T dD gives both.
    """
    nodes, propagated = adjacency.forward, None
    if aggregate_first:
        if needed[1] and not (needed[0] and adjacency.is_square):
            propagated = nodes.empty(x.shape[1], x.dtype)
        result = nodes.empty(weight.shape[0], x.dtype)
        nodes.run(adjacency.matrix, y=x, g=propagated, c=weight, c_transposed=True, bias=bias, d=result)
    else:
        result = nodes.transform_first(adjacency.matrix, x, weight, c_transposed=True)
        result = result if bias is None else result.add_(bias)
    return result, propagated


def convolution_gradients(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, propagated: torch.Tensor | None,
    adjacency: CpuAdjacency, *, needed: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Compute the needed gradients of X, W, b and the values of A from contiguous tensors.

    Args:
        propagated: A X, or None if it was not kept.
    """
    needs_x, needs_weight, needs_bias, needs_values, *_ = needed
    dx = adjacency.backward.empty(x.shape[1], x.dtype) if needs_x else None
    dw = torch.empty_like(weight) if needs_weight else None
    db = grad.new_empty(grad.shape[1]) if needs_bias else None
    sparse = needs_x or (needs_weight and propagated is None)
    of_senders = {"y": grad, "c": weight if needs_x else None, "d": dx} if sparse else {}
    of_receivers = {"summed": grad, "sums": db} if needs_bias else {}
    if needs_weight and propagated is not None:
        of_receivers |= {"left": grad, "right": propagated, "s": dw}
    elif needs_weight:
        of_senders |= {"right": x, "s": dw}
    matrix = adjacency.transposed if sparse else None
    if adjacency.is_square and (of_senders or of_receivers):
        adjacency.backward.run(matrix, **of_senders, **of_receivers)
    else:
        for products, operand, steps in (
                (adjacency.backward, matrix, of_senders), (adjacency.forward, None, of_receivers)):
            if steps:
                products.run(operand, **steps)
    return dx, dw, db, values_gradient(grad, x, weight, adjacency) if needs_values else None


def values_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, adjacency: CpuAdjacency,
) -> torch.Tensor:
    """dA(i,j) = dD(i,:) . (X W^T)(j,:) at the nonzeros of A, (nnz,)."""
    with torch.autocast(x.device.type, enabled=False):  # it may be enabled during the backward pass
        return _sampled_product(grad, x @ weight.T, adjacency)


def _sampled_product(left: torch.Tensor, right: torch.Tensor, adjacency: CpuAdjacency) -> torch.Tensor:
    """Compute L(i,:) . R(j,:) at the nonzeros of A, (nnz,)."""
    pattern = adjacency.forward.pattern
    rows, cols = torch.from_numpy(pattern.row_ids()), torch.from_numpy(pattern.indices)
    with torch.autocast(left.device.type, enabled=False):
        parts = [torch.einsum("ek,ek->e", left[rows[part]], right[cols[part]])
                 for part in (slice(start, start + BLOCK) for start in range(0, pattern.nnz, BLOCK))]
    return torch.cat(parts) if parts else left.new_zeros(0)


@dataclass(frozen=True, eq=False)
class DeviceAdjacency(_Normalised):
    """A normalised adjacency matrix on a GPU; its products are decided as in `sparloom.nn.spmm`.

    Args:
        matrix: A; its values may require a gradient.
    """

    matrix: CsrTuple

    @property
    def nodes(self) -> int:
        """Rows and columns."""
        return self.matrix[3][0]

    @property
    def values(self) -> torch.Tensor:
        """(nnz,)."""
        return self.matrix[2]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, with detached values."""
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
