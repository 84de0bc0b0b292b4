"""The source models in the data store look at the matrix: another matrix's embedding makes them worse."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from sparloom.data import ensure_data, matrix_samples
from sparloom.models import CognateModel, swapped_accuracy
from sparloom.tasks.labels import labels_with_noise

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_source_model_looks_at_the_matrix(op: str) -> None:
    ensure_data(ROOT / "data")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=["experiment=pretrain_cpu", f"op={op}", f"paths.root={ROOT}"])
    task, platform = instantiate(config.task), instantiate(config.source)
    space = platform.space(task.op)
    name = task.checkpoints.source(platform, task.op, task.recipe.module.net)
    model = CognateModel.load(ROOT / "data" / "checkpoints" / f"{name}.pt", net=task.recipe.module.net, space=space)
    labels = labels_with_noise(task.samples.table("cpu", platform.preset, op), space.default().key)
    roles = task.samples.split()
    held = labels[[roles[name] == "validation" for name in labels["matrix"]]]
    accuracy = swapped_accuracy(model.net, matrix_samples(held, task.samples.inputs(), space))
    assert accuracy["opa"] > accuracy["opa_swapped"] + 0.02
