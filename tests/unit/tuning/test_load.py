"""Busy machines are detected, and their decisions are neither cached nor final."""

import functools
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from csr_operands import close, dense, matrix
from kept_files import kept_files, rewrite, text_of
from test_dispatch_cache import RATES, band

import sparloom
from sparloom.fusion import Variant
from sparloom.measure import machine as load
from sparloom.measure.machine import MAX_THREADS
from sparloom.ops import GemmSpmm, Operands, SpMM
from sparloom.ragged import LENGTHS, EncoderShape, Structure
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import (
    Decision,
    FusionConfig,
    Guardrail,
    LoadWatch,
    MeasurementBudget,
    NoLoad,
    PlanCache,
    PlanKey,
    ProcessLoad,
    RaggedBudget,
    cache,
    choose_schedule,
    encoder_operators,
    get_pair,
    machine_rates,
    plan_pair,
    put_pair,
    watch_load,
)
from sparloom.tuning import machine as rates
from sparloom.tuning.cache import AGAIN, LATEST
from sparloom.tuning.sparse import CpuBackend, CsrDecider, CsrPolicy, OnlineReplay, ProvisionalReplay, prepared, replay
from sparloom.tuning.sparse.replay import CHECKED_CALLS

EASY = CsrPolicy.online(guardrail=Guardrail(alpha=1e6, errors=0), runs=1e6)  # nearly any kernel wins


class Machine:
    """Machine on which every thread waits for given seconds between two readings, with a clock."""

    def __init__(self) -> None:
        self.wait = self.taken_away = self.now = 0.0
        self._waited, self._looks = 0.0, 0

    def waits(self) -> Mapping[int, float]:
        self._waited += self.wait
        return {1: self._waited, 2: 0.0}

    def taken(self) -> float:
        self._looks += 1
        return self._looks * self.taken_away

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.delenv("SPARLOOM_KEEP_BUSY")
    monkeypatch.setattr(load, "ProcessLoad", lambda: machine)
    monkeypatch.setattr(replay, "SHORT_SECONDS", 0.0)  # a run that is too short for a race is so on every machine
    for module in (prepared, cache, replay):
        monkeypatch.setattr(module, "clock", lambda: machine.now)
    monkeypatch.setattr(cache, "_REMEMBERED", cache._ProcessMemory())
    cache.tell_busy.cache_clear()
    monkeypatch.setattr(rates, "_rates_in_process", functools.cache(rates._rates_in_process.__wrapped__))
    return machine


class Given(NoLoad):
    """Return given figures one after the other."""

    def __init__(self, *waits: Mapping[int, float], taken: tuple[float, ...] = ()) -> None:
        self._waits, self._taken = list(waits), list(taken)

    def waits(self) -> Mapping[int, float]:
        return self._waits.pop(0)

    def taken(self) -> float:
        return self._taken.pop(0) if self._taken else 0.0


@pytest.mark.parametrize(("before", "after", "seconds", "reason"), [
    ({1: 5.0}, {1: 5.0}, 1.0, ""),
    ({1: 5.0}, {1: 5.04}, 1.0, ""),
    ({1: 5.0}, {1: 5.06}, 1.0, "threads waited for processors for 6 % of the time"),
    ({1: 5.0, 2: 1.0}, {1: 5.0, 2: 1.5}, 1.0, "threads waited for processors for 50 % of the time"),
    ({1: 5.0, 2: 1.0}, {1: 5.03, 2: 1.03}, 1.0, ""),  # the one that waited longest counts
    ({1: 5.0}, {1: 5.00004}, 1e-4, ""),  # as long as waking it up takes
    ({1: 5.0}, {1: 5.003}, 1e-4, "threads waited for processors for 100 % of the time"),
    ({1: 5.0}, {1: 5.0, 9: 0.5}, 1.0, "threads waited for processors for 50 % of the time"),  # it was started meanwhile
    ({1: 5.0, 2: 1.0}, {1: 5.0}, 1.0, ""),  # it has ended
    ({}, {}, 1.0, ""),
])
def test_waiting_threads_indicate_a_busy_machine(before, after, seconds, reason):
    watch = LoadWatch(Given(before, after))
    watch.begin()
    watch.end(seconds)
    assert watch.close() == reason


