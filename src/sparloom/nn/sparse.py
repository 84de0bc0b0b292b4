"""Sparse operations on torch tensors, with gradients of any order; kernels are chosen as by `sparloom.spmm`."""

import operator
from typing import Any, Literal, NamedTuple, get_args

import torch

from sparloom.nn import core_calls, operators
from sparloom.nn.custom_ops import is_plain, without_functorch
from sparloom.nn.torch_integration import (
    SUPPORTED_DEVICES,
    SUPPORTED_DTYPES,
    autocast_operands,
    dtype_remedy,
    promoted_operands,
    support_sparse_parts_in_dynamo,
    unscriptable,
)

SparseInput = torch.Tensor | tuple[torch.Tensor | tuple[int, int] | torch.Size, ...]
Reduce = Literal["sum", "mean", "max"]

REDUCTIONS = get_args(Reduce)
TRAILING_DIMENSIONS = {2: "width", 3: "heads, width"}


@unscriptable
def spmm(A: SparseInput, X: torch.Tensor, *, reduce: Reduce = "sum") -> torch.Tensor:
    """Multiply a sparse matrix by a dense matrix: A X, with gradients of A's values and X of any order.

    On a GPU the first call measures a few kernels on a sample of the rows; what is prepared of index tensors lives as
    long as they do. A's values may change from call to call. torch.compile(fullgraph=True)
    does not accept sparse tensors: pass A as a tuple. Operands of several dtypes are converted to the one that
    torch.promote_types gives. Under torch.autocast operands of half precision are converted to float32, on a GPU only
    if their dtypes differ.

    Args:
        A: (rows, cols) with float32, float16, bfloat16 or, on the CPU, float64 values and int32 or int64 indices,
            columns in increasing order within each row; a CSR tensor or (crow_indices, col_indices, values[, shape]),
            on the CPU or, if CuPy is installed, on an NVIDIA GPU.
        X: (cols, width), of such a dtype, on the device of A's values.
        reduce: "sum"; "mean", the sum divided by the number of nonzeros in the row; "max", the largest product, or NaN
            if any is NaN. The gradient of each maximum goes to its argmax, the first of equal products in the row. The
            argmax, (rows, width) int32, is saved for the backward pass if a gradient is needed.

    Returns:
        (rows, width) of the promoted dtype, 0 for rows without nonzeros. Numbers of 16 bits are accumulated in float32.

    Raises:
        TypeError, ValueError: an operand has an unsupported type, shape or device; names it and the remedy.
        Unsupported: operands are on a GPU, and CuPy is not installed.
    """
    if is_plain():
        result = core_calls.product(A, X, reduce)
        if result is not None:
            return operators.recorded_spmm(result, A, X, reduce)
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce!r}: expected one of {', '.join(REDUCTIONS)}")
    matrix = _parse_sparse(A)
    values, X = autocast_operands(matrix.values, X)
    _check_dense(X, "X", rows=matrix.cols, dimensions=2, device=matrix.crow.device)
    values, X = promoted_operands(values, X)
    inputs = matrix.crow, matrix.col, values, X
    if reduce == "max" and torch.is_grad_enabled() and (X.requires_grad or values.requires_grad):
        return operators.spmm_max(*inputs)[0]
    return operators.spmm(*inputs, reduce)


