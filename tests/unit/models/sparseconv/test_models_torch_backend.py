"""The default backend against dense convolutions masked to the sites, and against numerical derivatives."""

import numpy as np
import pytest
import torch
from golden.minkowski.cases import PATTERNS, draw_weights, run_network
from torch import Tensor
from torch.nn import functional

from sparloom.models import SparseMap, TorchBackend, build_map
from sparloom.models.sparseconv import maps

LEVELS = (8, 16, 24, 24)
BACKEND = TorchBackend()


def dense_network(coords: np.ndarray, weights: list[Tensor], biases: list[Tensor | None]) -> Tensor:
    """The same network on the full grid: every activation is masked to the sites, empty cells never win a maximum."""
    side = -(-int(coords.max() + 1) // 8) * 8
    mask = torch.zeros(1, 1, side, side, dtype=weights[0].dtype)
    mask[0, 0, coords[:, 0], coords[:, 1]] = 1
    x = mask
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        size = round(len(weight) ** 0.5)
        kernel = weight.unflatten(0, (size, size)).permute(3, 2, 0, 1)
        x = torch.relu(functional.conv2d(x, kernel, bias, padding=size // 2)) * mask
        if layer in (2, 5, 8):
            x = functional.max_pool2d(x.masked_fill(mask == 0, -1), 2)
            mask = functional.max_pool2d(mask, 2)
            x = x * mask
    return x.sum((2, 3)) / mask.sum()


def gradients(out: Tensor, weights: list[Tensor], biases: list[Tensor | None]) -> list[Tensor]:
    return list(torch.autograd.grad((out**2).sum(), [*weights, *(bias for bias in biases if bias is not None)]))


def in_double(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [None if one is None else one.detach().double().requires_grad_() for one in tensors]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_network_equals_masked_dense_convolution(name: str, biased: bool) -> None:
    weights, biases = (in_double(part) for part in draw_weights(5, biased))
    sites = build_map([PATTERNS[name]], channels=LEVELS, dtype=torch.float64)
    out = run_network(BACKEND, sites, weights, biases)
    expected = dense_network(PATTERNS[name], weights, biases)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=0)
    for mine, theirs in zip(gradients(out, weights, biases), gradients(expected, weights, biases), strict=True):
        assert float((mine - theirs).norm()) <= 1e-10 * float(theirs.norm())


@pytest.mark.parametrize("name", PATTERNS)
def test_float32_agrees_with_dense_within_1e_5(name: str) -> None:
    weights, biases = draw_weights(6, False)
    sites = build_map([PATTERNS[name]], channels=LEVELS)
    out, expected = run_network(BACKEND, sites, weights, biases), dense_network(PATTERNS[name], weights, biases)
    assert float((out - expected).detach().norm()) <= 1e-5 * float(expected.detach().norm())
    for mine, theirs in zip(gradients(out, weights, biases), gradients(expected, weights, biases), strict=True):
        assert float((mine - theirs).norm()) <= 1e-5 * float(theirs.norm())


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, biases = (in_double(part) for part in draw_weights(5, True))
    results = []
    for floats in (maps.BLOCK_FLOATS, 8 * 40):
        monkeypatch.setattr(maps, "BLOCK_FLOATS", floats)
        sites = build_map([PATTERNS["clustered"]], channels=LEVELS, dtype=torch.float64)
        out = run_network(BACKEND, sites, weights, biases)
        results.append([out, *gradients(out, weights, biases)])
    for whole, cut in zip(*results, strict=True):
        torch.testing.assert_close(cut, whole, rtol=1e-10, atol=1e-14)


def test_batch_equals_single_matrices() -> None:
    weights, biases = (in_double(part) for part in draw_weights(5, True))
    coords = [*PATTERNS.values(), np.array([(3, 3)])]
    batch = run_network(BACKEND, build_map(coords, channels=LEVELS, dtype=torch.float64), weights, biases)
    single = [run_network(BACKEND, build_map([one], channels=LEVELS, dtype=torch.float64), weights, biases)
              for one in coords]
    torch.testing.assert_close(batch, torch.cat(single), rtol=1e-10, atol=1e-14)


def test_matrix_without_sites_averages_to_zero() -> None:
    weights, biases = draw_weights(5, False)
    sites = build_map([np.zeros((0, 2)), PATTERNS["banded"]], channels=LEVELS)
    out = run_network(BACKEND, sites, weights, biases)
    assert out[0].eq(0).all()
    assert out[1].ne(0).any()
    gradients(out, weights, biases)
    alone = run_network(BACKEND, build_map([np.zeros((0, 2))], channels=LEVELS), weights, biases)
    assert alone.shape == (1, 24)
    assert alone.eq(0).all()


def small(dtype: torch.dtype = torch.float64) -> SparseMap:
    coords = np.array([(0, 0), (0, 1), (1, 1), (2, 0), (3, 3), (3, 4), (4, 4)])
    return build_map([coords], channels=(4, 4), dtype=dtype)


def test_convolution_gradients_are_numerical_ones() -> None:
    torch.manual_seed(0)
    sites = small()
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 3, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: BACKEND.conv(*given, sites, 0), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda x, weight: BACKEND.conv(x, weight, None, sites, 0), (x, weight))


def test_pooling_gradients_are_numerical_ones() -> None:
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(lambda given: BACKEND.max_pool(given, small(), 0), (x,))


def test_input_features_are_read_under_the_kernel() -> None:
    coords = np.array([(0, 0), (0, 2), (5, 5)])
    values = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    sites = build_map([coords], [values], channels=(4,))
    weight = torch.zeros(25, 2, 1)
    weight[2 * 5 + 4, 1, 0] = 1  # two columns to the right, second number
    assert BACKEND.input_conv(weight, None, sites).flatten().tolist() == [20.0, 0.0, 0.0]
