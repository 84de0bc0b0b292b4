"""Online races: results of the calls, the end of the race, and caching."""

import gc
import json
import weakref

import numpy as np
import pytest
from csr_operands import close, dense, matrix
from kept_files import kept_files, text_of

import sparloom
from sparloom.ops import SDDMM, CsrAttention, Operands, SpMM, SpmmMax, assert_close
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Guardrail, OnlineRace, PlanCache, list_plans
from sparloom.tuning.sparse import CsrPolicy, NativeReplay, Prepared, RowCheck, replay
from sparloom.tuning.sparse.tuner import CsrDecider

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]
EFFORT = CsrPolicy.online().effort_of(0.0)
MOST = 2 + 2 * EFFORT.repetitions * EFFORT.candidates + 3 * (EFFORT.pairs[1] - EFFORT.repetitions)  # calls
LENIENT = CsrPolicy.online(guardrail=Guardrail(alpha=1e6, errors=0), runs=1e6)  # nearly any kernel wins


def calls(ready, rows, cols, width):
    """List each operation with its operands and its call."""
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
        assert not kept_files(tmp_path, "csr")
        close(op, a, operands, call())
        number += 1
    assert 3 < number <= MOST
    close(op, a, operands, call())
    decision = ready.plan(name, **operands).decision
    assert decision.origin == "measured"
    arms = list({trial.candidate: trial for trial in reversed(decision.trials)}.values())
    assert sum(len(trial.seconds) for trial in arms) == decision.executions - 2 == number - 2
    assert len(arms) > 2
    (kept,) = kept_files(tmp_path, "csr")
    again = sparloom.prepare(a, cache=PlanCache(tmp_path), replay_only=True, policy=policy)
    assert again.plan(name, **operands).choice == ready.plan(name, **operands).choice
    assert json.loads(text_of(kept))["key"]["calibrate"] == "online"


def test_a_program_that_calls_once_measures_and_caches_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("sparloom.tuning.sparse.cpu.machine_rates", None)
    ready = sparloom.prepare(matrix(2000, 1500), cache=PlanCache(tmp_path))
    ready.spmm(dense(1500, 16))
    assert not ready.decided("spmm", B=dense(1500, 16))
    assert not kept_files(tmp_path)


def test_calls_with_argmax_have_separate_decisions(tmp_path):
    a, x = matrix(2000, 1500), dense(1500, 16)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=LENIENT)
    filled = np.diff(a.indptr) > 0
    for _ in range(MOST):
        result, places = ready.spmm_max(x)
        assert result.shape == places.shape == (2000, 16)
        assert np.array_equal(result[filled], (a.data[:, None] * x[a.indices])[places[filled], np.arange(16)])
    assert ready.decided("spmm_max", B=x)
    close(SpmmMax(), a, {"B": x}, ready.spmm(x, reduce="max"))


@pytest.fixture
def second_wins(monkeypatch):
    """Make the first candidate seem the fastest by far."""
    record = OnlineRace.record
    monkeypatch.setattr(OnlineRace, "record", lambda race, seconds: record(race, 1e-3 / (1 + (race.turn == 1))))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_winner_that_computes_something_else_is_refused(tmp_path, monkeypatch, caplog, second_wins, wrong):
    a, x = matrix(2000, 1500), dense(1500, 16)
    ready = sparloom.prepare(a, threads=1, cache=PlanCache(tmp_path), policy=LENIENT, libraries={})
    if wrong:
        safe, timed = ready.backend.default_config(SpMM(), Operands(ready.matrix, {"B": x})), NativeReplay.timed

        def shifted(replay, *given):
            result, seconds = timed(replay, *given)
            return result + (replay._config != safe), seconds

        monkeypatch.setattr(NativeReplay, "timed", shifted)
    while not ready.decided("spmm", B=x):
        last = ready.spmm(x)
    plan = ready.plan("spmm", B=x)
    first, challenger = (plan.decision.trials[place].candidate for place in (0, 1))
    assert plan.choice.config == (first if wrong else challenger)
    assert ("refused: other than the baseline: element" in plan.decision.reason) is wrong
    assert ("is refused" in caplog.text) is wrong
    close(SpMM(), a, {"B": x}, last)
    (kept,) = (plan for plan in list_plans(tmp_path, now=0.0) if plan.kind == "csr")  # beside rates of the machine
    assert kept.speedup == pytest.approx(1.0 if wrong else 2.0)


def test_a_candidate_that_fails_is_out_and_its_call_is_right(tmp_path, caplog):
    def broken(matrix, threads):
        def product(operands):
            if operands.matrix.pattern.rows == 20000:
                raise MemoryError("all rows")
            return expected[: operands.matrix.pattern.rows]
        return product

    a, x = matrix(20000, 1500), dense(1500, 16)
    expected = a @ x
    policy = CsrPolicy.online(least_seconds=0, runs=1e6, least_nonzeros=1000)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=policy, libraries={"spmm": {"broken": broken}})
    operands = Operands(SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data), {"B": x})
    exact = SpMM().oracle(operands)
    bounds = {"terms": SpMM().terms(operands.matrix.pattern, 16), "scale": SpMM().scale(operands)}
    while not ready.decided("spmm", B=x):
        assert_close(ready.spmm(x), exact, **bounds)
    assert ready.plan("spmm", B=x).choice.library == ""
    assert caplog.text.count("fails: MemoryError('all rows')") == 1


