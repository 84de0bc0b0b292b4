"""Classes of fresh patterns: faster alternatives are found at the cost of a few calls; noise decides nothing."""

import numpy as np
import pytest
from csr_operands import close, dense, matrix

from sparloom.ops import SDDMM, CsrAttention, SpMM, SpmmMax
from sparloom.space import Config
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.records import list_plans
from sparloom.tuning.sparse import CpuBackend, classes, direct
from sparloom.tuning.sparse.classes import ClassStore, PatternClass, alternatives
from sparloom.tuning.sparse.direct import Csr, DirectCalls

DEFAULT = Config.parse("cpu_kernels", "order=natural,balance=nonzeros,prefetch=0,group=4")
ARMS = alternatives("sddmm", DEFAULT, 2, others=[1])
KEY = {"op": "sddmm", "widths": [[64], [64]], "rows": 1024, "nonzeros": 8192}
TRIED = 200  # calls, more than any comparison takes


class Machine:
    """Simulate a class whose alternatives take some seconds each, with counters of a busy or an idle machine."""

    def __init__(self, folder, seconds, *, noise=0.02, switches_per_call=0.0, seed=0):
        self.rng, self.seconds, self.noise = np.random.default_rng(seed), seconds, noise
        self.time, self.switches, self.per_call = 0.0, 0.0, switches_per_call
        backend = CpuBackend(2)
        store = ClassStore(lambda: PlanCache(folder), backend.signature(), backend.sources)
        self.known = PatternClass(KEY, ARMS, store, switches=lambda: int(self.switches), clock=lambda: self.time)

    def call(self):
        arm = self.known.next()
        seconds = self.seconds[arm] * (1 + self.noise * abs(self.rng.standard_normal()))
        if self.rng.random() < self.noise:
            seconds *= 20  # held up
        self.time += seconds
        self.switches += self.per_call
        if self.known.learning:
            self.known.record(arm, seconds)
        return arm

    def calls(self, count):
        return [self.call() for _ in range(count)]


def seconds_of(**faster):
    """Take 1 ms each but for some alternatives, by their place."""
    return [1e-3 * faster.get(f"arm{place}", 1.0) for place in range(len(ARMS))]


def test_alternatives_read_nothing_of_a_pattern():
    assert [config.key for config, _ in ARMS[:3]] == [
        DEFAULT.key, DEFAULT.replace(group=1).key, DEFAULT.replace(group=16).key]
    assert {config["order"] for config, _ in ARMS} == {"natural"}
    assert ARMS[-1] == (DEFAULT, 1)
    assert len({(config.key, threads) for config, threads in ARMS}) == len(ARMS)


@pytest.mark.parametrize("place", range(1, len(ARMS)))
def test_a_clearly_faster_alternative_is_chosen_and_stored(tmp_path, place):
    machine = Machine(tmp_path, seconds_of(**{f"arm{place}": 0.8}))
    machine.calls(TRIED)
    assert set(machine.calls(50)) == {place}
    (kept,) = list_plans(tmp_path, now=0.0)
    assert kept.kind == "class"
    assert kept.speedup == pytest.approx(1.25, rel=0.05)
    again = Machine(tmp_path, seconds_of())
    assert set(again.calls(classes.WARM_CALLS)) == {0}
    assert set(again.calls(50)) == {place}, "a later process learns nothing again"


@pytest.mark.parametrize("seed", range(20))
def test_alternatives_that_are_alike_leave_the_default(tmp_path, seed):
    machine = Machine(tmp_path, seconds_of(arm1=0.98, arm2=1.02), noise=0.1, seed=seed)
    machine.calls(10 * TRIED)
    assert set(machine.calls(50)) == {0}


def test_slow_alternatives_cost_two_calls_each(tmp_path):
    machine = Machine(tmp_path, [1e-3] + [5e-3] * (len(ARMS) - 1))
    used = machine.calls(TRIED)
    assert sum(arm != 0 for arm in used) <= 2 * (len(ARMS) - 1)
    assert used[: classes.WARM_CALLS] == [0] * classes.WARM_CALLS


def test_a_busy_machine_decides_nothing_and_is_asked_again(tmp_path):
    machine = Machine(tmp_path, seconds_of(arm2=0.7), switches_per_call=1)
    machine.calls(2 * TRIED)
    assert not list_plans(tmp_path, now=0.0)
    assert machine.known.turn == 0 or machine.known.learning
    machine.per_call = 0
    machine.calls(20 * classes.RETRY)
    assert set(machine.calls(50)) == {2}


def test_a_choice_that_is_no_longer_faster_is_given_up(tmp_path):
    machine = Machine(tmp_path, seconds_of(arm1=0.8))
    machine.calls(TRIED)
    assert machine.call() == 1
    machine.seconds = seconds_of(arm1=3.0)
    machine.calls(classes.TESTED_AGAIN + TRIED)
    assert set(machine.calls(50)) == {0}


def test_what_is_stored_of_other_alternatives_is_ignored(tmp_path):
    store = ClassStore(lambda: PlanCache(tmp_path), {}, ())
    store.put(KEY, (DEFAULT.replace(group=16), 64), 2.0)
    assert store.get(KEY, ARMS) is None
    assert ClassStore(lambda: PlanCache(None), {}, ()).get(KEY, ARMS) is None


def test_a_comparison_that_another_thread_delays_begins_later(tmp_path):
    simulated = Machine(tmp_path, seconds_of()).known
    with simulated._recording:
        for _ in range(classes.WARM_CALLS + 1):
            simulated.next()
    assert not simulated._compared
    simulated.next()
    assert simulated._compared


def test_calls_recorded_out_of_turn_do_no_harm(tmp_path):
    machine = Machine(tmp_path, seconds_of(arm1=0.5))
    for place in (3, 0, 0, 2):
        machine.known.record(place, 1.0)
    machine.calls(classes.WARM_CALLS + 3)
    for place in (5, 1, 1, 0):
        machine.known.record(place, 1e-3)
    machine.calls(TRIED)
    assert machine.call() == 1


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("operation", ["spmm", "max", "sddmm", "attention"])
def test_every_alternative_is_right(monkeypatch, operation):
    monkeypatch.setattr(direct, "LEARNED_ELEMENTS", 0)
    monkeypatch.setattr(classes, "WARM_CALLS", 2)
    calls, x, q = DirectCalls(3), dense(200, 24), dense(300, 24)
    heads = {"Q": dense(300, 2, 8), "K": dense(200, 2, 8), "V": dense(200, 2, 5)}
    used = set()
    for seed in range(2000):  # a busy machine takes longer to compare them all
        a = matrix(seed=seed)
        given = Csr(a.indptr, a.indices, a.data, a.shape)
        if operation == "spmm":
            close(SpMM(), a, {"B": x}, calls.spmm(given, x))
        elif operation == "max":
            close(SpmmMax(), a, {"B": x}, calls.spmm(given, x, reduce="max"))
        elif operation == "sddmm":
            close(SDDMM(), a, {"B": q, "C": x}, calls.sddmm(given, q, x))
        else:
            close(CsrAttention(2), a, heads, calls.attention(given, *heads.values()))
        used |= {arm for _, arm in calls._ready}
        (known,) = calls._classes.values()
        if seed >= 60 and used == set(range(len(known.arms))):
            break
    assert used == set(range(len(known.arms)))
