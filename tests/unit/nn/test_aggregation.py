"""Layers compute the same with edges that recur as with a `Graph` of them."""

import pytest
import torch
from sparse_tensors import dense

from sparloom import nn

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


def gradients(layer: torch.nn.Module, edges: object) -> list[torch.Tensor]:
    x = dense(NODES, WIDTH).requires_grad_()
    result = layer(x, edges)
    return [result, *torch.autograd.grad(result.tanh().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("name", LAYERS)
def test_edges_that_recur_agree_with_a_graph(name, edges) -> None:
    layer = LAYERS[name]()
    expected = gradients(layer, nn.Graph(edges, NODES))
    for _ in range(3):
        for own, right in zip(gradients(layer, edges), expected, strict=True):
            torch.testing.assert_close(own, right, rtol=0, atol=2e-5 * max(1.0, right.abs().max().item()))