@pytest.mark.parametrize("policy", [None, LENIENT], ids=["default", "lenient"])
def test_wrong_operands_eliminate_no_candidate(tmp_path, caplog, policy):
    a, x = matrix(2000, 1500), dense(1500, 16)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=policy)
    frozen = np.empty((2000, 16), np.float32)
    frozen.flags.writeable = False
    while not ready.decided("spmm", B=x):
        with pytest.raises(ValueError, match="read-only"):
            ready.spmm(x, out=frozen)
        ready.spmm(x)
    assert "fails" not in caplog.text
    assert policy is None or all(trial.seconds for trial in ready.plan("spmm", B=x).decision.trials)


def test_no_reference_to_the_first_operands_is_kept(tmp_path):
    ready, x = sparloom.prepare(matrix(2000, 1500), cache=PlanCache(tmp_path)), dense(1500, 16)
    seen = weakref.ref(x)
    ready.spmm(x)
    del x
    gc.collect()
    assert seen() is None


def test_calls_with_and_without_argmax_reach_one_decision(tmp_path):
    ready, x = sparloom.prepare(matrix(2000, 1500), cache=PlanCache(tmp_path), policy=LENIENT), dense(1500, 16)
    decided = set()
    for _ in range(2 * MOST):
        ready.spmm(x, reduce="max")
        ready.spmm_max(x)
        if ready.decided("spmm_max", B=x):
            decided.add(ready.plan("spmm_max", B=x).choice)
    assert len(decided) == 1


def test_matrices_of_which_nothing_is_known_the_next_time_are_decided_at_once():
    a, x = matrix(2000, 1500).tocoo(), dense(1500, 16)
    sparloom.spmm(a, x)
    (kept,) = (plan for plan in list_plans(PlanCache.of_this_user().folder, now=0.0) if plan.kind == "csr")
    assert kept.state == "own"


def test_wrong_results_are_reported(tmp_path):
    a, x = matrix(2000, 1500), dense(1500, 16)
    operands = SpMM().operands(SparseMatrix(Pattern.from_scipy(a), a.data), 16, seed=0)
    ready = Prepared(operands.matrix, cache=PlanCache(tmp_path))
    few = RowCheck(SpMM(), ready.backend, operands)
    choice = ready.plan("spmm", B=x).choice
    found = few.of(ready.spmm(operands.dense["B"]))
    assert few.difference(found, few.computed(choice, ready.backend.libraries["spmm"])) == ""
    found[2, 5] += 1e-2
    assert "element (2, 5)" in few.difference(found, few.computed(choice, ready.backend.libraries["spmm"]))


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


@pytest.fixture
def quiet_race(monkeypatch):
    """Candidates and their number do not depend on how long calls take."""
    candidates = CsrDecider.candidates
    monkeypatch.setattr(CsrDecider, "candidates", lambda self, operands, *_: candidates(self, operands, 0.9e-3))
    monkeypatch.setattr(OnlineRace, "charge", lambda *_: None)


@pytest.mark.usefixtures("quiet_race")
@pytest.mark.parametrize(("minutes", "speedup", "tried", "kept"), [
    (1, 1.5, False, True), (9, 0.9, True, True), (9, 1.01, True, True), (9, 1.5, True, False)])
def test_the_second_of_a_close_race_is_tried_again_after_minutes(tmp_path, monkeypatch, minutes, speedup, tried, kept):
    seconds, now, record = dict.fromkeys(range(9), 1e-3) | {1: 0.9e-3}, [0.0], OnlineRace.record
    monkeypatch.setattr(OnlineRace, "record", lambda race, _: record(race, seconds[race.turn]))
    monkeypatch.setattr(replay, "clock", lambda: now[0])
    a, x = matrix(2000, 1500), dense(1500, 16)
    ready = sparloom.prepare(a, threads=1, cache=PlanCache(tmp_path), libraries={})
    first = ready.plan("spmm", B=x)
    seconds[1] = 1e-3 / speedup  # from now on number 0 is what was chosen, and number 1 the default
    now[0] += 60 * minutes
    for _ in range(60):
        close(SpMM(), a, {"B": x}, ready.spmm(x))
    again, (stored,) = ready.plan("spmm", B=x), kept_files(tmp_path, "csr")
    assert (again.choice == first.choice) is kept
    assert ("again after some minutes" in again.decision.reason) is tried
    assert json.loads(text_of(stored))["value"]["choice"] == again.choice.to_json()
    assert not tried or again.decision.executions <= 14
    for _ in range(60):
        now[0] += 60 * tried
        ready.spmm(x)
    assert (ready.plan("spmm", B=x) is again, type(*ready._replays.values()) is NativeReplay) == (True, tried)


@pytest.mark.usefixtures("quiet_race")
def test_until_a_rematch_no_other_candidate_is_kept(tmp_path, monkeypatch):
    made, init, record = [], NativeReplay.__init__, OnlineRace.record

    def noted(self, *given):
        made.append(weakref.ref(self))
        init(self, *given)

    monkeypatch.setattr(NativeReplay, "__init__", noted)
    monkeypatch.setattr(OnlineRace, "record", lambda race, _: record(race, 1e-3 - 1e-4 * (race.turn == 1)))
    ready, x = sparloom.prepare(matrix(2000, 1500), threads=1, cache=PlanCache(tmp_path), libraries={}), dense(1500, 16)
    ready.plan("spmm", B=x)
    gc.collect()
    assert len(made) > 2
    assert sum(each() is not None for each in made) == 1


@pytest.mark.usefixtures("quiet_race")
def test_a_race_that_was_not_close_is_final(tmp_path, monkeypatch):
    record = OnlineRace.record
    monkeypatch.setattr(OnlineRace, "record", lambda race, _: record(race, 1e-3 / (1 + (race.turn == 1))))
    ready, x = sparloom.prepare(matrix(2000, 1500), threads=1, cache=PlanCache(tmp_path), libraries={}), dense(1500, 16)
    ready.plan("spmm", B=x)
    assert type(*ready._replays.values()) is NativeReplay
