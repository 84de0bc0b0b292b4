"""GraphSAGE: means over neighbours with their gradients, and whole steps of training.

Both with own layers and with those of PyTorch Geometric.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from sparloom.experiments.gcn_methods import geometric, graph_forms
from sparloom.experiments.gcn_training import Classification, Trainee
from sparloom.experiments.side_by_side import noted
from sparloom.nn import Graph, SAGEConv, spmm
from sparloom.sparse import Pattern

__all__ = ["Steps", "sage_aggregations", "sage_steps"]

OWN = "sparloom"
REFERENCE = "pyg_edge_index"  # gathers and scatters: the plainest way
NEAR = 1e-3  # relative difference of losses after two steps
CPU = torch.device("cpu")
DECIDING = {"cpu": 60, "cuda": 1}  # device -> steps of ours after which all kernels are decided
CLOSE = 1e-4  # of means and gradients, relative to the largest

Step = Callable[[], object]


class Steps(NamedTuple):
    """Methods that can be timed, all of which have run; and why others were left out."""

    own: Mapping[str, Step]
    peers: Mapping[str, Step]
    refused: dict[str, str]


def sage_aggregations(pattern: Pattern, width: int, *, seed: int, device: torch.device = CPU) -> Steps:
    """Bind what a step of training does with the graph: the mean over neighbours, forward and backward.

    Methods are "sparloom", and "pyg_<form>" by the form in which PyTorch Geometric's layer gets the graph; those whose
    means or gradients differ from those of the form edge_index are refused (seen of gradients of csr_int32,
    PyTorch 2.13 and PyTorch Geometric 2.8), as are those that fail.

    Args:
        device: where they are computed.

    Raises:
        Unsupported: torch_geometric is not installed.
        AssertionError: ours differ from those of the form edge_index, or of the first one that runs.
    """
    task = Classification.drawn(pattern, width, seed=seed).to(device)
    slopes = torch.rand(task.nodes, width, generator=torch.Generator().manual_seed(seed)).to(device)
    means = Graph(task.edges, task.nodes).connections().means
    layer, peers, refused = geometric().nn.SAGEConv(width, width), {}, {}
    apart: dict[str, float] = {}
    expected = None
    for name, graph in _forms(task).items():
        with noted(name, refused):
            step = _Aggregation(partial(_propagated, layer, graph), task.features, slopes)
            found = step()
            expected = expected or found
            apart[name], peers[name] = max(map(_apart, found, expected)), step
    own = _Aggregation(partial(spmm, means), task.features, slopes)
    for _ in range(DECIDING[device.type]):
        found = own()
    apart[OWN] = max(map(_apart, found, expected or found))
    return _sorted_out(Steps({OWN: own}, peers, refused), apart, limit=CLOSE, what="means or gradients")


def sage_steps(pattern: Pattern, width: int, *, seed: int, device: torch.device = CPU) -> Steps:
    """Bind a step of each method, as `sage_aggregations`; refused are those whose loss differs after two steps.

    Two layers of `width` channels that average over neighbours, ReLU between them, cross entropy, both backward, Adam.
    Graphs are prepared in the first step, and kernels decided in the first ones, which are behind all.
    """
    task = Classification.drawn(pattern, width, seed=seed).to(device)
    layer, peers, refused = geometric().nn.SAGEConv, {}, {}
    for name, graph in _forms(task).items():
        with noted(name, refused):
            trainee = Trainee(layer, lambda graph=graph: graph, task, seed=seed)
            trainee.train(2)
            peers[name] = trainee
    own = Trainee(SAGEConv, partial(Graph, task.edges, task.nodes), task, seed=seed)
    own.train(2)
    trained = {**peers, OWN: own}
    expected = next(iter(trained.values())).loss
    apart = {name: abs(trainee.loss / expected - 1) for name, trainee in trained.items()}
    own.train(DECIDING[device.type])
    steps = {name: partial(trainee.train, 1) for name, trainee in trained.items()}
    return _sorted_out(Steps({OWN: steps.pop(OWN)}, steps, refused), apart, limit=NEAR, what="losses")


def _forms(task: Classification) -> dict[str, Any]:
    """Make the graph in every form, that of the reference first."""
    forms = {f"pyg_{name}": graph for name, graph in graph_forms(task).items()}
    return {REFERENCE: forms.pop(REFERENCE), **forms}


def _sorted_out(steps: Steps, apart: Mapping[str, float], *, limit: float, what: str) -> Steps:
    """Refuse peers that are apart from the first method."""
    far = {name: f"{what} are {size:.1e} apart" for name, size in apart.items() if not size < limit}
    if OWN in far:
        raise AssertionError(f"{OWN} is wrong: {far[OWN]} from those of {next(iter(apart))}")
    peers = {name: step for name, step in steps.peers.items() if name not in far}
    return Steps(steps.own, peers, steps.refused | far)


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    size = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    return math.inf if math.isnan(size) else size


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
