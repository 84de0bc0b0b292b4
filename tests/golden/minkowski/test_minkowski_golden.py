"""Our convolutions against vectors of MinkowskiEngine; `make.py` in this folder makes them again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from golden.minkowski.cases import BIASED, PATTERNS, draw_weights, run_network

from sparloom.models import MinkowskiBackend, SparseBackend, TorchBackend

HERE = Path(__file__).parent
LEVELS = (8, 16, 24, 24)
TOLERANCE = 1e-5  # relative, of float32 sums in another order


@pytest.fixture(params=[TorchBackend, MinkowskiBackend], ids=["torch", "minkowski"])
def backend(request: pytest.FixtureRequest) -> SparseBackend:
    try:
        return request.param()
    except ImportError:
        pytest.skip("MinkowskiEngine is not installed: docs/howto/minkowski.md")


def assert_near(actual: torch.Tensor, expected: np.ndarray) -> None:
    expected = torch.from_numpy(expected)
    assert actual.shape == expected.shape
    assert float((actual - expected).norm()) <= TOLERANCE * float(expected.norm())


@pytest.mark.parametrize("biased", BIASED)
@pytest.mark.parametrize("name", PATTERNS)
def test_network_equals_minkowski_engine(backend: SparseBackend, name: str, biased: bool) -> None:
    golden = np.load(HERE / f"network_{name}_{'biased' if biased else 'plain'}.npz")
    weights, biases = draw_weights(11, biased)
    sites = backend.build_map([PATTERNS[name]], channels=LEVELS)
    out = run_network(backend, sites, weights, biases)
    (out**2).sum().backward()
    assert_near(out.detach(), golden["out"])
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        assert_near(weight.grad, golden[f"weight_grad{place}"])
        if bias is not None:
            assert_near(bias.grad, golden[f"bias_grad{place}"])


@pytest.mark.parametrize("name", PATTERNS)
def test_layer_equals_minkowski_engine(name: str) -> None:
    """The engine's layer has no ReLU: a bias of 100 keeps ours from cutting anything off."""
    golden = np.load(HERE / f"layer_{name}.npz")
    backend = TorchBackend()
    sites = backend.build_map([PATTERNS[name]], channels=LEVELS)
    x = torch.from_numpy(golden["x"]).double().requires_grad_()
    weight = torch.from_numpy(golden["weight"]).double().requires_grad_()
    bias = torch.full((weight.shape[2],), 100.0, dtype=torch.float64)
    out = backend.conv(x, weight, bias, sites, 0)
    (out * torch.from_numpy(golden["cotangent"])).sum().backward()
    assert_near((out.detach() - 100).float(), golden["out"])
    assert_near(x.grad.float(), golden["x_grad"])
    assert_near(weight.grad.float(), golden["weight_grad"])
