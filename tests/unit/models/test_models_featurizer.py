"""The input featurizer, the side vector, and the inputs that they read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from model_parts import CHANNELS, matrix_input, ready_net, small_net, spade

from sparloom.errors import MissingArtifact
from sparloom.models import (
    CognateModel,
    InputFeaturizer,
    MatrixFeatures,
    PatternStatistics,
    SideFeatures,
    TorchBackend,
    cognate_with_side,
    initialise,
    restore_cognate,
)
from sparloom.models.cognate.checkpoint import load_checkpoint
from sparloom.sparse import STATISTICS, Pattern, statistics

SITES = np.array([(0, 0), (0, 1), (1, 1), (2, 0), (3, 3), (3, 4), (4, 4), (9, 9)])


def test_table_5_has_the_papers_weights() -> None:
    """12 layers, 32 to 256 channels: 2.54 million weights without biases, and the head 256 + 32 -> 256 -> 128."""
    channels = (32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256)
    net = InputFeaturizer(channels=channels, pooling="last", cells="ones", bias=False, hidden=256, width=128,
                          side_width=32, norm="none", gain=1.0, backend=TorchBackend())
    pairs = zip((1, *channels), channels, strict=False)
    expected = sum((9 if place else 25) * a * b for place, (a, b) in enumerate(pairs))
    assert sum(weight.numel() for weight in net.convolutions()) == expected == 2_535_200
    assert [tuple(layer.weight.shape) for layer in net.head if hasattr(layer, "weight")] == [(256, 288), (128, 256)]


def test_readings_change_the_width_of_the_head() -> None:
    assert small_net().featurizer.head[0].in_features == 8 + 4
    assert small_net(pooling="multiscale").featurizer.head[0].in_features == 4 + 6 + 6 + 8 + 4


@pytest.mark.parametrize("pooling", ["last", "multiscale"])
def test_batch_equals_single_matrices(pooling: str) -> None:
    net = small_net(pooling=pooling)
    items = [matrix_input(SITES), matrix_input(SITES[:3], (40, 8)), matrix_input(np.zeros((0, 2)), (5, 5))]
    together = net.embed(items)
    single = torch.cat([net.embed([item]) for item in items])
    torch.testing.assert_close(together, single, rtol=1e-5, atol=1e-6)
    assert together.shape == (3, 12)


def test_counts_matter_only_when_they_are_read() -> None:
    many = matrix_input(SITES, counts=np.array([9, 1, 1, 4, 1, 1, 1, 30], np.int32))
    few = matrix_input(SITES)
    for cells, equal in (("ones", True), ("counts", False)):
        pooled = [small_net(cells=cells).featurizer.pool([item]) for item in (many, few)]
        assert torch.allclose(*pooled) is equal


def test_same_seed_gives_the_same_weights() -> None:
    first, second, third = small_net(3), small_net(3), small_net(4)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.featurizer.weights[0], third.featurizer.weights[0])
    before = torch.get_rng_state()
    initialise(first, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_readings_are_refused() -> None:
    with pytest.raises(ValueError, match="pooling='max' is not one of last, multiscale"):
        small_net(pooling="max")
    with pytest.raises(ValueError, match="cells='sum' is not one of ones, counts"):
        small_net(cells="sum")
    with pytest.raises(ValueError, match="11 layers do not make blocks of 3: give a multiple of 3"):
        small_net(channels=CHANNELS[:11])


def test_side_vector_is_standardised_over_the_given_matrices() -> None:
    side = SideFeatures(scale="log1p", hidden=4, width=2)
    items = [matrix_input(SITES, shape) for shape in ((10, 20), (1000, 20), (50, 20))]
    side.standardise(items)
    raw = np.log1p([(10, 20, 8), (1000, 20, 8), (50, 20, 8)])
    np.testing.assert_allclose(side.mean, raw.mean(0), rtol=1e-5)
    np.testing.assert_allclose(side.deviation, [raw[:, 0].std(), 1, 1], rtol=1e-5)  # constant ones stay as they are
    assert side(items).shape == (3, 2)


def test_side_vector_of_width_0_is_empty() -> None:
    assert SideFeatures(scale="linear", hidden=4, width=0)([matrix_input(SITES)]).shape == (1, 0)
    with pytest.raises(ValueError, match="scale='log' is not one of log1p, linear"):
        SideFeatures(scale="log", hidden=4, width=2)


def pattern(*, seed: int, rows: int = 60) -> Pattern:
    return Pattern.from_coo(*np.nonzero(np.random.default_rng(seed).random((rows, 50)) < 0.1), (rows, 50))


def with_statistics(made: Pattern, name: str = "g/a"):
    item = MatrixFeatures.from_pattern(made, name).input
    return replace(item, statistics=np.array([statistics(made)[each] for each in STATISTICS]))


def test_statistics_of_patterns_are_standardised_logarithms():
    side = PatternStatistics(hidden=4, width=2)
    items = [with_statistics(pattern(seed=seed)) for seed in range(3)]
    side.standardise(items)
    raw = np.array([np.sign(item.statistics) * np.log1p(np.abs(item.statistics)) for item in items])
    np.testing.assert_allclose(side.mean, raw.mean(0), rtol=1e-5, atol=1e-6)
    assert side(items).shape == (3, 2)
    assert not torch.allclose(*side(items[:2]))
    with pytest.raises(MissingArtifact, match="no statistics of g/a, which this network reads: run experiment=prepare"):
        side([replace(items[0], statistics=None)])
    two = PatternStatistics(hidden=4, width=2, statistics=["nnz", "rows"])
    np.testing.assert_allclose(two.read(items), raw[:, [STATISTICS.index("nnz"), 0]], rtol=1e-6)
    with pytest.raises(ValueError, match="no statistic 'colour': there are rows, cols, nnz"):
        PatternStatistics(hidden=4, width=2, statistics=["colour"])


def test_networks_with_statistics_score_patterns_and_are_restored(tmp_path: Path):
    parts = {name: getattr(ready_net(spade()), name) for name in ("featurizer", "side", "mapper", "predictor")}
    net = cognate_with_side(PatternStatistics(hidden=8, width=4), **parts)
    initialise(net, 0)
    net.use_encoder(ready_net(spade()).encoder)
    net.standardise([with_statistics(pattern(seed=seed)) for seed in range(4)])
    model, configs, made = CognateModel(net, spade()), list(spade())[:9], pattern(seed=9)
    expected = model.score(made, configs)
    assert not np.allclose(expected, model.score(pattern(seed=10), configs))
    stored = MatrixFeatures.from_stored(with_statistics(made))
    np.testing.assert_allclose(model.score(stored, configs), expected, rtol=1e-5)
    model.save(tmp_path / "net.pt", notes={}, precision="float32")
    again = restore_cognate(load_checkpoint(tmp_path / "net.pt", kind="cognate"), tmp_path / "net.pt")
    np.testing.assert_allclose(CognateModel(again, spade()).score(made, configs), expected, rtol=1e-5)
