"""A small WacoNet, and checks that apply to all networks."""

import copy
from pathlib import Path

import numpy as np
import torch
from model_parts import tiny_samples

from sparloom.data import MatrixSamples
from sparloom.data.lightning import collate
from sparloom.models import (
    CognateModel,
    FeatureAugmentation,
    FeatureMapping,
    FrozenEncoder,
    LatentEncoder,
    MatrixFeatures,
    Network,
    Predictor,
    ProgramEmbedder,
    SideFeatures,
    TorchBackend,
    WacoFeaturizer,
    WacoNet,
    initialise,
    order_signs,
    ranking_loss,
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


def losses(net: Network, items: list[MatrixSamples], *, steps: int, lr: float) -> list[float]:
    """Ranking loss before each step of Adam on one matrix after the other."""
    optimizer, found = torch.optim.Adam(net.parameters(), lr=lr), []
    for _ in range(steps):
        total = 0.0
        for item in items:
            batch = collate([item])
            loss = ranking_loss(net(batch), order_signs(batch.seconds, batch.spread), margin=1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        found.append(total / len(items))
    return found


def assert_same_after_file(net: Network, fresh: Network, space: ConfigSpace, path: Path) -> None:
    """Save a network with its encoder, load it into an equal network, and compare all scores."""
    view = MatrixFeatures.from_stored(tiny_samples(matrices=4, configs=3)[0].input)
    model = CognateModel(net, space, anchors={"a": np.ones(3, np.float32), "b": np.zeros(3, np.float32)})
    model.save(path, notes={}, precision="float32")
    loaded = CognateModel.load(path, net=fresh, space=space)
    configs = list(space.sample(30, np.random.default_rng(0)))
    np.testing.assert_array_equal(loaded.score(view, configs), model.score(view, configs))


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
