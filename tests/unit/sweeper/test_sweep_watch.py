"""Intermediate values of a job reach its trial, and the decision to prune reaches the job."""

import time

from hydra_plugins.sparloom_sweeps._jobs import Watch
from sparloom.log import REPORTED, STOP, STOPPED, report_value


class Trial:
    """Record the reported values and return prescribed answers."""

    def __init__(self, prune):
        self.prune, self.values = prune, []

    def report(self, value, step):
        self.values.append((step, value))

    def should_prune(self):
        return self.prune


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return path.exists()


def test_report_returns_the_request_to_stop(tmp_path):
    assert not report_value(tmp_path, step=0, value=1)
    (tmp_path / STOP).touch()
    assert report_value(tmp_path, step=1, value=0.1)
    assert (tmp_path / STOPPED).exists()
    assert (tmp_path / REPORTED).read_text() == "0,1.0\n1,0.1\n"


def test_only_the_bad_trial_is_pruned(tmp_path):
    folders = {tmp_path / "good": Trial(False), tmp_path / "bad": Trial(True)}
    for folder in folders:
        folder.mkdir()
    with Watch(folders, 0.01):
        for folder in folders:
            report_value(folder, step=0, value=3.0)
        assert wait_for(tmp_path / "bad" / STOP)
    assert not (tmp_path / "good" / STOP).exists()


def test_all_values_arrive_once_and_a_half_written_line_does_not(tmp_path):
    trial = Trial(False)
    with Watch({tmp_path: trial}, 0.001):
        for step in range(50):
            report_value(tmp_path, step=step, value=step / 3)
        with (tmp_path / REPORTED).open("a") as file:
            file.write("50,1")
    assert trial.values == [(step, step / 3) for step in range(50)]


def test_nothing_reported_is_nothing_watched(tmp_path):
    trial = Trial(True)
    with Watch({tmp_path / "absent": trial}, 0.001):
        time.sleep(0.02)
    assert trial.values == []
    assert not (tmp_path / "absent").exists()
