"""Layers compute the same in every way that they choose from, and choose by time."""

import copy
import pickle

import pytest
import torch
from sparse_tensors import dense

from sparloom import nn
from sparloom.nn import aggregation, graph
from sparloom.nn.guard import MOST

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache")]

NODES, WIDTH = 40, 6
LAYERS = {
    "SAGEConv": lambda: nn.SAGEConv(WIDTH, 4), "wider": lambda: nn.SAGEConv(WIDTH, 9),
    "without root": lambda: nn.SAGEConv(WIDTH, 4, root_weight=False, aggr="sum"),
    "GraphConv": lambda: nn.GraphConv(WIDTH, 4), "GINConv": lambda: nn.GINConv(torch.nn.Linear(WIDTH, 4)),
    "GCNConv": lambda: nn.GCNConv(WIDTH, 4), "largest": lambda: nn.SAGEConv(WIDTH, 4, "max"),
}


@pytest.fixture
def edges() -> torch.Tensor:
    return torch.randint(0, NODES, (2, 160), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _measure_small_graphs_that_recur(monkeypatch):
    monkeypatch.setattr(graph, "USES", 3)
    monkeypatch.setattr(graph, "FEWEST_EDGES", 0)
    monkeypatch.setattr(aggregation, "MEASURED_WORK", 0)


def gradients(layer: torch.nn.Module, edges: object) -> list[torch.Tensor]:
    x = dense(NODES, WIDTH).requires_grad_()
    result = layer(x, edges)
    return [result, *torch.autograd.grad(result.tanh().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("name", LAYERS)
def test_all_ways_agree(name, edges) -> None:
    layer = LAYERS[name]()
    expected = gradients(layer, nn.Graph(edges, NODES))
    for _ in range(25):
        for own, right in zip(gradients(layer, edges), expected, strict=True):
            torch.testing.assert_close(own, right, rtol=0, atol=2e-5 * max(1.0, right.abs().max().item()))


@pytest.mark.parametrize("prepared_is_faster", [True, False])
def test_matrices_are_chosen_by_time(edges, monkeypatch, prepared_is_faster) -> None:
    now, calls = [0.0], []

    def timed(kind: str, seconds: float, function):
        def call(*inputs: object, **options: object):
            now[0] += seconds
            calls.append(kind)
            return function(*inputs, **options)
        return call

    monkeypatch.setattr("sparloom.nn.guard.perf_counter", lambda: now[0])
    monkeypatch.setattr(aggregation, "spmm", timed("prepared", 1.0 if prepared_is_faster else 5.0, aggregation.spmm))
    monkeypatch.setattr(aggregation.FreshMatrices, "adjacency",
                        timed("fresh", 3.0, aggregation.FreshMatrices.adjacency))
    layer, x = LAYERS["GINConv"](), dense(NODES, WIDTH)
    with torch.no_grad():
        for _ in range(2 * MOST + 10):
            layer(x, edges)
    assert calls[-4:] == 4 * ["prepared" if prepared_is_faster else "fresh"]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_choose_themselves(edges, way) -> None:
    layer = LAYERS["SAGEConv"]()
    expected = [gradients(layer, edges) for _ in range(5)][-1]
    for own, right in zip(gradients(way(layer), edges), expected, strict=True):
        torch.testing.assert_close(own, right)
