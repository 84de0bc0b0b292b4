"""Calls of a program that are the race: what they compute, when they end, what is kept of them."""

import json

import numpy as np
import pytest
from csr_operands import close, dense, matrix

import sparloom
from sparloom.dispatch import Guardrail, PlanCache
from sparloom.dispatch.csr import CsrPolicy, Prepared
from sparloom.dispatch.csr.contest import FewRows
from sparloom.ops import SDDMM, CsrAttention, SpMM, SpmmMax
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]
MOST = 60  # calls
LENIENT = CsrPolicy.online(guardrail=Guardrail(alpha=1e6, errors=0), runs=1e6)  # nearly any kernel wins


def calls(ready, rows, cols, width):
    """Each operation, with its operands and what calls it."""
    x, q = dense(cols, width), dense(rows, width)
    heads = {"Q": q.reshape(rows, 2, -1), "K": x.reshape(cols, 2, -1), "V": dense(cols, 2, 3)}
    return [("spmm", SpMM(), {"B": x}, lambda: ready.spmm(x)),
            ("spmm_max", SpmmMax(), {"B": x}, lambda: ready.spmm(x, reduce="max")),
            ("sddmm", SDDMM(), {"B": q, "C": x}, lambda: ready.sddmm(q, x)),
            ("attention", CsrAttention(2), heads, lambda: ready.attention(*heads.values()))]


@pytest.mark.parametrize("policy", [None, LENIENT], ids=["default", "lenient"])
@pytest.mark.parametrize("place", range(4), ids=["spmm", "spmm_max", "sddmm", "attention"])
def test_every_call_is_right_until_and_after_it_is_decided(tmp_path, policy, place):
    a = matrix(2000, 1500)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=policy)
    name, op, operands, call = calls(ready, 2000, 1500, 16)[place]
    number = 0
    while not ready.decided(name, **operands):
        assert not list(tmp_path.glob("schedule-*.json"))
        close(op, a, operands, call())
        number += 1
    assert 3 < number < MOST
    close(op, a, operands, call())
    decision = ready.plan(name, **operands).decision
    assert decision.origin == "measured"
    assert sum(len(trial.seconds) for trial in decision.trials) == decision.executions - 2 == number - 2
    assert len({trial.candidate for trial in decision.trials}) == len(decision.trials) > 2
    (kept,) = tmp_path.glob("schedule-*.json")
    again = sparloom.prepare(a, cache=PlanCache(tmp_path), replay_only=True, policy=policy)
    assert again.plan(name, **operands).choice == ready.plan(name, **operands).choice
    assert json.loads(kept.read_text())["key"]["calibrate"] == "online"


def test_a_program_that_calls_once_measures_nothing_and_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(PlanCache, "rates", None)
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path))
    ready.spmm(dense(200, 8))
    assert not ready.decided("spmm", B=dense(200, 8))
    assert not list(tmp_path.glob("schedule-*"))


def test_calls_with_places_of_maxima_are_decided_on_their_own(tmp_path):
    a, x = matrix(2000, 1500), dense(1500, 16)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=LENIENT)
    filled = np.diff(a.indptr) > 0
    for _ in range(MOST):
        result, places = ready.spmm_max(x)
        assert result.shape == places.shape == (2000, 16)
        assert np.array_equal(result[filled], (a.data[:, None] * x[a.indices])[places[filled], np.arange(16)])
    assert ready.decided("spmm_max", B=x)
    close(SpmmMax(), a, {"B": x}, ready.spmm(x, reduce="max"))


def test_a_winner_that_computes_something_else_is_refused(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(FewRows, "difference", lambda *_: "other than the baseline: element 3")
    ready = sparloom.prepare(matrix(2000, 1500), cache=PlanCache(tmp_path), policy=LENIENT)
    x = dense(1500, 16)
    plan = ready.plan("spmm", B=x)
    if "no candidate was faster" in plan.decision.reason:
        pytest.skip("the baseline was the fastest")
    assert plan.choice.config == plan.decision.trials[0].candidate
    assert "refused: other than the baseline: element 3" in plan.decision.reason
    assert "is refused" in caplog.text


def test_wrong_results_are_told(tmp_path):
    a, x = matrix(2000, 1500), dense(1500, 16)
    operands = SpMM().operands(SparseMatrix(Pattern.from_scipy(a), a.data), 16, seed=0)
    ready = Prepared(operands.matrix, cache=PlanCache(tmp_path))
    few = FewRows(SpMM(), ready.where, operands)
    choice = ready.plan("spmm", B=x).choice
    found = few.of(ready.spmm(operands.dense["B"]))
    assert few.difference(found, few.computed(choice, ready.where.libraries["spmm"])) == ""
    found[2, 5] += 1e-2
    assert "element (2, 5)" in few.difference(found, few.computed(choice, ready.where.libraries["spmm"]))


def test_a_library_that_is_far_behind_computes_no_call(tmp_path):
    asked = []

    def library(name, repeats):
        def bind(matrix, threads):
            csr = matrix.to_scipy()

            def product(operands):
                asked.append((name, csr.shape[0]))
                for _ in range(repeats):
                    result = csr @ operands.dense["B"]
                return result
            return product
        return bind

    a, x = matrix(4000, 4000), dense(4000, 32)
    policy = CsrPolicy.online(least_seconds=0, least_nonzeros=2000, runs=1e6)
    ready = sparloom.prepare(a, threads=1, cache=PlanCache(tmp_path), policy=policy,
                             libraries={"spmm": {"slow": library("slow", 30)}})
    plan = ready.plan("spmm", B=x)
    assert plan.choice.library == ""
    assert asked
    assert all(rows < 4000 for _, rows in asked)


def test_a_library_that_is_fastest_is_chosen(tmp_path):
    a, x = matrix(20000, 1500), dense(1500, 16)

    def instant(matrix, threads):
        result = matrix.to_scipy() @ x
        return lambda operands: result

    policy = CsrPolicy.online(least_seconds=0, runs=1e6)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=policy, libraries={"spmm": {"instant": instant}})
    assert ready.plan("spmm", B=x).choice.library == "instant"
    assert "no candidate was faster than the best baseline" in ready.plan("spmm", B=x).decision.reason
