"""Listing and deletion of cached decisions."""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from kept_files import Kept, changed, kept_files, rewrite, text_of
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
    put_order,
    put_pair,
    put_rates,
    put_schedule,
)
from sparloom.tuning.cache import entry_key
from sparloom.tuning.sparse import CsrPolicy

HOUR, DAY = 3600.0, 86400.0
OWN = replace(KEY, machine=machine_digest(), kernels=kernels_digest(FUSED_SOURCES))
RAGGED = {"operator": "mixing width=32", "space": "s", "alike": {"tokens": 64, "longest": 9}, "threads": 1,
          "machine": machine_digest(), "kernels": kernels_digest(RAGGED_SOURCES)}
TILE_4 = SimpleNamespace(key="tile=4")
UNFUSED = replace(CHOICE, fused=False, ct_size=0, cache_bytes=0, order="natural")
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
    assert plan.size_bytes == len(kept_files(tmp_path)[0].read_bytes())
    assert (plan.path, plan.digest) == (tmp_path / "decisions.sqlite", kept_files(tmp_path)[0].digest)


@pytest.mark.parametrize(("choice", "decision", "speedup"), [
    (UNFUSED, Decision("measured", "refused", DUEL), 1.0),
    (UNFUSED, Decision("measured", "fastest of 2", DUEL[:2]), None),
    (UNFUSED, Decision("rule", "too small"), None),
])
def test_a_speedup_is_listed_if_it_was_measured(choice, decision, speedup, tmp_path):
    put_pair(PlanCache(tmp_path), OWN, choice, decision)
    assert only(tmp_path).speedup == speedup


def test_ragged_operators_rates_and_orders_are_listed(tmp_path):
    cache = PlanCache(tmp_path)
    put_schedule(cache, RAGGED, RaggedChoice(TILE_4, 0.5, measured=7, seconds=1.25))
    put_rates(cache, RATES, threads=2)
    put_order(cache, "d" * 64, "metis", np.array([2, 0, 1], np.int32))
    order, ragged, rates = sorted(list_plans(tmp_path, now=0.0), key=lambda plan: plan.kind)
    assert (order.kind, order.op, order.pattern, order.shapes) == ("order", "metis", "d" * 12, "3 rows")
    assert (ragged.kind, ragged.op, ragged.shapes) == ("ragged", "mixing width=32", "tokens=64, longest=9")
    assert (ragged.choice, ragged.reason, ragged.speedup) == ("tile=4", "7 measured in 1.2 s", 2.0)
    assert (rates.kind, rates.threads, rates.choice) == ("rates", 2, "100 GFLOP/s, 50 GB/s from memory")
    assert {plan.state for plan in (order, rates, ragged)} == {"own"}
    assert ragged.age_seconds == 0  # a clock that is behind


@pytest.mark.cc
def test_entries_of_sparse_operations_are_listed_as_such(tmp_path):
    cache = PlanCache(tmp_path / "plans")
    put_rates(cache, RATES, threads=2)
    matrix = scipy.sparse.random_array((300, 200), density=0.05, format="csr", dtype=np.float32,
                                       rng=np.random.default_rng(0))
    ready = sparloom.prepare(matrix, cache=cache, threads=2, policy=CsrPolicy(least_seconds=0, runs=1e6))
    ready.spmm(np.ones((200, 8), np.float32))
    plan = next(plan for plan in list_plans(cache.folder, now=time.time()) if plan.kind == "csr")
    made = ready.plan("spmm", B=np.ones((200, 8), np.float32))
    assert (plan.state, plan.op, plan.shapes, plan.threads) == ("own", "spmm", "8", 2)
    assert plan.pattern == ready.matrix.pattern.digest()[:12]
    assert (plan.choice, plan.reason) == (made.choice.library or made.choice.config, made.decision.reason)
    assert plan.speedup >= 1


def change(path: Kept, **values) -> None:
    changed(lambda value: value.update(values))(path)


