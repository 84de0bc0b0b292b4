"""Checkpoints: round trips before and after training, refusals and their messages."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from model_parts import matrix_input, module_of, ready_net, small_encoder, small_net, spade, tiny_samples

from sparloom.data.lightning import RankingData
from sparloom.errors import SchemaError
from sparloom.models import (
    Checkpoint,
    CognateModel,
    MatrixFeatures,
    Network,
    SideFeatures,
    fit,
    initialise,
    load_checkpoint,
    make_trainer,
    save_checkpoint,
)
from sparloom.space import SpadeSpace


def plain(**changes: object) -> Checkpoint:
    values = {"kind": "cognate", "op": "spmm", "platform": "spade", "space": "abc", "settings": {"a": [1]},
              "weights": {"w": torch.tensor([1.0, 2.5]), "n": torch.tensor(3)}, "notes": {"seed": 1}}
    return Checkpoint(**(values | changes))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_checkpoint_comes_back(tmp_path: Path, precision: str) -> None:
    save_checkpoint(tmp_path / "c.pt", plain(), precision=precision)
    stored = load_checkpoint(tmp_path / "c.pt", kind="cognate", op="spmm", platform="spade", space="abc")
    assert torch.equal(stored.weights["w"], torch.tensor([1.0, 2.5]))
    assert stored.weights["n"] == 3
    assert (stored.settings, stored.notes) == ({"a": [1]}, {"seed": 1})


@pytest.mark.parametrize(("expected", "text"), [
    ({"op": "sddmm"}, "was made for op 'spmm', not 'sddmm': choose the checkpoint of that op, or train one"),
    ({"platform": "cuda"}, "was made for platform 'spade', not 'cuda'"),
    ({"kind": "encoder"}, "was made for kind 'cognate', not 'encoder'"),
    ({"space": "def"}, "was made for space 'abc', not 'def': the configuration space has changed, train it again"),
])
def test_checkpoint_of_something_else_is_refused(tmp_path: Path, expected: dict[str, str], text: str) -> None:
    save_checkpoint(tmp_path / "c.pt", plain())
    with pytest.raises(SchemaError, match=text):
        load_checkpoint(tmp_path / "c.pt", **expected)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", pickle.dumps({"header": 1}), b"hello"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(SchemaError, match=r"c\.pt is not a checkpoint of sparloom .*: train it again"):
        load_checkpoint(tmp_path / "c.pt")


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path(self.marker),)


def test_loading_runs_no_code(tmp_path: Path) -> None:
    Harmful.marker = str(tmp_path / "touched")
    torch.save({"header": "{}", "weights": {"w": Harmful()}}, tmp_path / "c.pt")
    with pytest.raises(SchemaError, match="is not a checkpoint of sparloom"):
        load_checkpoint(tmp_path / "c.pt")
    assert not (tmp_path / "touched").exists()


def test_diverged_weights_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weight w is not finite in float16: training diverged, or use float32"):
        save_checkpoint(tmp_path / "c.pt", plain(weights={"w": torch.tensor([1e9])}), precision="float16")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("trained", [False, True])
def test_a_loaded_model_gives_the_same_scores(tmp_path: Path, trained: bool) -> None:
    space, samples = spade(), tiny_samples(matrices=6, configs=12)
    net = ready_net(space)
    if trained:
        trainer = make_trainer(accelerator="cpu", devices=1, strategy="auto", precision="32-true", epochs=2,
                               validate_every=1, out=tmp_path)
        data = RankingData(samples[:4], samples[4:], configs_per_step=None, matrices_per_step=1, seed=0)
        fit(trainer, module_of(net), data)
    views = {item.input.name: MatrixFeatures.from_stored(item.input) for item in samples}
    model = CognateModel(net, space)
    model.anchors = {name: model.embedding(view) for name, view in views.items()}
    model.save(tmp_path / "m.pt", notes={"seed": 0}, precision="float32")
    loaded = CognateModel.load(tmp_path / "m.pt", net=small_net(seed=9), space=space)
    view, configs = views[samples[0].input.name], list(space)
    np.testing.assert_array_equal(loaded.score(view, configs), model.score(view, configs))
    np.testing.assert_array_equal(loaded.embedding(view), model.embedding(view))
    assert loaded.anchors.keys() == model.anchors.keys()


def test_linear_sizes_survive_half_precision(tmp_path: Path) -> None:
    """The matrices differ in nothing but their sizes, of which some exceed the largest number in float16."""
    def made(seed: int) -> Network:
        net = small_net(seed)
        net.side = SideFeatures(scale="linear", hidden=8, width=4)
        initialise(net, seed)
        return net

    space, path = spade(), tmp_path / "m.pt"
    items = [matrix_input([(0, 0), (1, 1)], (rows, rows), np.array([0, nnz], np.int32))
             for rows, nnz in ((2000, 9000), (4_000_000, 60_000_000), (9_000_000, 800_000_000))]
    net = made(0)
    net.use_encoder(small_encoder(space))
    net.standardise(items)
    model = CognateModel(net, space)
    model.save(path, notes={}, precision="float16")
    first, second = (CognateModel.load(path, net=made(seed), space=space) for seed in (8, 9))
    for view in map(MatrixFeatures.from_stored, items):
        scores = first.score(view, list(space))
        assert np.isfinite(scores).all()
        np.testing.assert_array_equal(second.score(view, list(space)), scores)
        np.testing.assert_allclose(scores, model.score(view, list(space)), rtol=0, atol=1e-4)
    sizes = first.net.side(items)
    assert torch.pdist(sizes).min() > 0.1
    torch.testing.assert_close(sizes, net.side(items), rtol=0, atol=1e-3)


def test_model_refuses_another_network_space_or_op(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    CognateModel(ready_net(spade()), spade()).save(path, notes={}, precision="float16")
    with pytest.raises(SchemaError, match=r"a network with featurizer.pooling=last instead of multiscale: set these"):
        CognateModel.load(path, net=small_net(pooling="multiscale"), space=spade())
    with pytest.raises(SchemaError, match="the configuration space has changed, train it again"):
        CognateModel.load(path, net=small_net(), space=SpadeSpace("spmm", width=128))
