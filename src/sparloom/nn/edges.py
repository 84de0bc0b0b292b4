"""Graphs as edges and sparse matrices: parsing, normalisation, and the matrices that layers multiply by."""

import operator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse
import torch

from sparloom.nn.torch_integration import SUPPORTED_DEVICES, eager
from sparloom.sparse import Pattern

MAX_NODES = 2**31 - 1  # nodes, which schedules and kernels number by 32 bits
Flow = Literal["source_to_target", "target_to_source"]
Size = int | tuple[int | None, int | None] | None
"""Nodes of a graph, or senders and receivers of a bipartite one; None: as many as the edges need."""

CsrTuple = tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int]]
"""Matrix (receivers, senders) as `sparloom.nn.spmm` accepts it."""


@dataclass(frozen=True)
class Edges:
    """Nonzeros of the adjacency matrix as passed by the user: in any order, with possible duplicates.

    Tensors are on the CPU, where they are sorted and normalised.

    Args:
        rows: (edges,) int64, receivers.
        cols: (edges,) int64, senders.
        weights: (edges,); None: all 1.
        nodes: that receive: rows of the matrix.
        compressed: the graph was passed as a sparse matrix; self-loops are then added to existing ones.
        device: of the graph that was passed, where layers compute.
        senders: columns of the matrix; equal to `nodes` unless the graph is bipartite.
    """

    rows: torch.Tensor
    cols: torch.Tensor
    weights: torch.Tensor | None
    nodes: int
    compressed: bool
    device: torch.device
    senders: int

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles: weights are detached, as torch requires."""
        return {**self.__dict__, "weights": None if self.weights is None else self.weights.detach()}


@eager
def parse_edges(graph: Any, nodes: Size, flow: Flow = "source_to_target") -> Edges:
    """Copy a graph in any of the forms that PyTorch Geometric accepts; views would keep the tensor alive.

    Args:
        graph: (2, edges) integers, senders above receivers, also as an EdgeIndex; or a sparse matrix (receivers,
            senders), CSR, CSC, COO or a SparseTensor.
        nodes: default: those that an EdgeIndex states, or the largest node in edge_index plus one.
        flow: "target_to_source": receivers are above senders.

    Raises:
        TypeError: graph is not a tensor or edge_index not of an integer dtype, or nodes is not an int.
        ValueError: unsupported shape, layout or device, too many nodes, or a node out of range.
    """
    if flow not in get_args(Flow):
        raise ValueError(f"flow={flow!r}: expected one of {', '.join(get_args(Flow))}")
    if nodes is None and is_edge_index(graph) and None not in graph.sparse_size():
        nodes = stated_size(graph, flow)
        nodes = nodes[0] if nodes[0] == nodes[1] else nodes
    graph = plain_edges(graph, nodes, flow)
    if not isinstance(graph, torch.Tensor):
        raise TypeError(f"the graph is a {type(graph).__name__}: expected edge_index, a sparse tensor or a Graph")
    if graph.device.type not in SUPPORTED_DEVICES:
        raise ValueError(f"the graph is on {graph.device}: only CPU and CUDA tensors are supported: pass "
                         "graph.cpu() or graph.cuda()")
    ends = nodes if isinstance(nodes, tuple) else (nodes, nodes)
    if len(ends) != 2:
        raise ValueError(f"nodes={nodes!r}: expected an int, or the numbers of senders and receivers")
    ends = tuple(None if each is None else _parse_nodes(each) for each in ends)
    if graph.layout == torch.strided:
        edges = _parse_edge_index(graph, ends, flow, bipartite=isinstance(nodes, tuple))
    elif flow == "target_to_source":
        raise ValueError("flow='target_to_source' needs an edge_index: pass the transposed matrix to a layer with the "
                         "default flow")
    else:
        edges = _parse_matrix(graph, ends, bipartite=isinstance(nodes, tuple))
    for name, numbers, count in (("receiver", edges.rows, edges.nodes), ("sender", edges.cols, edges.senders)):
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
            raise ValueError(f"{name}s range from {int(numbers.min())} to {int(numbers.max())}: expected 0 to "
                             f"{count - 1}")
    return edges


def is_edge_index(graph: Any) -> bool:
    """Return whether a graph is an EdgeIndex of PyTorch Geometric."""
    return type(graph) is not torch.Tensor and hasattr(graph, "as_tensor") and hasattr(graph, "sort_order")


def stated_size(graph: Any, flow: Flow = "source_to_target") -> tuple[int | None, int | None]:
    """Return the numbers of senders and receivers that an EdgeIndex or a matrix states itself; None: it does not."""
    if is_edge_index(graph):
        rows, cols = graph.sparse_size()
        return (rows, cols) if flow == "source_to_target" else (cols, rows)
    plain = plain_edges(graph)
    if not isinstance(plain, torch.Tensor) or plain.layout == torch.strided or plain.dim() < 2:
        return None, None
    return plain.shape[1], plain.shape[0]


def plain_edges(graph: Any, nodes: Size = None, flow: Flow = "source_to_target") -> Any:
    """Return the tensor in an EdgeIndex, and a SparseTensor as a CSR tensor; everything else unchanged.

    What an EdgeIndex says about its order is not used: edges are sorted, or found sorted, all the same.

    Args:
        nodes: numbers of senders and receivers that the features have, which an EdgeIndex must not contradict.

    Raises:
        ValueError: it does.
    """
    if type(graph) is torch.Tensor:
        return graph
    if is_edge_index(graph):
        counts, stated = nodes if isinstance(nodes, tuple) else (nodes, nodes), stated_size(graph, flow)
        if any(None not in pair and pair[0] != pair[1] for pair in zip(counts, stated, strict=True)):
            senders, receivers = counts
            raise ValueError(f"edge_index has sparse_size={graph.sparse_size()}, but there are {senders} senders and "
                             f"{receivers} receivers: pass the edge_index of these features, or, if only its size is "
                             "wrong, edge_index.as_tensor()")
        return graph.as_tensor()
    if hasattr(graph, "sparse_sizes") and hasattr(graph, "csr"):
        crow, col, values = graph.csr()
        values = torch.ones(col.shape, device=col.device) if values is None else values
        return torch.sparse_csr_tensor(crow, col, values, tuple(graph.sparse_sizes()), check_invariants=False)
    return graph


def _parse_nodes(nodes: Any) -> int:
    try:
        if isinstance(nodes, bool):
            raise TypeError("a bool")
        count = operator.index(nodes)
    except TypeError:
        raise TypeError(f"nodes={nodes!r}: expected an int") from None
    if not 0 <= count <= MAX_NODES:
        raise ValueError(f"nodes={count}: expected 0 to {MAX_NODES}")
    return count


def _parse_edge_index(
    graph: torch.Tensor, ends: tuple[int | None, int | None], flow: Flow, *, bipartite: bool,
) -> Edges:
    if graph.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index is {graph.dtype}: expected torch.int64")
    if graph.dim() != 2 or graph.shape[0] != 2:
        raise ValueError(f"edge_index has shape {tuple(graph.shape)}: expected (2, edges)")
    cols, rows = graph.to("cpu", torch.int64, copy=True).flip(0) if flow == "target_to_source" else graph.to(
        "cpu", torch.int64, copy=True)
    largest = [int(each.max()) + 1 if each.numel() else 0 for each in (cols, rows)] if None in ends else [0, 0]
    if not bipartite:
        largest = [max(largest)] * 2
    if max(largest) > MAX_NODES:
        raise ValueError(f"edge_index contains node {max(largest) - 1}, above the largest supported, {MAX_NODES - 1}: "
                         "renumber the nodes")
    senders, nodes = (count if given is None else given for given, count in zip(ends, largest, strict=True))
    return Edges(rows, cols, None, nodes, compressed=False, device=graph.device, senders=senders)


def _parse_matrix(graph: torch.Tensor, ends: tuple[int | None, int | None], *, bipartite: bool) -> Edges:
    if graph.dim() != 2 or (not bipartite and graph.shape[0] != graph.shape[1]) or any(
            count not in (None, extent) for count, extent in zip(ends, graph.shape[::-1], strict=True)):
        senders, receivers = ends
        raise ValueError(f"the adjacency matrix has shape {tuple(graph.shape)}" + (
            f": expected ({receivers}, {senders})" if bipartite else
            ": expected a square matrix" if receivers is None else f" for {receivers} nodes"))
    check_weights(graph, "the adjacency matrix")
    if graph.layout == torch.sparse_csc:
        graph = graph.to_sparse_csr()
    if graph.layout == torch.sparse_coo:
        graph = graph.coalesce()
        rows, cols = _cpu_copy(graph.indices())
    elif graph.layout == torch.sparse_csr:
        lengths = graph.crow_indices().diff().cpu()
        rows, cols = torch.repeat_interleave(torch.arange(graph.shape[0]), lengths), _cpu_copy(graph.col_indices())
    else:
        raise ValueError(f"the adjacency matrix has layout {graph.layout}: pass A.to_sparse_csr()")
    return Edges(rows.long(), cols.long(), _cpu_copy(graph.values()), graph.shape[0], compressed=True,
                 device=graph.device, senders=graph.shape[1])


def check_weights(weights: torch.Tensor, name: str) -> None:
    """Check that the weights of edges are a tensor of real numbers."""
    if not isinstance(weights, torch.Tensor):
        raise TypeError(f"{name} is a {type(weights).__name__}: expected a tensor")
    if weights.is_complex():
        raise TypeError(f"{name} is {weights.dtype}: complex weights are not supported: pass the real part, .real, "
                        "if you meant that")


def check_square(senders: int, nodes: int) -> None:
    """Refuse a bipartite graph."""
    if senders != nodes:
        raise ValueError(f"the graph is bipartite, with {senders} senders and {nodes} receivers: this layer needs one "
                         "kind of node: use SAGEConv or GraphConv")


def checked_edge_weight(edge_weight: torch.Tensor, edges: int, compressed: bool, device: torch.device) -> None:
    """Check that weights, (edges,), fit a graph of so many edges on this device.

    Args:
        compressed: the graph is a sparse matrix, which has weights of its own.
    """
    check_weights(edge_weight, "edge_weight")
    if compressed:
        raise ValueError("edge_weight was passed with a sparse matrix: put the weights into the matrix")
    if edge_weight.shape != (edges,):
        raise ValueError(f"edge_weight has shape {tuple(edge_weight.shape)} for {edges} edges: expected one weight per "
                         "edge")
    if edge_weight.layout != torch.strided:
        raise TypeError(f"edge_weight has layout {edge_weight.layout}: expected a dense tensor")
    if edge_weight.device != device:
        raise ValueError(f"edge_weight is on {edge_weight.device} and the graph on {device}: move one of them")


def _cpu_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)


@dataclass(frozen=True, eq=False)
class AdjacencyPattern:
    """Pattern of a matrix and of its transpose.

    Args:
        pattern: rows receive, columns send.
        transposed: the same object if the pattern is symmetric.
        nonzero_of_edge: (edges,) int64, position in `pattern` of each edge; None if there are no duplicate edges.
        edge_of_nonzero: (nnz,) int64, an edge of each nonzero.
        transposition: (nnz,) int64, position in `pattern` of each nonzero of `transposed`.
        device: of the operands; everything else is on the CPU.
    """

    pattern: Pattern
    transposed: Pattern
    nonzero_of_edge: torch.Tensor | None
    edge_of_nonzero: torch.Tensor
    transposition: torch.Tensor
    device: torch.device

    @property
    def shape(self) -> tuple[int, int]:
        """Receivers and senders."""
        return self.pattern.shape

    def values(self, weights: torch.Tensor) -> torch.Tensor:
        """Permute weights of edges, (edges,), into the order of nonzeros, (nnz,); sum those of duplicate edges."""
        if self.nonzero_of_edge is None:
            return weights.index_select(0, self.edge_of_nonzero)
        return weights.new_zeros(self.pattern.nnz).index_add(0, self.nonzero_of_edge, weights)

    @cached_property
    def index_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row pointers (rows + 1,) int64 and columns (nnz,) int32; the same tensors on every access."""
        indptr, indices = torch.from_numpy(self.pattern.indptr), torch.from_numpy(self.pattern.indices)
        return indptr.to(self.device), indices.to(self.device)

    def operand(self, values: torch.Tensor) -> CsrTuple:
        """Combine the pattern with values, (nnz,) on the CPU, keeping their gradient."""
        return *self.index_tensors, values.to(self.device), self.pattern.shape


