"""Chosen schedules of ragged operators beside the default ones, on tiny cases; ratios from generated rows."""

import numpy as np
import pandas as pd
import pytest
import torch

from sparloom.baselines import attention_module, encoder_layer
from sparloom.experiments import BenchRaggedSchedules
from sparloom.experiments.cora import schedules as chosen_schedules
from sparloom.measure import TimingProtocol
from sparloom.ragged import PANEL, LengthCorpus
from sparloom.report import schedule_metrics
from sparloom.space import EncoderSpace
from sparloom.tuning import MeasurementBudget, RaggedBudget, RaggedChoice, product_operators, token_operators

TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)
QUICK = RaggedBudget(sample=1, proposed=1, race=MeasurementBudget(repetitions=1, seconds=0.2, pairs=(2, 2)))


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def bench(tmp_path, **changes) -> BenchRaggedSchedules:
    settings = {
        "lengths": LengthCorpus(None, ["cola"], 0), "operators": ["attention", "softmax", "norm", "vgemm", "trmm"],
        "batches": [2], "products": [1], "triangles": [50], "effort": QUICK, "timing": TIMING, "product_timing": TIMING,
        "threads": 1, "journals": str(tmp_path / "journals"), "seed": 0}
    return BenchRaggedSchedules(**settings | changes)


def default_of(operator):
    if operator == "attention":
        return EncoderSpace(operator, panel=PANEL).default().key
    return {**product_operators(), **token_operators(16)}[operator].space.default().key


@pytest.mark.slow
@pytest.mark.cc
def test_every_operator_is_timed_by_both_schedules(tmp_path, monkeypatch):
    monkeypatch.setattr(chosen_schedules, "attention_module", lambda *, seed: attention_module(16, 2, seed=seed))
    monkeypatch.setattr(chosen_schedules, "WIDTH", 16)
    metrics = bench(tmp_path).run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_case.parquet")
    assert set(frame["part"]) == {"attention", "softmax", "norm", "vgemm", "trmm"}
    for operator, rows in frame.groupby("part"):
        other = rows["schedule"].iloc[-1] != default_of(operator)
        assert rows["method"].tolist() == (["default", "chosen", "search"] if other else ["default", "search"])
        assert metrics[f"schedules/{operator}/other_share"] == other
        assert (metrics[f"schedules/{operator}/over_default"] != 1) == other
        assert metrics[f"schedules/{operator}/search_seconds"] > 0
    searches = frame[frame["method"] == "search"]
    assert searches["measured"].between(2, 3).all()
    assert all("panel=" in schedule or "chunk=" in schedule for schedule in searches["schedule"])
    assert not list((tmp_path / "journals").glob("*"))
    assert schedule_metrics(frame, seed=0) == pytest.approx(dict(metrics))


def chosen(operator, structure):
    config = operator.space.default().replace(rows=96)
    return RaggedChoice(config, ratio=0.9, measured=5, seconds=1.0)


@pytest.mark.cc
@pytest.mark.parametrize(("operator", "size"), [("vgemm", 1), ("trmm", 100)])
def test_chosen_schedules_are_compared_with_the_default(operator, size):
    arms, choice = chosen_schedules.product_arms(operator, size, chosen, threads=1, seed=0)
    assert list(arms) == ["default", "chosen"]
    assert choice.config["rows"] == 96


@pytest.mark.cc
def test_a_chosen_module_computes_the_same(monkeypatch):
    monkeypatch.setattr(chosen_schedules, "encoder_layer", lambda *, seed: encoder_layer(16, 2, 32, seed=seed))
    arms, _ = chosen_schedules.module_arms("encoder", np.array([5, 2]), chosen, seed=0)
    with torch.inference_mode():
        torch.testing.assert_close(arms["chosen"](), arms["default"]())


@pytest.mark.cc
def test_schedules_with_different_results_are_reported(monkeypatch):
    monkeypatch.setattr("sparloom.experiments.cora.products.TOLERANCE", 0.0)
    with pytest.raises(AssertionError, match="the result of chosen is wrong"):
        chosen_schedules.product_arms("trmm", 20, chosen, threads=1, seed=0)


def test_gains_are_geometric_means_over_cases():
    rows = [{"part": "encoder", "data": data, "size": 32, "number": 0, "method": method, "median": seconds,
             "schedule": "rows=48" if method == "search" else None}
            for data, default, search in (("race", 4.0, 30.0), ("mydata", 3.0, 10.0))
            for method, seconds in (("default", default), ("chosen", 1.0), ("search", search))
            if data == "race" or method != "chosen"]
    frame = pd.DataFrame(rows)
    metrics = schedule_metrics(frame, seed=0)
    assert metrics["schedules/encoder/over_default"] == pytest.approx(2.0)
    assert metrics["schedules/encoder/over_default_min"] == 1.0
    assert metrics["schedules/encoder/search_seconds"] == 20.0
    assert metrics["schedules/encoder/other_share"] == 0.5
    assert schedule_metrics(frame[frame["data"] == "mydata"], seed=0)["schedules/encoder/over_default"] == 1.0
    assert not [key for key in metrics if "vgemm" in key]
