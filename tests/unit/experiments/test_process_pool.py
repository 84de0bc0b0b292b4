"""Jobs over processes."""

import os

import pytest

from sparloom.experiments.harness import run_jobs


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


def test_no_process_is_refused():
    with pytest.raises(ValueError, match="0 processes: at least 1 is needed"):
        dict(run_jobs(double, {}, weights={}, processes=0, description="t"))