def test_measurements_add_up_and_what_is_between_them_does_not_count():
    watch = LoadWatch(Given({1: 0.0}, {1: 0.01}, {1: 7.0}, {1: 7.01}), count().__next__)
    for _ in range(2):
        watch.begin()
        watch.end(1.0)
    assert watch.reason() == ""
    watch = LoadWatch(Given({1: 0.0}, {1: 0.01}, {1: 7.0}, {1: 7.21}), count().__next__)
    for _ in range(2):
        watch.begin()
        watch.end(1.0)
    assert "for 11 % of the time" in watch.reason()


def test_where_one_measurement_follows_another_its_counts_are_not_read_twice():
    watch = LoadWatch(Given({1: 0.0}, {1: 0.01}, {1: 0.3}), lambda: 5.0)
    for _ in range(2):
        watch.begin()
        watch.end(1.0)
    assert "for 15 % of the time" in watch.reason()


@pytest.mark.parametrize(("taken", "reason"), [
    ((3.0, 3.09), ""), ((3.0, 3.3), "processors were taken away for 300 ms of 2000")])
def test_stolen_processors_indicate_a_busy_machine(taken, reason):
    now = iter((10.0, 12.0))
    assert LoadWatch(Given(taken=taken), lambda: next(now)).reason() == reason


def test_counters_are_read_from_the_system_and_files_are_closed():
    found = ProcessLoad()
    before = found.waits()
    assert 1 <= len(before) <= MAX_THREADS
    assert all(seconds >= 0 for seconds in [*before.values(), found.taken()])
    found.refresh()
    assert all(found.waits().get(thread, seconds) >= seconds for thread, seconds in before.items())
    found.close()
    found.close()
    assert found.waits().keys() == {0}


def test_of_many_threads_the_first_and_the_newest_are_counted(monkeypatch):
    opened, files = [], {}
    monkeypatch.setattr(os, "listdir", lambda path: [str(thread) for thread in range(100, 20, -1)])
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(int(path.split("/")[4])) or len(opened))
    load._open_files(files)
    assert list(files) == opened == [21, *range(100 - MAX_THREADS + 2, 101)]


@pytest.mark.parametrize("missing", ["listdir", "open", "pread", "zero", "process"])
def test_without_figures_of_threads_involuntary_switches_count(monkeypatch, missing):
    def absent(*arguments):
        raise FileNotFoundError

    with monkeypatch.context() as patched:
        if missing == "zero":
            patched.setattr(os, "pread", lambda *arguments: b"0 0 12\n")
        elif missing != "process":
            patched.setattr(os, missing, absent)
        found = ProcessLoad()
        if missing == "process":
            patched.setattr(os, "getpid", lambda: -1)  # a forked child
        patched.setattr(load.resource, "getrusage", lambda who: SimpleNamespace(ru_nivcsw=7))
        assert found.waits() == {0: 7 * load.SWITCH_SECONDS}
    found.close()


def test_missing_and_unreadable_counters_count_as_idle(monkeypatch, tmp_path):
    group = tmp_path / "cpu.stat"
    monkeypatch.setattr(load, "GROUPS", (tmp_path / "none", group))
    assert load._throttled() == 0.0
    for text, seconds in (
            ("", 0.0), ("nr_throttled many\n", 0.0), ("throttled_usec 7\n", 0.0),
            ("nr_periods 0\nthrottled_usec 7\n", 0.0),
            ("nr_periods 3\nthrottled_usec 1500000\n", 1.5), ("nr_periods 3\nthrottled_time 2500000000\n", 2.5)):
        group.write_text(text)
        load._limited_groups.cache_clear()
        assert load._throttled() == seconds
    group.unlink()
    assert load._throttled() == 0.0
    load._limited_groups.cache_clear()


