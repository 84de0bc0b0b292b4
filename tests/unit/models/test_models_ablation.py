"""COGNATE without a component: ignored inputs and remaining behaviour."""


import pytest
import torch
from model_parts import CHANNELS, small_encoder, spade, tiny_samples
from torch import nn
from waco_parts import assert_seed_decides, small_featurizer

from sparloom.data.lightning import collate
from sparloom.models import (
    Cognate,
    ConfigurationMapper,
    InputFeaturizer,
    Predictor,
    SideFeatures,
    TorchBackend,
    cognate_variant,
    initialise,
)

PARTS = ("featurizer", "mapper", "encoder")


def parts() -> dict[str, nn.Module]:
    return {
        "featurizer": InputFeaturizer(channels=CHANNELS, pooling="last", cells="ones", bias=False, hidden=16, width=12,
                                      side_width=4, norm="none", gain=1.0, backend=TorchBackend()),
        "side": SideFeatures(scale="log1p", hidden=8, width=4), "mapper": ConfigurationMapper(width=8, depth=2),
        "predictor": Predictor(matrix_width=12, config_width=8, latent_width=8, hidden=(16, 8), fusion="concat"),
    }


def ablated(part: str, seed: int = 0) -> Cognate:
    made = parts()
    changes = {"instead": {"featurizer": small_featurizer()}} if part == "waco" else {"without": part}
    net = cognate_variant(**changes, **made)
    initialise(net, seed)
    net.use_encoder(small_encoder(spade()))
    return net


def scores(net: Cognate, *, inputs: slice = slice(0, 1), **changes: float) -> torch.Tensor:
    """Score 5 configurations; changes are added to the vectors."""
    batch = collate(tiny_samples(matrices=4, configs=5)[:1])
    given = tuple(item.input for item in tiny_samples(matrices=4, configs=5)[inputs])
    shared, codes = batch.shared + changes.get("shared", 0), batch.heterogeneous + changes.get("codes", 0)
    return net.score(net.embed(given).expand(5, -1), shared, codes)


@pytest.mark.parametrize("part", PARTS)
def test_omitted_parts_do_not_affect_scores(part: str) -> None:
    net = ablated(part)
    others = {
        "featurizer": scores(net, inputs=slice(1, 2)), "mapper": scores(net, shared=1.0),
        "encoder": scores(net, codes=1.0),
    }
    for name, changed in others.items():
        assert torch.equal(scores(net), changed) is (name == part), name


@pytest.mark.parametrize("part", [*PARTS, "waco"])
def test_gradient_reaches_every_parameter(part: str) -> None:
    net = ablated(part)
    (scores(net) ** 2).sum().backward()
    assert [name for name, value in net.named_parameters() if value.grad is None or not value.grad.any()] == []


@pytest.mark.parametrize("part", [*PARTS, "waco"])
def test_seed_decides_all_weights(part: str) -> None:
    assert_seed_decides(ablated(part))
