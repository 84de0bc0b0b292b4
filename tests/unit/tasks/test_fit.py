"""Learning without a network, from conf/ to the folder of the run."""

import json

import pandas as pd
import pytest

QUICK = ("samples=tiny", "samples.configs=256", "task.seeds=[0,1]", "selection.matrices=6",
         "selection.configs_per_matrix=40", "model.members.1.bags=2", "model.members.2.bags=2")


@pytest.fixture(scope="module")
def fitted(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    return build("fit_spade", *QUICK, folder=folder).run(folder), folder


def test_choices_labels_and_split_are_written(fitted):
    metrics, out = fitted
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert set(frame["method"]) == {"random", "sparloom", "optimum"}
    labels = pd.read_parquet(out / "labels.parquet")
    assert labels.groupby("seed").size().tolist() == [240, 240]
    split = json.loads((out / "split.json").read_text())
    assert not set(labels["matrix"]) & set(split["judged"])
    assert metrics["test/labels_per_seed"] == 240


def test_labels_choose_better_than_chance(fitted):
    metrics, _ = fitted
    assert metrics["test/sparloom_top1_of_optimum_low"] > metrics["test/random_of_optimum"]


def test_other_learners_take_its_place(build, tmp_path):
    names = ("samples=tiny", "samples.configs=256", "task.seeds=[0]", "selection.matrices=6", "model=trees",
             "model.bags=2", "task.name=trees")
    metrics = build("fit_spade", *names, folder=tmp_path).run(tmp_path)
    assert metrics["test/trees_top1_of_optimum"] > 0
