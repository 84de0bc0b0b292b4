"""Graphs that are seen for the first time, as in mini-batches: matrices and products without any preparation.

Edges are sorted by receiver in one call of compiled code, which also adds self-loops and normalises. Products run the
default kernel, on one thread if there is little to do. Nothing is measured, planned or written to disk.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from sparloom.fusion import run_once
from sparloom.jit import compile_cpp
from sparloom.nn.content_hash import content_hash
from sparloom.nn.convolution import NUMPY_DTYPES, CpuAdjacency
from sparloom.nn.custom_ops import is_differentiated
from sparloom.nn.edges import (
    MAX_NODES,
    Edges,
    Flow,
    Normalisation,
    Size,
    check_square,
    checked_edge_weight,
    normalise,
)
from sparloom.nn.torch_integration import torch_threads

NO_LOOPS, REPLACED, ADDED = range(3)  # enum Loops of kernels/cpu/fresh_graph.cpp
UNSCALED, SYMMETRIC, MEAN = range(3)  # enum Scaling
NOT_CSR = 3  # enum Status
INDEX_DTYPES = (torch.int64, torch.int32)
GRAIN = 1 << 19  # multiplications below which a product runs on one thread
SLICES_PER_THREAD = 8
ROW_WORK = 4  # starting a row costs as much as so many nonzeros
DENSE_SHARE = 8  # dense multiplications that cost as much as a nonzero


class FreshGraph:
    """A graph on the CPU that may never be seen again; made by `fresh_graph`.

    Args:
        source: its edges, in memory that the caller does not keep alive by them.
        nodes: that receive.
        senders: nodes that send.
    """

    device = torch.device("cpu")

    def __init__(self, source: _Source, nodes: int, senders: int) -> None:
        self.nodes, self.senders = nodes, senders
        self.uses = 0
        """Calls of layers so far."""
        self._source = source
        self._adjacencies: dict[Hashable, tuple[Hashable, FreshAdjacency]] = {}

    def adjacency(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor | None = None,
    ) -> FreshAdjacency:
        """Return the normalised matrix, see `Graph.adjacency`."""
        check_square(self.senders, self.nodes)
        source, content = self._source, None
        if edge_weight is not None:
            checked_edge_weight(edge_weight, source.senders.numel(), source.compressed, self.device)
            if is_differentiated(edge_weight):
                return self._differentiated(normalisation, dtype, edge_weight)
            content = content_hash(edge_weight)
        loops = (ADDED if source.compressed else REPLACED) if normalisation.self_loop else NO_LOOPS
        scaling = SYMMETRIC if normalisation.symmetric else UNSCALED
        key = (normalisation.self_loop, scaling, dtype)
        return self._made(key, content, source.weights if edge_weight is None else edge_weight, dtype, loops=loops,
                          scaling=scaling, self_loop=normalisation.self_loop)

    def aggregation(self, *, mean: bool) -> FreshAdjacency:
        """Return the matrix in float32 that sums over the senders of each node, or averages over its edges."""
        scaling = MEAN if mean else UNSCALED
        return self._made((0.0, scaling, torch.float32), None, self._source.weights, torch.float32, scaling=scaling)

    def _made(
        self, key: Hashable, content: Hashable, weights: torch.Tensor | None, dtype: torch.dtype, **options: Any,
    ) -> FreshAdjacency:
        self.uses += 1
        known, made = self._adjacencies.get(key, (None, None))
        if made is None or known != content:
            made = _sorted(self._source, (self.nodes, self.senders), weights, dtype, **options)
            self._adjacencies[key] = content, made
        return made

    def _differentiated(
        self, normalisation: Normalisation, dtype: torch.dtype, edge_weight: torch.Tensor,
    ) -> FreshAdjacency:
        """Normalise by torch, which records the operations for autograd."""
        self.uses += 1
        source = self._source
        edges = normalise(Edges(source.receivers.long(), source.senders.long(), edge_weight, self.nodes,
                                compressed=False, device=self.device, senders=self.senders), normalisation, dtype)
        unweighted = replace(source, receivers=edges.rows, senders=edges.cols, weights=None)
        return _sorted(unweighted, (self.nodes, self.senders), None, dtype, edge_weights=edges.weights)


def fresh_graph(edges: torch.Tensor, nodes: Size, flow: Flow = "source_to_target") -> FreshGraph | None:
    """Prepare nothing yet; None if the graph needs `Graph`, which also says what is wrong with it.

    Args:
        edges: edge_index or a sparse matrix, see `Graph`; its content must not change while the result is used.
    """
    senders, receivers = nodes if isinstance(nodes, tuple) and len(nodes) == 2 else (nodes, nodes)
    if type(senders) is not int or type(receivers) is not int or not 0 <= min(senders, receivers) <= max(
            senders, receivers) <= MAX_NODES:
        return None
    source = _Source.of(edges, (receivers, senders), flow)
    return None if source is None else FreshGraph(source, receivers, senders)


@dataclass(frozen=True)
class _Source:
    """The memory of a graph, not the tensors that the user passed, which a cache refers to weakly.

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
    def of(cls, edges: torch.Tensor, shape: tuple[int, int], flow: Flow) -> _Source | None:
        """Take a graph apart; None for what is not supported here."""
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


