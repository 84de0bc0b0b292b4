"""Sweeps through launchers: processes of this machine, and Slurm's path on it."""

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.slow

GRID = ("hydra/sweeper=sparloom_grid", "~hydra.sweeper.poll_seconds")
PACKAGES = {"local": "hydra_plugins.hydra_joblib_launcher", "submitit_local": "hydra_plugins.hydra_submitit_launcher"}


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.exhaustive), "submitit_local"])
def launched(request, sweep):
    """Run a sweep through each launcher."""
    if find_spec(PACKAGES[request.param]) is None:
        pytest.skip(f"no {PACKAGES[request.param]}: it is in the extra scale")
    return lambda *arguments: sweep("-m", f"hydra/launcher={request.param}", *arguments)


def test_grid_comes_back_in_order_without_the_run_that_failed(launched, sweep):
    done = launched(*GRID, "x=0.5,1,0.3,0", "shape=cliff")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("error: 1 of 4 runs failed")
    assert [(row["x"], row["state"], row["objective"]) for row in sweep.rows()] == [
        ("0.5", "complete", "1.44"), ("1", "fail", ""), ("0.3", "complete", "1.4"), ("0", "complete", "1.49")]
    assert sweep.rows()[1]["reason"] == "ValueError: x 1 is above 0.7: give a smaller one"
    assert "best: loss 1.4, trial 2" in done.stdout


def test_run_whose_process_dies_hides_no_run_that_ended(launched, sweep):
    done = launched(*GRID, "x=0.3,1", "shape=cliff", "deadly=true", "hydra.sweeper.max_batch_size=1")
    assert done.returncode == 1
    first, second = sweep.rows()
    assert (first["state"], first["objective"]) == ("complete", "1.4")
    assert second["state"] == "fail"
    assert second["reason"]


def test_search_runs_a_batch_at_once(launched, sweep):
    done = launched("x=interval(-2,2)", "hydra.sweeper.trials=4", "hydra.sweeper.batch=2", "meet=2")
    assert done.returncode == 0, done.stderr
    trials = sweep.trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert all(trial.value == pytest.approx((trial.params["x"] - 0.3) ** 2 + 0.9) for trial in trials)
    assert sorted(sweep.notes("end")) == [f"trial_{number:04d}" for number in range(4)]