@pytest.mark.parametrize("text", ["2", "yes", "true"])
def test_invalid_arguments_are_refused(monkeypatch, text):
    monkeypatch.setenv("SPARLOOM_KEEP_BUSY", text)
    with pytest.raises(ValueError, match=f"SPARLOOM_KEEP_BUSY='{text}': give 0 or 1, or unset it"):
        watch_load()


def run_until_decided(ready, x) -> int:
    calls = 0
    while not ready.decided("spmm", B=x):
        ready.spmm(x)
        calls += 1
        assert calls < 500
    return calls


@pytest.mark.cc
@pytest.mark.parametrize("policy", [
    CsrPolicy.online(least_seconds=0, runs=1e6),
    CsrPolicy(calibrate="full", effort=MeasurementBudget(candidates=1, seconds=60.0))], ids=["online", "full"])
def test_on_a_busy_machine_nothing_is_cached_and_no_library_chosen(tmp_path, machine, policy, caplog):
    a, x = matrix(20000, 1500), dense(1500, 16)

    def instant(matrix, threads):
        result = matrix.to_scipy() @ x
        return lambda operands: result

    def decided(folder):
        ready = sparloom.prepare(a, cache=PlanCache(folder), policy=policy, libraries={"spmm": {"instant": instant}})
        run_until_decided(ready, x)
        close(SpMM(), a, {"B": x}, ready.spmm(x))
        return ready.plan("spmm", B=x).choice.library, len(kept_files(folder, "csr"))

    assert decided(tmp_path / "quiet") == ("instant", 1)
    machine.wait = 10.0
    with caplog.at_level(logging.INFO, "sparloom.tuning"):
        assert decided(tmp_path / "busy") == ("", 0)
        assert decided(tmp_path / "busy again") == ("", 0)
    assert caplog.text.count("the machine is busy: decisions are used by this process alone") == 1
    assert caplog.text.count("; not stored: threads waited for processors") == 2
    machine.wait, machine.taken_away = 0.0, 1e6
    assert decided(tmp_path / "stolen") == ("", 0)


@pytest.mark.cc
def test_a_cache_and_the_environment_may_ask_for_decisions_of_a_busy_machine(tmp_path, machine, monkeypatch):
    machine.wait, x = 10.0, dense(200, 8)
    kept = PlanCache(tmp_path / "kept", keep_busy=True)
    run_until_decided(sparloom.prepare(matrix(), cache=kept, policy=EASY), x)
    assert kept_files(tmp_path / "kept", "csr")
    monkeypatch.setenv("SPARLOOM_KEEP_BUSY", "1")
    run_until_decided(sparloom.prepare(matrix(), cache=PlanCache(tmp_path / "set"), policy=EASY), x)
    assert kept_files(tmp_path / "set", "csr")


@pytest.fixture
def races(monkeypatch):
    """Count the started races."""
    begun, begin = [], OnlineReplay.__init__
    monkeypatch.setattr(OnlineReplay, "__init__", lambda self, *given: begun.append(self) or begin(self, *given))
    return begun


@pytest.mark.cc
@pytest.mark.parametrize("places", [False, True])
def test_decisions_are_repeated_at_doubling_intervals_until_the_machine_is_idle(tmp_path, machine, races, places):
    a, x = matrix(), dense(200, 8)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=EASY, libraries={})
    op, call = ("spmm_max", lambda: ready.spmm_max(x)) if places else ("spmm", lambda: ready.spmm(x))
    machine.wait, expected = 10.0, call()
    begun = []
    for _ in range(8000):
        machine.now += 0.005
        found = call()
        assert all(map(np.array_equal, found, expected)) if places else np.allclose(found, expected, atol=1e-5)
        if len(begun) < len(races):
            begun.append(machine.now)
    assert len(races) == 6  # in 40 seconds
    gaps = np.diff(begun)
    assert (gaps[1:] > 1.5 * gaps[:-1]).all()
    assert not kept_files(tmp_path, "csr")
    machine.wait = 0.0
    machine.now += 100.0
    for _ in range(200):
        call()
    assert len(kept_files(tmp_path, "csr")) == 1
    assert ready.decided(op, B=x)
    assert len(races) == 7
    replays = ready._argmax_replays if places else ready._replays
    for _ in range(2):
        machine.now += 1e6
        for _ in range(100):
            call()
        assert len(races) <= 8  # the two best ones meet once more, if they were close
        assert not any(isinstance(replay, ProvisionalReplay | OnlineReplay) for replay in replays.values())


