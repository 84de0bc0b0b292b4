"""Edges sorted by receiver, in one call of compiled code that also adds self-loops and normalises.

Nothing else is prepared: columns of a row are in the order of the edges, and duplicate edges stay.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from sparloom.jit import compile_cpp
from sparloom.nn.core_calls import LayerPattern
from sparloom.nn.custom_ops import without_functorch
from sparloom.nn.edges import AdjacencyPattern, CsrTuple, Edges, Flow, adjacency_pattern
from sparloom.nn.torch_integration import eager

NO_LOOPS, REPLACED, ADDED = range(3)  # enum Loops of kernels/cpu/fresh_graph.cpp
UNSCALED, SYMMETRIC, MEAN = range(3)  # enum Scaling
NOT_CSR = 3  # enum Status
INDEX_DTYPES = (torch.int64, torch.int32)
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class EdgePattern:
    """Pattern in CSR with the columns of a row in any order, and possible duplicates.

    Args:
        indptr: (rows + 1,) int64.
        columns: (nnz,) int32.
        cols: number of columns.
        edge_of_nonzero: (nnz,) int64, the edge of each nonzero; None: self-loops were added when edges were sorted.
    """

    indptr: torch.Tensor
    columns: torch.Tensor
    cols: int
    edge_of_nonzero: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Receivers and senders."""
        return self.indptr.shape[0] - 1, self.cols

    @cached_property
    def native(self) -> LayerPattern:
        """The pattern as kernels of whole layers take it."""
        return LayerPattern(self.indptr, self.columns, self.cols)

    @cached_property
    def row_ids(self) -> torch.Tensor:
        """Row of every nonzero, (nnz,) int64."""
        with torch.inference_mode(False), without_functorch():
            return torch.repeat_interleave(torch.arange(self.shape[0]), self.indptr.diff())

    @cached_property
    def sorted(self) -> AdjacencyPattern:
        """The same pattern with ascending columns and without duplicates."""
        rows, cols = self.shape
        with torch.inference_mode(False), without_functorch():
            pattern = adjacency_pattern(Edges(self.row_ids, self.columns.long(), None, rows, compressed=False,
                                              device=CPU, senders=cols))
            pattern.index_tensors  # noqa: B018 - made outside of what transforms or is inferred
        return pattern

    def values(self, weights: torch.Tensor) -> torch.Tensor:
        """Permute weights of edges, (edges,), into the order of nonzeros."""
        return weights.index_select(0, self.edge_of_nonzero)

    def operand(self, values: torch.Tensor) -> CsrTuple:
        """Combine the sorted pattern with values of this one, (nnz,), keeping their gradient."""
        return self.sorted.operand(self.sorted.values(values))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, without what is derived from it."""
        names = ("indptr", "columns", "cols", "edge_of_nonzero")
        return {name: self.__dict__[name] for name in names}


@dataclass(frozen=True)
class EdgeSource:
    """The edges of a graph on the CPU, in the memory of the tensors that the user passed, which are not kept alive.

    Args:
        receivers: (edges,); None: `begin` gives them.
        senders: (edges,).
        begin: (nodes + 1,), where the edges of each receiver begin.
        weights: (edges,); None: all 1.
        compressed: see `Edges`.
    """

    receivers: torch.Tensor | None
    senders: torch.Tensor
    begin: torch.Tensor | None
    weights: torch.Tensor | None
    compressed: bool

    @classmethod
    def of(cls, edges: torch.Tensor, shape: tuple[int, int], flow: Flow) -> EdgeSource | None:
        """Take a graph apart; None for what `parse_edges` must convert or refuse."""
        if not edges.is_cpu or type(edges) is not torch.Tensor:
            return None
        if edges.layout == torch.strided:
            if edges.dtype not in INDEX_DTYPES or edges.dim() != 2 or edges.shape[0] != 2:
                return None
            senders, receivers = edges.data if flow == "source_to_target" else edges.data.flip(0)
            return cls(receivers, senders, None, None, compressed=False)
        if edges.dim() != 2 or edges.dense_dim() or tuple(edges.shape) != shape or flow != "source_to_target":
            return None
        if edges.layout == torch.sparse_csr:
            begin, senders = edges.crow_indices().data.contiguous(), edges.col_indices().data
            source = cls(None, senders, begin, edges.values().data, compressed=True)
        elif edges.layout == torch.sparse_coo and edges.is_coalesced():
            receivers, senders = edges._indices().data
            source = cls(receivers, senders, None, edges._values().data, compressed=True)
        else:
            return None
        return source if source.weights.is_floating_point() else None

    def edges(self, shape: tuple[int, int]) -> Edges:
        """Return a copy as `parse_edges` would make it.

        Raises:
            ValueError: a node is out of range.
        """
        with torch.inference_mode(False), without_functorch():
            sorted_edges(self, shape)  # checks the nodes
            receivers = self.receivers
            if receivers is None:
                receivers = torch.repeat_interleave(torch.arange(shape[0]), self.begin.diff())
            return Edges(receivers.to(torch.int64, copy=True), self.senders.to(torch.int64, copy=True), self.weights,
                         shape[0], compressed=self.compressed, device=CPU, senders=shape[1])


@eager
def sorted_edges(source: EdgeSource, shape: tuple[int, int]) -> EdgePattern:
    """Sort edges by receiver; the pattern tells the edge of each nonzero.

    Raises:
        ValueError: a node is out of range.
    """
    order = torch.empty(source.senders.shape[0], dtype=torch.int64)
    return _sorted(source, shape, order.shape[0], order, edge=order.data_ptr())


@eager
def sorted_matrix(
    source: EdgeSource, shape: tuple[int, int], weights: torch.Tensor | None, dtype: torch.dtype, *,
    loops: int = NO_LOOPS, scaling: int = UNSCALED, self_loop: float = 0.0,
) -> tuple[EdgePattern, torch.Tensor]:
    """Sort edges by receiver, with self-loops and normalisation.

    Args:
        weights: of edges; None: all 1.
        loops, scaling: see kernels/cpu/fresh_graph.cpp.
        self_loop: weight of self-loops.

    Returns:
        The pattern and the values, (nnz,).

    Raises:
        ValueError: a node is out of range.
    """
    nodes, room = shape[0], source.senders.shape[0] + (shape[0] if loops else 0)
    values, workspace = torch.empty(room, dtype=dtype), torch.empty(2 * nodes, dtype=dtype)
    weights = None if weights is None else weights.to(dtype).resolve_neg().contiguous()
    pattern = _sorted(
        source, shape, room, None, values=values.data_ptr(), weights=None if weights is None else weights.data_ptr(),
        scale=workspace.data_ptr(), diagonal=workspace[nodes:].data_ptr(), loop=self_loop, loops=loops,
        scaling=scaling, is_double=dtype == torch.float64)
    return pattern, values[:pattern.columns.shape[0]]


def _sorted(
    source: EdgeSource, shape: tuple[int, int], room: int, order: torch.Tensor | None, **arguments: Any,
) -> EdgePattern:
    senders, receivers, (nodes, cols) = source.senders, source.receivers, shape
    indptr, columns = torch.empty(nodes + 1, dtype=torch.int64), torch.empty(room, dtype=torch.int32)
    call = _FreshGraph(
        senders=senders.data_ptr(), edges=senders.shape[0], sender_step=senders.stride(0), rows=nodes, cols=cols,
        indptr=indptr.data_ptr(), indices=columns.data_ptr(), wide=senders.dtype == torch.int64, **arguments)
    if receivers is None:
        call.begin = source.begin.data_ptr()
    else:
        call.receivers, call.receiver_step = receivers.data_ptr(), receivers.stride(0)
    status = _sort()(ctypes.byref(call))
    if status:
        raise ValueError(_fault(status, source, shape))
    if arguments.get("loops"):
        columns = columns[:int(indptr[-1])]
    return EdgePattern(indptr, columns, cols, order)


def _fault(status: int, source: EdgeSource, shape: tuple[int, int]) -> str:
    """Say what is wrong with a graph."""
    if status == NOT_CSR:
        return "the adjacency matrix is not valid in CSR: pass A.to_sparse_coo().coalesce().to_sparse_csr()"
    name, numbers = (("receiver", source.receivers), ("sender", source.senders))[status - 1]
    return f"{name}s range from {int(numbers.min())} to {int(numbers.max())}: expected 0 to {shape[status - 1] - 1}"


class _FreshGraph(ctypes.Structure):
    """The struct FreshGraph of kernels/cpu/fresh_graph.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("receivers", "senders", "begin", "weights")),
        *((name, ctypes.c_int64) for name in ("edges", "receiver_step", "sender_step", "rows", "cols")),
        ("loop", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values", "edge", "scale", "diagonal")),
        *((name, ctypes.c_int32) for name in ("loops", "scaling", "wide", "is_double")),
    )


@cache
def _sort() -> Any:
    function = compile_cpp(["cpu/fresh_graph.cpp"]).sparloom_fresh_graph
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function
