"""Two processes that train together end with the weights of one that gathers two batches per step."""

from functools import partial
from pathlib import Path

import pytest
import torch
from model_parts import module_of, ready_net, spade, tiny_samples

from sparloom.data.lightning import RankingData
from sparloom.models import fit, make_trainer

pytestmark = pytest.mark.slow

RECIPES = {
    "scheduled": {"warmup_steps": 2, "decay": "cosine", "clip": 0.1, "convolution_rate": 0.1},
    "frozen": {"freeze": "featurizer"},
}
TOGETHER = {"devices": 2, "strategy": "ddp_spawn"}
ALONE = {"devices": 1, "strategy": "auto", "accumulate_grad_batches": 2}


def trained(out: Path, changes: dict[str, object], **how: object) -> dict[str, torch.Tensor]:
    """Weights after 9 steps of 2 matrices."""
    samples = tiny_samples(matrices=6, configs=24)
    adam = partial(torch.optim.Adam, lr=1e-3)
    module = module_of(ready_net(spade()), optimizer=adam, **changes)
    trainer = make_trainer(accelerator="cpu", precision="32-true", epochs=3, validate_every=1, out=out, **how)
    fit(trainer, module, RankingData(samples, samples[:2], configs_per_step=None, matrices_per_step=1, seed=0))
    return module.net.state_dict()


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_processes_equal_one_with_two_accumulated_batches(tmp_path, recipe):
    begin = ready_net(spade()).state_dict()
    together = trained(tmp_path, RECIPES[recipe], **TOGETHER)
    alone = trained(tmp_path, RECIPES[recipe], **ALONE)
    assert any(not torch.equal(value, begin[name]) for name, value in alone.items())
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, msg=name)
