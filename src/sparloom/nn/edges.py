"""What users call a graph, as rows, columns and weights of its adjacency matrix."""

import operator
from dataclasses import dataclass
from typing import Any

import torch

from sparloom.nn.autocast import DEVICES
from sparloom.nn.eager import eager

__all__ = ["Edges", "check_weights", "edges_of"]

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
