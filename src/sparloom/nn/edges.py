"""What users call a graph, as rows, columns and weights of its adjacency matrix.

Where the nonzeros of a normalised adjacency matrix are, both ways, and where their values come from.

The edges of a graph as sparse matrices, for layers that aggregate what neighbours send.

The matrix by which a graph convolution multiplies: self-loops and symmetric normalisation.
"""

import operator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch

from sparloom.nn.torch_integration import DEVICES, eager
from sparloom.sparse import Pattern

__all__ = [
    "Connections", "Edges", "Normalisation", "Operand", "Structure", "check_weights", "connections_of", "edges_of",
    "normalised", "structure_of", "turn",
]

MOST = 2**31 - 1  # nodes, which schedules and kernels number by 32 bits


@dataclass(frozen=True)
class Edges:
    """Nonzeros of the adjacency matrix, as they were given: in any order, a position may occur more than once.

    Tensors are on the CPU, which sorts and normalises.

    Args:
        rows: (edges,) int64, the node that receives.
        cols: (edges,) int64, the node that sends.
        weights: (edges,); None: all one.
        nodes: of the graph.
        compressed: it came as a sparse matrix: self-loops are then added to those that are there.
        device: that it was given on, where layers compute.
    """

    rows: torch.Tensor
    cols: torch.Tensor
    weights: torch.Tensor | None
    nodes: int
    compressed: bool
    device: torch.device

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold: weights as numbers, which torch copies only without their history."""
        return {**self.__dict__, "weights": None if self.weights is None else self.weights.detach()}


@eager
def edges_of(graph: torch.Tensor, nodes: int | None) -> Edges:
    """Copy a graph in either of the forms that PyTorch Geometric takes; views would keep the tensor alive.

    Args:
        graph: (2, edges) integers, senders above receivers, or a sparse matrix (nodes, nodes), CSR or COO, with a row
            for each receiver.
        nodes: one more than the largest number unless given.

    Raises:
        TypeError: not a tensor, or not of integers; or `nodes` is no whole number.
        ValueError: another shape or layout, too many nodes, neither on the CPU nor on an NVIDIA GPU, or a node that
            there is not.
    """
    if not isinstance(graph, torch.Tensor):
        raise TypeError(f"a graph of type {type(graph).__name__}: give edge_index, a sparse tensor or a Graph")
    if graph.device.type not in DEVICES:
        raise ValueError(f"a graph on {graph.device}: these layers compute on the CPU and on NVIDIA GPUs: use "
                         "graph.cpu() or graph.cuda()")
    if nodes is not None:
        nodes = _checked_nodes(nodes)
    edges = _listed(graph, nodes) if graph.layout == torch.strided else _stored(graph, nodes)
    for name, numbers in (("receiver", edges.rows), ("sender", edges.cols)):
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < edges.nodes:
            raise ValueError(f"{name}s run from {int(numbers.min())} to {int(numbers.max())}: they must lie in 0 to "
                             f"{edges.nodes - 1}")
    return edges


def _checked_nodes(nodes: Any) -> int:
    try:
        if isinstance(nodes, bool):
            raise TypeError("a bool")
        count = operator.index(nodes)
    except TypeError:
        raise TypeError(f"nodes={nodes!r}: give their number, a whole one") from None
    if not 0 <= count <= MOST:
        raise ValueError(f"nodes={count}: give 0 to {MOST}")
    return count


def _listed(graph: torch.Tensor, nodes: int | None) -> Edges:
    if graph.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index of {graph.dtype}: give int64")
    if graph.dim() != 2 or graph.shape[0] != 2:
        raise ValueError(f"edge_index has shape {tuple(graph.shape)}: it must be (2, edges)")
    cols, rows = graph.to("cpu", torch.int64, copy=True)
    if nodes is None:
        nodes = int(graph.max()) + 1 if graph.numel() else 0
        if nodes > MOST:
            raise ValueError(f"the largest number in edge_index is {nodes - 1}: nodes are 0 to {MOST - 1}: number them "
                             "anew")
    return Edges(rows, cols, None, nodes, compressed=False, device=graph.device)


def _stored(graph: torch.Tensor, nodes: int | None) -> Edges:
    if graph.dim() != 2 or graph.shape[0] != graph.shape[1] or nodes not in (None, graph.shape[0]):
        raise ValueError(f"an adjacency matrix of shape {tuple(graph.shape)}" + (
            ": it must be square" if nodes is None else f" for {nodes} nodes"))
    check_weights(graph, "an adjacency matrix")
    if graph.layout == torch.sparse_coo:
        graph = graph.coalesce()
        rows, cols = _copied(graph.indices())
    elif graph.layout == torch.sparse_csr:
        lengths = graph.crow_indices().diff().cpu()
        rows, cols = torch.repeat_interleave(torch.arange(graph.shape[0]), lengths), _copied(graph.col_indices())
    else:
        raise ValueError(f"an adjacency matrix in {graph.layout}: use to_sparse_csr()")
    return Edges(rows.long(), cols.long(), _copied(graph.values()), graph.shape[0], compressed=True,
                 device=graph.device)


def check_weights(weights: torch.Tensor, name: str) -> None:
    """Refuse weights of edges that are no real numbers.

    Raises:
        TypeError: they are complex, or no dense or sparse tensor.
    """
    if not isinstance(weights, torch.Tensor):
        raise TypeError(f"{name} of type {type(weights).__name__}: give a tensor")
    if weights.is_complex():
        raise TypeError(f"{name} of {weights.dtype}: graphs have real weights: pass its real part, .real, if that is "
                        "meant")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)


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


@dataclass(frozen=True)
class Normalisation:
    """What becomes of an adjacency matrix A.

    Args:
        self_loop: c, weight of the self-loop that nodes get; 0: none is added.
        symmetric: rows and columns are divided by the square root of the sum of their node's row.
    """

    self_loop: float
    symmetric: bool


def normalised(edges: Edges, normalisation: Normalisation, dtype: torch.dtype) -> Edges:
    """Compute D^-1/2 (A + c I) D^-1/2, D being the row sums of A + c I.

    Weights keep their gradient. A node whose row sums to 0 gets zeros.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, equation 2. As in
    PyTorch Geometric, a self-loop in a list of edges keeps its weight and is the only one of its node (the last, where
    there are several), while one in a sparse matrix is added to.
    """
    weights = torch.ones(edges.rows.numel(), dtype=dtype) if edges.weights is None else edges.weights.to(dtype)
    edges = replace(edges, weights=weights)
    if normalisation.self_loop:
        edges = _looped(edges, normalisation.self_loop)
    if not normalisation.symmetric:
        return edges
    degrees = torch.zeros(edges.nodes, dtype=dtype).index_add(0, edges.rows, edges.weights)
    scale = degrees.pow(-0.5)
    scale = scale.masked_fill(scale == torch.inf, 0)
    return replace(edges, weights=scale.index_select(0, edges.rows) * edges.weights * scale.index_select(0, edges.cols))


def _looped(edges: Edges, self_loop: float) -> Edges:
    """Give every node its self-loop, after all other edges."""
    nodes = torch.arange(edges.nodes)
    loops = edges.weights.new_full((edges.nodes,), self_loop)
    if edges.compressed:
        rows, cols, weights = edges.rows, edges.cols, edges.weights
    else:
        other = edges.rows != edges.cols
        loops = loops.index_put((edges.rows[~other],), edges.weights[~other])
        rows, cols, weights = edges.rows[other], edges.cols[other], edges.weights[other]
    return replace(edges, rows=torch.cat([rows, nodes]), cols=torch.cat([cols, nodes]),
                   weights=torch.cat([weights, loops]))