@pytest.mark.cc
def test_the_interval_between_races_has_a_maximum(tmp_path, machine, races):
    machine.wait, x = 10.0, dense(200, 8)
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=EASY, libraries={})
    for _ in range(12):
        machine.now += LATEST
        for _ in range(100):
            ready.spmm(x)
    assert len(races) == 12
    for _ in range(300):
        ready.spmm(x)
    assert len(races) == 12


@pytest.mark.cc
def test_a_decision_stored_meanwhile_by_another_process_is_used(tmp_path, machine, races):
    a, x = matrix(), dense(200, 8)
    machine.wait = 10.0
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=EASY)
    run_until_decided(ready, x)
    machine.wait = 0.0
    other = sparloom.prepare(a, cache=PlanCache(tmp_path), policy=EASY)
    run_until_decided(other, x)
    machine.now += 2 * AGAIN
    close(SpMM(), a, {"B": x}, ready.spmm(x))
    assert len(races) == 2
    assert ready.plan("spmm", B=x).decision.from_cache
    assert ready.plan("spmm", B=x).choice == other.plan("spmm", B=x).choice


@pytest.mark.cc
def test_requested_plans_end_and_measurements_on_a_sample_are_repeated(tmp_path, machine):
    machine.wait, x = 10.0, dense(200, 8)
    online = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=EASY)
    assert online.plan("spmm", B=x) is online.plan("spmm", B=x)
    sampled = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=CsrPolicy(least_seconds=0, runs=1e6))
    first = sampled.plan("spmm", B=x)
    sampled.spmm(x)
    assert sampled.plan("spmm", B=x) is first
    machine.wait, machine.now = 0.0, 2 * AGAIN
    for _ in range(CHECKED_CALLS):
        sampled.spmm(x)
    assert sampled.plan("spmm", B=x) is not first
    assert len(kept_files(tmp_path, "csr")) == 1


@pytest.mark.cc
def test_pairs_of_products_are_remembered_for_a_while(tmp_path, machine):
    op, machine.wait = GemmSpmm(), 1e6
    operands, cache = op.operands(band(), 8, seed=0), PlanCache(tmp_path)
    assert not plan_pair(op, operands, threads=1, cache=cache).decision.from_cache
    assert plan_pair(op, operands, threads=1, cache=PlanCache(tmp_path)).decision.from_cache
    assert not kept_files(tmp_path, "pair")
    assert not plan_pair(op, operands, threads=1, cache=PlanCache(tmp_path / "other")).decision.from_cache
    machine.wait, machine.now = 0.0, 1e4
    assert not plan_pair(op, operands, threads=1, cache=cache).decision.from_cache
    assert len(kept_files(tmp_path, "pair")) == 2  # "auto", and "never", on which it rests
    assert plan_pair(op, operands, threads=1, cache=cache, replay_only=True).decision.from_cache


def test_provisional_plans_last_twice_as_long_each_time_and_are_limited(tmp_path, machine):
    key = PlanKey("gemm_spmm", "", "a" * 64, "", 32, 64, "float32", 2, "auto", "b" * 64, "c" * 64)
    choice, plans = FusionConfig(True, 8192, 16 << 20, "natural", Variant(), 2), PlanCache(tmp_path)
    for seconds in (20.0, 40.0, 80.0, 160.0, 320.0, LATEST, LATEST):
        put_pair(plans, key, choice, Decision("measured", "", seconds=1.0), busy="busy")
        machine.now += 0.99 * seconds
        assert get_pair(plans, key)[0] == choice
        machine.now += 0.02 * seconds
        assert get_pair(plans, key) is None
    for width in range(1000):
        put_pair(plans, replace(key, width=width + 1), choice, Decision("rule", ""), busy="busy")
    assert len(cache._REMEMBERED._known) == cache.MAX_REMEMBERED
    assert not list(tmp_path.iterdir())


