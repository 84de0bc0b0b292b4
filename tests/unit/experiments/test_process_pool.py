"""Jobs over processes."""

import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparloom.experiments.harness import exclusive_timing, run_jobs


def double(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def fail(number: int) -> int:
    if number == 3:
        raise ValueError("three is refused")
    return number


def jobs(count: int) -> tuple[dict[str, int], dict[str, float]]:
    return {str(number): number for number in range(count)}, {str(number): 1.0 for number in range(count)}


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_is_done_once(processes):
    given, weights = jobs(7)
    results = dict(run_jobs(double, given, weights=weights, processes=processes, description="t"))
    assert {name: value for name, (value, _) in results.items()} == {str(number): 2 * number for number in range(7)}
    assert (os.getpid() in {pid for _, pid in results.values()}) == (processes == 1)


@pytest.mark.parametrize("processes", [1, 2])
def test_failure_of_a_job_is_raised(processes):
    given, weights = jobs(6)
    with pytest.raises(ValueError, match="three is refused"):
        dict(run_jobs(fail, given, weights=weights, processes=processes, description="t"))


def time_alone() -> None:
    with exclusive_timing():
        pass


def test_a_second_timing_run_says_that_it_waits(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="sparloom"), ThreadPoolExecutor(1) as pool:
        with exclusive_timing():
            second = pool.submit(time_alone)
            while "another run is timing on this machine" not in caplog.text and not second.done():
                time.sleep(0.01)
            assert not second.done()
        second.result()
