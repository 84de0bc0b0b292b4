"""Both backends give the same outputs and gradients, and networks and checkpoints of one serve the other.

Comparisons need MinkowskiEngine, which docs/howto/minkowski.md builds; they are skipped where it is missing.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from golden.minkowski.cases import PATTERNS
from model_parts import matrix_input, ready_net, spade
from torch import Tensor

from sparloom.models import (
    CognateModel,
    InputFeaturizer,
    MatrixFeatures,
    MinkowskiBackend,
    TorchBackend,
    WacoFeaturizer,
)
from sparloom.models.cognate.featurizer import Featurizer
from sparloom.models.sparseconv.backends import BUILD_MINKOWSKI
from sparloom.sparse import Pattern

TOLERANCE = 1e-5  # relative, of float32 sums in another order
CHANNELS = (8, 8, 16, 16, 16, 24, 24, 24, 32, 32, 32, 32)
TORCH = TorchBackend()
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "minkowski.md"
BATCHES = {name: [coords] for name, coords in PATTERNS.items()} | {
    "together": [*PATTERNS.values(), np.array([(3, 3)])]}


@pytest.fixture(scope="module")
def engine() -> MinkowskiBackend:
    try:
        return MinkowskiBackend()
    except ImportError:
        pytest.skip("MinkowskiEngine is not installed: docs/howto/minkowski.md")


@pytest.fixture(params=BATCHES)
def coords(request: pytest.FixtureRequest) -> list[np.ndarray]:
    return BATCHES[request.param]


def assert_near(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().norm()) <= TOLERANCE * float(expected.detach().norm())


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def featurizers(kind: str, backend: object) -> Featurizer:
    shared = {"hidden": 16, "width": 12, "side_width": 4, "norm": "none", "gain": 1.0, "backend": backend}
    if kind == "waco":
        return WacoFeaturizer(layers=9, channels=16, **shared)
    cells = "counts" if kind == "multiscale" else "ones"
    return InputFeaturizer(channels=CHANNELS, pooling=kind, cells=cells, bias=True, **shared)


@pytest.mark.parametrize("kind", ["last", "multiscale", "waco"])
def test_featurizers_are_equal(engine, coords, kind) -> None:
    """Several patterns have ties in pooling: the winner differs, weights get the same gradients."""
    items = [matrix_input(each, (200, 200), counts=np.arange(len(each)) % 5 + 1) for each in coords]
    first, second = featurizers(kind, TORCH), featurizers(kind, engine)
    first.reset(torch.Generator().manual_seed(0))
    second.load_state_dict(first.state_dict())
    expected, actual = first.pool(items), second.pool(items)
    assert_near(actual, expected)
    cotangent = drawn(*expected.shape, seed=1)
    pairs = zip(*(torch.autograd.grad(out, net.convolutions(), cotangent)
                  for net, out in ((second, actual), (first, expected))), strict=True)
    for one, other in pairs:
        assert_near(one, other)


def test_averages_over_thousands_of_sites_are_equal(engine) -> None:
    coords = np.column_stack([np.arange(20_000) * 3, np.arange(20_000) * 5])
    maps = [backend.build_map([coords], channels=(8,)) for backend in (TORCH, engine)]
    x = torch.full((len(coords), 3), 0.1)
    expected, actual = (backend.global_mean(x, sites, 0) for backend, sites in zip((TORCH, engine), maps, strict=True))
    assert_near(actual, expected)
    assert_near(actual, x[:1])


def test_checkpoint_of_one_backend_serves_the_other(engine, tmp_path) -> None:
    matrix = MatrixFeatures.from_pattern(Pattern.from_coo(np.arange(50) % 20, np.arange(50) * 7 % 30, (20, 30)))
    configs = spade().sample(20, np.random.default_rng(0))
    made = CognateModel(ready_net(spade(), 1, backend=engine), spade())
    made.save(tmp_path / "net.pt", notes={}, precision="float32")
    loaded = CognateModel.load(tmp_path / "net.pt", net=ready_net(spade(), 2), space=spade())
    np.testing.assert_allclose(loaded.score(matrix, configs), made.score(matrix, configs), rtol=TOLERANCE, atol=1e-6)


def test_missing_engine_is_reported_with_the_command_that_builds_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "MinkowskiEngine", None)
    with pytest.raises(ImportError, match=r"build it by .* \(docs/howto/minkowski\.md\)") as raised:
        MinkowskiBackend()
    assert BUILD_MINKOWSKI in str(raised.value)
    assert BUILD_MINKOWSKI in PAGE.read_text(encoding="utf-8")
