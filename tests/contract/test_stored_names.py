"""Stored runs and checkpoints are found by their stored names, even after classes were renamed."""

from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate

from sparloom.experiments.harness import samples_name

CONF = Path(__file__).parents[2] / "conf"
CHECKPOINTS = [  # overrides, name of the latent encoder of SPADE, name of the network pre-trained on the CPU, samples
    ("", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-d920f156", "real"),
    ("op=sddmm", "sddmm_autoencoder-1ac0b3ae", "sddmm_cognate-d920f156", "real"),
    ("encoder=pca", "spmm_principalcomponents-e0009f6a", "spmm_cognate-3611614c", "real"),
    ("encoder=variational", "spmm_variationalautoencoder-f550691f", "spmm_cognate-a9ed7f41", "real"),
    ("encoder=augmentation", "spmm_featureaugmentation-bfd90eb7", "spmm_cognate-0101a49a", "real"),
    ("encoder=mapping", "spmm_featuremapping-804242a4", "spmm_cognate-1839bc64", "real"),
    ("predictor=lstm", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-bd9ce0a6", "real"),
    ("predictor=gru", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-93b1f5e6", "real"),
    ("predictor=transformer", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-3e83b48a", "real"),
    ("model=cognate_waco_featurizer", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-fa9ade9a", "real"),
    ("model=cognate_without_encoder", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-c490f9f4", "real"),
    ("model=cognate_without_featurizer", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-295da860", "real"),
    ("model=cognate_without_mapper", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-6e01f922", "real"),
    ("selection@pretraining=random", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-6e1effa3", "real"),
    ("selection@pretraining=coverage", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-5b7d78f9", "real"),
    ("selection@pretraining=spread", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-006aa4c6", "real"),
    ("selection@pretraining=stratified", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-d7969ff4", "real"),
    ("selection@pretraining=uncertainty", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-a6a145ea", "real"),
    ("seed=1", "spmm_autoencoder-e8531db4", "spmm_cognate-757d1066", "real"),
    ("width=32", "spmm_32_autoencoder-1ac0b3ae", "spmm_32_cognate-d920f156", "real"),
    ("samples=tiny", "spmm_autoencoder-1ac0b3ae", "spmm_cognate-d920f156", "tiny"),
]


@pytest.mark.parametrize(("overrides", "latent", "source", "samples"), CHECKPOINTS)
def test_checkpoints_keep_their_names(overrides, latent, source, samples):
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", ["experiment=finetune_spade", "hparams=cognate_published", *overrides.split()])
    task = instantiate(config.task)
    net = task.recipe.module.net
    assert task.checkpoints.latent(task.target, task.op) == f"latent_spade_{latent}"
    assert task.checkpoints.source(task.source, task.op, net) == f"source_cpu_{source}"
    assert task.checkpoints.finetuned(task.target, task.op, net) == f"finetuned_spade_cognate32_{source}"
    assert samples_name(task.samples) == samples


def test_default_network_keeps_its_names():
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        task = instantiate(hydra.compose("config", ["experiment=finetune_spade"]).task)
    net = task.recipe.module.net
    assert task.checkpoints.latent(task.source, task.op) == "latent_cpu_many_spmm_autoencoder-1ac0b3ae"
    assert task.checkpoints.source(task.source, task.op, net) == (
        "source_cpu_many_workers_32_single_spmm_cognate-ff8d3794")
    assert task.checkpoints.finetuned(task.target, task.op, net) == "finetuned_spade_cognate32_spmm_cognate-ff8d3794"
