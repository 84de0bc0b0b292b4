"""Operands of sparse operations as users of torch pass them, checked.

Sparse operations on torch tensors, with gradients: the kernel that is fastest on this machine, found by measurement.

What is measured is kept as by `sparloom.spmm`; torch's own products are among the baselines that a kernel must beat.
"""

import operator
from typing import Any, Literal, NamedTuple, get_args

import torch

from sparloom.nn import operators as csr_operators
from sparloom.nn import operators as max_operators
from sparloom.nn.custom_ops import outside_transforms
from sparloom.nn.torch_integration import DEVICES, TYPES, accept_sparse_parts, autocast_operands, remedy, unscriptable

__all__ = ["Csr", "Matrix", "check_alike", "check_dense", "csr_attention", "matrix_of", "sddmm", "spmm"]

Matrix = torch.Tensor | tuple[torch.Tensor | tuple[int, int] | torch.Size, ...]

WANTED = {2: "width", 3: "heads, width"}


class Csr(NamedTuple):
    """A (rows, cols) as tensors: crow (rows + 1,), col (nnz,), values (nnz,).

    Args:
        cols: None where it was not said.
    """

    crow: torch.Tensor
    col: torch.Tensor
    values: torch.Tensor
    rows: int
    cols: int | None


def matrix_of(given: Matrix) -> Csr:
    """Take a sparse matrix apart.

    Args:
        given: CSR tensor, or (crow_indices, col_indices, values[, shape]).

    Raises:
        TypeError: something else, or of other types than float32, on a GPU float16 or bfloat16, with int32 or int64.
        ValueError: on a device that these operations do not compute on, or on two, or of sizes that do not fit
            together.
    """
    if torch.compiler.is_compiling():
        accept_sparse_parts()
    if isinstance(given, torch.Tensor):
        if given.layout != torch.sparse_csr:
            raise TypeError(f"A has layout {given.layout}: pass A.to_sparse_csr()")
        if torch._C._is_tracing():
            raise RuntimeError("torch.jit.trace does not record sparse tensors: give A as (crow_indices, col_indices, "
                               "values, shape), taken before")
        with outside_transforms():  # which know no sparse tensors
            if given.dim() != 2 or given.dense_dim():
                raise ValueError(f"A has shape {tuple(given.shape)} with {given.dense_dim()} dense dimensions: it must "
                                 "be (rows, cols) with one number per nonzero")
            parts = given.crow_indices(), given.col_indices(), given.values()
        return _checked(*parts, tuple(given.shape), "pass A.to(torch.float32)")
    if not isinstance(given, tuple) or len(given) not in (3, 4):
        what = f"a tuple of {len(given)}" if isinstance(given, tuple) else type(given).__name__
        raise TypeError(f"A is {what}: give a sparse CSR tensor, or (crow_indices, col_indices, values, shape)")
    return _checked(*given[:3], _shape(given[3]) if len(given) == 4 else None, "pass values.float() in the tuple")


def check_dense(
    given: torch.Tensor, name: str, *, rows: int | None, axes: int, device: torch.device,
    dtype: torch.dtype | None = None,
) -> None:
    """Refuse a dense operand that sparse operations cannot read.

    Args:
        rows: that it must have; None: any number.
        axes: likewise.
        device: that A is on.
        dtype: of the other operands; None: any that operations on this device take.

    Raises:
        TypeError: no dense tensor of such a type.
        ValueError: on another device than A, or of another shape.
    """
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided or given.is_nested:
        what = f"a tensor of layout {given.layout}" if isinstance(given, torch.Tensor) else type(given).__name__
        raise TypeError(f"{name} is {what}: give a dense tensor")
    if given.device != device:
        raise ValueError(f"{name} is on {given.device} and A on {device}: pass {name}.to({str(device)!r})")
    if given.dtype not in TYPES[device.type]:
        raise TypeError(f"{name} is {given.dtype}: {remedy(given, f'pass {name}.float()')}")
    if dtype is not None and given.dtype != dtype:
        raise TypeError(f"{name} is {given.dtype} and operands before it {dtype}: pass {name}.to({dtype})")
    if given.dim() != axes or (rows is not None and given.shape[0] != rows):
        wanted = "rows" if rows is None else rows
        raise ValueError(f"{name} has shape {tuple(given.shape)}: it must be ({wanted}, {WANTED[axes]})")


