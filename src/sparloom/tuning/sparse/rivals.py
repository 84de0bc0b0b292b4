"""What the guardrail compares with: products of other libraries, ready for one pattern."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.ops import Operands
from sparloom.sparse import SparseMatrix

__all__ = ["LIBRARIES", "Library", "Product", "gathered_pieces"]

GATHERED_BYTES = 1 << 30  # that a product by gathering may make at a time

Product = Callable[[Operands], np.ndarray]
"""Computes with the values of a matrix that has the pattern, and with dense operands; makes the array of its result.

Numbers are of any type that kernels there take, not only of that of the matrix which brought the pattern.

One thread at a time may call it."""

Library = Callable[[SparseMatrix, int], Product]
"""Brings the pattern of a matrix into the form that a library likes best, for products by so many threads."""


def scipy_spmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by SciPy: on one thread, whatever is allowed."""
    csr = matrix.to_scipy()

    def product(operands: Operands) -> np.ndarray:
        csr.data = operands.matrix.values
        return csr @ operands.dense["B"]

    return product


def gathered_pieces(nnz: int, width: int) -> Iterator[slice]:
    """Cut nonzeros into pieces; of each, three arrays (piece, width) take a gigabyte at most, or one nonzero each."""
    step = max(1, GATHERED_BYTES // (3 * 4 * width))
    return (slice(begin, begin + step) for begin in range(0, nnz, step))


LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({"spmm": MappingProxyType({"scipy": scipy_spmm})})
"""Operation -> name -> library, of those that are always there."""
