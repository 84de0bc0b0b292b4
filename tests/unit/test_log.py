"""Progress says unit, done, left, speed, and what an earlier run had finished."""

import io
import logging

import pytest
from rich.console import Console

from sparloom import log
from sparloom.experiments.harness import process_pool


@pytest.mark.parametrize(("done", "count", "unit", "found", "seconds", "text"), [
    (0, 10, "cases", 0, 0.0, "0 of 10 cases"),
    (3, 10, "cases", 0, 1.5, "3 of 10 cases, 2.0 per s"),
    (3, 10, "matrices", 5, 60.0, "8 of 15 matrices (5 found finished), 3.0 per min"),
    (1, None, "files", 0, 7200.0, "1 files, 0.5 per h"),
    (0, 10, "cases", 5, 9.0, "5 of 15 cases (5 found finished)"),
    (2_500_000, 10_000_000, "bytes", 0, 0.5, "2.5 of 10.0 MB, 5.0 MB/s"), (0, None, "bytes", 0, 0.0, "0.0 MB")])
def test_counts(done, count, unit, found, seconds, text):
    assert log.counts(done, count, unit=unit, found=found, seconds=seconds) == text


@pytest.fixture
def shown(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(log, "console", Console(file=written, force_terminal=True, width=120, color_system=None))
    return written


def test_a_bar_names_the_unit(shown):
    assert list(log.track([1, 2, 3], "trainings")) == [1, 2, 3]
    assert "3 of 3 trainings" in shown.getvalue()


def test_a_resumed_run_counts_what_it_found(shown):
    jobs = {name: name for name in "abcd"}
    results = list(process_pool.run_jobs(str.upper, jobs, weights=dict.fromkeys(jobs, 2.0), processes=1,
                                         description="timing", unit="cases", finished={"a", "z"}))
    assert results == [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")]
    assert "timing" in shown.getvalue()
    assert "5 of 5 cases (2 found finished)" in shown.getvalue()


def test_lines_in_place_of_bars_say_the_same(monkeypatch, caplog):
    monkeypatch.setattr(process_pool, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(log, "console", Console(file=io.StringIO(), force_terminal=False))
    monkeypatch.setattr(logging.getLogger("sparloom"), "propagate", True)
    jobs = {name: name for name in "ab"}
    with caplog.at_level("INFO"):
        list(process_pool.run_jobs(str.upper, jobs, weights=dict.fromkeys(jobs, 1.0), processes=1,
                                   description="cpu spmm", unit="matrices", finished={"x"}))
    assert caplog.messages[-1].startswith("cpu spmm: 3 of 3 matrices (1 found finished), ")
    assert caplog.messages[-1].endswith("about 0 min left")