@pytest.mark.cc
def test_ragged_schedules_of_a_busy_machine_are_not_cached(tmp_path, machine):
    operator, structure = encoder_operators(EncoderShape(width=32, heads=2, hidden=32))["mixing"], Structure(
        {LENGTHS: [5, 3]})
    effort = RaggedBudget(sample=2, proposed=1, race=MeasurementBudget(repetitions=1, seconds=0.1, pairs=(1, 1)))

    def chosen(folder):
        return choose_schedule(operator, structure, threads=1, effort=effort, plans=PlanCache(folder)).from_cache

    machine.wait = 1e6
    assert [chosen(tmp_path / "busy") for _ in range(2)] == [False, True]
    assert not kept_files(tmp_path)
    machine.wait = 0.0
    assert [chosen(tmp_path / "quiet") for _ in range(2)] == [False, True]
    assert len(kept_files(tmp_path, "ragged")) == 1


def test_rates_are_measured_once_per_process_and_stored_on_idle_machines(tmp_path, machine, monkeypatch):
    measured = []
    monkeypatch.setattr(rates, "measure_rates", lambda threads: measured.append(threads) or RATES)
    for threads, wait, kept in ((1001, 1e6, 0), (1002, 0.0, 1)):
        machine.wait = wait
        assert [machine_rates(PlanCache(tmp_path), threads=threads) for _ in range(3)] == [RATES] * 3
        assert len(kept_files(tmp_path, "rates")) == kept
    assert measured == [1001, 1002]


@pytest.mark.parametrize(("threads", "run", "busy", "there"), [
    (2, 40e-6, False, True), (2, 60e-6, False, False), (2, 1.0, True, True), (16, 3e-6, False, True),
    (16, 4e-6, False, False), (1, 20e-6, False, False), (1, 20e-6, True, False)])
def test_one_thread_is_a_candidate_if_more_may_not_pay_off(monkeypatch, threads, run, busy, there):
    operands, library = Operands(ones(), {"B": dense(200, 8)}), {"other": None}
    monkeypatch.setattr(CsrDecider, "_quick_configs", lambda self, operands, safe, run: [
        safe, *(config for config in self.backend.configs(self.op, operands, sampled=False) if config != safe)][:6])
    monkeypatch.setattr(CsrDecider, "_near_libraries", lambda *given: list(library))
    decider = CsrDecider(SpMM(), CpuBackend(threads), library, CsrPolicy.online(), model=None)
    choices, baselines = decider.candidates(operands, run, busy=busy)
    own = 6 if run < 0.5e-3 else 4  # candidates of long runs cost more
    assert [choice.threads for choice in choices] == ([0, 0, 1] + (own - 2) * [0] if there else (own + 1) * [0])
    assert len(set(choices)) == len(choices)
    assert baselines == [0, 1]


def ones() -> SparseMatrix:
    pattern = Pattern.from_scipy(matrix())
    return SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))


@pytest.mark.cc
def test_a_cached_choice_of_one_thread_is_replayed_and_computes_the_same(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(replay, "SHORT_SECONDS", 0.0)
    a, x, cache = matrix(), dense(200, 8), PlanCache(tmp_path)
    run_until_decided(sparloom.prepare(a, threads=2, cache=cache, libraries={}), x)
    (path,) = kept_files(tmp_path, "csr")
    kept = json.loads(text_of(path))
    config = CpuBackend(2).default_config(SpMM(), Operands(ones(), {"B": x})).key
    for threads, right in ((1, True), (2, True), (3, False), (-1, False), ("1", False), (None, False)):
        choice = {"library": "", "config": config, "threads": threads}
        rewrite(path, json.dumps(kept | {"value": kept["value"] | {"choice": choice}}))
        ready = sparloom.prepare(a, threads=2, cache=cache, libraries={})
        close(SpMM(), a, {"B": x}, ready.spmm(x))
        assert ready.decided("spmm", B=x) is right
        assert not right or ready.plan("spmm", B=x).choice.threads == threads
        assert ("it is decided anew" in caplog.text) is not right
        caplog.clear()
