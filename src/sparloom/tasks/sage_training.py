"""GraphSAGE on the CPU: means over neighbours with their gradients, and whole steps of training.

Both with own layers and with those of PyTorch Geometric.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from sparloom.nn import Graph, SAGEConv, spmm
from sparloom.sparse import Pattern
from sparloom.tasks.gcn_methods import geometric, graph_forms
from sparloom.tasks.gcn_training import Classification, Trainee

__all__ = ["sage_aggregations", "sage_steps"]

NEAR = 1e-3  # relative difference of losses after the first step
CLOSE = 1e-4  # of means and gradients, relative to the largest

Step = Callable[[], object]


def sage_aggregations(pattern: Pattern, width: int, *, seed: int) -> Mapping[str, Step]:
    """Bind what a step of training does with the graph: the mean over neighbours, forward and backward.

    Returns:
        "sparloom", and "pyg_<form>" by the form in which PyTorch Geometric's layer gets the graph. All have run once.

    Raises:
        Unsupported: torch_geometric is not installed.
        AssertionError: means or gradients differ.
    """
    task = Classification.drawn(pattern, width, seed=seed)
    slopes = torch.rand(task.nodes, width, generator=torch.Generator().manual_seed(seed))
    means = Graph(task.edges, task.nodes).connections().means
    layer = geometric().nn.SAGEConv(width, width)
    sent = {"sparloom": partial(spmm, means)}
    sent |= {f"pyg_{name}": partial(_propagated, layer, graph) for name, graph in graph_forms(task).items()}
    steps = {name: _Aggregation(aggregate, task.features, slopes) for name, aggregate in sent.items()}
    expected = steps["sparloom"]()
    for name, step in steps.items():
        for what, found, wanted in zip(("means", "gradients"), step(), expected, strict=True):
            apart = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
            if not apart < CLOSE:
                raise AssertionError(f"{what} of {name} are {apart:.1e} of the largest apart from ours")
    return steps


def sage_steps(pattern: Pattern, width: int, *, seed: int) -> Mapping[str, Step]:
    """Bind a step of each method, named as in `sage_aggregations`.

    Two layers of `width` channels that average over neighbours, ReLU between them, cross entropy, both backward, Adam.
    All have taken their first step, in which graphs are prepared and kernels decided.

    Raises:
        Unsupported: torch_geometric is not installed.
        AssertionError: a first loss differs from that of PyTorch Geometric.
    """
    task = Classification.drawn(pattern, width, seed=seed)
    peer = geometric().nn.SAGEConv
    layers: dict[str, tuple[type[torch.nn.Module], Callable[[], Any]]] = {
        "sparloom": (SAGEConv, partial(Graph, task.edges, task.nodes))}
    layers |= {f"pyg_{name}": (peer, lambda graph=graph: graph) for name, graph in graph_forms(task).items()}
    trainees = {name: Trainee(layer, prepare, task, seed=seed) for name, (layer, prepare) in layers.items()}
    for name, trainee in trainees.items():
        trainee.train(1)
        if not math.isclose(trainee.loss, trainees["sparloom"].loss, rel_tol=NEAR):
            raise AssertionError(f"the first loss of {name} is {trainee.loss}, ours {trainees['sparloom'].loss}")
    return {name: partial(trainee.train, 1) for name, trainee in trainees.items()}


def _propagated(layer: torch.nn.Module, graph: Any, features: torch.Tensor) -> torch.Tensor:
    return layer.propagate(graph, x=(features, features), size=None)


class _Aggregation:
    """Features to their means over neighbours, and the gradient back to the features."""

    def __init__(self, aggregate: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor,
                 slopes: torch.Tensor) -> None:
        self._aggregate, self._slopes = aggregate, slopes
        self._features = features.clone().requires_grad_()

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = self._aggregate(self._features)
        (gradient,) = torch.autograd.grad(found, self._features, self._slopes)
        return found.detach(), gradient