def _sorted(
    source: _Source, shape: tuple[int, int], weights: torch.Tensor | None, dtype: torch.dtype, *, loops: int = NO_LOOPS,
    scaling: int = UNSCALED, self_loop: float = 0.0, edge_weights: torch.Tensor | None = None,
) -> FreshAdjacency:
    """Sort edges by receiver, with self-loops and normalisation.

    Args:
        weights: of edges; None: all 1.
        edge_weights: of edges, permuted by an operation that is recorded for autograd; instead of `weights`.

    Raises:
        ValueError: a node is out of range.
    """
    if torch.is_inference_mode_enabled() and edge_weights is None:  # inference tensors could not be used in training
        with torch.inference_mode(False):
            return _sorted(source, shape, weights, dtype, loops=loops, scaling=scaling, self_loop=self_loop)
    senders, receivers, begin = source.senders, source.receivers, source.begin
    edges, (nodes, cols) = senders.shape[0], shape
    room = edges + (nodes if loops else 0)
    indptr, indices = torch.empty(nodes + 1, dtype=torch.int64), torch.empty(room, dtype=torch.int32)
    values = order = None
    arguments = _FreshGraph(
        senders=senders.data_ptr(), edges=edges, sender_step=senders.stride(0), rows=nodes, cols=cols, loop=self_loop,
        indptr=indptr.data_ptr(), indices=indices.data_ptr(), loops=loops, scaling=scaling,
        wide=senders.dtype == torch.int64, is_double=dtype == torch.float64)
    if edge_weights is None:
        values = torch.empty(room, dtype=dtype)
        arguments.values = values.data_ptr()
        if weights is not None:
            weights = weights.to(dtype).resolve_neg().contiguous()
            arguments.weights = weights.data_ptr()
        workspace = torch.empty(2 * nodes, dtype=dtype)
        arguments.scale = workspace.data_ptr()
        arguments.diagonal = arguments.scale + nodes * workspace.element_size() if nodes else None
    else:
        order = torch.empty(room, dtype=torch.int64)
        arguments.edge = order.data_ptr()
    if begin is None:
        arguments.receivers, arguments.receiver_step = receivers.data_ptr(), receivers.stride(0)
    else:
        arguments.begin = begin.data_ptr()
    status = _functions()[0](ctypes.byref(arguments))
    if status:
        raise ValueError(_fault(status, source, shape))
    if edge_weights is not None:
        values = edge_weights.index_select(0, order)
    pattern = FreshPattern(indptr, indices, nodes, cols, values.shape[0] if loops == NO_LOOPS else int(indptr[-1]))
    return FreshAdjacency(pattern, values if values.shape[0] == pattern.nnz else values[:pattern.nnz])


