"""The edges of a graph as sparse matrices, for layers that aggregate what neighbours send."""

from dataclasses import dataclass

import torch

from sparloom.nn.edges import Edges
from sparloom.nn.structure import Operand, Structure

__all__ = ["Connections", "connections_of"]


@dataclass(frozen=True, eq=False)
class Connections:
    """Matrices (receivers, senders) as `sparloom.nn.spmm` takes them; their index tensors are the same.

    Args:
        sums: with the weights of edges, 1 unless given; those of edges between the same nodes are added.
        means: the same, divided by the edges of each receiver.
        maxima: with the weight of each edge, for the largest product; None where edges between the same nodes have
            weights of their own.
        repeated: an edge that is there more than once, (sender, receiver).
    """

    sums: Operand
    means: Operand
    maxima: Operand | None
    repeated: tuple[int, int] | None


def connections_of(edges: Edges, structure: Structure) -> Connections:
    """Give the nonzeros of a structure the weights of its edges, as float32, on the device of the edges."""
    if edges.weights is None:
        weights = torch.ones(edges.rows.numel(), dtype=torch.float32, device="cpu")
    else:
        weights = edges.weights.to(torch.float32)
    sums = structure.values(weights)
    degrees = torch.bincount(edges.rows, minlength=edges.nodes).clamp(min=1)
    means = sums / degrees.repeat_interleave(torch.from_numpy(structure.pattern.row_lengths()))
    repeated = _repeated(edges, structure)
    each = sums if repeated is None else torch.ones_like(sums) if edges.weights is None else None
    return Connections(structure.operand(sums), structure.operand(means),
                       None if each is None else structure.operand(each), repeated)


def _repeated(edges: Edges, structure: Structure) -> tuple[int, int] | None:
    if structure.place is None:
        return None
    edge = int(torch.bincount(structure.place)[structure.place].argmax())
    return int(edges.cols[edge]), int(edges.rows[edge])