@pytest.mark.parametrize(("spoil", "state", "fault"), [
    (lambda path: path.write_bytes(b""), "damaged", "its checksum differs"),
    (lambda path: path.write_bytes(path.read_bytes()[:100]), "damaged", "its checksum differs"),
    (lambda path: rewrite(path, text_of(path)[:100]), "damaged", "line"),
    (lambda path: change(path, kind="pears"), "damaged", "written for something else"),
    (lambda path: change(path, version=3), "foreign", "of version 3, not 2"),
    (lambda path: change(path, key=asdict(replace(OWN, width=1))), "damaged", "written for something else"),
    (lambda path: change(path, key={"op": "spmm"}), "damaged", "written for something else"),
    (lambda path: change(path, key=3), "damaged", "written for something else"),
    (lambda path: change(path, summary=[]), "damaged", "TypeError"),
    (lambda path: change(path, summary={"pears": 1}), "damaged", "unexpected keyword argument 'pears'"),
])
def test_the_fault_of_a_file_is_reported(spoil, state, fault, tmp_path):
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    (path,) = kept_files(tmp_path)
    spoil(path)
    plan = only(tmp_path)
    assert (plan.state, plan.path, plan.digest) == (state, path.file, path.digest)
    assert fault in plan.fault
    assert prune_plans([plan], Pruning("foreign")) == [plan]
    assert not path.exists()


@pytest.mark.parametrize(("key", "fault"), [
    (replace(OWN, machine="e" * 64), "of another machine"), (replace(OWN, kernels="e" * 64), "of other kernels")])
def test_decisions_of_other_conditions_are_foreign(key, fault, tmp_path):
    put_pair(PlanCache(tmp_path), key, CHOICE, DECISION)
    plan = only(tmp_path)
    assert (plan.state, plan.fault, plan.op) == ("foreign", fault, "gemm_spmm fuse=auto")


def test_a_process_with_fewer_processors_is_on_this_machine():
    machine = describe_machine()
    threads = int(machine["threads"])
    assert machine_digest() in machine_digests()
    assert len(machine_digests()) >= max(threads, os.cpu_count())


@pytest.mark.parametrize("damage", [
    lambda value: value[:0], lambda value: value[:9], lambda value: value[:-1], lambda value: value[:-4],
    lambda value: value + bytes(4)])
def test_damaged_orders_are_reported(damage, tmp_path):
    put_order(PlanCache(tmp_path), "d" * 64, "metis", np.arange(4, dtype=np.int32))
    (path,) = kept_files(tmp_path)
    value = path.read_bytes()
    path.write_bytes(damage(value))
    assert only(tmp_path).state == "damaged"
    rewrite(path, damage(value))
    assert only(tmp_path).state == "damaged"


def test_an_order_of_another_inspector_is_foreign(tmp_path):
    put_order(PlanCache(tmp_path), "d" * 64, "metis", np.arange(4, dtype=np.int32))
    (path,) = kept_files(tmp_path)
    head, _, numbers = path.read_bytes().partition(b"\n")
    key = json.loads(head)["key"] | {"kernels": "e" * 64}
    _, orders = PlanCache(tmp_path).stores
    path.unlink()
    orders.put(entry_key("order", key), json.dumps({**json.loads(head), "key": key}).encode() + b"\n" + numbers)
    assert (only(tmp_path).state, only(tmp_path).fault) == ("foreign", "of other kernels")


def strangers(folder: Path) -> dict[Path, bytes]:
    """Write files of other programs and a cache of its own beside them."""
    for name, content in {"notes.txt": b"mine", "plan.json": b"{}", "probe_logs.jsonl": b"{}\n"}.items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, (0, 0))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    put_pair(PlanCache(elsewhere), KEY, CHOICE, DECISION)
    (folder / "linked.db").symlink_to(elsewhere / "decisions.sqlite")
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_but_files_of_decisions_is_listed_or_deleted(tmp_path):
    before = strangers(tmp_path)
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    (kept,) = list_plans(tmp_path, now=time.time())
    assert prune_plans([kept], Pruning("foreign", older_days=1)) == []
    assert prune_plans([kept], Pruning("all")) == [kept]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")
            if path.is_file() and path != tmp_path / "decisions.sqlite"} == before
    assert kept_files(tmp_path) == kept_files(tmp_path / "elsewhere")


