"""Predictors that read the three vectors as a sequence, and vectors that are left out."""


import pytest
import torch
from torch import nn

from sparloom.models import Predictor, RecurrentPredictor, TransformerPredictor, initialise

WIDTHS = {"matrix_width": 12, "config_width": 8, "latent_width": 8}


def made(kind: str, **changes: int) -> nn.Module:
    widths = WIDTHS | changes
    if kind == "transformer":
        return TransformerPredictor(width=8, heads=2, hidden=16, layers=2, **widths)
    if kind == "mlp":
        return Predictor(hidden=(16, 8), fusion="concat", **widths)
    return RecurrentPredictor(cell=kind, width=8, layers=2, **widths)


def vectors(rows: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, width, generator=generator) for width in WIDTHS.values()]


KINDS = ("mlp", "lstm", "gru", "transformer")


@pytest.mark.parametrize("kind", KINDS)
def test_every_vector_and_parameter_counts(kind: str) -> None:
    predictor, given = made(kind), [vector.requires_grad_() for vector in vectors()]
    initialise(predictor, 0)
    scores = predictor(*given)
    assert scores.shape == (5,)
    (scores**2).sum().backward()
    assert all(vector.grad.abs().sum(1).all() for vector in given)
    assert all(value.grad is not None and value.grad.any() for value in predictor.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rows_get_equal_scores(kind: str) -> None:
    predictor = made(kind)
    initialise(predictor, 0)
    scores = predictor(*(vector[[0, 1, 0, 2]] for vector in vectors()))
    torch.testing.assert_close(scores[0], scores[2])
    assert abs(float((scores[0] - scores[1]).detach())) > 1e-4
    whole = predictor(*vectors())
    torch.testing.assert_close(scores, whole[[0, 1, 0, 2]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "name"), list(enumerate(WIDTHS)))
def test_vector_of_width_0_is_ignored(kind: str, place: int, name: str) -> None:
    predictor, given = made(kind, **{name: 0}), vectors()
    initialise(predictor, 0)
    changed = [vector + 1 if at == place else vector for at, vector in enumerate(given)]
    assert torch.equal(predictor(*given), predictor(*changed))
    empty = [vector[:, :0] if at == place else vector for at, vector in enumerate(given)]
    assert torch.equal(predictor(*given), predictor(*empty))
