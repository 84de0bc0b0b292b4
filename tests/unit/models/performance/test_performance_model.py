"""Performance models choose well on unseen problems, are saved and loaded, and can be extended."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemm_cases import GROWTH, LOG1P, efficiency, measured, origin, space

from sparloom.errors import SchemaError
from sparloom.models.performance import (
    GEMM_FEATURES,
    Feature,
    Grid,
    Measured,
    PerformanceModel,
    Target,
    continue_training,
    digest,
    load_performance,
    out_of_fold,
    problem_folds,
    save_performance,
    train_performance,
)

FOLDS = 3


@pytest.fixture(scope="module")
def data() -> Measured:
    return measured(45)


@pytest.fixture(scope="module")
def model(data) -> PerformanceModel:
    return train_performance(data, spec=GEMM_FEATURES, target=LOG1P, origin=origin(), growth=GROWTH, folds=FOLDS)


def work(data: Measured) -> list[np.ndarray]:
    return [column[:, None] for column in GEMM_FEATURES.work(data.problems)]


def out_of_fold_efficiency(data: Measured, model: PerformanceModel) -> float:
    grid = Grid.of(GEMM_FEATURES, data, target=model.target)
    learned = out_of_fold(grid, model.members, problem_folds(data, model.folds), threads=1)
    return efficiency(data, model.target.sign * learned).mean()


def test_choices_out_of_fold_are_better_than_the_best_single_kernel(data, model):
    static = (data.seconds.min(axis=1, keepdims=True) / data.seconds).mean(axis=0).max()
    assert out_of_fold_efficiency(data, model) > static + 0.01


@pytest.mark.parametrize("target", [
    Target("latency", "log"), Target("bandwidth", "log1p"), Target("throughput", "raw"),
], ids=str)
def test_every_target_can_be_predicted(data, target):
    growth = GROWTH.with_trees(30)
    made = train_performance(data, spec=GEMM_FEATURES, target=target, origin=origin(), growth=growth, folds=FOLDS)
    truth = Grid.of(GEMM_FEATURES, data, target=target).targets
    learned = made.over(data.configs).learned(data.problems)
    assert np.corrcoef(learned.ravel(), truth.ravel())[0, 1] > 0.9
    np.testing.assert_allclose(target.of(data.seconds, *work(data)), truth)
    assert efficiency(data, made.over(data.configs).score(data.problems)).mean() > 0.9


def test_a_member_never_saw_its_fold(data, model):
    """Changed seconds of a fold change every member except the one that is scored on this fold."""
    fold = problem_folds(data, model.folds).ravel()
    changed = replace(data, seconds=np.where((fold == 1)[:, None], data.seconds[:, ::-1], data.seconds))
    again = train_performance(changed, spec=GEMM_FEATURES, target=LOG1P, origin=origin(), growth=GROWTH, folds=FOLDS)
    same = [mine.model_to_string() == other.model_to_string()
            for mine, other in zip(model.members, again.members, strict=True)]
    assert same == [False, True, False]


def test_prediction_is_the_mean_of_the_members(data, model):
    few = {name: column[:4] for name, column in data.problems.items()}
    single = [model.member(fold).over(data.configs).learned(few) for fold in range(FOLDS)]
    np.testing.assert_allclose(model.over(data.configs).learned(few), np.mean(single, axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.predict(few, data.configs), np.expm1(np.mean(single, axis=0)), rtol=1e-12)


def test_failed_configurations_are_not_trained_on(data):
    gaps = replace(data, seconds=np.where(np.arange(48) % 2, np.nan, data.seconds))
    made = train_performance(gaps, spec=GEMM_FEATURES, target=LOG1P, origin=origin(), growth=GROWTH, folds=FOLDS)
    assert made.lineage[0]["rows"] == 45 * 24
    assert np.isfinite(made.predict(gaps.problems, gaps.configs)).all()


def test_saved_models_predict_the_same(data, model, tmp_path: Path):
    save_performance(tmp_path / "gemm", model)
    again = load_performance(tmp_path / "gemm", spec=GEMM_FEATURES, platform="cpu_kernels", preset="t1",
                             space=space().digest())
    expected = model.predict(data.problems, data.configs)
    np.testing.assert_array_equal(again.predict(data.problems, data.configs), expected)
    assert (digest(again), again.folds, again.lineage) == (digest(model), model.folds, model.lineage)
    save_performance(tmp_path / "gemm", model.member(0))
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["model.json", "trees_0.txt"]


def test_wrong_use_of_a_saved_model_is_refused(model, tmp_path: Path):
    save_performance(tmp_path / "gemm", model)
    with pytest.raises(SchemaError, match=r"was trained for platform 'cpu_kernels', not 'gpu'"):
        load_performance(tmp_path / "gemm", platform="gpu")
    more = replace(GEMM_FEATURES, features=(*GEMM_FEATURES.features, Feature("mn", "problem", "m * n", "1")))
    with pytest.raises(SchemaError, match="changed: mn"):
        load_performance(tmp_path / "gemm", spec=more)
    with pytest.raises(SchemaError, match="holds no performance model"):
        load_performance(tmp_path / "nothing")


def test_damaged_files_are_refused(model, tmp_path: Path):
    save_performance(tmp_path / "gemm", model)
    trees = tmp_path / "gemm" / "trees_1.txt"
    trees.write_text(trees.read_text().replace("leaf_value=", "leaf_value=1", 1))
    with pytest.raises(SchemaError, match=r"trees_1\.txt is not the file that was saved with its model"):
        load_performance(tmp_path / "gemm")
    header = tmp_path / "gemm" / "model.json"
    header.write_text(json.dumps({"format": 0}))
    with pytest.raises(SchemaError, match="has format 0, this version reads 1"):
        load_performance(tmp_path / "gemm")


def test_a_model_exists_until_its_successor_is_complete(model, tmp_path: Path, monkeypatch):
    save_performance(tmp_path / "gemm", model)
    monkeypatch.setattr("sparloom.models.performance.store.write_checked_json", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_performance(tmp_path / "gemm", model.member(0))
    assert digest(load_performance(tmp_path / "gemm")) == digest(model)
    assert [path.name for path in tmp_path.iterdir()] == ["gemm"]


def test_continued_training_keeps_trees_and_records_lineage(data, model):
    half = train_performance(data.take(np.arange(45) < 25), spec=GEMM_FEATURES, target=LOG1P, origin=origin(),
                             growth=GROWTH, folds=FOLDS)
    grown = continue_training(half, data, spec=GEMM_FEATURES, growth=GROWTH.with_trees(30))
    assert {group: grown.folds[group] for group in half.folds} == half.folds
    assert grown.trees == half.trees + 30 * FOLDS
    assert [entry["problems"] for entry in grown.lineage] == [25, 45]
    assert [entry["base"] for entry in grown.lineage] == [None, digest(half)]
    assert grown.lineage[1] | {"date": ""} == {"base": digest(half), "new_trees": grown.trees - half.trees, "date": "",
                                               "trees": grown.trees, "rows": 45 * 48, "problems": 45}
    assert out_of_fold_efficiency(data, grown) > out_of_fold_efficiency(data, model) - 0.02
    assert grown.members[0].model_to_string().startswith("tree")


def test_extending_a_model_never_trains_on_the_scored_fold(data, model):
    """Changed seconds of a fold change the new trees of every member except the one that is scored on this fold."""
    fold, growth = problem_folds(data, model.folds).ravel(), GROWTH.with_trees(10)
    changed = replace(data, seconds=np.where((fold == 1)[:, None], data.seconds[:, ::-1], data.seconds))
    grown, again = (continue_training(model, given, spec=GEMM_FEATURES, growth=growth) for given in (data, changed))
    same = [mine.model_to_string() == other.model_to_string()
            for mine, other in zip(grown.members, again.members, strict=True)]
    assert same == [False, True, False]
