"""GraphSAGE: means over neighbours with their gradients, and whole steps of training, these on the CPU.

Both with own layers and with those of PyTorch Geometric.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from sparloom.nn import Graph, SAGEConv, spmm
from sparloom.sparse import Pattern
from sparloom.tasks.gcn_methods import geometric, graph_forms
from sparloom.tasks.gcn_training import Classification, Trainee

__all__ = ["Steps", "sage_aggregations", "sage_steps"]

REFERENCE = "pyg_edge_index"  # gathers and scatters: the plainest way
NEAR = 1e-3  # relative difference of losses after two steps
CPU = torch.device("cpu")
CLOSE = 1e-4  # of means and gradients, relative to the largest

Step = Callable[[], object]


class Steps(NamedTuple):
    """Methods that can be timed, all of which have run; and why others were left out."""

    bound: Mapping[str, Step]
    refused: Mapping[str, str]


def sage_aggregations(pattern: Pattern, width: int, *, seed: int, device: torch.device = CPU) -> Steps:
    """Bind what a step of training does with the graph: the mean over neighbours, forward and backward.

    Methods are "sparloom", and "pyg_<form>" by the form in which PyTorch Geometric's layer gets the graph; those whose
    means or gradients differ from those of the form edge_index are refused (seen of gradients of csr_int32,
    PyTorch 2.13 and PyTorch Geometric 2.8).

    Args:
        device: where they are computed.

    Raises:
        Unsupported: torch_geometric is not installed.
        AssertionError: ours differ from those of the form edge_index.
    """
    task = Classification.drawn(pattern, width, seed=seed)
    slopes = torch.rand(task.nodes, width, generator=torch.Generator().manual_seed(seed)).to(device)
    *means, shape = Graph(task.edges, task.nodes).connections().means
    means, task = (*(tensor.to(device) for tensor in means), shape), task.to(device)
    layer = geometric().nn.SAGEConv(width, width)
    sent = {"sparloom": partial(spmm, means)}
    sent |= {f"pyg_{name}": partial(_propagated, layer, graph) for name, graph in graph_forms(task).items()}
    steps = {name: _Aggregation(aggregate, task.features, slopes) for name, aggregate in sent.items()}
    expected = steps[REFERENCE]()
    apart = {name: max(map(_apart, step(), expected)) for name, step in steps.items()}
    return _sorted_out(steps, apart, limit=CLOSE, what="means or gradients")


def sage_steps(pattern: Pattern, width: int, *, seed: int) -> Steps:
    """Bind a step of each method, as `sage_aggregations`; refused are those whose loss differs after two steps.

    Two layers of `width` channels that average over neighbours, ReLU between them, cross entropy, both backward, Adam.
    Graphs are prepared and kernels decided in the first step, which is behind all.
    """
    task = Classification.drawn(pattern, width, seed=seed)
    peer = geometric().nn.SAGEConv
    layers: dict[str, tuple[type[torch.nn.Module], Callable[[], Any]]] = {
        "sparloom": (SAGEConv, partial(Graph, task.edges, task.nodes))}
    layers |= {f"pyg_{name}": (peer, lambda graph=graph: graph) for name, graph in graph_forms(task).items()}
    trainees = {name: Trainee(layer, prepare, task, seed=seed) for name, (layer, prepare) in layers.items()}
    for trainee in trainees.values():
        trainee.train(2)
    apart = {name: abs(trainee.loss / trainees[REFERENCE].loss - 1) for name, trainee in trainees.items()}
    return _sorted_out({name: partial(trainee.train, 1) for name, trainee in trainees.items()}, apart, limit=NEAR,
                       what="losses")


def _sorted_out(steps: Mapping[str, Step], apart: Mapping[str, float], *, limit: float, what: str) -> Steps:
    refused = {name: f"{what} are {size:.1e} apart" for name, size in apart.items() if not size < limit}
    if "sparloom" in refused:
        raise AssertionError(f"ours: {refused['sparloom']} from those of {REFERENCE}")
    return Steps({name: step for name, step in steps.items() if name not in refused}, refused)


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


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
