"""One sparse pattern, ready for products by matrices that have it and by their transposes."""

from functools import cached_property

import numpy as np
import torch

from sparloom.dispatch.csr import Prepared
from sparloom.nn import at_places
from sparloom.nn.rivals import SPARSE_LIBRARIES
from sparloom.nn.structure import turn
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Directions"]


class Directions:
    """Computes with matrices of one pattern A (rows, cols), and A transposed, which is decided about on its own.

    Tensors are on the CPU, of float32, of any strides; gradients are not followed.

    Args:
        threads: of every call.
    """

    def __init__(self, pattern: Pattern, threads: int) -> None:
        self.pattern, self.threads = pattern, threads
        self.forward = _prepared(pattern, threads)

    @property
    def backward(self) -> Prepared:
        """What multiplies by the transposed pattern; the same object as `forward` where they are equal."""
        return self._turned[0]

    @cached_property
    def rows(self) -> torch.Tensor:
        """Row of every nonzero, (nnz,) int32."""
        return torch.from_numpy(self.pattern.row_ids())

    @cached_property
    def offsets(self) -> torch.Tensor:
        """First nonzero of every row, and their number, (rows + 1,) int64."""
        return torch.from_numpy(self.pattern.indptr)

    def spmm(self, values: torch.Tensor, dense: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """Compute A X, (rows, width), for values (nnz,) and X (cols, width)."""
        return torch.from_numpy(self.forward.spmm(_array(dense), reduce=reduce, values=_array(values)))

    def spmm_transposed(self, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute AT Y, (cols, width), for values (nnz,) in the order of A and Y (rows, width)."""
        prepared, order = self._turned
        return torch.from_numpy(prepared.spmm(_array(dense), values=_array(values.index_select(0, order))))

    def spmm_max(self, values: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the largest products, (rows, width), and which nonzero each comes from, int32, see `Prepared`."""
        result, places = self.forward.spmm_max(_array(dense), values=_array(values))
        return torch.from_numpy(result), torch.from_numpy(places)

    def spmm_at(self, places: torch.Tensor, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute A X, (rows, width), of one nonzero per element, see `sparloom.nn.at_places`; as the next two."""
        return at_places.spmm_at(places, self.pattern.indices, values, dense, threads=self.threads)

    def spmm_transposed_at(self, places: torch.Tensor, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute AT Y, (cols, width), likewise, for Y (rows, width)."""
        return at_places.spmm_transposed_at(places, self.pattern.indices, values, dense, cols=self.pattern.cols,
                                            threads=self.threads)

    def sddmm_at(self, places: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Compute Y XT on the pattern of A, (nnz,), likewise."""
        return at_places.sddmm_at(places, self.pattern.indices, left, right, threads=self.threads)

    def sddmm(self, values: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Compute values * (Q KT), (nnz,), for Q (rows, width) and K (cols, width); values are 1 unless given."""
        return torch.from_numpy(self.forward.sddmm(
            _array(left), _array(right), values=None if values is None else _array(values)))

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Compute softmax(Q KT / sqrt(d)) V, (rows, heads, e).

        Args:
            queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e).
        """
        return torch.from_numpy(self.forward.attention(_array(queries), _array(keys), _array(values)))

    @cached_property
    def _turned(self) -> tuple[Prepared, torch.Tensor]:
        transposed, order = turn(self.pattern)
        return self.forward if transposed is self.pattern else _prepared(transposed, self.threads), order


def _prepared(pattern: Pattern, threads: int) -> Prepared:
    ones = SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))
    return Prepared(ones, threads=threads, libraries=SPARSE_LIBRARIES)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """View a tensor as an array, or a copy where its numbers are negated only when they are read."""
    return tensor.numpy(force=True)
