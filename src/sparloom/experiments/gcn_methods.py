"""Ways to compute the layers of a graph convolutional network: own ones, and PyTorch Geometric's on the CPU."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.experiments.gcn_training import Classification, Trainee
from sparloom.nn import GCNConv, Graph
from sparloom.tuning import PlanCache

__all__ = ["OWN", "geometric", "graph_forms", "own_methods", "peer_methods"]

Method = Callable[[], Trainee]

OWN = ("sparloom", "transform_first", "unfused")


def own_methods(task: Classification, cache: PlanCache, *, seed: int) -> dict[str, Method]:
    """The layer as it is, with the paper's order of products, and with every product by itself.

    Args:
        cache: of decisions.
    """
    def method(fuse: str, first: str) -> Trainee:
        layer = partial(GCNConv, cached=True, first=first)
        return Trainee(layer, partial(Graph, task.edges, task.nodes, fuse=fuse, cache=cache), task, seed=seed)

    ways = {"sparloom": ("auto", "auto"), "transform_first": ("auto", "transform"), "unfused": ("never", "auto")}
    return {name: partial(method, *ways[name]) for name in OWN}


def peer_methods(task: Classification, *, seed: int) -> dict[str, Method]:
    """PyTorch Geometric's own layer with cached=True, by the form in which it gets the graph.

    All forms but edge_index are made beforehand, so they cost it nothing.

    Raises:
        Unsupported: torch_geometric is not installed.
    """
    layer = partial(geometric().nn.GCNConv, cached=True)
    return {name: partial(Trainee, layer, partial(_same, graph), task, seed=seed)
            for name, graph in graph_forms(task).items()}


def graph_forms(task: Classification) -> Mapping[str, Any]:
    """Make the same graph in every form that layers of PyTorch Geometric take, where its tensors are.

    Raises:
        Unsupported: torch_geometric is not installed.
    """
    nodes, edges = (task.nodes, task.nodes), task.edges
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: sparse tensors are in beta
        ones = torch.ones(edges.shape[1], dtype=task.features.dtype, device=edges.device)
        matrix = torch.sparse_coo_tensor(edges.flip(0), ones, nodes).to_sparse_csr()
        narrow = torch.sparse_csr_tensor(
            matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values(), nodes)
        forms = {"csr": matrix, "csr_int32": narrow, "edge_index": edges}
        if geometric().typing.WITH_TORCH_SPARSE:
            forms["torch_sparse"] = geometric().typing.SparseTensor.from_torch_sparse_csr_tensor(matrix)
    return forms


def geometric() -> Any:
    """Import PyTorch Geometric.

    Raises:
        Unsupported: torch_geometric is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torch_geometric.nn")
            return importlib.import_module("torch_geometric")
    except ImportError as error:
        raise Unsupported("torch_geometric is not installed: install sparloom[peers]") from error


def _same(graph: Any) -> Any:
    return graph