def test_a_list_with_something_else_in_it_deletes_nothing(tmp_path):
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    plan = only(tmp_path)
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(ValueError, match=r"mine\.json is no file of a cache of decisions: pass what list_plans gives"):
        prune_plans([plan, replace(plan, path=tmp_path / "mine.json")], Pruning("all"))
    assert [kept.digest for kept in kept_files(tmp_path)] == [plan.digest]
    assert (tmp_path / "mine.json").exists()


def aged(folder: Path, key, days: float) -> Kept:
    before = set(kept_files(folder))
    put_pair(PlanCache(folder), key, CHOICE, DECISION)
    (path,) = set(kept_files(folder)) - before
    path.age(days * DAY)
    return path


@pytest.mark.parametrize(("pruning", "left"), [
    (Pruning("none"), "fresh old foreign"), (Pruning("foreign"), "fresh old"), (Pruning("all"), ""),
    (Pruning("none", older_days=30), "fresh foreign"), (Pruning("foreign", older_days=30), "fresh"),
    (Pruning("none", older_days=0.5), "foreign"),
])
def test_selected_entries_are_deleted(pruning, left, tmp_path):
    paths = {"fresh": aged(tmp_path, OWN, 1), "old": aged(tmp_path, replace(OWN, width=1), 31),
             "foreign": aged(tmp_path, KEY, 0)}
    gone = prune_plans(list_plans(tmp_path, now=time.time()), pruning)
    assert {name for name, path in paths.items() if path.exists()} == set(left.split())
    assert {plan.digest for plan in gone} == {path.digest for name, path in paths.items() if name not in left.split()}


def test_a_decision_that_was_replaced_meanwhile_stays(tmp_path):
    cache = PlanCache(tmp_path)
    put_pair(cache, OWN, CHOICE, DECISION)
    (path,) = kept_files(tmp_path)
    path.write_bytes(b"{")
    before = list_plans(tmp_path, now=time.time())
    put_pair(cache, OWN, CHOICE, DECISION)
    assert prune_plans(before, Pruning("all")) == []
    assert get_pair(cache, OWN) is not None
    path.unlink()
    assert prune_plans(before, Pruning("all")) == []


def test_a_damaged_file_is_listed_and_pruned_as_a_whole(tmp_path):
    put_pair(PlanCache(tmp_path), OWN, CHOICE, DECISION)
    file = tmp_path / "decisions.sqlite"
    PlanCache(tmp_path).stores[0]._disconnect()
    file.write_bytes(b"{}" * 3000)
    plan = only(tmp_path)
    assert (plan.state, plan.path, plan.digest, plan.size_bytes) == ("damaged", file, "", 6000)
    assert "not a database" in plan.fault
    assert prune_plans([plan], Pruning("foreign")) == [plan]
    assert not file.exists()


def test_pruning_makes_the_file_smaller(tmp_path):
    for width in range(100):
        put_pair(PlanCache(tmp_path), replace(OWN, width=width), CHOICE, DECISION)
    before = (tmp_path / "decisions.sqlite").stat().st_size
    assert len(prune_plans(list_plans(tmp_path, now=time.time()), Pruning("all"))) == 100
    assert (tmp_path / "decisions.sqlite").stat().st_size < before / 3


@pytest.mark.parametrize(("which", "days", "message"), [
    ("old", None, "prune='old' is not one of none, foreign, all"), (None, None, "prune=None is not one"),
    ("none", 0, "older_days=0: give a number above 0"), ("none", -1, "older_days=-1"),
    ("none", True, "older_days=True"),
    ("none", float("nan"), "older_days=nan"), ("foreign", "30", "older_days='30'"),
    ("all", 30, "prune=all asks for no age and older_days=30 for one"),
])
def test_invalid_arguments_are_refused(which, days, message):
    with pytest.raises(ValueError, match=message):
        Pruning(which, days)


def test_a_missing_folder_has_no_entries(tmp_path):
    assert list_plans(tmp_path / "none", now=0.0) == []
    assert list(tmp_path.iterdir()) == []
