"""Strided convolutions against dense ones masked to the sites, and against numerical derivatives."""

import numpy as np
import pytest
import torch
from golden.minkowski.cases import PATTERNS
from torch import Tensor
from torch.nn import functional

from sparloom.models import StridedMap, TorchBackend, build_strided_map

BACKEND = TorchBackend()
STEPS = 8
CHANNELS = 6


def drawn_weights(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(25, 1, CHANNELS), *[(9, CHANNELS, CHANNELS)] * STEPS]
    return [(torch.randn(shape, generator=generator, dtype=torch.float64) * (3 / (shape[0] * shape[1])) ** 0.5)
            .requires_grad_() for shape in shapes]


def sparse_network(sites: StridedMap, weights: list[Tensor]) -> Tensor:
    """Averages of every layer, (matrices, layers * channels)."""
    x = BACKEND.input_conv(weights[0], None, sites)
    means = [BACKEND.global_mean(x, sites, 0)]
    for level, weight in enumerate(weights[1:]):
        x = BACKEND.strided_conv(x, weight, None, sites, level)
        means.append(BACKEND.global_mean(x, sites, level + 1))
    return torch.cat(means, dim=1)


def dense_network(coords: np.ndarray, weights: list[Tensor]) -> Tensor:
    """The same on the full grid; a coarse cell is a site if one of its four fine cells is."""
    side = -(-int(coords.max() + 1) // 2**STEPS) * 2**STEPS
    mask = torch.zeros(1, 1, side, side, dtype=torch.float64)
    mask[0, 0, coords[:, 0], coords[:, 1]] = 1
    x, means = mask, []
    for layer, weight in enumerate(weights):
        size = 3 if layer else 5
        kernel = weight.unflatten(0, (size, size)).permute(3, 2, 0, 1)
        x = functional.conv2d(x, kernel, padding=size // 2, stride=2 if layer else 1)
        mask = functional.max_pool2d(mask, 2) if layer else mask
        x = torch.relu(x) * mask
        means.append(x.sum((2, 3)) / mask.sum())
    return torch.cat(means, dim=1)


@pytest.mark.parametrize("name", PATTERNS)
def test_network_equals_masked_dense_convolution(name: str) -> None:
    weights = drawn_weights(0)
    out = sparse_network(build_strided_map([PATTERNS[name]], steps=STEPS, dtype=torch.float64), weights)
    expected = dense_network(PATTERNS[name], weights)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=0)
    mine, theirs = (torch.autograd.grad((given**2).sum(), weights) for given in (out, expected))
    for one, other in zip(mine, theirs, strict=True):
        assert float((one - other).norm()) <= 1e-10 * float(other.norm())


def test_pairs_are_the_sites_under_the_kernels_of_the_halved_coordinates() -> None:
    coords = PATTERNS["scattered"]
    fine = {tuple(site): place for place, site in enumerate(coords.tolist())}
    coarse = np.unique(coords // 2, axis=0)
    expected = {(tap, target, fine[cell]) for target, (row, col) in enumerate(coarse.tolist()) for tap in range(9)
                if (cell := (2 * row + tap // 3 - 1, 2 * col + tap % 3 - 1)) in fine}
    sites = build_strided_map([coords], steps=1)
    (step,) = sites.steps
    taps = np.repeat(step.taps, step.counts).tolist()
    assert set(zip(taps, step.target.tolist(), step.source.tolist(), strict=True)) == expected
    assert sites.levels[1].pairs == len(expected)
    assert [level.sites for level in sites.levels] == [len(coords), len(coarse)]


def test_kernels_reach_back_but_not_forward() -> None:
    """Site 1 lies under the kernels of cells 0 and 1, site 2 only under that of cell 1."""
    (step,) = build_strided_map([np.array([(0, 1), (0, 2)])], steps=1).steps
    found = set(zip(step.source.tolist(), step.target.tolist(), strict=True))
    assert found == {(0, 0), (0, 1), (1, 1)}


def test_batch_equals_single_matrices() -> None:
    weights = drawn_weights(1)
    coords = [*PATTERNS.values(), np.array([(3, 3)]), np.zeros((0, 2))]
    batch = sparse_network(build_strided_map(coords, steps=STEPS, dtype=torch.float64), weights)
    single = [sparse_network(build_strided_map([one], steps=STEPS, dtype=torch.float64), weights) for one in coords]
    torch.testing.assert_close(batch, torch.cat(single), rtol=1e-10, atol=1e-14)
    assert batch[-1].eq(0).all()


@pytest.mark.parametrize("biased", [False, True])
def test_gradients_are_numerical_ones(biased: bool) -> None:
    coords = np.array([(0, 0), (0, 1), (1, 1), (2, 0), (3, 3), (3, 4), (4, 4)])
    sites = build_strided_map([coords], steps=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    shapes = ((7, 3), (9, 3, 4), (4,))
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
                       for shape in shapes)
    given = (x, weight, bias) if biased else (x, weight)
    assert torch.autograd.gradcheck(
        lambda x, weight, bias=None: BACKEND.strided_conv(x, weight, bias, sites, 0), given)


def test_matrix_without_sites_gives_zeros_and_no_gradient() -> None:
    weights = drawn_weights(3)
    out = sparse_network(build_strided_map([np.zeros((0, 2))], steps=STEPS, dtype=torch.float64), weights)
    assert out.shape == (1, (STEPS + 1) * CHANNELS)
    assert out.eq(0).all()
    assert all(gradient.eq(0).all() for gradient in torch.autograd.grad(out.sum(), weights))