def adjacency_pattern(edges: Edges) -> AdjacencyPattern:
    """Sort the edges by receiver and sender, and by sender and receiver."""
    rows, cols, nodes = edges.rows.numpy(), edges.cols.numpy(), edges.nodes
    order = np.argsort(rows * edges.senders + cols, kind="stable")
    rows, cols = rows[order], cols[order]
    first = np.ones(rows.size, dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (cols[1:] != cols[:-1])
    nonzero = None
    if not first.all():
        nonzero = np.empty(order.size, dtype=np.int64)
        nonzero[order] = np.cumsum(first) - 1
        rows, cols, order = rows[first], cols[first], order[first]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))])
    pattern = Pattern((nodes, edges.senders), indptr, cols)
    transposed, transposition = transpose_pattern(pattern)
    return AdjacencyPattern(
        pattern, transposed, nonzero_of_edge=None if nonzero is None else torch.from_numpy(nonzero),
        edge_of_nonzero=torch.from_numpy(order), transposition=transposition, device=edges.device)


def transpose_pattern(pattern: Pattern) -> tuple[Pattern, torch.Tensor]:
    """Transpose a pattern.

    Returns:
        The transposed pattern, the same object if it is symmetric, and (nnz,) int64, the position in `pattern` of each
        nonzero of the transposed pattern.
    """
    positions = np.arange(pattern.nnz)
    by_cols = scipy.sparse.csr_array((positions, pattern.indices, pattern.indptr), shape=pattern.shape).tocsc()
    transposed = Pattern((pattern.cols, pattern.rows), by_cols.indptr, by_cols.indices)
    return pattern if pattern == transposed else transposed, torch.from_numpy(by_cols.data)


