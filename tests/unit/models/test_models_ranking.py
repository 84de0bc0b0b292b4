"""The ranking loss and qualities against loops over pairs and against sparloom.measure."""

import itertools

import numpy as np
import pytest
import torch

from sparloom.measure import kendall_tau, ordered_pair_accuracy
from sparloom.models import order_signs, ranking_loss, ranking_quality

SECONDS = torch.tensor([1.0, 1.02, 3.0, 2.0, 2.0, 0.5])
SPREAD = torch.tensor([0.05, 0.01, 0.01, 0.01, 0.01, 0.3])
SCORES = torch.tensor([0.3, -0.2, 1.7, 0.1, 0.9, 0.0])


def brute(margin: float) -> tuple[float, int]:
    losses = []
    for a, b in itertools.combinations(range(6), 2):
        gap = float(SECONDS[a] - SECONDS[b])
        if abs(gap) > float(max(SPREAD[a], SPREAD[b]) * min(SECONDS[a], SECONDS[b])):
            losses.append(max(0.0, margin - np.sign(gap) * float(SCORES[a] - SCORES[b])))
    return float(np.mean(losses)), len(losses)


@pytest.mark.parametrize("margin", [1.0, 0.25])
def test_loss_is_the_mean_over_ordered_pairs(margin: float) -> None:
    signs = order_signs(SECONDS, SPREAD)
    expected, pairs = brute(margin)
    assert float(ranking_loss(SCORES, signs, margin=margin)) == pytest.approx(expected, rel=1e-6)
    assert pairs == int(signs.abs().sum()) // 2 == 13


def test_loss_equals_pytorchs_margin_loss_without_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    seconds, scores = torch.rand(20, generator=generator), torch.randn(20, generator=generator)
    first, second = torch.triu_indices(20, 20, offset=1)
    expected = torch.nn.functional.margin_ranking_loss(
        scores[first], scores[second], (seconds[first] - seconds[second]).sign(), margin=1.0)
    signs = order_signs(seconds, torch.zeros(20))
    torch.testing.assert_close(ranking_loss(scores, signs, margin=1.0), expected)


def test_pairs_within_the_spread_have_no_gradient() -> None:
    scores = torch.tensor([0.0, 0.0], requires_grad=True)
    loss = ranking_loss(scores, order_signs(torch.tensor([1.0, 1.01]), torch.tensor([0.0, 0.05])), margin=1.0)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad.tolist() == [0, 0]


def test_gradient_pushes_the_faster_one_down() -> None:
    scores = torch.tensor([0.0, 0.0], requires_grad=True)
    ranking_loss(scores, order_signs(torch.tensor([1.0, 2.0]), torch.zeros(2)), margin=1.0).backward()
    assert scores.grad.tolist() == [1.0, -1.0]


def test_qualities_equal_those_of_measure() -> None:
    generator = torch.Generator().manual_seed(1)
    seconds = torch.rand(30, generator=generator).round(decimals=1) + 0.1
    scores = torch.randn(30, generator=generator).round(decimals=1)
    quality = ranking_quality(scores, seconds, order_signs(seconds, torch.zeros(30)))
    assert quality["opa"] == pytest.approx(ordered_pair_accuracy(scores.numpy(), seconds.numpy()), rel=1e-5)
    assert quality["kendall_tau"] == pytest.approx(kendall_tau(scores.numpy(), seconds.numpy()), rel=1e-5)
