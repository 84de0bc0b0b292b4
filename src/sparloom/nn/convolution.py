"""The matrices of graphs, and the operations of layers with them: D = A X W^T + R V^T + b, with gradients.

On the CPU the native core computes a whole layer in one call, forward and backward. Derivatives of gradients, forward
mode, torch.func and GPUs use separate products, `sparloom.nn.spmm` and products of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from sparloom.forks import forkable
from sparloom.jit import NativeCall
from sparloom.nn import operators
from sparloom.nn.custom_ops import PLAIN_TENSORS, forward_tangent, in_functorch, refuse_legacy_vmap
from sparloom.nn.edges import AdjacencyPattern, CsrTuple
from sparloom.nn.sorted_edges import EdgePattern
from sparloom.nn.sparse import spmm
from sparloom.nn.torch_integration import check_shapes, eager, torch_threads
from sparloom.ops import GemmSpmm, Operands
from sparloom.sparse import SparseMatrix
from sparloom.tuning import PairPlan, PlanCache, plan_pair

MATRIX_AXES = 2
BLOCK = 1 << 16  # nonzeros per block, which bounds the memory of the gradient of A
X, WEIGHT, BIAS, VALUES, ROOT, ROOT_WEIGHT = range(6)  # arguments of `_Convolution`
NEEDS = {X: 1, WEIGHT: 2, BIAS: 4, ROOT: 8, ROOT_WEIGHT: 16}
"""Argument -> bit of its gradient in kernels/native/layers.hpp."""
ROOT_IS_X = 32

Order = Literal["aggregate", "transform", "tile_fused"]
"""(A X) W^T; A (X W^T); the same by tile fusion where the graph recurs."""


class TileFusion:
    """A (B C) by tile fusion, for the matrices of one pattern; plans are made at first use.

    Args:
        cache: of decisions; None: the cache of this user.
    """

    def __init__(self, cache: PlanCache | None) -> None:
        self.plans: dict[tuple[int, int, str, int], PairPlan] = {}
        """Keyed by inner width, width, dtype and threads."""
        self._cache = cache
        self._calls: dict[tuple[int, int, str, int], NativeCall] = {}
        self._lock = forkable(RLock())

    def __reduce__(self) -> tuple[type[TileFusion], tuple[PlanCache | None]]:
        """Copy and pickle the inputs of plans; copies plan again, using cached decisions."""
        return TileFusion, (self._cache,)

    def multiply(self, matrix: SparseMatrix, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor | None:
        """Compute A (B C^T), (nodes, width); None in a call that interrupts another one in the same thread.

        Args:
            b: (nodes, inner).
            c: (width, inner).
        """
        op, threads = GemmSpmm(dtype=matrix.dtype.name, c_transposed=True), torch_threads()
        operands = Operands(matrix, {"B": b.detach().numpy(), "C": c.detach().numpy()})
        result = torch.empty(matrix.pattern.rows, c.shape[0], dtype=b.dtype)
        key = (b.shape[1], c.shape[0], op.dtype, threads)
        if self._lock._is_owned():
            return None
        with self._lock:
            if key in self._calls:
                self.plans[key].executor.rebind(self._calls[key], operands, result.numpy())
            else:
                self.plans[key] = plan_pair(op, operands, threads=threads, cache=self._cache)
                self._calls[key] = self.plans[key].executor.bind(operands, result.numpy())
            self._calls[key]()
        return result


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A normalised adjacency matrix, or another matrix by which layers multiply: A, (receivers, senders).

    Args:
        pattern: an `EdgePattern` on the CPU, an `AdjacencyPattern` on a GPU.
        values: (nnz,) in the order of the pattern, on the device of layers; may require a gradient.
        tiles: computes A (X W^T) by tile fusion; None: the graph may not recur, so nothing is planned.
    """

    pattern: EdgePattern | AdjacencyPattern
    values: torch.Tensor
    tiles: TileFusion | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Device of the values."""
        return self.values.device

    @property
    def nodes(self) -> int:
        """Rows: nodes that receive."""
        return self.pattern.shape[0]

    @property
    def matrix(self) -> CsrTuple:
        """A as `sparloom.nn.spmm` accepts it, without duplicates."""
        return self.pattern.operand(self.values)

    @cached_property
    def transposed_values(self) -> torch.Tensor:
        """The values in the order of the transposed pattern, detached."""
        return self.pattern.native.transposed_values(self.values.detach())

    @cached_property
    def sparse_matrix(self) -> SparseMatrix:
        """A without duplicates, detached, on the CPU."""
        values = self.pattern.sorted.values(self.values.detach()).numpy()
        return SparseMatrix(self.pattern.sorted.pattern, values, values.dtype)

    def to(self, dtype: torch.dtype) -> Adjacency:
        """Convert the values."""
        return Adjacency(self.pattern, self.values.to(dtype), self.tiles)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, with detached values."""
        return {"pattern": self.pattern, "values": self.values.detach(), "tiles": self.tiles}

    @eager
    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, order: Order,
        root: torch.Tensor | None = None, root_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute A X W^T + R V^T + b, (receivers, out), with gradients of all of them and of the values of A.

        Args:
            x: X, (senders, in).
            weight: W, (out, in).
            bias: b, (out,).
            root: R, (receivers, columns); None: no second product.
            root_weight: V, (out, columns).
        """
        refuse_legacy_vmap(x, "a graph layer")
        self._check(x=x, weight=weight, bias=bias, root=root, root_weight=root_weight)
        tensors = (x, weight, bias, self.values, root, root_weight)
        if not self._is_native(tensors):
            return self._composed(tensors, aggregate_first=order == "aggregate")
        same = root is x
        plain = [None if each is None else each.resolve_neg().contiguous() for each in tensors]
        plain[ROOT] = plain[X] if same else plain[ROOT]
        return _Convolution.apply(*plain, self, order)

    @eager
    def aggregate(self, x: torch.Tensor) -> torch.Tensor:
        """Compute A X, (receivers, width), with gradients of X and the values of A."""
        refuse_legacy_vmap(x, "a graph layer")
        check_shapes({"x": x}, {"x": (self.pattern.shape[1], x.shape[-1])}, self._context)
        if self._is_native((x, self.values)):
            return _Aggregation.apply(x.resolve_neg().contiguous(), self.values, self)
        return self.product(x, self.values)

    def product(self, y: torch.Tensor, values: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
        """Compute A Y or A^T Y for other values of A, with derivatives of any order in both."""
        matrix = self.pattern.operand(values)
        return operators.spmm_transposed(*matrix[:3], y, matrix[3][1]) if transposed else spmm(matrix, y)

    def _is_native(self, tensors: tuple[torch.Tensor | None, ...]) -> bool:
        """Tell whether the core can compute with these tensors, and nothing but autograd watches or transforms them."""
        if (not isinstance(self.pattern, EdgePattern) or in_functorch() or torch._C._len_torch_dispatch_stack()
                or not self.pattern.shape[0]):
            return False
        dual = forward_ad._current_level >= 0
        for each in tensors:
            if each is not None and (type(each) not in PLAIN_TENSORS or each.dtype != self.values.dtype or (
                    not each.numel() and each is not self.values) or (dual and forward_tangent(each) is not None)):
                return False
        return self.pattern.native.ready(self.values.dtype)

    def _composed(self, tensors: tuple[torch.Tensor | None, ...], *, aggregate_first: bool) -> torch.Tensor:
        """Compute a convolution by separate operations."""
        x, weight, bias, values, root, root_weight = tensors
        with torch.autocast("cpu", enabled=False):  # the core does not read it either
            result = self.product(x if aggregate_first else x @ weight.T, values)
            result = result @ weight.T if aggregate_first else result
            result = result if bias is None else result + bias
            return (result if root is None else result + root @ root_weight.T).to(x.dtype)

    def _check(
        self, *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, root: torch.Tensor | None,
        root_weight: torch.Tensor | None,
    ) -> None:
        """Refuse operands of a convolution whose shapes disagree with the matrix or with each other."""
        (rows, cols), outputs = self.pattern.shape, weight.shape[0]
        if (x.shape == (cols, weight.shape[-1]) and weight.dim() == MATRIX_AXES
                and (bias is None or bias.shape == (outputs,)) and (root is None or (
                    root.shape == (rows, root_weight.shape[-1]) and root_weight.shape == (outputs, root.shape[-1])))):
            return  # the usual case
        columns = 0 if root is None else root.shape[-1]
        check_shapes({"x": x, "weight": weight, "bias": bias, "root": root, "root_weight": root_weight}, {
            "x": (cols, weight.shape[-1]), "weight": (outputs, x.shape[-1]), "bias": (outputs,),
            "root": (rows, columns), "root_weight": (outputs, columns)}, self._context)

    @property
    def _context(self) -> str:
        rows, cols = self.pattern.shape
        return f"{cols} senders and {rows} receivers"


class _Convolution(torch.autograd.Function):
    """A convolution by the core; G = A^T dD stays in the cache: dX = G W, dW = G^T X, db = column sums of dD.

    Aggregated first, P = A X is saved if dX is not needed: dW = dD^T P needs no sparse product.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, values: torch.Tensor,
        root: torch.Tensor | None, root_weight: torch.Tensor | None, adjacency: Adjacency, order: Order,
    ) -> torch.Tensor:
        rows, cols = adjacency.pattern.shape
        needed = ctx.needs_input_grad
        keeps = order == "aggregate" and needed[WEIGHT] and not (needed[X] and rows == cols)
        result = aggregated = None
        if order == "tile_fused" and adjacency.tiles is not None and root is None:
            result = adjacency.tiles.multiply(adjacency.sparse_matrix, x, weight)
            result = result if bias is None or result is None else result.add_(bias)
        if result is None:
            result = adjacency.pattern.native.convolve(
                values, x, weight, bias, root, root_weight, order == "aggregate", keeps)
            result, aggregated = result if keeps else (result, None)
        ctx.save_for_backward(x, weight, values, aggregated, root, root_weight)
        ctx.adjacency = adjacency
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, values, aggregated, root, root_weight = ctx.saved_tensors
        refuse_legacy_vmap(grad, "a graph layer")
        adjacency, needed = ctx.adjacency, ctx.needs_input_grad
        if torch.is_grad_enabled() or in_functorch():
            tensors = (x, weight, None, values, root, root_weight)
            return *_composed_gradients(adjacency, grad, tensors, needed), None, None
        rows, cols = adjacency.pattern.shape
        grad = grad.resolve_neg().contiguous()
        needs = sum(bit for place, bit in NEEDS.items() if needed[place])
        if root is x and rows == cols and needed[X]:
            needs |= ROOT_IS_X
        multiplies = needed[X] or (needed[WEIGHT] and aggregated is None)
        dx, dw, db, dr, dv = adjacency.pattern.native.gradients(
            adjacency.transposed_values if multiplies else None, grad, x, weight, aggregated, root, root_weight, needs)
        dvalues = _values_gradient(grad, x, weight, adjacency) if needed[VALUES] else None
        return dx, dw, db, dvalues, dr, dv, None, None


