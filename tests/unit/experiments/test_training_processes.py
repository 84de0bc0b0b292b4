"""Training by two processes gives the same result as one process that accumulates two batches per step."""

import pandas as pd
import pytest
import torch
from small import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes_loaded")]

SHORT = (*(text for text in SMALL if text != "trainer=smoke"), "trainer.epochs=3", "trainer.validate_every=1")
TRAINERS = {
    "together": ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"),
    "alone": ("trainer=cpu", "+trainer.accumulate_grad_batches=2"),
}


@pytest.mark.exhaustive
def test_pretraining_by_two_processes_equals_two_accumulated_batches(build, tmp_path):
    """Metrics, curves and the network of the best epoch are equal."""
    metrics, curves, networks = {}, {}, {}
    for name, trainer in TRAINERS.items():
        folder = tmp_path / name
        folder.mkdir()
        build("autoencode_cpu", *SHORT, "platform@target=cpu_many_single", folder=folder).run(folder)
        metrics[name] = build("pretrain_cpu", *SHORT, *trainer, folder=folder).run(folder)
        curves[name] = pd.read_csv(folder / "curves.csv")
        path, = folder.glob("artifacts/checkpoints/tiny/source_*.pt")
        networks[name] = torch.load(path, weights_only=True)["weights"]
    assert list(curves["alone"]["epoch"]) == [1, 2, 3]
    pd.testing.assert_frame_equal(curves["together"], curves["alone"])
    for tables in metrics.values():
        tables.pop("seconds")
    assert metrics["together"] == pytest.approx(metrics["alone"])
    for key, value in networks["alone"].items():
        torch.testing.assert_close(networks["together"][key], value, msg=key)