@dataclass(frozen=True, eq=False)
class AggregationMatrices:
    """Matrices (receivers, senders) as `sparloom.nn.spmm` accepts them; they share index tensors.

    Args:
        sum: weights of edges (default: 1); weights of duplicate edges are added.
        mean: the same, divided by the number of edges of each receiver.
        max: the weight of each edge, for the maximum of products; None if duplicate edges have weights.
        duplicate_edge: an edge that occurs more than once, (sender, receiver).
    """

    sum: CsrTuple
    mean: CsrTuple
    max: CsrTuple | None
    duplicate_edge: tuple[int, int] | None


def aggregation_matrices(
    edges: Edges, pattern: AdjacencyPattern, dtype: torch.dtype = torch.float32,
) -> AggregationMatrices:
    """Build the matrices of a graph, on the device of the graph."""
    if edges.weights is None:
        weights = torch.ones(edges.rows.numel(), dtype=dtype, device="cpu")
    else:
        weights = edges.weights.to(dtype)
    sums = pattern.values(weights)
    degrees = torch.bincount(edges.rows, minlength=edges.nodes).clamp(min=1)
    means = sums / degrees.repeat_interleave(torch.from_numpy(pattern.pattern.row_lengths()))
    duplicate = _duplicate_edge(edges, pattern)
    each = sums if duplicate is None else torch.ones_like(sums) if edges.weights is None else None
    return AggregationMatrices(pattern.operand(sums), pattern.operand(means),
                               None if each is None else pattern.operand(each), duplicate)