def check_alike(first: torch.Tensor, second: torch.Tensor, name: str, other: str) -> None:
    """Refuse operands whose rows are of different shapes."""
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(f"{name} has shape {tuple(first.shape)} and {other} {tuple(second.shape)}: their rows must be "
                         "alike")


def _shape(given: Any) -> tuple[int, int] | None:
    """Take (rows, cols) as a tuple, a torch.Size, or None for a matrix whose columns were not said."""
    if given is None or (isinstance(given, tuple) and len(given) == 2
                         and type(given[0]) is type(given[1]) is int and min(given) >= 0):
        return given
    try:
        rows, cols = (extent if isinstance(extent, torch.SymInt) else operator.index(extent) for extent in given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"shape of A is {given!r}: give (rows, cols)") from error
    if rows < 0 or cols < 0:
        raise ValueError(f"shape of A is {(rows, cols)}: rows and cols are at least 0")
    return rows, cols


def _checked(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, shape: tuple[int, int] | None, conversion: str,
) -> Csr:
    """Check the parts of a matrix.

    Args:
        conversion: how the user, who has a tensor or a tuple, gets values of float32.
    """
    for part, name in ((crow, "crow_indices"), (col, "col_indices"), (values, "values")):
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided:
            raise TypeError(f"{name} of A is {type(part).__name__}: give a dense tensor")
        if part.device != crow.device:
            raise ValueError(f"{name} of A is on {part.device} and crow_indices on {crow.device}: move one of them")
        if part.device.type not in DEVICES:
            raise ValueError(f"A is on {part.device}: these operations compute on the CPU and on NVIDIA GPUs: pass "
                             "A.cpu() or A.cuda()")
        if part.dim() != 1:
            raise ValueError(f"{name} of A has shape {tuple(part.shape)}: it must have one axis")
    for part, name in ((crow, "crow_indices"), (col, "col_indices")):
        if part.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} of A is {part.dtype}: it must be torch.int32 or torch.int64")
    if values.dtype not in TYPES[values.device.type]:
        values, = autocast_operands(values)
        if values.dtype not in TYPES[values.device.type]:
            raise TypeError(f"values of A are {values.dtype}: {remedy(values, conversion)}")
    if values.shape != col.shape:
        raise ValueError(f"A has {values.shape[0]} values for {col.shape[0]} indices: give one for each")
    rows = crow.shape[0] - 1
    if rows < 0 or (shape is not None and shape[0] != rows):
        raise ValueError(f"A of shape {shape} has {rows + 1} crow_indices: give one more than rows")
    return Csr(crow, col, values, rows, None if shape is None else shape[1])


Reduce = Literal["sum", "mean", "max"]

REDUCTIONS = get_args(Reduce)


