"""Operands of sparse operations as users of torch pass them, checked."""

import operator
from typing import Any, NamedTuple

import torch

from sparloom.nn.autocast import DEVICES, TYPES, autocast_operands, remedy
from sparloom.nn.derivatives import outside_transforms
from sparloom.nn.eager import accept_sparse_parts

__all__ = ["Csr", "Matrix", "check_alike", "check_dense", "matrix_of"]

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