def _fault(status: int, source: _Source, shape: tuple[int, int]) -> str:
    """Say what is wrong with a graph."""
    if status == NOT_CSR:
        return "the adjacency matrix is not valid in CSR: pass A.to_sparse_coo().coalesce().to_sparse_csr()"
    name, numbers = (("receiver", source.receivers), ("sender", source.senders))[status - 1]
    return f"{name}s range from {int(numbers.min())} to {int(numbers.max())}: expected 0 to {shape[status - 1] - 1}"


@dataclass(frozen=True, eq=False)
class FreshPattern:
    """Pattern in CSR with the columns of a row in any order, and possible duplicates.

    Args:
        indptr: (rows + 1,) int64.
        columns: (nnz or more,) int32.
    """

    indptr: torch.Tensor
    columns: torch.Tensor
    rows: int
    cols: int
    nnz: int

    @property
    def indices(self) -> np.ndarray:
        """Columns of the nonzeros, (nnz,) int32."""
        return self.columns.numpy()[:self.nnz]

    def row_ids(self) -> np.ndarray:
        """Row of every nonzero, (nnz,) int32."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), np.diff(self.indptr.numpy()))


class FreshProducts:
    """Products by the matrices of one pattern, like `Propagation`, by the default kernel."""

    def __init__(self, pattern: FreshPattern) -> None:
        self.pattern = pattern

    def matrix(self, values: torch.Tensor) -> torch.Tensor:
        """Return what stands for the matrix with these values: the values."""
        return values.detach()

    def empty(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate (rows, width)."""
        return torch.empty(self.pattern.rows, width, dtype=dtype)

    def transform_first(
        self, values: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, c_transposed: bool,
    ) -> torch.Tensor:
        """Compute A (B C), see `Propagation.transform_first`."""
        with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
            sent = b.detach() @ (c.detach().T if c_transposed else c.detach())
        result = self.empty(sent.shape[1], sent.dtype)
        self.run(values, y=sent, g=result)
        return result

    def run(
        self, values: torch.Tensor | None = None, *, c_transposed: bool = False, **tensors: torch.Tensor | None,
    ) -> None:
        """Run steps over the rows of A, see `Propagation.run`."""
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        dtype, pattern = next(iter(tensors.values())).dtype, self.pattern
        for name, tensor in tensors.items():
            if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.is_neg():
                raise ValueError(f"{name} is {tensor.dtype} with strides {tensor.stride()}: kernels read contiguous "
                                 f"{dtype} tensors: pass {name}.to({dtype}).resolve_neg().contiguous()")
        source = tensors.get("y", tensors.get("g"))
        width = 0 if source is None else source.shape[1]
        out = tensors["d"].shape[1] if "d" in tensors else 0
        left, right = tensors["s"].shape if "s" in tensors else (0, 0)
        summed = tensors["sums"].shape[0] if "sums" in tensors else 0
        dense = width * out + left * right
        threads = torch_threads()
        if threads > 1 and (0 if values is None else pattern.nnz * width) + pattern.rows * dense < GRAIN:
            threads = 1
        run_once(
            None if values is None else (pattern.indptr.data_ptr(), pattern.columns.data_ptr(), values.data_ptr(),
                                         pattern.nnz),
            {name: tensor.data_ptr() for name, tensor in tensors.items()}, (width, out, left, right, summed),
            slices=self._slices(threads, ROW_WORK + dense // max(1, width) // DENSE_SHARE),
            dtype=NUMPY_DTYPES[dtype], threads=threads, c_transposed=c_transposed)

    def _slices(self, threads: int, row_work: int) -> np.ndarray:
        """Bound slices of rows of about equal work, (slices + 1,) int64."""
        rows = self.pattern.rows
        if threads == 1 or rows <= threads:
            return np.array([0, rows])
        count = min(SLICES_PER_THREAD * threads, rows)
        bounds = np.empty(count + 1, np.int64)
        _functions()[2](self.pattern.indptr.data_ptr(), rows, row_work, count, bounds.ctypes.data)
        return bounds


class FreshAdjacency(CpuAdjacency):
    """A normalised adjacency matrix whose products need no preparation.

    Args:
        values: (nnz,), may require a gradient.
    """

    def __init__(self, pattern: FreshPattern, values: torch.Tensor) -> None:
        self.pattern, self.values = pattern, values
        self.forward = FreshProducts(pattern)

    @cached_property
    def matrix(self) -> torch.Tensor:
        """The values, detached."""
        return self.values.detach()

    @property
    def backward(self) -> FreshProducts:
        """Products by the transpose."""
        return self._transposition[0]

    @property
    def transposed(self) -> torch.Tensor:
        """The values of the transpose, detached."""
        return self._transposition[1]

    @cached_property
    def transposition(self) -> torch.Tensor:
        """Position in A of each nonzero of its transpose, (nnz,) int64."""
        order = torch.empty(self.pattern.nnz, dtype=torch.int64)
        _transposed(self.pattern, order=order)
        return order

    @cached_property
    def _transposition(self) -> tuple[FreshProducts, torch.Tensor]:
        values = torch.empty_like(self.matrix)
        return FreshProducts(_transposed(self.pattern, self.matrix, values)), values


def _transposed(
    pattern: FreshPattern, values: torch.Tensor | None = None, to_values: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> FreshPattern:
    """Transpose a pattern; columns of a row are then increasing.

    Args:
        to_values: is filled with `values` in the order of the transpose.
        order: is filled with the position in `pattern` of each nonzero of the transpose, int64.
    """
    indptr = torch.empty(pattern.cols + 1, dtype=torch.int64)
    indices = torch.empty(pattern.nnz, dtype=torch.int32)
    _functions()[1](ctypes.byref(_Transposition(
        indptr=pattern.indptr.data_ptr(), indices=pattern.columns.data_ptr(), rows=pattern.rows, cols=pattern.cols,
        values=None if values is None else values.data_ptr(), to_indptr=indptr.data_ptr(),
        to_indices=indices.data_ptr(), to_values=None if to_values is None else to_values.data_ptr(),
        order=None if order is None else order.data_ptr(),
        is_double=values is not None and values.dtype == torch.float64)))
    return FreshPattern(indptr, indices, pattern.cols, pattern.rows, pattern.nnz)


class _FreshGraph(ctypes.Structure):
    """The struct FreshGraph of kernels/cpu/fresh_graph.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("receivers", "senders", "begin", "weights")),
        *((name, ctypes.c_int64) for name in ("edges", "receiver_step", "sender_step", "rows", "cols")),
        ("loop", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values", "edge", "scale", "diagonal")),
        *((name, ctypes.c_int32) for name in ("loops", "scaling", "wide", "is_double")),
    )


class _Transposition(ctypes.Structure):
    """The struct Transposition of kernels/cpu/fresh_graph.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values")),
        *((name, ctypes.c_int64) for name in ("rows", "cols")),
        *((name, ctypes.c_void_p) for name in ("to_indptr", "to_indices", "to_values", "order")),
        ("is_double", ctypes.c_int32),
    )


@cache
def _functions() -> tuple[Any, Any, Any]:
    """Compile the functions that sort a graph, transpose a pattern and bound slices."""
    library = compile_cpp(["cpu/fresh_graph.cpp"])
    sort, transpose, slices = (getattr(library, f"sparloom_fresh_{name}") for name in ("graph", "transpose", "slices"))
    sort.restype, sort.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    transpose.restype, transpose.argtypes = None, [ctypes.c_void_p]
    slices.restype, slices.argtypes = None, [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return sort, transpose, slices
