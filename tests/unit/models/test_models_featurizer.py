"""The input featurizer, the side vector, and the inputs that they read."""

import copy
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
    WindowFeaturizer,
    cognate_variant,
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


def test_side_vector_is_standardised_over_the_given_matrices() -> None:
    side = SideFeatures(scale="log1p", hidden=4, width=2)
    items = [matrix_input(SITES, shape) for shape in ((10, 20), (1000, 20), (50, 20))]
    side.standardise(items)
    raw = np.log1p([(10, 20, 8), (1000, 20, 8), (50, 20, 8)])
    np.testing.assert_allclose(side.mean, raw.mean(0), rtol=1e-5)
    np.testing.assert_allclose(side.deviation, [raw[:, 0].std(), 1, 1], rtol=1e-5)  # constant ones stay as they are
    assert side(items).shape == (3, 2)


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
    with pytest.raises(MissingArtifact, match=r"no statistics of g/a, which .*: run .*experiment=prepare"):
        side([replace(items[0], statistics=None)])
    two = PatternStatistics(hidden=4, width=2, statistics=["nnz", "rows"])
    np.testing.assert_allclose(two.read(items), raw[:, [STATISTICS.index("nnz"), 0]], rtol=1e-6)
    with pytest.raises(ValueError, match="no statistic 'colour': there are rows, cols, nnz"):
        PatternStatistics(hidden=4, width=2, statistics=["colour"])


def window_featurizer(**changes: object) -> WindowFeaturizer:
    settings = {"channels": CHANNELS, "pooling": "multiscale", "cells": "counts", "bias": False, "hidden": 16,
                "width": 12, "side_width": 4, "norm": "none", "gain": 1.0, "backend": TorchBackend()} | changes
    made = WindowFeaturizer(**settings)
    initialise(made, 0)
    return made


def whole_input(made: Pattern, name: str = "g/a"):
    return MatrixFeatures.from_pattern(made, name).input


def test_windows_of_a_kind_are_averaged_and_those_of_others_apart():
    """Convolve each window alone with the plain featurizer, and average by hand."""
    made, single = window_featurizer(), InputFeaturizer(**window_featurizer().settings, backend=TorchBackend())
    single.weights = made.weights
    items = [whole_input(pattern(seed=seed, rows=rows)) for seed, rows in ((0, 60), (1, 700))]
    pooled = made.pool(items)
    for item, found in zip(items, pooled, strict=True):
        for number, kind in enumerate(("whole", "fullest", "rows", "tile")):
            alone = [single.pool([replace(item, coords=window.coords, counts=window.counts, digest=f"{kind} {place}")])
                     for place, window in enumerate(item.windows) if window.kind == kind]
            expected = torch.cat(alone).mean(0)
            torch.testing.assert_close(found[number * 24:(number + 1) * 24], expected, rtol=1e-5, atol=1e-6)


def test_windows_see_what_a_coarse_grid_averages_out():
    """Rows of 1 and of 15 nonzeros in turn, and rows of 8: the same counts on a grid of 2 x 2 cells."""
    lengths = {"uneven": np.tile([1, 15], 4000), "even": np.full(8000, 8)}
    patterns = {}
    for name, rows in lengths.items():
        cols = np.concatenate([np.arange(length) for length in rows]) * 500
        patterns[name] = Pattern.from_coo(np.repeat(np.arange(8000), rows), cols, (8000, 8000))
    pooled = {name: window_featurizer().pool([whole_input(made)])[0] for name, made in patterns.items()}
    whole, fullest, rows, _ = ((pooled["uneven"] - pooled["even"]).abs() / pooled["even"].abs().max()).split(24)
    assert min(fullest.max(), rows.max()) > 2 * whole.max()


@pytest.mark.parametrize(("name", "made"), [
    ("side", lambda: PatternStatistics(hidden=8, width=4)),
    ("featurizer", lambda: window_featurizer(norm="standard", gain=0.5))])
def test_networks_with_other_parts_score_patterns_and_are_restored(tmp_path: Path, name, made):
    parts = {part: getattr(ready_net(spade()), part) for part in ("featurizer", "side", "mapper", "predictor")}
    net = cognate_variant(instead={name: made()}, **parts)
    initialise(net, 0)
    net.use_encoder(ready_net(spade()).encoder)
    net.standardise([with_statistics(pattern(seed=seed)) for seed in range(4)])
    model, configs, matrix = CognateModel(net, spade()), list(spade())[:9], pattern(seed=9)
    expected = model.score(matrix, configs)
    assert not np.allclose(expected, model.score(pattern(seed=10), configs))
    stored = MatrixFeatures.from_stored(with_statistics(matrix))
    np.testing.assert_allclose(model.score(stored, configs), expected, rtol=1e-5)
    model.save(tmp_path / "net.pt", notes={}, precision="float32")
    again = restore_cognate(load_checkpoint(tmp_path / "net.pt", kind="cognate"), tmp_path / "net.pt")
    np.testing.assert_allclose(CognateModel(again, spade()).score(matrix, configs), expected, rtol=1e-5)


def test_frozen_convolutions_run_once_per_matrix_and_again_when_their_weights_change():
    made = window_featurizer()
    made.requires_grad_(False)
    items, runs = [whole_input(pattern(seed=seed)) for seed in range(2)], []
    twin, pool = copy.deepcopy(made), made.pool
    made.pool = lambda inputs: runs.append(len(inputs)) or pool(inputs)
    first = made.averages_of(items)
    assert torch.equal(made.averages_of(items), first)
    assert runs == [2]
    with torch.no_grad():
        twin.weights[0] += 1
    assert not torch.equal(twin.averages_of(items), first)
    assert torch.equal(made.averages_of(items), first)
    made.weights[3].requires_grad_(True)
    assert made.averages_of(items).requires_grad
    with torch.no_grad():
        made.weights[3] *= 2
        assert not torch.equal(made.averages_of(items), first)


def test_averages_follow_weights_that_are_loaded_replaced_or_trained():
    made = window_featurizer()
    made.requires_grad_(False)
    items, state = [whole_input(pattern(seed=0))], copy.deepcopy(made.state_dict())
    first = made.averages_of(items)
    made.load_state_dict({name: value + 0.1 for name, value in state.items()})
    loaded = made.averages_of(items)
    assert not torch.equal(loaded, first)
    made.weights[0] = torch.nn.Parameter(state["weights.0"], requires_grad=False)
    replaced = made.averages_of(items)
    assert not torch.equal(replaced, loaded)
    made.weights[1].requires_grad_(True)
    optimizer = torch.optim.SGD([made.weights[1]], lr=0.1)
    made.averages_of(items).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(made.averages_of(items), replaced)
        assert not torch.equal(copy.deepcopy(made).averages_of(items), replaced)
