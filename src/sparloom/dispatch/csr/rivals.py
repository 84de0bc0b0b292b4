"""What the guardrail compares with: products of other libraries, ready for one matrix."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.sparse import SparseMatrix

__all__ = ["LIBRARIES", "Library", "Product"]

Product = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Computes with dense operands, by the names that the operation has for them; makes the array of its result."""

Library = Callable[[SparseMatrix, int], Product]
"""Brings a matrix into the form that a library likes best, for products by so many threads."""


def scipy_spmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by SciPy: on one thread, whatever is allowed."""
    csr = matrix.to_scipy()
    return lambda dense: csr @ dense["B"]


LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({"spmm": MappingProxyType({"scipy": scipy_spmm})})
"""Operation -> name -> library, of those that are always there."""
