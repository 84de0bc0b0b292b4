"""Where the nonzeros of a normalised adjacency matrix are, both ways, and where their values come from."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
import torch

from sparloom.nn.edges import Edges
from sparloom.sparse import Pattern

__all__ = ["Operand", "Structure", "structure_of", "turn"]

Operand = tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int]]
"""Matrix (receivers, senders) as `sparloom.nn.spmm` takes it."""


@dataclass(frozen=True, eq=False)
class Structure:
    """Pattern of a square matrix and of its transpose.

    Args:
        pattern: rows receive, columns send.
        transposed: the same object where the pattern is symmetric.
        place: (edges,) int64, nonzero of `pattern` for each edge; None: `order` says all.
        order: (nnz,) int64, an edge of each nonzero.
        turned: (nnz,) int64, nonzero of `pattern` for each of `transposed`.
        device: where its operands are; all else is on the CPU.
    """

    pattern: Pattern
    transposed: Pattern
    place: torch.Tensor | None
    order: torch.Tensor
    turned: torch.Tensor
    device: torch.device

    def values(self, weights: torch.Tensor) -> torch.Tensor:
        """Bring weights of edges, (edges,), into the order of nonzeros, (nnz,); those of one position are added."""
        if self.place is None:
            return weights.index_select(0, self.order)
        return weights.new_zeros(self.pattern.nnz).index_add(0, self.place, weights)

    @cached_property
    def index_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Begin of each row (rows + 1,) int64 and column of each nonzero (nnz,) int32, the same tensors each time."""
        indptr, indices = torch.from_numpy(self.pattern.indptr), torch.from_numpy(self.pattern.indices)
        return indptr.to(self.device), indices.to(self.device)

    def operand(self, values: torch.Tensor) -> Operand:
        """Put values at the nonzeros, (nnz,) on the CPU, with their gradient."""
        return *self.index_tensors, values.to(self.device), self.pattern.shape


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
    transposed, turned = turn(pattern)
    return Structure(pattern, transposed, None if place is None else torch.from_numpy(place), torch.from_numpy(order),
                     turned, edges.device)


def turn(pattern: Pattern) -> tuple[Pattern, torch.Tensor]:
    """Transpose a pattern.

    Returns:
        The transposed pattern, the same object where it is symmetric; (nnz,) int64, nonzero of `pattern` for each of
        the transposed.
    """
    places = np.arange(pattern.nnz)
    by_cols = scipy.sparse.csr_array((places, pattern.indices, pattern.indptr), shape=pattern.shape).tocsc()
    transposed = Pattern((pattern.cols, pattern.rows), by_cols.indptr, by_cols.indices)
    return pattern if pattern == transposed else transposed, torch.from_numpy(by_cols.data)