@unscriptable
def spmm(A: Matrix, X: torch.Tensor, *, reduce: Reduce = "sum") -> torch.Tensor:
    """Multiply a sparse matrix by a dense one: A X, with gradients of A's values and X, of any order.

    The first calls for a pattern and a width, and the first gradients, are computed by one kernel after the other until
    it is known which is the fastest; on a GPU the first one measures a few on some rows. Patterns are found again by
    their index tensors, as long as these live; A's values may change from call to call. Within
    torch.compile(fullgraph=True), which takes no sparse tensors, give A as a tuple. Under torch.autocast operands of
    half precision are read as float32, on a GPU where their types differ.

    Args:
        A: (rows, cols), float32 values with int32 or int64 indices, columns rising in every row, on the CPU or,
            with CuPy and also with float16 or bfloat16 values, on an NVIDIA GPU: a CSR tensor or (crow_indices,
            col_indices, values[, shape]).
        X: (cols, width), of the type of A's values, where A is; of no columns the result has none.
        reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, or NaN if one
            is NaN. All of an element's gradient goes to the nonzero that it comes from, of equal products
            the first one of the row. Which these are is kept, (rows, width) int32, where a gradient is wanted.

    Returns:
        (rows, width) of that type; 0 for rows without nonzeros. Sums are float32.

    Raises:
        TypeError, ValueError: an operand is none that can be multiplied; names it and the remedy.
        Unsupported: operands are on a GPU, and CuPy is missing.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
    matrix = matrix_of(A)
    values, X = autocast_operands(matrix.values, X)
    check_dense(X, "X", rows=matrix.cols, axes=2, device=matrix.crow.device, dtype=values.dtype)
    given = matrix.crow, matrix.col, values, X
    if reduce == "max" and torch.is_grad_enabled() and (X.requires_grad or values.requires_grad):
        return max_operators.spmm_max(*given)[0]
    return csr_operators.spmm(*given, reduce)


@unscriptable
def sddmm(A: Matrix, Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
    """Multiply dense matrices where a sparse one has nonzeros: A's values * (Q KT), with gradients of all three.

    Args:
        A: as in `spmm`.
        Q, K: (rows, width), (cols, width), of the type of A's values.

    Returns:
        (nnz,) of that type, in the order of A's values.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    matrix = matrix_of(A)
    values, Q, K = autocast_operands(matrix.values, Q, K)
    check_dense(Q, "Q", rows=matrix.rows, axes=2, device=matrix.crow.device, dtype=values.dtype)
    check_dense(K, "K", rows=matrix.cols, axes=2, device=matrix.crow.device, dtype=values.dtype)
    check_alike(Q, K, "Q", "K")
    return csr_operators.sddmm(matrix.crow, matrix.col, values, Q, K)


@unscriptable
def csr_attention(A: Matrix, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Let each row attend to the columns where it has nonzeros: softmax(Q KT / sqrt(d)) V, with gradients of Q, K, V.

    Forward, no score is stored; backward, one head's, a value or two per nonzero. There are no second derivatives.

    Args:
        A: as in `spmm`; its values are not read.
        Q, K, V: (rows, heads, d), (cols, heads, d), (cols, heads, e), float32, or on a GPU all of them float16 or
            bfloat16; without heads, one.

    Returns:
        (rows, heads, e) of that type, or (rows, e); 0 for rows without nonzeros.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
        RuntimeError: a second derivative is asked for.
    """
    if all(isinstance(given, torch.Tensor) and given.dim() == 2 for given in (Q, K, V)):
        return csr_attention(A, Q.unsqueeze(1), K.unsqueeze(1), V.unsqueeze(1)).squeeze(1)
    matrix = matrix_of(A)
    Q, K, V = autocast_operands(Q, K, V)
    check_dense(Q, "Q", rows=matrix.rows, axes=3, device=matrix.crow.device)
    check_dense(K, "K", rows=matrix.cols, axes=3, device=matrix.crow.device, dtype=Q.dtype)
    check_dense(V, "V", rows=K.shape[0], axes=3, device=matrix.crow.device, dtype=Q.dtype)
    check_alike(Q, K, "Q", "K")
    if V.shape[1] != Q.shape[1]:
        raise ValueError(f"V has {V.shape[1]} heads and Q {Q.shape[1]}: give as many")
    if Q.shape[2] == 0:
        raise ValueError(f"Q has shape {tuple(Q.shape)}: attention divides by the width of a head: give at least 1")
    return csr_operators.csr_attention(matrix.crow, matrix.col, Q, K, V)
