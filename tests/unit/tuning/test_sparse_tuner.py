"""Decisions of spmm calls: sampled rows, time limits, caching and replay."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from csr_operands import close, dense, matrix
from kept_files import kept_files, rewrite, text_of

import sparloom
from sparloom.errors import NotDecided
from sparloom.ops import SpMM
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CandidateSet, CsrPolicy, Prepared

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


def test_replay_measures_nothing(tmp_path):
    cache, x = PlanCache(tmp_path), dense(200, 8)
    with pytest.raises(NotDecided, match=r"no plan for spmm with .* tune it once without replay_only"):
        Prepared(SparseMatrix(Pattern.from_scipy(matrix()), matrix().data), cache=cache, replay_only=True).spmm(x)
    first = sparloom.prepare(matrix(), cache=cache, policy=CsrPolicy())
    expected = first.spmm(x)
    again = sparloom.prepare(matrix(), cache=cache, policy=CsrPolicy(), replay_only=True)
    assert np.array_equal(again.spmm(x), expected)
    assert again.plan("spmm", B=x).choice == first.plan("spmm", B=x).choice
    assert again.plan("spmm", B=x).decision.from_cache


def test_damaged_decisions_are_made_again(tmp_path, caplog):
    cache, x = PlanCache(tmp_path), dense(200, 8)
    sparloom.prepare(matrix(), cache=cache, policy=CsrPolicy()).spmm(x)
    (kept,) = kept_files(tmp_path, "csr")
    for text in ("", "{", "[]", text_of(kept).replace("natural", "sideways").replace("column", "sideways")):
        rewrite(kept, text)
        with caplog.at_level(logging.WARNING):
            ready = sparloom.prepare(matrix(), cache=cache, policy=CsrPolicy())
            close(SpMM(), matrix(), {"B": x}, ready.spmm(x))
        assert "decided anew" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("choice", [
    {"config": 5}, {"config": None}, {"config": ["natural"]}, {"library": 5}, {"library": {}}, {}, [], 5, "natural"])
def test_a_cached_choice_of_another_type_is_decided_again(tmp_path, caplog, choice):
    cache, x = PlanCache(tmp_path), dense(200, 8)
    sparloom.prepare(matrix(), cache=cache, policy=CsrPolicy()).spmm(x)
    (path,) = kept_files(tmp_path, "csr")
    kept = json.loads(text_of(path))
    rewrite(path, json.dumps(kept | {"value": kept["value"] | {"choice": choice}}))
    ready = sparloom.prepare(matrix(), cache=cache, policy=CsrPolicy())
    close(SpMM(), matrix(), {"B": x}, ready.spmm(x))
    assert "decided anew" in caplog.text
    assert json.loads(text_of(path))["value"]["choice"] == kept["value"]["choice"]


def test_the_measurements_of_a_decision_are_stored(tmp_path):
    effort = replace(CsrPolicy().effort, seconds=60.0)
    policy = CsrPolicy(least_nonzeros=1000, effort=effort)
    ready = sparloom.prepare(matrix(2000, 2000), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(2000, 32)).decision
    assert decision.origin == "measured"
    assert "of 2000 rows" in decision.reason
    assert {trial.candidate for trial in decision.trials if trial.seconds} > {"scipy"}
    assert all(trial.seconds for trial in decision.trials[:2])


def test_where_too_few_runs_on_the_sample_would_fit_nothing_is_measured(tmp_path):
    policy = CsrPolicy(effort=replace(CsrPolicy().effort, seconds=1e-9))
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert decision.origin == "rule"
    assert "too short for 10 runs" in decision.reason
    assert (decision.trials, decision.executions) == ((), 3)


def test_a_duel_without_time_left_is_not_started(tmp_path, second_wins):
    effort = replace(CsrPolicy().effort, pairs=(10**6, 10**6))
    policy = CsrPolicy(least_nonzeros=1000, effort=effort)
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert "no time for 1000000 pairs" in decision.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_a_kernel_that_is_wrong_is_refused(tmp_path, monkeypatch, caplog, second_wins, wrong):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=CsrPolicy())
    if wrong:
        monkeypatch.setattr(CandidateSet, "_computed",
                            lambda self, place, operands: np.full((300, 8), place, np.float32))
    plan = ready.plan("spmm", B=dense(200, 8))
    second = plan.decision.trials[1].candidate
    assert plan.choice.config == (plan.decision.trials[0].candidate if wrong else second)
    assert ("refused: other than the baseline: element" in plan.decision.reason) is wrong
    assert (f"spmm by {second} is refused" in caplog.text) is wrong
