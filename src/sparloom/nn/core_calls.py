"""Calls of the native core with tensors on the processor.

Each function returns None where the core cannot compute with the tensors as they are: those of another device or type,
of wrong shapes, of transforms of torch; or there is no core, or this torch does not exchange tensors with it. Then the
caller goes the way through Python, which converts what can be converted and says what is wrong.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch

from sparloom.nn.torch_integration import torch_threads
from sparloom.platforms.cpu_kernels import native_core, set_threads

__all__ = ["attention", "product", "sddmm", "spmm", "spmm_max", "spmm_transposed"]

VALUES = 2  # place of the values in a tuple

Tensor = torch.Tensor


def product(matrix: Any, dense: Any, reduce: str) -> Tensor | None:
    """Multiply a CSR tensor, or a tuple of its parts, where no gradient is wanted and no autocast is enabled."""
    core = _core()
    if core is None or torch.is_autocast_enabled("cpu"):
        return None
    if torch.is_grad_enabled():
        values = matrix[2] if type(matrix) is tuple and len(matrix) > VALUES else matrix
        if getattr(values, "requires_grad", True) or getattr(dense, "requires_grad", True):
            return None
    return core.spmm(matrix, dense, reduce, None, False, _threads(), None, True, False)


def spmm(crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, reduce: str) -> Tensor | None:
    """Multiply: A X, (rows, width)."""
    core = _core()
    if core is None:
        return None
    return core.spmm((crow, col, values), dense.contiguous(), reduce, None, False, _threads(), None, True, False)


def spmm_max(crow: Tensor, col: Tensor, values: Tensor, dense: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute the largest products and their argmax, (rows, width) each."""
    core = _core()
    if core is None:
        return None
    return core.spmm((crow, col, values), dense.contiguous(), "max", None, False, _threads(), None, True, True)


def spmm_transposed(crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, cols: int) -> Tensor | None:
    """Multiply: AT Y, (cols, width)."""
    core = _core()
    return None if core is None else core.spmm_transposed(
        (crow, col, values), dense.contiguous(), cols, _threads(), True)


def sddmm(crow: Tensor, col: Tensor, values: Tensor | None, left: Tensor, right: Tensor) -> Tensor | None:
    """Sampled dense-dense product: values * (Q KT), (nnz,); None stands for ones."""
    core = _core()
    if core is None:
        return None
    return core.sddmm((crow, col, values), left.contiguous(), right.contiguous(), None, False, _threads(), None, True)


def attention(crow: Tensor, col: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor | None:
    """Attend from each row to the columns of its nonzeros, (rows, heads, e)."""
    core = _core()
    if core is None:
        return None
    return core.attention((crow, col, None), queries.contiguous(), keys.contiguous(), values.contiguous(), None, False,
                          _threads(), True)


@cache
def _core() -> ModuleType | None:
    """Return the core if it exchanges tensors with this torch."""
    core = native_core()
    return core if core is not None and core.use_tensors(torch.Tensor, torch.nn.Parameter) else None


def _threads() -> int:
    """Return the threads of torch, which the core knows about."""
    threads = torch.get_num_threads()
    if threads not in _KNOWN_THREADS:
        set_threads(torch_threads())
        _KNOWN_THREADS.add(threads)
    return threads


_KNOWN_THREADS: set[int] = set()
