"""Pooled features are standardised over matrices, so that networks depend on the matrix."""

from pathlib import Path

import torch
from model_parts import module_of, ready_net, spade, tiny_samples

from sparloom.data.lightning import RankingData
from sparloom.models import Standardise, fit, make_trainer, swapped_accuracy


def features(seed: int = 0) -> torch.Tensor:
    """Large, nearly parallel vectors, as global averages are."""
    noise = torch.rand(40, 6, generator=torch.Generator().manual_seed(seed))
    return 1e4 * (1 + 0.1 * noise)


def test_fitted_matrices_have_mean_0_and_deviation_of_the_gain() -> None:
    norm = Standardise(6, gain=0.1).eval()
    norm.fit(features().split(1))
    out = norm(features())
    assert torch.allclose(out.mean(0), torch.zeros(6), atol=1e-3)
    assert torch.allclose(out.std(0, unbiased=False), torch.full((6,), 0.1), atol=1e-3)


def test_moments_follow_in_training_only() -> None:
    norm = Standardise(6, gain=1.0)
    norm.fit([features()])
    fitted = norm.mean.clone()
    norm.eval()(features() * 2)
    assert torch.equal(norm.mean, fitted)
    norm.train()
    for _ in range(600):
        norm(features() * 2)
    assert torch.allclose(norm.mean, (features() * 2).log1p().mean(0), atol=0.01)
    norm.tracking = False
    followed = norm.mean.clone()
    norm(features())
    assert torch.equal(norm.mean, followed)


def test_network_depends_on_the_matrix(tmp_path: Path) -> None:
    samples = tiny_samples(matrices=14, configs=40)  # half the list away: another kind
    net = ready_net(spade(), norm="standard", gain=0.3)
    net.standardise([item.input for item in samples])
    trainer = make_trainer(accelerator="cpu", devices=1, strategy="auto", precision="32-true", epochs=25,
                           validate_every=25, out=tmp_path)
    fit(trainer, module_of(net), RankingData(samples, samples[:2], configs_per_step=None, matrices_per_step=1, seed=0))
    accuracy = swapped_accuracy(net, samples)
    assert accuracy["opa"] > accuracy["opa_swapped"] + 0.03
    assert net.training
