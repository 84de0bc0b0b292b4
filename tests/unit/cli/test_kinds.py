"""Values of the wrong kind are refused in plain words before anything runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from sparloom import cli
from sparloom.cli import kinds

CONF = Path(__file__).parents[3] / "conf"
TREE = {
    "task": {"_target_": "sparloom.experiments.Finetune", "seeds": [0], "recipe": {
        "_target_": "sparloom.experiments.Recipe", "module": "${model}", "trainer": "${trainer}"}},
    "model": {"_target_": "sparloom.models.RankingModule"},
    "trainer": {"_target_": "sparloom.models.make_trainer", "_partial_": True, "epochs": 3, "accelerator": "auto"},
    "selection": {"_target_": "sparloom.data.Random", "matrices": 5},
}


def changed(path: str, value: object) -> dict:
    def copy(node, names):
        return {**node, names[0]: copy(node[names[0]], names[1:]) if names[1:] else value}

    return copy(TREE, path.split("."))


@pytest.mark.parametrize(("path", "value", "words"), [
    ("task.seeds", "abc", "a list of whole numbers, such as [0,1]"),
    ("task.seeds", ["a"], "a list of whole numbers, such as [0,1]"),
    ("task.seeds", 3, "a list of whole numbers, such as [0,1]"),
    ("selection.matrices", "few", "a whole number"), ("selection.matrices", 2.5, "a whole number"),
    ("trainer.epochs", "many", "a whole number")])
def test_values_of_the_wrong_kind_are_refused(path, value, words):
    with pytest.raises(cli.UsageError) as refused:
        cli.check_kinds(changed(path, value), ["experiment=finetune_tiny", f"{path}={value}"])
    assert str(refused.value) == f"{path}={value}: give {words}"


@pytest.mark.parametrize(("path", "value"), [
    ("task.seeds", [1, 2]), ("selection.matrices", 7), ("selection.matrices", 7.0), ("trainer.epochs", 1)])
def test_other_values_pass(path, value):
    cli.check_kinds(changed(path, value), [f"{path}={value}", "gone.key=1", "+task.more=2", "seed=1"])


@pytest.mark.parametrize(("value", "kind", "fits"), [
    (None, int | None, True), (None, int, False), ("all", int | Literal["all"], True), (True, int, False),
    (1, float, True), (1, str, True), ([1], str, False), ([0.5], Sequence[float], True), (1, bool, False),
    ("x", Path, True), ([1, "a"], tuple[int, str], True), ([1], list, True)])
def test_kinds(value, kind, fits):
    assert kinds._fits(value, kind) == fits


def test_a_model_of_another_class_is_refused_with_those_that_fit():
    tree = changed("model", {"_target_": "sparloom.models.trees.Trees"})
    with pytest.raises(cli.UsageError) as refused:
        cli.check_options(tree, tree, ["model=trees"], CONF)
    text = str(refused.value)
    assert text.startswith("model=trees makes Trees, but this experiment needs RankingModule (task.recipe.module): "
                           "choose model=cognate or ")
    assert "waconet" in text
    assert "ensemble" not in text


def test_options_that_fit_pass():
    cli.check_options(TREE, TREE, ["model=waconet", "op=spmm", "logger=csv", "trainer=cpu"], CONF)


def test_a_gpu_that_is_missing_is_refused_at_once(monkeypatch):
    import torch

    tree = changed("trainer.accelerator", "gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(cli.UsageError, match=r"accelerator=gpu: PyTorch .* finds no GPU here: take trainer=auto"):
        cli.check_accelerator(tree, {"trainer"})
    cli.check_accelerator(tree, {"op"})  # the task does not train
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cli.check_accelerator(tree, {"trainer"})


def test_a_wrong_key_of_a_sweeper_suggests_keys_of_sweepers():
    error = type("ConfigCompositionException", (Exception,), {})("Could not override 'hydra.sweeper.n_trials'.")
    keys = ["task.n_trials", "hydra.sweeper.trials", "hydra.sweeper.batch"]
    shown = cli.explain(error, lambda: keys)
    assert shown.startswith("unknown key 'hydra.sweeper.n_trials': did you mean hydra.sweeper.trials")
    assert "task" not in shown
    own = type(error)("Could not override 'task.n_trial'.")
    assert cli.explain(own, lambda: keys) == "unknown key 'task.n_trial': did you mean task.n_trials?"
