"""Two processes that train together end with the weights of one that gathers two batches per step."""

from functools import partial
from pathlib import Path

import pytest
import torch
from model_parts import module_of, ready_net, spade, tiny_samples
from torch import Tensor

from sparloom.data.lightning import RankingData
from sparloom.models import fit, make_trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes_loaded")]

RECIPES = {"slow": {"convolution_rate": 0.1}, "frozen": {"freeze": "featurizer"}}
TOGETHER = {"devices": 2, "strategy": "ddp_spawn"}
ALONE = {"devices": 1, "strategy": "auto", "accumulate_grad_batches": 2}


def trained(out: Path, changes: dict[str, object], **how: object) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and moments before and after 9 steps of 2 matrices."""
    samples = tiny_samples(matrices=6, configs=24)
    net = ready_net(spade(), norm="standard", gain=0.1)
    net.standardise([item.input for item in samples])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    module = module_of(net, optimizer=partial(torch.optim.Adam, lr=1e-3), **changes)
    trainer = make_trainer(accelerator="cpu", precision="32-true", epochs=3, validate_every=1, out=out, **how)
    fit(trainer, module, RankingData(samples, samples[:2], configs_per_step=None, matrices_per_step=1, seed=0))
    return before, net.state_dict()


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_processes_equal_one_with_two_accumulated_batches(tmp_path, recipe):
    _, together = trained(tmp_path, RECIPES[recipe], **TOGETHER)
    before, alone = trained(tmp_path, RECIPES[recipe], **ALONE)
    moved = {name for name, value in alone.items() if not torch.equal(value, before[name])}
    assert {"predictor.layers.0.weight", "featurizer.norm.mean", "featurizer.norm.variance"} <= moved
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, msg=name)
