"""Decisions of several programs: steps, metrics, and resuming a killed run."""

import json
from functools import partial

import pandas as pd
import pytest
import torch

from sparloom.experiments import BenchDecisions
from sparloom.experiments.autosage import bench_decisions
from sparloom.experiments.harness import benchmark, run_jobs
from sparloom.measure import TimingProtocol
from sparloom.sparse import SyntheticCorpus
from sparloom.tuning.sparse import CsrPolicy

TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Make a bench of one matrix whose steps run in this process."""
    monkeypatch.setattr(benchmark, "run_in_subprocess", partial(run_jobs, processes=1))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    return BenchDecisions(
        SyntheticCorpus([400], 1, 0, ["uniform"]), None, {"spmm": [8], "sddmm": [8]}, heads=1, programs=2,
        policy=CsrPolicy.online(), timing=TIMING, threads=1, memory_bytes=1e9, journals=str(tmp_path / "journals"),
        seed=0)


@pytest.mark.cc
def test_every_program_decides_and_all_choices_are_timed(bench, tmp_path, monkeypatch):
    timed, kills = BenchDecisions._timed, [1]

    def killed(self, *given):
        if kills:
            kills.pop()
            raise KeyboardInterrupt
        return timed(self, *given)

    monkeypatch.setattr(BenchDecisions, "_timed", killed)
    with pytest.raises(KeyboardInterrupt):
        bench.run(tmp_path)
    monkeypatch.setattr(bench_decisions.DispatchBench, "decide", None)  # what was decided is found
    metrics = bench.run(tmp_path)
    frame = pd.read_parquet(tmp_path / "decisions.parquet")
    assert sorted(frame["program"]) == [0, 0, 1, 1]
    assert set(frame["op"]) == {"spmm", "sddmm"}
    assert (frame["choice_seconds"] > 0).all()
    assert metrics["cases"] == 2
    assert 0 <= metrics["alike_share"] <= 1
    assert not list((tmp_path / "journals").iterdir())
    json.dumps(metrics, allow_nan=False)


def decided(choices, seconds, *, op="spmm", call=1e-3, beyond=4e-3, width=8):
    return [{"op": op, "matrix": "a/b", "width": width, "program": number, "choice": choice, "calls": 20 + number,
             "call_seconds": call, "beyond_seconds": beyond, "choice_seconds": seconds[choice]}
            for number, choice in enumerate(choices)]


@pytest.mark.parametrize(("choices", "alike"), [
    ("a" * 10, True), ("a" * 9 + "c", True), ("a" * 8 + "cc", False), ("a" * 5 + "b" * 5, True)])
def test_programs_decide_alike_if_nine_of_ten_do_or_if_it_matters_little(choices, alike):
    seconds = {"a": 1.0, "b": 1.029, "c": 1.2}
    assert bench_decisions.are_alike(pd.DataFrame(decided(choices, seconds))) is alike


def test_costs_are_those_of_long_calls():
    seconds = {"a": 1.0, "b": 2.0}
    frame = pd.DataFrame([*decided("a" * 10, seconds), *decided("ab" * 5, seconds, op="sddmm", beyond=7e-3),
                          *decided("ab" * 5, seconds, width=9, call=1e-5)])
    metrics = bench_decisions.decision_metrics(frame)
    assert metrics["cases"] == 3
    assert metrics["alike_share"] == pytest.approx(1 / 3)
    assert (metrics["spmm/alike_share"], metrics["sddmm/alike_share"], metrics["large/alike_share"]) == (0.5, 0.0, 0.5)
    assert metrics["probe_runs_max"] == metrics["probe_runs_repeated_max"] == pytest.approx(7)
    assert metrics["probe_runs_median"] == pytest.approx(5.5)
    assert metrics["calls_until_decided_max"] == 29
