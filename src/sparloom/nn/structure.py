"""Where the nonzeros of a normalised adjacency matrix are, both ways, and where their values come from."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch

from sparloom.nn.edges import Edges
from sparloom.sparse import Pattern

__all__ = ["Structure", "structure_of"]


@dataclass(frozen=True, eq=False)
class Structure:
    """Pattern of a square matrix and of its transpose.

    Args:
        pattern: rows receive, columns send.
        transposed: the same object where the pattern is symmetric.
        place: (edges,) int64, nonzero of `pattern` for each edge; None: `order` says all.
        order: (nnz,) int64, an edge of each nonzero.
        turned: (nnz,) int64, nonzero of `pattern` for each of `transposed`.
    """

    pattern: Pattern
    transposed: Pattern
    place: torch.Tensor | None
    order: torch.Tensor
    turned: torch.Tensor

    def values(self, weights: torch.Tensor) -> torch.Tensor:
        """Bring weights of edges, (edges,), into the order of nonzeros, (nnz,); those of one position are added."""
        if self.place is None:
            return weights.index_select(0, self.order)
        return weights.new_zeros(self.pattern.nnz).index_add(0, self.place, weights)


def structure_of(edges: Edges) -> Structure:
    """Sort the edges by receiver and sender, and by sender and receiver."""
    rows, cols, nodes = edges.rows.numpy(), edges.cols.numpy(), edges.nodes
    order = np.argsort(rows * nodes + cols, kind="stable")
    rows, cols = rows[order], cols[order]
    first = np.ones(rows.size, dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (cols[1:] != cols[:-1])
    place = None
    if not first.all():
        place = np.empty(order.size, dtype=np.int64)
        place[order] = np.cumsum(first) - 1
        rows, cols, order = rows[first], cols[first], order[first]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))])
    pattern = Pattern((nodes, nodes), indptr, cols)
    by_cols = scipy.sparse.csr_array((np.arange(rows.size), pattern.indices, indptr), shape=pattern.shape).tocsc()
    transposed = Pattern(pattern.shape, by_cols.indptr, by_cols.indices)
    if pattern == transposed:
        transposed = pattern
    return Structure(pattern, transposed, None if place is None else torch.from_numpy(place), torch.from_numpy(order),
                     torch.from_numpy(by_cols.data))
