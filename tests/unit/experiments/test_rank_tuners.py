"""Ranking of tuners on generated samples: labels are counted, and any function plugs in."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from small import SMALL

from sparloom.experiments import TunerEntry
from sparloom.report import leaderboard, rank_rows

TINY = ("samples=tiny", "samples.configs=256", "trees.bags=2", "trees.rounds=20", "model.members.1.bags=2",
        "model.members.2.bags=2", "task.seeds=[0]", "task.eval_role=test")
LEARNED = ("formula", "static", "trees", "sparloom_without_formula", "sparloom")
FEW = tuple(f"task.tuners.{name}.budgets=[5]" for name in LEARNED[1:])
SEARCHES = ("task.tuners.random.budgets=[5,7,500]", "task.tuners.smac=null", "task.tuners.tpe=null",
            "task.tuners.gaussian_process=null")


@pytest.fixture(scope="module")
def ranked(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    task = build("rank_tuners", *TINY, *FEW, *SEARCHES, "task.tuners.cognate=null", folder=folder)
    return task.run(folder), pd.read_parquet(folder / "per_matrix.parquet"), folder


def test_labels_are_counted_where_they_were_taken(ranked):
    metrics, frame, folder = ranked
    matrices = frame["matrix"].nunique()
    assert (metrics["test/trees/5/labels_on_matrix"], metrics["test/trees/5/labels_in_all"]) == (0, 5)
    assert (metrics["test/random/5/labels_on_matrix"], metrics["test/random/5/labels_in_all"]) == (5, 5 * matrices)
    assert metrics["test/random/500/labels_on_matrix"] == 256
    assert metrics["test/formula/0/labels_in_all"] == 0
    assert (folder / "tuners.png").stat().st_size > 1000


def test_choices_are_between_default_and_optimum(ranked):
    metrics, frame, _ = ranked
    assert (frame["seconds"] >= frame["best_seconds"]).all()
    assert metrics["test/random/500/share"] == 1
    assert metrics["test/random/7/share"] >= metrics["test/random/5/share"]
    for name, value in metrics.items():
        if name.endswith("/share"):
            assert metrics[f"{name}_low"] <= value <= metrics[f"{name}_high"]


def test_the_leaderboard_has_both_groups(ranked):
    _, frame, _ = ranked
    board = leaderboard(frame)
    assert list(board.index.unique(level=0)) == ["training matrices", "each judged matrix"]
    assert list(board.columns) == [0, 5, 7, 500, "labels in all", "of another platform", "seeds"]
    assert len(rank_rows(frame)) == len(frame.groupby(["tuner", "budget"]))


def choose(problem, seed, *, number):
    """A tuner of a user: one function."""
    for name in problem.judged:
        problem.evaluate(name, number)
    return dict.fromkeys(problem.judged, number)


def own(function) -> TunerEntry:
    return TunerEntry(label="mine", tuner=function, labels_on="judged", budgets=[1], anytime=False, seeds=1)


def test_a_function_plugs_in(build, tmp_path):
    task = replace(build("rank_tuners", *TINY, folder=tmp_path), tuners={"mine": own(partial(choose, number=7))})
    metrics = task.run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet")
    assert (frame["config"] == 7).all()
    shares = np.log(frame["best_seconds"] / frame["seconds"])
    assert metrics["test/mine/1/share"] == pytest.approx(np.exp(shares.mean()))


def test_wrong_tuners_are_refused(build, tmp_path):
    task = build("rank_tuners", *TINY, folder=tmp_path)
    with pytest.raises(ValueError, match=r"the tuner chose no configuration for \d+ matrices, first tiny/"):
        replace(task, tuners={"mine": own(lambda problem, seed: {})}).run(tmp_path)
    with pytest.raises(ValueError, match=r"task\.tuners is empty"):
        replace(task, tuners={"mine": None}).run(tmp_path)
    with pytest.raises(ValueError, match=r"task\.eval_role=train"):
        replace(task, eval_role="train").run(tmp_path)
    with pytest.raises(ValueError, match=r"no split of 7 labels: splits has 5, 25, 100, 500; add 7"):
        replace(task, tuners={"trees": replace(task.tuners["trees"], budgets=[7])}).run(tmp_path)


def test_cognate_learns_from_the_labels_that_it_takes(build, trained, tmp_path):
    network = [each.replace("model.", "network.") for each in SMALL]
    task = build("rank_tuners", *network, "task.seeds=[0]", "task.eval_role=test", folder=trained)
    metrics = replace(task, tuners={"cognate": replace(task.tuners["cognate"], budgets=[5])}).run(tmp_path)
    assert metrics["test/cognate/5/labels_in_all"] == 5
    assert 0 < metrics["test/cognate/5/share"] <= 1