def _duplicate_edge(edges: Edges, pattern: AdjacencyPattern) -> tuple[int, int] | None:
    if pattern.nonzero_of_edge is None:
        return None
    edge = int(torch.bincount(pattern.nonzero_of_edge)[pattern.nonzero_of_edge].argmax())
    return int(edges.cols[edge]), int(edges.rows[edge])


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of the adjacency matrix.

    Args:
        self_loop: weight of the self-loops to add; 0: none.
        symmetric: D^-1/2 A D^-1/2 with the row sums D, where 1 / 0 is 0; otherwise A.
    """

    self_loop: float
    symmetric: bool


def normalise(edges: Edges, normalisation: Normalisation, dtype: torch.dtype) -> Edges:
    """Compute D^-1/2 (A + c I) D^-1/2, D being the row sums of A + c I.

    Weights keep their gradient. Rows that sum to 0 become 0.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, equation 2. As in
    PyTorch Geometric, self-loops in an edge_index replace the added one (the last one wins if there are several), while
    those in a sparse matrix are added to it.
    """
    weights = torch.ones(edges.rows.numel(), dtype=dtype) if edges.weights is None else edges.weights.to(dtype)
    edges = replace(edges, weights=weights)
    if normalisation.self_loop:
        edges = _with_self_loops(edges, normalisation.self_loop)
    if not normalisation.symmetric:
        return edges
    degrees = torch.zeros(edges.nodes, dtype=dtype).index_add(0, edges.rows, edges.weights)
    scale = degrees.pow(-0.5)
    scale = scale.masked_fill(scale == torch.inf, 0)
    return replace(edges, weights=scale.index_select(0, edges.rows) * edges.weights * scale.index_select(0, edges.cols))


def _with_self_loops(edges: Edges, self_loop: float) -> Edges:
    """Append a self-loop for every node; existing self-loops of an edge_index keep their weight."""
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
