"""Listing and deletion of cached decisions."""

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from kept_files import Kept, changed, kept_files, rewrite
from test_dispatch_cache import CHOICE, DECISION, KEY, RATES

import sparloom
from sparloom.measure import describe_machine
from sparloom.tuning import (
    FUSED_SOURCES,
    RAGGED_SOURCES,
    Decision,
    PlanCache,
    Pruning,
    RaggedChoice,
    Trial,
    get_pair,
    kernels_digest,
    list_plans,
    machine_digest,
    machine_digests,
    prune_plans,
    put_pair,
    put_rates,
    put_schedule,
)
from sparloom.tuning.sparse import CsrPolicy

HOUR, DAY = 3600.0, 86400.0
OWN = replace(KEY, machine=machine_digest(), kernels=kernels_digest(FUSED_SOURCES))
RAGGED = {"operator": "mixing width=32", "space": "s", "alike": {"tokens": 64, "longest": 9}, "threads": 1,
          "machine": machine_digest(), "kernels": kernels_digest(RAGGED_SOURCES)}
UNFUSED = replace(CHOICE, fused=False, ct_size=0, cache_bytes=0)
DUEL = (Trial(CHOICE.key, (1.0,)), Trial(UNFUSED.key, (2.0,)), Trial(CHOICE.key, (1.0, 1.0, 2.0)),
        Trial(UNFUSED.key, (3.0, 2.0, 9.0)))


def only(folder: Path):
    (plan,) = list_plans(folder, now=time.time())
    return plan


def test_a_pair_is_listed_with_its_choice_and_reason(tmp_path):
    put_pair(PlanCache(tmp_path), OWN, CHOICE, Decision("measured", "accepted", DUEL))
    plan = list_plans(tmp_path, now=time.time() + HOUR)[0]
    assert (plan.kind, plan.state, plan.fault, plan.threads) == ("pair", "own", "", 2)
    assert (plan.op, plan.pattern, plan.shapes) == ("gemm_spmm fuse=auto", "a" * 12, "64, inner 32, float32")
    assert (plan.choice, plan.reason, plan.speedup) == (CHOICE.key, "accepted", 3.0)
    assert plan.age_seconds == pytest.approx(HOUR, abs=60)
    assert (plan.path, plan.digest) == (tmp_path / "decisions.sqlite", kept_files(tmp_path)[0].digest)


@pytest.mark.parametrize(("choice", "decision", "speedup"), [
    (UNFUSED, Decision("measured", "refused", DUEL), 1.0),
    (UNFUSED, Decision("measured", "fastest of 2", DUEL[:2]), None),
    (UNFUSED, Decision("rule", "too small"), None),
])
def test_a_speedup_is_listed_if_it_was_measured(choice, decision, speedup, tmp_path):
    put_pair(PlanCache(tmp_path), OWN, choice, decision)
    assert only(tmp_path).speedup == speedup


def test_ragged_operators_and_rates_are_listed(tmp_path):
    cache = PlanCache(tmp_path)
    put_schedule(cache, RAGGED, RaggedChoice(SimpleNamespace(key="tile=4"), 0.5, measured=7, seconds=1.25))
    put_rates(cache, RATES, threads=2)
    ragged, rates = sorted(list_plans(tmp_path, now=0.0), key=lambda plan: plan.kind)
    assert (ragged.kind, ragged.op, ragged.shapes) == ("ragged", "mixing width=32", "tokens=64, longest=9")
    assert (ragged.choice, ragged.reason, ragged.speedup) == ("tile=4", "7 measured in 1.2 s", 2.0)
    assert (rates.kind, rates.threads, rates.choice) == ("rates", 2, "100 GFLOP/s, 50 GB/s from memory")
    assert {plan.state for plan in (rates, ragged)} == {"own"}
    assert ragged.age_seconds == 0  # a clock that is behind


@pytest.mark.cc
def test_entries_of_sparse_operations_are_listed_as_such(tmp_path):
    matrix = scipy.sparse.random_array((300, 200), density=0.05, format="csr", dtype=np.float32,
                                       rng=np.random.default_rng(0))
    put_rates(PlanCache(tmp_path), RATES, threads=2)
    ready = sparloom.prepare(matrix, cache=PlanCache(tmp_path), threads=2, policy=CsrPolicy())
    made = ready.plan("spmm", B=np.ones((200, 8), np.float32))
    plan = next(plan for plan in list_plans(tmp_path, now=time.time()) if plan.kind == "csr")
    assert (plan.state, plan.op, plan.shapes, plan.threads) == ("own", "spmm", "8", 2)
    assert plan.pattern == ready.matrix.pattern.digest()[:12]
    assert (plan.choice, plan.reason) == (made.choice.library or made.choice.config, made.decision.reason)


