"""Calls of the native core with tensors on the processor.

Each function returns None where the core cannot compute with the tensors as they are: those of another device or type,
of wrong shapes, of transforms of torch; or there is no core, or this torch does not exchange tensors with it. Then the
caller goes the way through Python, which converts what can be converted and says what is wrong.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch

from sparloom.nn.torch_integration import torch_threads
from sparloom.platforms.cpu_kernels import load_kernels, native_core, set_threads

__all__ = ["NUMPY_DTYPES", "PatternProducts", "attention", "product", "sddmm", "spmm", "spmm_max", "spmm_transposed"]

NUMPY_DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
"""dtype of layers of graphs -> type of their kernels."""

Tensor = torch.Tensor


def product(matrix: Any, dense: Any, reduce: str) -> Tensor | None:
    """Multiply a CSR tensor, or a tuple of its parts, where no autocast is enabled; records nothing for autograd."""
    core = _core()
    if core is None or torch.is_autocast_enabled("cpu"):
        return None
    return core.spmm(matrix, dense, reduce, None, _threads(), None, True, False)


def spmm(crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, reduce: str) -> Tensor | None:
    """Multiply: A X, (rows, width)."""
    core = _core()
    if core is None:
        return None
    return core.spmm((crow, col, values), dense.contiguous(), reduce, None, _threads(), None, True, False)


def spmm_max(crow: Tensor, col: Tensor, values: Tensor, dense: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute the largest products and their argmax, (rows, width) each."""
    core = _core()
    if core is None:
        return None
    return core.spmm((crow, col, values), dense.contiguous(), "max", None, _threads(), None, True, True)


def spmm_transposed(crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, cols: int) -> Tensor | None:
    """Multiply: AT Y, (cols, width)."""
    core = _core()
    return None if core is None else core.spmm_transposed(
        (crow, col, values), dense.contiguous(), cols, None, _threads(), None, True)


def sddmm(crow: Tensor, col: Tensor, values: Tensor | None, left: Tensor, right: Tensor) -> Tensor | None:
    """Sampled dense-dense product: values * (Q KT), (nnz,); None stands for ones."""
    core = _core()
    if core is None:
        return None
    return core.sddmm((crow, col, values), left.contiguous(), right.contiguous(), None, _threads(), None, True)


def attention(crow: Tensor, col: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor | None:
    """Attend from each row to the columns of its nonzeros, (rows, heads, e)."""
    core = _core()
    if core is None:
        return None
    return core.attention((crow, col, None), queries.contiguous(), keys.contiguous(), values.contiguous(), None,
                          _threads(), True)


class PatternProducts:
    """Products by the matrices of one pattern, and by their transposes.

    Args:
        indptr: (rows + 1,) int64.
        columns: (nnz,) int32, those of a row in any order and possibly several times.
        cols: number of columns.
    """

    def __init__(self, indptr: Tensor, columns: Tensor, cols: int) -> None:
        self._indptr, self._columns, self.rows, self.cols = indptr, columns, indptr.shape[0] - 1, cols
        self._pattern: Any = None

    def multiply(self, values: Tensor, dense: Tensor, out: Tensor, *, transposed: bool = False) -> None:
        """Write A Y, (rows, width), or AT Y, (cols, width), to `out`; all tensors contiguous and of one dtype.

        Args:
            values: (nnz,) in the order of the pattern.
        """
        if out.numel() and dense.numel():
            result = self._by_core(values, dense, out, transposed)
            if result is not None:
                return
        out.zero_()
        rows = torch.repeat_interleave(torch.arange(self.rows), self._indptr.diff())
        ends = (rows, self._columns.long()) if transposed else (self._columns.long(), rows)
        out.index_add_(0, ends[1], values[:, None] * dense[ends[0]])

    def _by_core(self, values: Tensor, dense: Tensor, out: Tensor, transposed: bool) -> Any:
        core = _core()
        if core is None or not load_kernels("spmm", NUMPY_DTYPES[values.dtype]):
            return None
        if self._pattern is None:
            self._pattern = core.Pattern(self._indptr, self._columns, self.cols)
        if transposed:
            return core.spmm_transposed(self._pattern, dense, self.cols, out, _threads(), values, True)
        return core.spmm(self._pattern, dense, "sum", out, _threads(), values, True, False)


@cache
def _core() -> ModuleType | None:
    """Return the core if it exchanges tensors with this torch."""
    core = native_core()
    return core if core is not None and core.use_tensors(torch.Tensor, torch.nn.Parameter) else None


def _threads() -> int:
    """Return the threads of torch, which the core knows about."""
    threads = torch.get_num_threads()
    if threads not in _REGISTERED_THREADS:
        set_threads(torch_threads())
        _REGISTERED_THREADS.add(threads)
    return threads


_REGISTERED_THREADS: set[int] = set()
