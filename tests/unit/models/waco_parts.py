"""A small WacoNet, and checks that apply to all networks."""

import copy

import numpy as np
import torch
from model_parts import tiny_samples

from sparloom.models import (
    FeatureAugmentation,
    FeatureMapping,
    FrozenEncoder,
    LatentEncoder,
    Network,
    Predictor,
    ProgramEmbedder,
    SideFeatures,
    TorchBackend,
    WacoFeaturizer,
    WacoNet,
    initialise,
)
from sparloom.space import ConfigSpace

CODES = {"cpu": 4, "spade": 3, "cuda": 1}
PADDINGS = {
    "augmentation": FeatureAugmentation(width=64, slots={"cpu": 0, "spade": 16, "cuda": 32}),
    "mapping": FeatureMapping(width=64, platforms=("cpu", "spade", "cuda")),
}


def small_featurizer(width: int = 12) -> WacoFeaturizer:
    return WacoFeaturizer(layers=6, channels=4, hidden=16, width=width, side_width=4, norm="none",
                          gain=1.0, backend=TorchBackend())


def small_waconet(padding: str, seed: int = 0) -> WacoNet:
    """WacoNet with few layers and channels, initialised, without an encoder."""
    net = WacoNet(
        featurizer=small_featurizer(), side=SideFeatures(scale="linear", hidden=8, width=4),
        embedder=ProgramEmbedder(padding=PADDINGS[padding], codes=CODES, extents=24, table_width=4, hidden=16,
                                 width=10),
        predictor=Predictor(matrix_width=12, config_width=10, latent_width=0, hidden=(16, 8), fusion="concat"),
    )
    initialise(net, seed)
    return net


def encoder_of(padding: LatentEncoder, space: ConfigSpace) -> FrozenEncoder:
    return padding.fit(space.heterogeneous_codes(), platform=space.name, seed=0)


def scores_of(net: Network, space: ConfigSpace, count: int = 20) -> torch.Tensor:
    """Score some configurations of a space on a small matrix."""
    item = tiny_samples(matrices=4, configs=3)[0].input
    bound = space.bind(item.shape)
    shared, codes = map(torch.from_numpy, bound.vectors(bound.sample(count, np.random.default_rng(0))))
    return net.score(net.embed([item]).expand(count, -1), shared, codes)


def assert_seed_decides(net: Network) -> None:
    """Check that weights depend on the seed alone, not on the global generator, and that another seed changes all."""
    first, second, third = (copy.deepcopy(net) for _ in range(3))
    initialise(first, 3)
    torch.manual_seed(1)
    initialise(second, 3)
    initialise(third, 4)
    others = dict(third.named_parameters())
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name
        normalisation = ".norm." in name or ".before." in name or ".between." in name
        assert torch.equal(one, others[name]) is normalisation, name
