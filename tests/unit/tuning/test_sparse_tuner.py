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
from sparloom.tuning.sparse import CandidateSet, CsrPolicy, Prepared, sample_rows

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
    policy = CsrPolicy(least_nonzeros=1000, least_seconds=0, runs=1e6, effort=effort)
    ready = sparloom.prepare(matrix(2000, 2000), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(2000, 32)).decision
    assert decision.origin == "measured"
    assert "of 2000 rows" in decision.reason
    assert {trial.candidate for trial in decision.trials if trial.seconds} > {"scipy"}
    assert all(trial.seconds for trial in decision.trials[:2])


def test_nothing_is_measured_if_a_probe_would_cost_too_much(tmp_path):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=CsrPolicy(least_seconds=10.0))
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert decision.origin == "rule"
    assert "7 runs of" in decision.reason
    assert not decision.trials
    assert decision.executions == 0  # what is short by its flops and bytes is not even run


def test_where_too_few_runs_on_the_sample_would_fit_nothing_is_measured(tmp_path):
    policy = CsrPolicy(least_nonzeros=10**9, least_seconds=0, runs=5.0)  # the sample is all rows
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert decision.origin == "rule"
    assert "too short for 10 runs" in decision.reason
    assert 1 <= decision.executions <= 3


def test_a_duel_without_time_left_is_not_started(tmp_path, second_wins):
    effort = replace(CsrPolicy().effort, pairs=(10**6, 10**6))
    policy = CsrPolicy(least_nonzeros=1000, least_seconds=0, runs=1e6, effort=effort)
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert "no time for 1000000 pairs" in decision.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_a_kernel_that_is_wrong_is_refused(tmp_path, monkeypatch, caplog, second_wins, wrong):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=CsrPolicy(least_seconds=0, runs=1e6))
    if wrong:
        monkeypatch.setattr(CandidateSet, "_computed",
                            lambda self, place, operands: np.full((300, 8), place, np.float32))
    plan = ready.plan("spmm", B=dense(200, 8))
    second = plan.decision.trials[1].candidate
    assert plan.choice.config == (plan.decision.trials[0].candidate if wrong else second)
    assert ("refused: other than the baseline: element" in plan.decision.reason) is wrong
    assert (f"spmm by {second} is refused" in caplog.text) is wrong


def test_the_parts_of_a_sample_are_its_rows_and_have_hubs():
    lengths = np.full(6400, 5)
    lengths[::640] = 300
    pattern = Pattern((6400, 6400), np.concatenate([[0], np.cumsum(lengths)]),
                      np.concatenate([np.arange(length) for length in lengths]))
    sample = sample_rows(pattern, nonzeros=pattern.nnz // 4, parts=3, seed=0)
    assert np.array_equal(np.sort(np.concatenate(sample.parts)), sample.rows)
    assert sample.rows.size < 6400 / 2
    held = [lengths[rows] for rows in sample.parts]
    assert len(held) == 3
    assert all((part == 300).any() and (part == 5).any() for part in held)
    assert sum(part.sum() for part in held) == pytest.approx(pattern.nnz / 4, rel=0.3)
    whole = sample_rows(pattern, nonzeros=pattern.nnz, parts=3, seed=0)
    assert np.array_equal(whole.rows, np.arange(6400))
    assert len(whole.parts) == 1


def test_rows_that_hold_most_are_in_the_sample_and_blocks_without_nonzeros_are_not():
    lengths = np.zeros(6400, np.int64)
    lengths[640:3200:7], lengths[700] = 2, 3000
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(length) for length in lengths])
    pattern = Pattern((lengths.size, 3000), indptr, indices.astype(np.int32))
    for seed in range(5):
        sample = sample_rows(pattern, nonzeros=200, parts=3, seed=seed)
        assert 700 in sample.rows
        assert lengths[sample.rows.reshape(-1, 64)].sum(1).min() > 0
