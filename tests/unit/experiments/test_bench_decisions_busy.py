"""Decisions on a busy machine: cases, metrics, and resuming a killed run."""

import json
from contextlib import nullcontext
from multiprocessing import active_children

import pandas as pd
import pytest

from sparloom.experiments import BusyCase
from sparloom.experiments.autosage import bench_decisions_busy as bench
from sparloom.tuning import NoLoad

SMALL = ("task.rows=[2000]", "task.degrees=[10]", "task.widths=[8,16]", "task.threads=1", "task.pairs=2")


class Waiting(NoLoad):
    """Machine on which threads always wait."""

    seconds = 0.0

    def waits(self):
        self.seconds += 1e3
        return {1: self.seconds}


@pytest.fixture
def here(monkeypatch):
    """Run all processes of a case one after the other in this one; return their names and the busy processes."""
    ran = []

    def run(calls):
        ran.append([call.__name__ for call, *_ in calls])
        for call, *given in calls:
            call(*given)

    monkeypatch.setenv("SPARLOOM_KEEP_BUSY", "1")  # and again after the task has removed it
    monkeypatch.setattr(bench, "_run", run)
    monkeypatch.setattr(bench, "_busy", lambda count: ran.append(count) or nullcontext())
    return ran


@pytest.mark.cc
def test_decisions_of_a_busy_machine_are_not_cached(build, here, monkeypatch, tmp_path):
    task = build("bench_decisions_busy", *SMALL, folder=tmp_path)
    case = BusyCase(deciding=2, busy=3)
    for machine, kept in ((NoLoad, True), (Waiting, False)):
        monkeypatch.setattr("sparloom.measure.machine.ProcessLoad", machine)
        rows = task.score("beside", case)
        assert [(row["rows"], row["degree"], row["width"]) for row in rows] == [(2000, 10, 8), (2000, 10, 16)]
        assert [bool(row["kept"]) for row in rows] == [kept, kept]
        assert all((row["ratio"] or 0) > 0 for row in rows) is kept
    assert here == [3, ["_decide", "_decide"], ["_use"]] * 2


@pytest.mark.cc
def test_a_killed_run_resumes_and_leaves_no_files(build, here, monkeypatch, tmp_path):
    task, scored = build("bench_decisions_busy", *SMALL, folder=tmp_path), []
    row = {"rows": 1, "degree": 1, "width": 1, "best": "a", "kept": "", "ratio": None, "seconds": None, "busy": ""}

    def score(name, case):
        scored.append(name)
        if len(scored) == 3:
            raise KeyboardInterrupt
        return [{**row, "kept": "a", "ratio": 1.0 + len(scored) / 10}]

    monkeypatch.setattr(type(task), "score", lambda self, name, case: score(name, case))
    with pytest.raises(KeyboardInterrupt):
        task.run(tmp_path)
    metrics = task.run(tmp_path)
    assert scored == [*list(task.cases)[:3], *list(task.cases)[2:]]
    assert metrics["alone/worst"] == pytest.approx(1.1)
    assert metrics["decisions"] == len(task.cases) - 1
    assert len(pd.read_parquet(tmp_path / "per_case.parquet")) == len(task.cases)
    assert not list((tmp_path / "artifacts" / "bench_decisions_busy").iterdir())
    json.dumps(metrics, allow_nan=False)


def test_metrics_count_cached_and_slow_decisions():
    cases = {"alone": BusyCase(1, 0), "beside": BusyCase(1, 1), "both": BusyCase(2, 0)}
    frame = pd.DataFrame([
        {"case": "alone", "ratio": 9.0, "busy": ""}, {"case": "beside", "ratio": 1.3, "busy": ""},
        {"case": "beside", "ratio": None, "busy": "threads"}, {"case": "both", "ratio": 1.6, "busy": ""},
        {"case": "both", "ratio": 1.1, "busy": ""}])
    metrics = bench.busy_metrics(frame, {name: case for name, case in cases.items() if name != "alone"})
    assert {name: metrics[name] for name in ("decisions", "kept", "slower_share", "much_slower", "worst")} == {
        "decisions": 4, "kept": 3, "slower_share": 0.5, "much_slower": 1, "worst": 1.6}
    assert metrics["alone/worst"] == 9.0
    assert metrics["beside/kept"] == 1
    assert metrics["scored_busy_share"] == 0.2
    nothing = bench.busy_metrics(frame[:0], cases)
    assert (nothing["decisions"], nothing["worst"]) == (0, 0.0)


def test_busy_processes_end_with_the_case_and_failures_are_reported(monkeypatch):
    monkeypatch.setattr(bench, "STARTING_SECONDS", 0.0)
    with bench._busy(1):
        (process,) = active_children()
        assert process.is_alive()
    assert not process.is_alive()
    with pytest.raises(RuntimeError, match=r"1 of 1 processes failed, with exit codes \[1\]"):
        bench._run([(int, "no number")])
