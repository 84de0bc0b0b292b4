"""Every network that conf/ can compose is built, initialised from a seed, applied to a matrix and described."""

import json
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate

from hydra_plugins.sparloom.options import read_tables
from sparloom.models import CognateModel, MatrixFeatures, initialise
from sparloom.space import CpuSpace, SpadeSpace
from sparloom.sparse import Pattern

CONF = Path(__file__).parents[2] / "conf"
PADDED = ("augmentation", "mapping")
NO_NETWORKS = ("ensemble", "estimate", "gaussian_process", "sparloom", "trees", "trees_walk")
TABLES = read_tables(CONF)
MODELS = [name for name in TABLES["model"] if name not in NO_NETWORKS]
CASES = [
    *([f"model={name}", f"encoder={encoder}"] for name in MODELS
      for encoder in (PADDED if name == "waconet" else ("pca",))),
    *([f"encoder={name}"] for name in TABLES["encoder"]),
    *([f"predictor={name}", "encoder=pca"] for name in TABLES["predictor"]),
]
PATTERN = Pattern.from_coo(np.arange(50) % 20, np.arange(50) * 7 % 30, (20, 30))


@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_network_is_built_and_scores_both_platforms(overrides: list[str], monkeypatch, tmp_path) -> None:
    for name in ("SPARLOOM_DATA", "SPARLOOM_ARTIFACTS", "SPARLOOM_OUTPUTS", "SPARLOOM_MIRROR"):
        monkeypatch.setenv(name, str(tmp_path))
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("config", ["experiment=finetune_spade", *overrides])
    if "epochs" in cfg.encoder:
        cfg.encoder.epochs = 1
    net, encoder = instantiate(cfg.model).net, instantiate(cfg.encoder)
    initialise(net, 0)
    assert json.loads(json.dumps(net.settings)) == net.settings
    for space in (CpuSpace("spmm"), SpadeSpace("spmm")):
        net.use_encoder(encoder.fit(space.heterogeneous_codes(), platform=space.name, seed=0))
        configs = space.sample(6, np.random.default_rng(0))
        scores = CognateModel(net, space).score(MatrixFeatures.from_pattern(PATTERN), [*configs, configs[0]])
        assert np.isfinite(scores).all()
        assert scores[0] == pytest.approx(scores[-1], rel=1e-5, abs=1e-6)  # a GEMM may sum its last rows otherwise
        assert np.ptp(scores) > 1e-4
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())
