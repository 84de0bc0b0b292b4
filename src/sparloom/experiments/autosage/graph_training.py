"""Train GCN, GraphSAGE and GAT by our layers and by those of PyTorch Geometric, from equal weights."""

import importlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from sparloom import nn
from sparloom.errors import Unsupported
from sparloom.experiments.harness import note_failure
from sparloom.lazy import install_command
from sparloom.nn import GCNConv, Graph, spmm
from sparloom.nn.edges import Normalisation
from sparloom.sparse import Pattern
from sparloom.tuning import PlanCache

LEARNING_RATE = 0.01

Layer = Callable[[int, int], torch.nn.Module]
"""Builds a layer from its input and output channels; the layer takes features and the prepared graph."""

OWN = ("sparloom", "transform_first", "unfused")
OWN_LAYER = "sparloom"
REFERENCE = "pyg_edge_index"  # gathers and scatters
LOSS_TOLERANCE = 1e-3  # relative difference of losses after two steps
CPU = torch.device("cpu")
WARM_UP_STEPS = 3  # of our method, in which graphs are prepared and kernels are loaded
MEAN_TOLERANCE = 1e-4  # of means and gradients, relative to the largest
Step = Callable[[], object]


@dataclass(frozen=True)
class Classification:
    """A node classification task with random features and labels, and as many classes as features.

    Args:
        edges: (2, edges) int64, senders above receivers, without self-loops.
        features: (nodes, width).
        labels: (nodes,) int64 below width.
    """

    edges: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def drawn(cls, pattern: Pattern, width: int, *, seed: int) -> "Classification":
        """Draw a task on the graph of a square pattern, whose rows are the receivers."""
        rows, cols = pattern.row_ids().astype(np.int64), pattern.indices.astype(np.int64)
        edges = torch.from_numpy(np.stack([cols, rows])[:, rows != cols])
        generator = torch.Generator().manual_seed(seed)
        return cls(edges, torch.rand(pattern.rows, width, generator=generator),
                   torch.randint(width, (pattern.rows,), generator=generator))

    def to(self, device: torch.device) -> "Classification":
        return Classification(*(tensor.to(device) for tensor in (self.edges, self.features, self.labels)))

    @property
    def nodes(self) -> int:
        return self.features.shape[0]

    @property
    def width(self) -> int:
        """Features, hidden channels and classes."""
        return self.features.shape[1]


class Trainee:
    """Two layers with ReLU in between, trained by Adam on the device and in the type of the features.

    Args:
        prepare: builds the graph argument of the layers; called in the first step.
        seed: seed of the weights; layers with the same initialisation start equal.
    """

    def __init__(self, layer: Layer, prepare: Callable[[], Any], task: Classification, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.layers = torch.nn.ModuleList([layer(task.width, task.width) for _ in range(2)]).to(task.features)
        self.loss = float("nan")
        self._optimizer = torch.optim.Adam(self.layers.parameters(), lr=LEARNING_RATE)
        self._prepare, self._task = prepare, task
        self._graph: Any = None

    def train(self, steps: int) -> float:
        """Take steps; return wall seconds."""
        start = time.perf_counter()
        for _ in range(steps):
            self._optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self._scores(), self._task.labels)
            loss.backward()
            self._optimizer.step()
        self.loss = float(loss.detach())
        return time.perf_counter() - start

    def _scores(self) -> torch.Tensor:
        if self._graph is None:
            self._graph = self._prepare()
        first, second = self.layers
        return second(torch.relu(first(self._task.features, self._graph)), self._graph)


Method = Callable[[], Trainee]


def own_methods(task: Classification, cache: PlanCache, *, seed: int) -> dict[str, Method]:
    """Bind our layer as it is, by tile fusion as the paper has it, and without any fusion."""
    graph = partial(Graph, task.edges, task.nodes, cache=cache)
    ways = {"sparloom": (partial(GCNConv, cached=True), graph),
            "transform_first": (partial(GCNConv, cached=True, first="transform"), graph),
            "unfused": (Unfused, lambda: graph().adjacency(Normalisation(1.0, True), task.features.dtype).matrix)}
    return {name: partial(Trainee, *ways[name], task, seed=seed) for name in OWN}


class Unfused(GCNConv):
    """The layer by separate operations: a product with the normalised matrix, and one of torch."""

    def forward(self, x: torch.Tensor, matrix: Any) -> torch.Tensor:
        """Compute (A X) W^T + b; the matrix as `sparloom.nn.spmm` takes it."""
        return torch.nn.functional.linear(spmm(matrix, x), self.lin.weight, self.bias)


def baseline_methods(task: Classification, *, seed: int) -> dict[str, Method]:
    """Bind PyTorch Geometric's layer with cached=True, for every graph format.

    All formats but edge_index are converted beforehand, outside of the timed steps.

    Raises:
        Unsupported: torch_geometric is not installed.
    """
    layer = partial(geometric().nn.GCNConv, cached=True)
    return {name: partial(Trainee, layer, lambda graph=graph: graph, task, seed=seed)
            for name, graph in graph_forms(task).items()}