@unscriptable
def sddmm(A: SparseInput, Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
    """Multiply dense matrices at the nonzeros of a sparse one: A's values * (Q KT), with gradients of all three.

    Args:
        A: as in `spmm`.
        Q, K: (rows, width), (cols, width), of dtypes as in `spmm`.

    Returns:
        (nnz,) of the promoted dtype, in the order of A's values.

    Raises:
        TypeError, ValueError, Unsupported: as in `spmm`.
    """
    matrix = _parse_sparse(A)
    values, Q, K = autocast_operands(matrix.values, Q, K)
    _check_dense(Q, "Q", rows=matrix.rows, dimensions=2, device=matrix.crow.device)
    _check_dense(K, "K", rows=matrix.cols, dimensions=2, device=matrix.crow.device)
    _check_trailing_dimensions(Q, K, "Q", "K")
    values, Q, K = promoted_operands(values, Q, K)
    return operators.sddmm(matrix.crow, matrix.col, values, Q, K)


@unscriptable
def csr_attention(A: SparseInput, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Attend from each row to the columns of its nonzeros: softmax(Q KT / sqrt(d)) V, with gradients of Q, K and V.

    The forward pass stores no scores; the backward pass stores one or two values per nonzero, for one head at a time.
    There are no second derivatives.

    Args:
        A: as in `spmm`; its values are ignored.
        Q, K, V: (rows, heads, d), (cols, heads, d), (cols, heads, e), of dtypes as in `spmm`; two-dimensional tensors
            have one head.

    Returns:
        (rows, heads, e) of the promoted dtype, or (rows, e); 0 for rows without nonzeros.

    Raises:
        TypeError, ValueError, Unsupported: as in `spmm`.
        RuntimeError: a second derivative is requested.
    """
    if all(isinstance(each, torch.Tensor) and each.dim() == 2 for each in (Q, K, V)):
        return csr_attention(A, Q.unsqueeze(1), K.unsqueeze(1), V.unsqueeze(1)).squeeze(1)
    matrix = _parse_sparse(A)
    Q, K, V = autocast_operands(Q, K, V)
    _check_dense(Q, "Q", rows=matrix.rows, dimensions=3, device=matrix.crow.device)
    _check_dense(K, "K", rows=matrix.cols, dimensions=3, device=matrix.crow.device)
    _check_dense(V, "V", rows=K.shape[0], dimensions=3, device=matrix.crow.device)
    _check_trailing_dimensions(Q, K, "Q", "K")
    if V.shape[1] != Q.shape[1]:
        raise ValueError(f"V has {V.shape[1]} heads and Q has {Q.shape[1]}: they must match")
    if Q.shape[2] == 0:
        raise ValueError(f"Q has shape {tuple(Q.shape)}: attention divides by the head width, which must be at least 1")
    return operators.csr_attention(matrix.crow, matrix.col, *promoted_operands(Q, K, V))


class CsrOperand(NamedTuple):
    """A (rows, cols) as tensors: crow (rows + 1,), col (nnz,), values (nnz,).

    Args:
        cols: None if it is unknown.
    """

    crow: torch.Tensor
    col: torch.Tensor
    values: torch.Tensor
    rows: int
    cols: int | None


def _parse_sparse(matrix: SparseInput) -> CsrOperand:
    """Check a sparse matrix, a CSR tensor or a tuple, and split it into its parts."""
    if torch.compiler.is_compiling():
        support_sparse_parts_in_dynamo()
    if isinstance(matrix, torch.Tensor):
        if matrix.layout != torch.sparse_csr:
            raise TypeError(f"A has layout {matrix.layout}: pass A.to_sparse_csr()")
        if torch._C._is_tracing():
            raise RuntimeError("torch.jit.trace does not record sparse tensors: pass A as (crow_indices, col_indices, "
                               "values, shape), extracted outside the traced function")
        with without_functorch():  # torch.func does not support sparse tensors
            if matrix.dim() != 2 or matrix.dense_dim():
                raise ValueError(f"A has shape {tuple(matrix.shape)} with {matrix.dense_dim()} dense dimensions: "
                                 "expected (rows, cols) with one number per nonzero")
            parts = matrix.crow_indices(), matrix.col_indices(), matrix.values()
        return _checked_parts(*parts, tuple(matrix.shape), "pass A.to(torch.float32)")
    if not isinstance(matrix, tuple) or len(matrix) not in (3, 4):
        kind = f"a tuple of {len(matrix)}" if isinstance(matrix, tuple) else type(matrix).__name__
        raise TypeError(f"A is {kind}: expected a sparse CSR tensor or (crow_indices, col_indices, values, shape)")
    shape = _parse_shape(matrix[3]) if len(matrix) == 4 else None
    return _checked_parts(*matrix[:3], shape, "pass values.float() in the tuple")


def _check_dense(
    tensor: torch.Tensor, name: str, *, rows: int | None, dimensions: int, device: torch.device,
) -> None:
    """Refuse a dense operand that sparse operations with A on `device` cannot read.

    Args:
        rows: None: any number.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_nested:
        kind = f"a tensor of layout {tensor.layout}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"{name} is {kind}: expected a dense tensor")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device} and A on {device}: pass {name}.to({str(device)!r})")
    if tensor.dtype not in SUPPORTED_DTYPES[device.type]:
        raise TypeError(f"{name} is {tensor.dtype}: {dtype_remedy(tensor, f'pass {name}.float()')}")
    if tensor.dim() != dimensions or (rows is not None and tensor.shape[0] != rows):
        expected = f"({'rows' if rows is None else rows}, {TRAILING_DIMENSIONS[dimensions]})"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {expected}")


def _check_trailing_dimensions(first: torch.Tensor, second: torch.Tensor, name: str, other: str) -> None:
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(f"{name} has shape {tuple(first.shape)} and {other} {tuple(second.shape)}: trailing "
                         "dimensions must match")


def _parse_shape(shape: Any) -> tuple[int, int] | None:
    """Parse (rows, cols): a tuple, a torch.Size, or None if the number of columns is unknown."""
    if shape is None or (isinstance(shape, tuple) and len(shape) == 2
                         and type(shape[0]) is type(shape[1]) is int and min(shape) >= 0):
        return shape
    try:
        rows, cols = (extent if isinstance(extent, torch.SymInt) else operator.index(extent) for extent in shape)
    except (TypeError, ValueError) as error:
        raise TypeError(f"shape of A is {shape!r}: expected (rows, cols)") from error
    if rows < 0 or cols < 0:
        raise ValueError(f"shape of A is {(rows, cols)}: rows and cols must be non-negative")
    return rows, cols


def _checked_parts(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, shape: tuple[int, int] | None, conversion: str,
) -> CsrOperand:
    """Check the parts of a matrix.

    Args:
        conversion: how the user, who passed a tensor or a tuple, converts the values to float32.
    """
    for part, name in ((crow, "crow_indices"), (col, "col_indices"), (values, "values")):
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided:
            raise TypeError(f"{name} of A is {type(part).__name__}: expected a dense tensor")
        if part.device != crow.device:
            raise ValueError(f"{name} of A is on {part.device} and crow_indices on {crow.device}: move both to the "
                             "same device")
        if part.device.type not in SUPPORTED_DEVICES:
            raise ValueError(f"A is on {part.device}: only CPU and CUDA tensors are supported: pass A.cpu() or "
                             "A.cuda()")
        if part.dim() != 1:
            raise ValueError(f"{name} of A has shape {tuple(part.shape)}: expected one dimension")
    for part, name in ((crow, "crow_indices"), (col, "col_indices")):
        if part.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} of A is {part.dtype}: expected torch.int32 or torch.int64")
    if values.dtype not in SUPPORTED_DTYPES[values.device.type]:
        values, = autocast_operands(values)
        if values.dtype not in SUPPORTED_DTYPES[values.device.type]:
            raise TypeError(f"values of A are {values.dtype}: {dtype_remedy(values, conversion)}")
    if values.shape != col.shape:
        raise ValueError(f"A has {values.shape[0]} values and {col.shape[0]} col_indices: expected one value for each")
    rows = crow.shape[0] - 1
    if rows < 0 or (shape is not None and shape[0] != rows):
        raise ValueError(f"A of shape {shape} has {rows + 1} crow_indices: expected rows + 1")
    return CsrOperand(crow, col, values, rows, None if shape is None else shape[1])
