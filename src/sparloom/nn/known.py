"""Graphs of tensors that layers have seen: layers that get one tensor share what was made of it."""

from contextlib import AbstractContextManager
from functools import cache
from threading import RLock

import torch
from torch.utils.weak import WeakIdKeyDictionary

from sparloom.forks import forkable
from sparloom.nn.graph import Graph
from sparloom.nn.unchanged import Unchanged

__all__ = ["graph_of"]


def graph_of(edges: torch.Tensor, nodes: int) -> Graph:
    """Give the graph that was made of this tensor, as long as it lives and is not written, or make it."""
    if not isinstance(edges, torch.Tensor) or edges.requires_grad:
        return Graph(edges, nodes)
    with _lock():
        unchanged, graph = _graphs().get(edges, (None, None))
        if unchanged is None or graph.nodes != nodes or not unchanged.holds(edges):
            graph = Graph(edges, nodes)
            _graphs()[edges] = Unchanged.of(edges), graph
    return graph


@cache
def _graphs() -> WeakIdKeyDictionary:
    return WeakIdKeyDictionary()


@cache
def _lock() -> AbstractContextManager[bool]:
    return forkable(RLock())  # a finaliser may interrupt a call of the same thread