@pytest.mark.parametrize(("spoil", "state", "fault"), [
    (lambda kept: rewrite(kept, b""), "damaged", "Expecting value"),
    (lambda kept: rewrite(kept, "[" * 100_000), "damaged", "RecursionError"),
    (changed(lambda entry: entry.update(kind="pears")), "damaged", "written for something else"),
    (changed(lambda entry: entry.update(version=3)), "foreign", "of version 3, not 2"),
    (changed(lambda entry: entry.update(key=asdict(replace(OWN, width=1)))), "damaged", "written for something else"),
    (changed(lambda entry: entry.update(summary=[])), "damaged", "TypeError"),
    (changed(lambda entry: entry.update(summary={"pears": 1})), "damaged", "unexpected keyword argument 'pears'"),
    (changed(lambda entry: entry["summary"].update(sources=["/etc/*"])), "damaged", "NotImplementedError"),
])
def test_the_fault_of_an_entry_is_reported(spoil, state, fault, tmp_path):
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    (kept,) = kept_files(tmp_path)
    spoil(kept)
    plan = only(tmp_path)
    assert (plan.state, plan.digest) == (state, kept.digest)
    assert fault in plan.fault
    assert prune_plans([plan], Pruning("foreign")) == [plan]
    assert not kept.exists()


@pytest.mark.parametrize(("key", "fault"), [
    (replace(OWN, machine="e" * 64), "of another machine"), (replace(OWN, kernels="e" * 64), "of other kernels")])
def test_decisions_of_other_conditions_are_foreign(key, fault, tmp_path):
    put_pair(PlanCache(tmp_path), key, CHOICE, DECISION)
    plan = only(tmp_path)
    assert (plan.state, plan.fault, plan.op) == ("foreign", fault, "gemm_spmm fuse=auto")


def test_a_process_with_fewer_processors_is_on_this_machine():
    assert machine_digest() in machine_digests()
    assert len(machine_digests()) >= max(int(describe_machine()["threads"]), os.cpu_count())


def test_nothing_but_decisions_of_the_folder_is_listed_or_deleted(tmp_path):
    for name in ("notes.txt", "plan.json"):
        (tmp_path / name).write_text("mine")
    put_pair(PlanCache(tmp_path / "elsewhere"), KEY, CHOICE, DECISION)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    plan = only(tmp_path)
    assert prune_plans([plan], Pruning("foreign", older_days=1)) == []
    assert prune_plans([plan], Pruning("all")) == [plan]
    assert {path: path.read_bytes() for path in before} == before
    assert kept_files(tmp_path) == kept_files(tmp_path / "elsewhere")


@pytest.mark.parametrize(("pruning", "left"), [
    (Pruning("none"), "fresh old foreign"), (Pruning("foreign"), "fresh old"), (Pruning("all"), ""),
    (Pruning("none", older_days=30), "fresh foreign"), (Pruning("foreign", older_days=30), "fresh"),
    (Pruning("none", older_days=0.5), "foreign"),
])
def test_selected_entries_are_deleted(pruning, left, tmp_path):
    kept: dict[str, Kept] = {}
    for name, key, days in (("fresh", OWN, 1), ("old", replace(OWN, width=1), 31), ("foreign", KEY, 0)):
        put_pair(PlanCache(tmp_path), key, CHOICE, DECISION)
        (kept[name],) = set(kept_files(tmp_path)) - set(kept.values())
        kept[name].age(days * DAY)
    gone = prune_plans(list_plans(tmp_path, now=time.time()), pruning)
    assert {name for name, each in kept.items() if each.exists()} == set(left.split())
    assert {plan.digest for plan in gone} == {each.digest for name, each in kept.items() if name not in left.split()}


def test_a_decision_that_was_replaced_meanwhile_stays(tmp_path):
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    plan = only(tmp_path)
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    assert prune_plans([plan], Pruning("all")) == []
    assert get_pair(PlanCache(tmp_path), OWN) is not None
    assert prune_plans([only(tmp_path), plan], Pruning("all"))[0].written > plan.written
    assert get_pair(PlanCache(tmp_path), OWN) is None


def test_pruning_makes_the_file_smaller(tmp_path):
    for width in range(100):
        put_pair(PlanCache(tmp_path), replace(OWN, width=width), CHOICE, DECISION)
    before = (tmp_path / "decisions.sqlite").stat().st_size
    assert len(prune_plans(list_plans(tmp_path, now=time.time()), Pruning("all"))) == 100
    assert (tmp_path / "decisions.sqlite").stat().st_size < before / 3


@pytest.mark.parametrize(("which", "days", "message"), [
    ("old", None, "prune='old' is not one of none, foreign, all"), (None, None, "prune=None is not one"),
    ("none", 0, "older_days=0: give a number above 0"), ("none", True, "older_days=True"),
    ("none", float("nan"), "older_days=nan"), ("foreign", "30", "older_days='30'"),
    ("all", 30, "prune=all asks for no age and older_days=30 for one"),
])
def test_invalid_arguments_are_refused(which, days, message):
    with pytest.raises(ValueError, match=message):
        Pruning(which, days)


def test_a_missing_folder_has_no_entries(tmp_path):
    assert list_plans(tmp_path / "none", now=0.0) == []
    assert list(tmp_path.iterdir()) == []
