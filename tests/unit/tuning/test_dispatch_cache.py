"""Decisions and rates on disk: lookups in this process and in another one, and damaged entries."""

import functools
import itertools
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kept_files import changed, kept_files, rewrite

from sparloom.errors import NotDecided
from sparloom.fusion import Variant
from sparloom.ops import GemmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import (
    Decision,
    FusionConfig,
    PlanCache,
    PlanKey,
    Rates,
    Trial,
    get_pair,
    get_rates,
    machine,
    machine_rates,
    measure_rates,
    plan_pair,
    put_pair,
    put_rates,
)

KEY = PlanKey("gemm_spmm", "", "a" * 64, "", inner=32, width=64, dtype="float32", threads=2, fuse="auto",
              machine="b" * 64, kernels="c" * 64)
CHOICE = FusionConfig(True, 8192, 16 << 20, Variant(local=True, prefetch_bytes=4096), 2)
DECISION = Decision("measured", "accepted", (Trial(CHOICE.key, (0.5, 0.25)),), executions=3, seconds=1.5)
RATES = Rates(1e11, 2e11, 1e11, 5e10, 1 << 20, 1 << 25)


def band(rows: int = 60) -> SparseMatrix:
    row, column = np.indices((rows, rows))
    pattern = Pattern.from_coo(*np.nonzero(np.abs(row - column) < 3), (rows, rows))
    return SparseMatrix(pattern, np.random.default_rng(1).uniform(-1, 1, pattern.nnz))


def test_a_decision_comes_back_as_it_was(tmp_path):
    cache = PlanCache(tmp_path / "new")
    assert get_pair(cache, KEY) is None
    put_pair(cache, KEY, CHOICE, DECISION)
    assert get_pair(cache, KEY) == (CHOICE, replace(DECISION, from_cache=True))
    assert get_pair(cache, replace(KEY, width=32)) is None
    assert CHOICE.key == "ct_size=8192,cache=16384,local=1,stream=0,stream_first=0,prefetch=4"


def test_rates_come_back(tmp_path):
    cache = PlanCache(tmp_path)
    assert get_rates(cache, threads=2) is None
    put_rates(cache, RATES, threads=2)
    assert get_rates(cache, threads=2) == RATES
    assert get_rates(cache, threads=1) is None


@pytest.mark.parametrize(("damage", "reason"), [
    (changed(lambda entry: entry["value"].pop("choice")), "choice"),
    (changed(lambda entry: entry["value"].update(choice=3)), "int"),
    (changed(lambda entry: entry["value"].update(choice=CHOICE.key.replace("16384", "5"))), "cache=5"),
    (changed(lambda entry: entry["value"].update(choice=CHOICE.key.replace("8192", "0"))), "ct_size=0"),
    (changed(lambda entry: entry["value"]["decision"].update(origin="guess")), "origin 'guess' of a decision"),
    (changed(lambda entry: entry["value"]["decision"].update(trials=[[]])), "a decision does not have its fields"),
])
def test_damaged_decisions_are_left_aside_with_a_warning(damage, reason, tmp_path, caplog):
    cache = PlanCache(tmp_path)
    put_pair(cache, KEY, CHOICE, DECISION)
    (path,) = kept_files(tmp_path)
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert get_pair(cache, KEY) is None
    assert reason in caplog.text
    assert "decided anew" in caplog.text


def test_without_a_folder_nothing_is_cached(monkeypatch):
    calls = []
    monkeypatch.setattr(machine, "measure_rates", lambda threads: calls.append(threads) or RATES)
    monkeypatch.setattr(machine, "_rates_in_process", functools.cache(machine._rates_in_process.__wrapped__))
    cache = PlanCache(None)
    put_pair(cache, KEY, CHOICE, DECISION)
    assert get_pair(cache, KEY) is None
    assert [machine_rates(each, threads=threads) for each, threads in (
        (cache, 1001), (PlanCache(None), 1001), (cache, 1002))] == [RATES] * 3
    assert calls == [1001, 1002]


@pytest.mark.parametrize("numbers", [{}, {"flops": -1.0}, {"flops": "fast"}, 3])
def test_damaged_rates_are_left_aside(numbers, tmp_path, caplog):
    cache = PlanCache(tmp_path)
    put_rates(cache, RATES, threads=2)
    (path,) = kept_files(tmp_path)
    changed(lambda entry: entry.update(value=numbers if not isinstance(numbers, dict) else entry["value"] | numbers
                                       if numbers else {}))(path)
    assert get_rates(cache, threads=2) is None
    assert "rates of a machine" in caplog.text


def test_nothing_is_measured_for_a_replay_that_is_not_there(tmp_path):
    op = GemmSpmm()
    with pytest.raises(NotDecided, match=r"no plan for gemm_spmm .*width 8.*fuse='auto' in .*plan once without replay"):
        plan_pair(op, op.operands(band(), 8, seed=0), threads=2, cache=PlanCache(tmp_path), replay_only=True)
    assert not any(tmp_path.iterdir())


REPLAY = """
import sys
from pathlib import Path
sys.path[:0] = {tests!r}
from test_dispatch_cache import band
from sparloom.tuning import PlanCache, plan_pair
from sparloom.ops import GemmSpmm
op = GemmSpmm()
plan = plan_pair(op, op.operands(band(), 8, seed=1), threads=2, cache=PlanCache(Path({folder!r})), replay_only=True)
sys.stdout.write(f"{{plan.choice.key}} {{plan.decision.from_cache}} {{plan.decision.executions}}")
"""


@pytest.mark.cc
def test_another_process_finds_the_decision_of_this_one(tmp_path):
    op = GemmSpmm()
    plan = plan_pair(op, op.operands(band(), 8, seed=0), threads=2, cache=PlanCache(tmp_path))
    assert not plan.decision.from_cache
    script = REPLAY.format(tests=[str(Path(__file__).parent), str(Path(__file__).parents[2])], folder=str(tmp_path))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == f"{plan.choice.key} True {plan.decision.executions}"


@pytest.mark.cc
def test_a_decision_is_made_again_after_a_damaged_file(tmp_path):
    op = GemmSpmm()
    operands, cache = op.operands(band(), 8, seed=0), PlanCache(tmp_path)
    plan_pair(op, operands, threads=2, cache=cache)
    for path in kept_files(tmp_path):
        rewrite(path, b"{")
    assert not plan_pair(op, operands, threads=2, cache=cache).decision.from_cache
    assert plan_pair(op, operands, threads=2, cache=cache).decision.from_cache


@pytest.mark.cc
def test_rates_are_work_over_seconds():
    ticks = itertools.count()
    rates = measure_rates(threads=1, clock=lambda: float(next(ticks)))  # every run takes a second
    assert rates.flops == 2 * 1024 * 128 * 128
    assert (rates.near, rates.far) == (2 * 2**13 * 32 * 256, 2 * 2**15 * 32 * 256)
    assert rates.memory == 6 * 2**18 * 256