class _Aggregation(torch.autograd.Function):
    """A X by the core."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, values: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, values)
        return adjacency.pattern.native.multiply(values, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, values = ctx.saved_tensors
        refuse_legacy_vmap(grad, "a graph layer")
        adjacency, (needs_x, needs_values, _) = ctx.adjacency, ctx.needs_input_grad
        if torch.is_grad_enabled() or in_functorch():
            dx = adjacency.product(grad, values, transposed=True) if needs_x else None
        else:
            grad = grad.resolve_neg().contiguous()
            dx = adjacency.pattern.native.multiply(values, grad, transposed=True) if needs_x else None
        return dx, _sampled_product(grad, x, adjacency) if needs_values else None, None


def _composed_gradients(
    adjacency: Adjacency, grad: torch.Tensor, tensors: tuple[torch.Tensor | None, ...], needed: tuple[bool, ...],
) -> tuple[torch.Tensor | None, ...]:
    """Compute gradients of X, W, b, the values, R and V from products that are differentiable themselves."""
    x, weight, _, values, root, root_weight = tensors
    with torch.autocast(grad.device.type, enabled=False):
        aggregated = adjacency.product(grad, values, transposed=True) if needed[X] or needed[WEIGHT] else None
        return (aggregated @ weight if needed[X] else None, aggregated.T @ x if needed[WEIGHT] else None,
                grad.sum(0) if needed[BIAS] else None,
                _values_gradient(grad, x, weight, adjacency) if needed[VALUES] else None,
                grad @ root_weight if needed[ROOT] else None, grad.T @ root if needed[ROOT_WEIGHT] else None)


def _values_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, adjacency: Adjacency,
) -> torch.Tensor:
    """dA(i,j) = dD(i,:) . (X W^T)(j,:) at the nonzeros of A, (nnz,)."""
    with torch.autocast(x.device.type, enabled=False):  # it may be enabled during the backward pass
        return _sampled_product(grad, x @ weight.T, adjacency)


def _sampled_product(left: torch.Tensor, right: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
    """Compute L(i,:) . R(j,:) at the nonzeros of A, (nnz,)."""
    rows, cols = adjacency.pattern.row_ids, adjacency.pattern.columns
    with torch.autocast(left.device.type, enabled=False):
        parts = [torch.einsum("ek,ek->e", left[rows[part]], right[cols[part].long()])
                 for part in (slice(start, start + BLOCK) for start in range(0, cols.shape[0], BLOCK))]
    return torch.cat(parts) if parts else left.new_zeros(0)
