"""Names that are part of stored files and digests, frozen: renaming code must not change them."""

import hashlib
import json
from dataclasses import asdict, fields

import numpy as np
import pytest

from sparloom.data import Conditions, MatrixInput, MatrixInputs, Sample, SampleTable
from sparloom.models import (
    Cognate,
    ConfigurationMapper,
    FeatureAugmentation,
    InputFeaturizer,
    Predictor,
    ProgramEmbedder,
    RecurrentPredictor,
    SideFeatures,
    TorchBackend,
    TransformerPredictor,
    WacoFeaturizer,
    WacoNet,
)
from sparloom.models.performance import GEMM_FEATURES, SDDMM_FEATURES, SPMM_FEATURES, Origin, Target

WIDTHS = {"matrix_width": 4, "config_width": 4, "latent_width": 4}
HEAD = {"hidden": 4, "width": 4, "side_width": 2, "norm": "standard", "gain": 0.5}


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def cognate(predictor: object) -> Cognate:
    featurizer = InputFeaturizer(channels=[2, 2, 2], pooling="last", cells="ones", bias=False, backend=TorchBackend(),
                                 **HEAD)
    return Cognate(featurizer=featurizer, side=SideFeatures(scale="log1p", hidden=4, width=2),
                   mapper=ConfigurationMapper(width=4, depth=2), predictor=predictor)


def waconet() -> WacoNet:
    embedder = ProgramEmbedder(padding=FeatureAugmentation(width=4, slots={"cpu": 0, "spade": 2}), extents=3,
                               codes={"cpu": 2, "spade": 2}, table_width=2, hidden=4, width=4)
    return WacoNet(featurizer=WacoFeaturizer(layers=2, channels=2, backend=TorchBackend(), **HEAD), embedder=embedder,
                   side=SideFeatures(scale="linear", hidden=4, width=2),
                   predictor=Predictor(hidden=[4], fusion="concat", **{**WIDTHS, "latent_width": 0}))


@pytest.mark.parametrize(("net", "settings", "weights"), [
    (lambda: cognate(Predictor(hidden=[4], fusion="concat", **WIDTHS)), "2fd7f2b3f7f33a18", "5201010390a64619"),
    (lambda: cognate(RecurrentPredictor(cell="gru", width=4, layers=1, **WIDTHS)),
     "933fafa50cb40864", "8228984ceee49b6e"),
    (lambda: cognate(TransformerPredictor(width=4, heads=2, hidden=4, layers=1, **WIDTHS)),
     "31360bb8ab13cdf2", "c10fe14fa0c1a983"),
    (waconet, "c466b1021c530ead", "0cf4cd884589277e"),
])
def test_networks_have_the_stored_settings_and_weights(net, settings, weights):
    """Checkpoints are named by a digest of the settings and refuse networks with other settings."""
    made = net()
    assert digest(made.settings) == settings
    assert digest(list(made.state_dict())) == weights


@pytest.mark.parametrize(("spec", "stored"), [
    (GEMM_FEATURES, "bb396af53081a27e"), (SPMM_FEATURES, "c3b2e4096baaa9f8"), (SDDMM_FEATURES, "778577e9f57af759")])
def test_performance_models_have_the_stored_features(spec, stored):
    assert digest(spec.record()) == stored


def test_performance_models_have_the_stored_header():
    assert asdict(Target("latency", "log")) == {"quantity": "latency", "scale": "log"}
    assert [field.name for field in fields(Origin)] == ["platform", "preset", "space", "machine"]


def test_sample_tables_and_inputs_have_the_stored_columns(tmp_path):
    assert [*SampleTable.of([]).frame().columns, "conditions"] == [field.name for field in fields(Sample)]
    assert digest([field.name for field in fields(Sample)]) == "88b9c8660cabd41c"
    item = MatrixInput("g/a", np.zeros((1, 2), np.int32), np.ones(1, np.int32), (1, 1), 1, 1, "d")
    MatrixInputs.of([item]).write(tmp_path / "inputs.npz")
    with np.load(tmp_path / "inputs.npz") as stored:
        assert digest(sorted(stored.files)) == "9b54d0a091cfd5d9"


def test_conditions_have_the_stored_digest():
    settings = {"machine": Target("latency", "log"), "rounds": 2.0, "kinds": {"b", "a"}}
    assert Conditions(settings).digest == "70712e4f5afcadbb"
