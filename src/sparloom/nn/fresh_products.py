"""Products of graphs that are seen for the first time.

They run the default kernels, on one thread if there is little to do. Nothing is measured, planned or written to disk.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad

from sparloom.fusion import run_once
from sparloom.jit import address, compile_cpp
from sparloom.nn.convolution import NUMPY_DTYPES, CpuAdjacency, convolution_gradients, convolved
from sparloom.nn.custom_ops import forward_tangent, in_functorch, refuse_legacy_vmap
from sparloom.nn.torch_integration import torch_threads

GRAIN = 1 << 19  # multiplications below which a product runs on one thread
SLICES_PER_THREAD = 8
ROW_WORK = 4  # starting a row costs as much as so many nonzeros
DENSE_SHARE = 8  # dense multiplications that cost as much as a nonzero


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

    @property
    def indices(self) -> np.ndarray:
        """Columns of the nonzeros, (nnz,) int32."""
        return self.columns.numpy()[:self.nnz]

    def row_ids(self) -> np.ndarray:
        """Row of every nonzero, (nnz,) int32."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), np.diff(self.indptr.numpy()))


class FreshProducts:
    """Products by the matrices of one pattern, like `Propagation`, by the default kernel."""

    def __init__(self, pattern: FreshPattern) -> None:
        self.pattern = pattern

    def matrix(self, values: torch.Tensor) -> torch.Tensor:
        """Return what stands for the matrix with these values: the values."""
        return values.detach()

    def empty(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate (rows, width)."""
        return torch.empty(self.pattern.rows, width, dtype=dtype)

    def transform_first(
        self, values: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, c_transposed: bool,
    ) -> torch.Tensor:
        """Compute A (B C), see `Propagation.transform_first`."""
        sent = torch.empty(b.shape[0], c.shape[0 if c_transposed else 1], dtype=b.dtype)
        self.run(g=b, c=c, c_transposed=c_transposed, d=sent)
        result = self.empty(sent.shape[1], sent.dtype)
        self.run(values, y=sent, g=result)
        return result

    def run(
        self, values: torch.Tensor | None = None, *, c_transposed: bool = False, **tensors: torch.Tensor | None,
    ) -> None:
        """Run steps over the rows of A, see `Propagation.run`."""
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        dtype, pattern = next(iter(tensors.values())).dtype, self.pattern
        for name, tensor in tensors.items():
            if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.is_neg():
                raise ValueError(f"{name} is {tensor.dtype} with strides {tensor.stride()}: kernels read contiguous "
                                 f"{dtype} tensors: pass {name}.to({dtype}).resolve_neg().contiguous()")
        source = tensors.get("y", tensors.get("g"))
        width = 0 if source is None else source.shape[1]
        out = tensors["d"].shape[1] if "d" in tensors else 0
        left, right = tensors["s"].shape if "s" in tensors else (0, 0)
        summed = tensors["sums"].shape[0] if "sums" in tensors else 0
        dense = width * out + left * right
        if values is None:
            rows = next(tensors[name] for name in ("g", "left", "summed") if name in tensors).shape[0]
            matrix, work = None, rows * dense
        else:
            rows, work = pattern.rows, pattern.nnz * width + pattern.rows * dense
            matrix = pattern.indptr.data_ptr(), pattern.columns.data_ptr(), values.data_ptr(), pattern.nnz
        threads = torch_threads() if work >= GRAIN else 1
        if threads == 1 or rows <= threads:
            slices = np.array([0, rows])
        elif values is None:
            slices = np.linspace(0, rows, min(SLICES_PER_THREAD * threads, rows) + 1).astype(np.int64)
        else:
            slices = self._slices(threads, ROW_WORK + dense // max(1, width) // DENSE_SHARE)
        run_once(
            matrix, {name: tensor.data_ptr() for name, tensor in tensors.items()}, (width, out, left, right, summed),
            slices=slices, dtype=NUMPY_DTYPES[dtype], threads=threads, c_transposed=c_transposed)

    def _slices(self, threads: int, row_work: int) -> np.ndarray:
        """Bound slices of rows of about equal work, (slices + 1,) int64."""
        rows = self.pattern.rows
        count = min(SLICES_PER_THREAD * threads, rows)
        bounds = np.empty(count + 1, np.int64)
        _functions()[1](self.pattern.indptr.data_ptr(), rows, row_work, count, address(bounds, np.int64))
        return bounds


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
        """The values, detached."""
        return self.values.detach()

    @property
    def backward(self) -> FreshProducts:
        """Products by the transpose."""
        return self._transposition[0]

    @property
    def transposed(self) -> torch.Tensor:
        """The values of the transpose, detached."""
        return self._transposition[1]

    @cached_property
    def transposition(self) -> torch.Tensor:
        """Position in A of each nonzero of its transpose, (nnz,) int64."""
        order = torch.empty(self.pattern.nnz, dtype=torch.int64)
        _transposed(self.pattern, order=order)
        return order

    @cached_property
    def _transposition(self) -> tuple[FreshProducts, torch.Tensor]:
        values = torch.empty_like(self.matrix)
        return FreshProducts(_transposed(self.pattern, self.matrix, values)), values


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
        of_root = torch.empty_like(result)
        adjacency.forward.run(g=root, c=root_weight, c_transposed=True, d=of_root)
        ctx.save_for_backward(x, weight, values, propagated, root, root_weight)
        ctx.options = options
        return result.add_(of_root)

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
        d_root = torch.empty_like(root) if needs_root else None
        d_root_weight = torch.empty_like(root_weight) if needs_root_weight else None
        steps = {"c": root_weight, "d": d_root} if needs_root else {}
        if needs_root_weight:
            steps |= {"right": root, "s": d_root_weight}
        if steps:
            adjacency.forward.run(g=grad, **steps)
        if ctx.options.same and dx is not None and d_root is not None:
            dx, d_root = dx.add_(d_root), None
        return dx, *others, d_root, d_root_weight, None


def _transposed(
    pattern: FreshPattern, values: torch.Tensor | None = None, to_values: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> FreshPattern:
    """Transpose a pattern; columns of a row are then increasing.

    Args:
        to_values: is filled with `values` in the order of the transpose.
        order: is filled with the position in `pattern` of each nonzero of the transpose, int64.
    """
    indptr = torch.empty(pattern.cols + 1, dtype=torch.int64)
    indices = torch.empty(pattern.nnz, dtype=torch.int32)
    _functions()[0](ctypes.byref(_Transposition(
        indptr=pattern.indptr.data_ptr(), indices=pattern.columns.data_ptr(), rows=pattern.rows, cols=pattern.cols,
        values=None if values is None else values.data_ptr(), to_indptr=indptr.data_ptr(),
        to_indices=indices.data_ptr(), to_values=None if to_values is None else to_values.data_ptr(),
        order=None if order is None else order.data_ptr(),
        is_double=values is not None and values.dtype == torch.float64)))
    return FreshPattern(indptr, indices, pattern.cols, pattern.rows, pattern.nnz)


class _Transposition(ctypes.Structure):
    """The struct Transposition of kernels/cpu/fresh_graph.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values")),
        *((name, ctypes.c_int64) for name in ("rows", "cols")),
        *((name, ctypes.c_void_p) for name in ("to_indptr", "to_indices", "to_values", "order")),
        ("is_double", ctypes.c_int32),
    )


@cache
def _functions() -> tuple[Any, Any]:
    """Compile the functions that transpose a pattern and bound slices."""
    library = compile_cpp(["cpu/fresh_graph.cpp"])
    transpose, slices = library.sparloom_fresh_transpose, library.sparloom_fresh_slices
    transpose.restype, transpose.argtypes = None, [ctypes.c_void_p]
    slices.restype, slices.argtypes = None, [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return transpose, slices
