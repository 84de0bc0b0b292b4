"""Steps of training GraphSAGE, with own layers and with those of PyTorch Geometric on the CPU."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from sparloom.nn import Graph, SAGEConv
from sparloom.sparse import Pattern
from sparloom.tasks.gcn_methods import geometric, graph_forms
from sparloom.tasks.gcn_training import Classification, Trainee

__all__ = ["sage_steps"]

NEAR = 1e-3  # relative difference of losses after the first step


def sage_steps(pattern: Pattern, width: int, *, seed: int) -> Mapping[str, Callable[[], float]]:
    """Bind a step of each method: "sparloom", and "pyg_<form>" by the form in which it gets the graph.

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
