"""Learning without a network, from conf/ to the folder of the run."""

import json

import pandas as pd
import pytest
from small import SMALL

QUICK = ("samples=tiny", "samples.configs=256", "task.seeds=[0,1]", "selection.matrices=6",
         "selection.configs_per_matrix=40", "model.members.1.bags=2", "model.members.2.bags=2")
ALONE = (*QUICK, "task.source_votes=0")


@pytest.fixture(scope="module")
def fitted(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    return build("fit_spade", *ALONE, folder=folder).run(folder), folder


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
             "model.bags=2", "task.name=trees", "task.source_votes=0")
    metrics = build("fit_spade", *names, folder=tmp_path).run(tmp_path)
    assert metrics["test/trees_top1_of_optimum"] > 0


def test_source_network_votes(build, trained, tmp_path):
    small = [option for option in SMALL if not option.startswith(("trees.", "model."))]
    channels = [option.replace("model.", "prior.") for option in SMALL if option.startswith("model.")]
    metrics = build("fit_spade", *small, *channels, *QUICK, folder=trained).run(tmp_path)
    assert metrics["test/source_labels"] > 0


def test_vote_of_the_source_needs_members_to_vote_with(build, tmp_path):
    with pytest.raises(ValueError, match=r"this model has none: take model=ensemble, or task\.source_votes=0"):
        build("fit_spade", "samples=tiny", "model=trees", folder=tmp_path).run(tmp_path)


def test_uncertain_configurations_are_labelled_in_rounds_within_the_budget(build, tmp_path):
    options = (*ALONE, "selection=uncertainty", "selection.promising=64", "task.seeds=[0]")
    build("fit_spade", *options, folder=tmp_path).run(tmp_path)
    labels = pd.read_parquet(tmp_path / "labels.parquet")
    assert labels.groupby("matrix").size().tolist() == [40] * 6
