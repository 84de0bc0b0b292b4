"""Graphs of tensors that layers have seen: layers that get one tensor share what was made of it."""

from collections.abc import Hashable
from contextlib import AbstractContextManager
from functools import cache
from threading import RLock

import torch
from torch.utils.weak import WeakIdKeyDictionary

from sparloom.forks import forkable
from sparloom.nn.derivatives import outside_transforms
from sparloom.nn.graph import Graph
from sparloom.nn.unchanged import content_of, indices_of

__all__ = ["graph_of"]


def graph_of(edges: torch.Tensor, nodes: int) -> Graph:
    """Give the graph that was made of this tensor, as long as it lives and holds what it held, or make it.

    Values of a sparse matrix are compared as a whole, indices as `sparloom.nn.unchanged.indices_of` says.
    """
    if not isinstance(edges, torch.Tensor) or edges.requires_grad:
        return Graph(edges, nodes)
    with outside_transforms(), _lock():
        held = _content(edges)
        before, graph = _graphs().get(edges, (None, None))
        if graph is None or graph.nodes != nodes or before != held:
            graph = Graph(edges, nodes)
            _graphs()[edges] = held, graph
    return graph


def _content(edges: torch.Tensor) -> Hashable:
    if edges.layout == torch.sparse_csr:
        return indices_of(edges.crow_indices(), edges.col_indices()), content_of(edges.values())
    if edges.layout == torch.sparse_coo:
        return edges.is_coalesced(), indices_of(edges._indices()), content_of(edges._values())
    return indices_of(edges) if edges.layout == torch.strided else None


@cache
def _graphs() -> WeakIdKeyDictionary:
    return WeakIdKeyDictionary()


@cache
def _lock() -> AbstractContextManager[bool]:
    return forkable(RLock())  # a finaliser may interrupt a call of the same thread
