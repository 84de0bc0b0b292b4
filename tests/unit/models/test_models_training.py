"""Training: learning, frozen parameters and logs."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from model_parts import module_of, ready_net, spade, tiny_samples

from sparloom.data import MatrixSamples
from sparloom.data.lightning import RankingData
from sparloom.models import RankingModule, fit, make_trainer


def run(module: RankingModule, out: Path, *, epochs: int, steps: int = 1, **more: object) -> dict[str, float]:
    samples = tiny_samples(matrices=8, configs=24)
    return run_on(samples[:6], samples[6:], module, out, epochs=epochs, steps=steps, **more)


def run_on(
    train: list[MatrixSamples], validation: list[MatrixSamples], module: RankingModule, out: Path, *, epochs: int,
    steps: int, devices: int = 1, strategy: str = "auto", **more: object,
) -> dict[str, float]:
    trainer = make_trainer(accelerator="cpu", devices=devices, strategy=strategy, precision="32-true", epochs=epochs,
                           validate_every=1, out=out, **more)
    fit(trainer, module, RankingData(train, validation, configs_per_step=None, matrices_per_step=steps, seed=0))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_training_learns_the_order(tmp_path: Path) -> None:
    net = ready_net(spade())
    before = run(module_of(net, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.0)), tmp_path, epochs=1)
    after = run(module_of(net, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3)), tmp_path, epochs=25)
    assert after["train/prl"] < 0.7 * before["train/prl"]
    assert after["train/opa"] > before["train/opa"] + 0.1
    assert set(after) == {f"{stage}/{name}" for stage in ("train", "validation")
                          for name in ("prl", "opa", "kendall_tau")}


@pytest.mark.parametrize(("freeze", "still"), [
    ("convolutions", ("featurizer.weights",)), ("featurizer", ("featurizer.", "side.")), ("none", ())])
def test_frozen_parameters_stay(tmp_path: Path, freeze: str, still: tuple[str, ...]) -> None:
    net = ready_net(spade())
    before = {name: value.clone() for name, value in net.named_parameters()}
    run(module_of(net, freeze=freeze), tmp_path, epochs=1)
    for name, value in net.named_parameters():
        assert torch.equal(value, before[name]) is name.startswith(still), name


def test_convolutions_learn_at_a_rate_of_their_own(tmp_path: Path) -> None:
    """Adam's first step is its rate times the sign of the gradient, so the moves say the rates."""
    def moves(rate: float) -> dict[str, torch.Tensor]:
        net = ready_net(spade())
        before = {name: value.detach().clone() for name, value in net.named_parameters()}
        module = module_of(net, convolution_rate=rate)
        run(module, tmp_path, epochs=1, steps=6)
        assert module.trainer.global_step == 1
        return {name: value.detach() - before[name] for name, value in net.named_parameters()}

    slow, even = moves(0.1), moves(1.0)
    for name, moved in even.items():
        if name.startswith("featurizer.weights"):
            assert moved.abs().max() > 5e-4, name
            torch.testing.assert_close(slow[name], 0.1 * moved, rtol=0, atol=1e-6, msg=name)
        else:
            assert torch.equal(slow[name], moved), name


def test_same_seed_gives_the_same_network(tmp_path: Path) -> None:
    first, second = ready_net(spade()), ready_net(spade())
    run(module_of(first), tmp_path, epochs=2)
    run(module_of(second), tmp_path, epochs=2)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.usefixtures("processes_loaded")
def test_processes_log_means_over_the_matrices_of_all(tmp_path: Path) -> None:
    """The second of two processes validates a matrix with equal times, which has no accuracy and no tau."""
    samples = tiny_samples(matrices=8, configs=24)
    validation = [samples[4], replace(samples[5], seconds=np.full_like(samples[5].seconds, 1e-3)), samples[6]]
    still = partial(torch.optim.Adam, lr=0.0)

    def logged(**more: object) -> dict[str, float]:
        return run_on(samples[:4], validation, module_of(ready_net(spade()), optimizer=still), tmp_path, epochs=1,
                      steps=1, **more)

    alone, together = logged(), logged(devices=2, strategy="ddp_spawn")
    assert set(alone) == set(together)
    assert together == pytest.approx(alone, rel=1e-5)
