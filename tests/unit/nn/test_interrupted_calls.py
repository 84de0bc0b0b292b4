"""Layers and operations that a signal handler or finaliser calls in the middle of another call of the same thread."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from sparloom import nn
from sparloom.jit import NativeCall
from sparloom.nn import convolution, core_calls, pattern_cache

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

NODES = 300
EDGES = torch.from_numpy(np.random.default_rng(0).integers(0, NODES, (2, 3000)))
CROW = torch.arange(0, 4 * NODES + 1, 4)
COL = torch.from_numpy(np.sort(np.stack([np.random.default_rng(row).choice(NODES, 4, replace=False)
                                         for row in range(NODES)]), axis=1).ravel())


def interrupt(monkeypatch, owner: object, name: str, call: Callable[[], None]) -> list[int]:
    """Call at the beginning of a function, but not within that call; returns a list that grows each time."""
    function, inside, runs = getattr(owner, name), [], []

    def interrupted(*args, **kwargs):
        if not inside:
            inside.append(1)
            call()
            inside.clear()
            runs.append(1)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    return runs


@pytest.mark.parametrize("owner", ["run", "plan"])
def test_a_convolution_in_the_middle_of_another_one(monkeypatch, owner):
    graph = nn.Graph(EDGES, NODES)
    layer = nn.GCNConv(16, 8, first="transform")
    one, two = torch.randn(NODES, 16), torch.randn(NODES, 16)
    reference = nn.GCNConv(16, 8)
    reference.load_state_dict(layer.state_dict())
    expected = [reference(x, nn.Graph(EDGES, NODES)).detach() for x in (one, two)]
    place = {"run": (NativeCall, "__call__"), "plan": (convolution, "plan_pair")}[owner]

    def call() -> None:
        torch.testing.assert_close(layer(two, graph).detach(), expected[1])

    runs = interrupt(monkeypatch, *place, call)
    for _ in range(3):
        x = one.clone().requires_grad_()
        result = layer(x, graph)
        torch.testing.assert_close(result.detach(), expected[0])
        result.sum().backward()
    assert runs


@pytest.mark.parametrize("owner", ["pattern", "run"])
def test_an_operation_in_the_middle_of_another_one(monkeypatch, owner):
    values = torch.rand(COL.numel())
    one, two = torch.randn(NODES, 16), torch.randn(NODES, 16)
    crow, col = CROW.clone(), COL.clone()
    whole = torch.zeros(NODES, NODES)
    whole[torch.arange(NODES).repeat_interleave(4), COL] = values
    wanted = [whole @ x for x in (one, two)]
    place = {"pattern": (pattern_cache, "_pattern"), "run": (NativeCall, "__call__")}[owner]
    monkeypatch.setattr(core_calls, "_core", lambda: None)
    runs = interrupt(monkeypatch, *place, lambda: torch.testing.assert_close(
        nn.spmm((crow, col, values, (NODES, NODES)), two), wanted[1]))
    for _ in range(20):
        torch.testing.assert_close(nn.spmm((crow, col, values, (NODES, NODES)), one), wanted[0])
    assert runs
