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
from sparloom.platforms.cpu_kernels import load_layer_kernels, native_core, set_threads

__all__ = ["NUMPY_DTYPES", "LayerPattern", "attention", "product", "sddmm", "spmm", "spmm_max", "spmm_transposed"]

NUMPY_DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
"""dtype of layers of graphs -> type of their kernels."""
MAX_NONZEROS = 2**31 - 1  # of a pattern that is transposed

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


class LayerPattern:
    """Pattern of the matrices of layers of graph networks; makes the core's copy of it at first use.

    Methods return None where the core cannot compute; all tensors are contiguous, of one type and of fitting shapes.

    Args:
        indptr: (rows + 1,) int64.
        columns: (nnz,) int32, those of a row in any order and possibly several times.
        cols: number of columns.
    """

    def __init__(self, indptr: Tensor, columns: Tensor, cols: int) -> None:
        self._arrays, self.cols = (indptr, columns), cols
        self._pattern: Any = None

    def ready(self, dtype: torch.dtype) -> bool:
        """Tell whether the core can compute with this type of numbers."""
        core = _core()
        if (core is None or dtype not in NUMPY_DTYPES or self._arrays[1].shape[0] > MAX_NONZEROS
                or not load_layer_kernels(NUMPY_DTYPES[dtype])):
            return False
        if self._pattern is None:
            self._pattern = core.Pattern(*self._arrays, self.cols)
        return True

    def multiply(self, values: Tensor, x: Tensor, *, transposed: bool = False) -> Tensor | None:
        """Multiply: A X, (rows, width), or AT X, (cols, width); values (nnz,) in the order of the pattern."""
        if transposed:
            return _core().spmm_transposed(self._pattern, x, self.cols, None, _threads(), values, True)
        return _core().spmm(self._pattern, x, "sum", None, _threads(), values, True, False)

    def convolve(self, values: Tensor, x: Tensor, weight: Tensor, *others: Any) -> Any:
        """Compute A X W^T + R V^T + b.

        Args:
            others: b, R and V or None; whether A X comes first; whether it is returned, too.
        """
        return _core().convolve(self._pattern, values, x, weight, *others, _threads())

    def gradients(self, values: Tensor | None, grad: Tensor, *others: Any) -> Any:
        """Compute gradients of X, W, b, R and V, None where they are not needed.

        Args:
            values: by `transposed_values`.
            others: X, W, A X or None, R, V, and which are needed, see kernels/native/layers.hpp.
        """
        return _core().convolve_gradients(self._pattern, values, grad, *others, _threads())

    def transposed_values(self, values: Tensor) -> Tensor:
        """Permute values into the order of the transposed pattern."""
        return _core().transposed_values(self._pattern, values)


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
