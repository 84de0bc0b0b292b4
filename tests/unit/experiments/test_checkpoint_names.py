"""Checkpoints of networks with different options have different names."""

import sys
from types import ModuleType

import pytest

from sparloom.models import MinkowskiBackend


@pytest.fixture(scope="module")
def named(build, tmp_path_factory):
    """Return the name of the source network that a run with these overrides loads."""
    def name(*overrides: str) -> str:
        task = build("finetune_tiny", *overrides, folder=tmp_path_factory.mktemp("names"))
        return task.checkpoints.source(task.source, task.op, task.recipe.module.net)

    return name


@pytest.mark.parametrize("override", [
    "encoder=pca", "encoder.width=32", "predictor=lstm", "model=cognate_without_mapper", "pretraining.matrices=20",
    "selection@pretraining=random", "seed=1", "model.net.featurizer.norm=none", "op=sddmm",
])
def test_options_that_change_the_network_are_in_the_name(named, override):
    more = ["predictor.latent_width=32"] if override == "encoder.width=32" else []
    assert named(override, *more) != named()


@pytest.mark.parametrize("override", [
    "model.optimizer.lr=0.5", "selection.matrices=4", "task.seeds=[7]", "trees.bags=3",
])
def test_options_of_fine_tuning_are_not_in_the_name(named, override):
    assert named(override) == named()


def test_backend_of_convolutions_is_not_in_the_name(named, build, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "MinkowskiEngine", ModuleType("MinkowskiEngine"))
    for model in ("cognate", "cognate_waco_featurizer"):
        task = build("finetune_tiny", f"model={model}", "backend=minkowski", folder=tmp_path)
        assert isinstance(task.recipe.module.net.featurizer.backend, MinkowskiBackend)
        assert named(f"model={model}", "backend=minkowski") == named(f"model={model}")


def test_names_of_different_encoders_differ(build, tmp_path):
    tasks = [build("autoencode_spade", f"encoder={name}", folder=tmp_path) for name in ("autoencoder", "variational")]
    first, second = (task.checkpoints.latent(task.platform, task.op) for task in tasks)
    assert first.startswith("latent_spade_spmm_autoencoder-")
    assert second.startswith("latent_spade_spmm_variationalautoencoder-")