def graph_forms(task: Classification) -> Mapping[str, Any]:
    """Convert a graph to every format that layers of PyTorch Geometric take, on the device of its tensors.

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
        raise Unsupported(f"torch_geometric is not installed: {install_command('peers')}") from error


class Steps(NamedTuple):
    """Warmed-up methods, and reasons why others were left out."""

    own: Mapping[str, Step]
    baselines: Mapping[str, Step]
    refused: dict[str, str]


def sage_aggregations(pattern: Pattern, width: int, *, seed: int, device: torch.device = CPU) -> Steps:
    """Bind the graph operation of a training step: the mean over neighbours, forward and backward.

    Methods are "sparloom" and "pyg_<format>" for every graph format of PyTorch Geometric. Methods whose means or
    gradients differ from those of edge_index are refused (seen with gradients of csr_int32, PyTorch 2.13 and PyTorch
    Geometric 2.8), as are those that fail.

    Raises:
        Unsupported: torch_geometric is not installed.
    """
    task = Classification.drawn(pattern, width, seed=seed).to(device)
    slopes = torch.rand(task.nodes, width, generator=torch.Generator().manual_seed(seed)).to(device)
    means = Graph(task.edges, task.nodes).aggregation().mean
    layer, baselines, refused = geometric().nn.SAGEConv(width, width), {}, {}
    apart: dict[str, float] = {}
    expected = None
    for name, graph in peer_forms(task).items():
        with note_failure(name, refused):
            step = _Aggregation(partial(_propagated, layer, graph), task.features, slopes)
            found = step()
            expected = expected or found
            apart[name], baselines[name] = max(map(relative_distance, found, expected)), step
    own = _Aggregation(partial(spmm, means), task.features, slopes)
    for _ in range(WARM_UP_STEPS):
        found = own()
    apart[OWN_LAYER] = max(map(relative_distance, found, expected or found))
    steps = Steps({OWN_LAYER: own}, baselines, refused)
    return sorted_out(steps, apart, limit=MEAN_TOLERANCE, what="means or gradients")


def layer_steps(layer: str, pattern: Pattern, width: int, *, seed: int, device: torch.device = CPU) -> Steps:
    """Bind a training step of each method, see `sage_aggregations`; refuse methods whose loss differs.

    Two layers of `width` channels, ReLU in between, cross entropy, both backward, Adam.

    Args:
        layer: name of a layer that PyTorch Geometric has, too, such as "SAGEConv".
    """
    task = Classification.drawn(pattern, width, seed=seed).to(device)
    peer, baselines, refused = _constructor(geometric().nn, layer), {}, {}
    for name, graph in peer_forms(task).items():
        with note_failure(name, refused):
            trainee = Trainee(peer, lambda graph=graph: graph, task, seed=seed)
            trainee.train(2)
            baselines[name] = trainee
    own = Trainee(_constructor(nn, layer), partial(Graph, task.edges, task.nodes), task, seed=seed)
    own.train(2)
    trained = {**baselines, OWN_LAYER: own}
    expected = next(iter(trained.values())).loss
    apart = {name: abs(trainee.loss / expected - 1) for name, trainee in trained.items()}
    own.train(WARM_UP_STEPS)
    steps = {name: partial(trainee.train, 1) for name, trainee in trained.items()}
    own_steps = {OWN_LAYER: steps.pop(OWN_LAYER)}
    return sorted_out(Steps(own_steps, steps, refused), apart, limit=LOSS_TOLERANCE, what="losses")


def _constructor(module: Any, name: str) -> Layer:
    """Return what builds a layer: GCN stores the normalised graph, GIN has a linear map."""
    layer = getattr(module, name)
    if name == "GINConv":
        return lambda inputs, outputs: layer(torch.nn.Linear(inputs, outputs))
    return partial(layer, cached=True) if name == "GCNConv" else layer


def peer_forms(task: Classification) -> dict[str, Any]:
    """Convert the graph to every format, as `graph_forms`: "pyg_<format>", edge_index first."""
    forms = {f"pyg_{name}": graph for name, graph in graph_forms(task).items()}
    return {REFERENCE: forms.pop(REFERENCE), **forms}


def sorted_out(steps: Steps, apart: Mapping[str, float], *, limit: float, what: str) -> Steps:
    """Refuse baselines that differ from the reference.

    Args:
        apart: method -> distance from the reference, which comes first.

    Raises:
        AssertionError: an own method differs.
    """
    far = {name: f"{what} are {size:.1e} apart" for name, size in apart.items() if not size < limit}
    for name in far.keys() & steps.own.keys():
        raise AssertionError(f"{name} is wrong: {far[name]} from those of {next(iter(apart))}")
    baselines = {name: step for name, step in steps.baselines.items() if name not in far}
    return Steps(steps.own, baselines, steps.refused | far)


def relative_distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest wanted number; infinity if any is NaN."""
    size = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    return math.inf if math.isnan(size) else size


def _propagated(layer: torch.nn.Module, graph: Any, features: torch.Tensor) -> torch.Tensor:
    return layer.propagate(graph, x=(features, features), size=None)


class _Aggregation:
    """Means of features over neighbours, and the gradient of the features."""

    def __init__(self, aggregate: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor,
                 slopes: torch.Tensor) -> None:
        self._aggregate, self._slopes = aggregate, slopes
        self._features = features.clone().requires_grad_()

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = self._aggregate(self._features)
        (gradient,) = torch.autograd.grad(found, self._features, self._slopes)
        return found.detach(), gradient
