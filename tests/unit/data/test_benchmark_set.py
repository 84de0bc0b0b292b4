"""The benchmark set on disk, and the accounts of tuning problems."""

import numpy as np
import pandas as pd
import pytest

from sparloom.data import TuningProblem, describe_configs, labels_path, load_benchmark, write_frame, write_labels
from sparloom.errors import SchemaError
from sparloom.space import SpadeSpace

NAMES, COUNT = ("a/x", "b/y", "c/z"), 256


@pytest.fixture
def folder(tmp_path):
    space, rng = SpadeSpace("spmm"), np.random.default_rng(0)
    write_frame(tmp_path / "configs.parquet", describe_configs(list(space), space.default()))
    about = {"family": ["a", "b", "c"], "role": ["train", "validation", "test"], "rows": [1.0, 2.0, 3.0]}
    matrices = pd.DataFrame(about, pd.Index(NAMES, name="matrix"))
    write_frame(tmp_path / "matrices.parquet", matrices)
    write_frame(tmp_path / "designs.parquet", pd.DataFrame({"pes": [32]}, pd.Index(["base"], name="design")))
    seconds = rng.random((3, COUNT)) + 1
    write_labels(labels_path(tmp_path, "spmm", "base"), NAMES, seconds,
                 {"dram_lines": rng.integers(0, 9, (3, COUNT))}, seconds * 2)
    return tmp_path


def problem(labels_on: str = "judged", budget: int = 2) -> TuningProblem:
    labels = {"t": np.array([3.0, 1.0, 2.0]), "u": np.array([1.0, 2.0, 3.0]), "j": np.array([2.0, 3.0, 1.0])}
    return TuningProblem(configs=pd.DataFrame({"p": [0, 1, 2]}), default=1, statistics=pd.DataFrame(), labels=labels,
                         train=("t", "u"), judged=("j",), budget=budget, labels_on=labels_on)


def test_what_is_written_is_read(folder):
    found = load_benchmark(folder)
    labels = found.labels["spmm", "base"]
    assert labels.matrices == NAMES
    assert labels.seconds.shape == labels.joules.shape == labels.events["dram_lines"].shape == (3, COUNT)
    assert labels.joules == pytest.approx(2 * labels.seconds, rel=1e-6)
    assert found.configs["default"].sum() == 1
    assert found.configs.loc[found.configs["default"], ["row_panel", "column_panel", "split"]].values.tolist() == [
        [256, 0, 256]]
    assert found.configs["key"].tolist() == [config.key for config in SpadeSpace("spmm")]


def test_problems_have_the_frozen_split(folder):
    made = load_benchmark(folder, ops=["spmm"], designs=["base"]).problem("spmm", "base", budget=1, labels_on="judged")
    assert (made.train, made.judged) == (("a/x",), ("c/z",))
    assert list(made.configs.columns) == ["row_panel", "column_panel", "split", "barrier", "bypass", "reorder"]
    assert list(made.statistics.columns) == ["rows"]
    joules = load_benchmark(folder).problem("spmm", "base", budget=1, labels_on="judged", joules=True)
    assert joules.evaluate("c/z", 3) == pytest.approx(2 * made.evaluate("c/z", 3), rel=1e-6)


def test_absent_sets_and_designs_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is no benchmark set .*experiment=export_benchmark"):
        load_benchmark(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"has no labels of design other: designs are base"):
        load_benchmark(folder, designs=["other"])
    with pytest.raises(KeyError, match=r"no labels of sddmm on base: loaded are spmm on base"):
        load_benchmark(folder).problem("sddmm", "base", budget=1, labels_on="train")


def test_files_that_lack_configurations_are_refused(folder):
    path = labels_path(folder, "spmm", "base")
    write_frame(path, pd.read_parquet(path).iloc[:-1])
    with pytest.raises((SchemaError, ValueError), match=r"lacks configurations"):
        load_benchmark(folder)


def test_labels_are_counted_once_each():
    made = problem()
    assert [made.evaluate("j", 0), made.evaluate("j", 0), made.evaluate("j", 2)] == [2.0, 2.0, 1.0]
    assert (made.spent(), made.left("j")) == (2, 0)
    assert made.best_evaluated("j") == 2
    assert made.best_evaluated("j", 1) == 0
    with pytest.raises(ValueError, match=r"all 2 labels on j are spent: return what was chosen with them"):
        made.evaluate("j", 1)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_labels_that_are_no_times_are_refused(wrong):
    made = problem()
    made.labels["j"][2] = wrong
    with pytest.raises(ValueError, match=f"j, configuration 2: seconds={wrong}: give a positive number"):
        made.evaluate("j", 2)


@pytest.mark.parametrize("config", [-1, 3])
def test_configurations_that_are_not_there_cost_no_label(config):
    made = problem()
    with pytest.raises(ValueError, match=rf"there is no configuration {config}: give a number from 0 to 2"):
        made.evaluate("j", config)
    assert made.spent() == 0


def test_labels_of_training_matrices_are_counted_together():
    made = problem("train")
    made.evaluate("t", 0)
    assert made.left("u") == 1
    made.evaluate("u", 0)
    with pytest.raises(ValueError, match=r"all 2 labels on training matrices are spent"):
        made.evaluate("t", 1)
    with pytest.raises(ValueError, match=r"j may not be evaluated: with labels_on=train these may: 2 matrices, such"):
        made.evaluate("j", 0)


def test_nobody_takes_more_than_there_is():
    made = problem(budget=500)
    assert made.left("j") == 3
    assert made.best_evaluated("j") == 1


def test_wrong_problems_are_refused():
    with pytest.raises(ValueError, match=r"labels_on='both' is unknown: use train or judged"):
        problem("both")
    with pytest.raises(ValueError, match=r"budget=-1 is negative"):
        problem(budget=-1)
