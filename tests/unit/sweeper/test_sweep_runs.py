"""Sweeps from the user's view: real processes and a real study in SQLite."""

import os
import signal
import sqlite3
import time

import pytest

SLOW = pytest.mark.slow
SPACE = ("x=interval(-2,2)", "n=int(interval(1,8))")


def killed(process, reached):
    """End a process by SIGKILL as soon as `reached` holds; those that it started go on."""
    wait_until(reached)
    process.send_signal(signal.SIGKILL)
    process.wait()


def all_killed(process, reached):
    """End a process and all that it started by SIGKILL as soon as `reached` holds."""
    wait_until(reached)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(reached):
    deadline = time.monotonic() + 300
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_sweep_finds_and_keeps_the_best(sweep):
    done = sweep("-m", *SPACE, "hydra.sweeper.trials=3")
    assert done.returncode == 0, done.stderr
    trials = sweep.trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert all(trial.value == pytest.approx((trial.params["x"] - 0.3) ** 2 + 0.1 * (trial.params["n"] - 4) ** 2)
               for trial in trials)
    best = min(trials, key=lambda trial: trial.value)
    assert f"best: loss {best.value:.6g}, trial {best.number}" in done.stdout
    assert sorted(sweep.notes("end")) == [f"trial_{number:04d}" for number in range(3)]
    for name in ("objective.png", "objective.svg", "slices.png", "slices.svg", "trials.csv", "multirun.yaml",
                 "experiment/sweep_best.yaml"):
        assert (sweep.folder / "sweep" / name).stat().st_size > 0, name
    rows = sweep.rows()
    assert [float(row["objective"]) for row in rows] == [trial.value for trial in trials]
    assert set(rows[0]) == {"trial", "state", "objective", "x", "n", "seconds", "reason", "folder"}


@SLOW
def test_killed_sweep_resumes_without_losing_or_repeating_a_trial(sweep, tmp_path_factory):
    arguments = ("-m", *SPACE, "hydra.sweeper.trials=8", "pause=0.2")
    all_killed(sweep.start(*arguments), lambda: len(sweep.notes("end")) >= 3)
    before = [trial for trial in sweep.trials() if trial.state.name == "COMPLETE"]
    assert 2 <= len(before) < 8
    rest, begun = sweep.unfinished(8), len(sweep.notes("begin"))

    resumed = sweep(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    trials = sweep.trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 8
    assert [(trial.params, trial.value, trial.datetime_complete) for trial in trials[:len(before)]] == [
        (trial.params, trial.value, trial.datetime_complete) for trial in before]
    assert len({(trial.params["x"], trial.params["n"]) for trial in trials}) == 8
    assert sorted(sweep.notes("begin")[begun:]) == rest
    assert not sweep.unfinished(8)

    sweep.folder = tmp_path_factory.mktemp("whole")
    assert sweep(*arguments[:-1]).returncode == 0
    assert [trial.params for trial in sweep.trials()] == [trial.params for trial in trials]


@pytest.mark.exhaustive
@SLOW
def test_killed_batches_resume_without_losing_or_repeating_a_trial(sweep):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the launcher is in the extra scale")
    arguments = ("-m", *SPACE, "hydra.sweeper.trials=12", "hydra.sweeper.batch=4", "hydra/launcher=local", "pause=0.2")
    all_killed(sweep.start(*arguments), lambda: len(sweep.notes("end")) >= 5)
    assert 5 <= len(sweep.notes("end")) < 12
    before = {trial.number: trial.value for trial in sweep.trials() if trial.state.name == "COMPLETE"}
    assert len(before) >= 4
    rest, begun = sweep.unfinished(12), len(sweep.notes("begin"))

    resumed = sweep(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    trials = sweep.trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 12
    assert before.items() <= {trial.number: trial.value for trial in trials}.items()
    assert sorted(sweep.notes("begin")[begun:]) == rest
    assert not sweep.unfinished(12)


@SLOW
def test_jobs_that_survive_a_kill_are_adopted(sweep):
    arguments = ("-m", *SPACE, "hydra.sweeper.trials=4")
    assert sweep(*arguments).returncode == 0
    whole = sweep.trials()
    with sqlite3.connect(sweep.folder / "sweep" / "study.db") as database:
        database.execute("UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE number >= 2")
        database.execute("DELETE FROM trial_values WHERE trial_id IN (SELECT trial_id FROM trials WHERE number >= 2)")
    database.close()
    (sweep.folder / "sweep" / "trial_0003" / "metrics.json").unlink()  # 2 had ended, 3 had not
    resumed = sweep(*arguments)
    assert "sweep: 2 of 4 trials done, 2 left by an interrupted sweep" in resumed.stdout
    assert [(trial.params, trial.value) for trial in sweep.trials()] == [
        (trial.params, trial.value) for trial in whole]
    assert sweep.notes("begin")[4:] == ["trial_0003"]


@SLOW
def test_more_trials_continue_a_finished_sweep(sweep):
    for folder, trials in (("a", 2), ("b", 3)):
        done = sweep("-m", *SPACE, f"hydra.sweeper.trials={trials}", f"hydra.sweep.dir={folder}",
                     "hydra.sweeper.study=s.db")
        assert done.returncode == 0, done.stderr
    assert len(sweep.trials("s.db")) == 3
    assert [trial.user_attrs["folder"] for trial in sweep.trials("s.db")] == [
        str(sweep.folder / name) for name in ("a/trial_0000", "a/trial_0001", "b/trial_0002")]


@SLOW
def test_failed_trials_are_reported_and_the_sweep_continues(sweep):
    done = sweep("-m", "x=interval(0,2)", "shape=cliff", "hydra.sweeper.trials=8")
    assert done.returncode == 0, done.stderr
    failed = [trial for trial in sweep.trials() if trial.state.name == "FAIL"]
    assert 0 < len(failed) < 8
    lines = [line for line in done.stdout.splitlines() if line.startswith("trial ") and "failed" in line]
    assert len(lines) == len(failed)
    assert all("failed: ValueError: x" in line and "is above 0.7: give a smaller one" in line for line in lines)
    assert "Traceback" not in done.stdout + done.stderr


@SLOW
def test_sweep_without_any_value_fails(sweep):
    done = sweep("-m", "x=interval(1,2)", "shape=cliff", "hydra.sweeper.trials=2")
    assert done.returncode == 1
    assert "error: none of 2 trials has a value (the last failed: ValueError: x" in done.stderr


@SLOW
def test_group_option_that_does_not_exist_fails_its_trials_only(sweep):
    done = sweep("-m", "shape=bowl,sphere", "hydra.sweeper.trials=6")
    assert done.returncode == 0, done.stderr
    assert {(trial.params["shape"], trial.state.name) for trial in sweep.trials()} == {
        ("bowl", "COMPLETE"), ("sphere", "FAIL")}


@SLOW
def test_same_point_is_not_run_twice(sweep):
    done = sweep("-m", "x=0,1", "hydra.sweeper.trials=5")
    assert done.returncode == 0
    assert len(sweep.notes("begin")) == 2
    assert len({trial.value for trial in sweep.trials()}) == 2


@SLOW
def test_bad_trials_are_pruned(sweep):
    done = sweep("-m", "x=interval(-20,20)", "steps=30", "pause=0.03", "hydra.sweeper.trials=8",
                 "hydra.sweeper.pruner.n_startup_trials=1")
    assert done.returncode == 0, done.stderr
    trials = sweep.trials()
    pruned = [f"trial_{trial.number:04d}" for trial in trials if trial.state.name == "PRUNED"]
    assert pruned
    assert sweep.notes("stopped") == pruned
    assert all(len(trial.intermediate_values) < 30 for trial in trials if trial.state.name == "PRUNED")
    assert all(len(trial.intermediate_values) == 30 for trial in trials if trial.state.name == "COMPLETE")


@SLOW
def test_batch_runs_at_once_through_the_launcher(sweep):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the launcher is in the extra scale")
    done = sweep("-m", *SPACE, "hydra.sweeper.trials=6", "hydra.sweeper.batch=2", "hydra/launcher=local", "meet=2")
    assert done.returncode == 0, done.stderr
    assert [trial.state.name for trial in sweep.trials()] == ["COMPLETE"] * 6
    lines = (sweep.folder / "runs.txt").read_text().splitlines()
    together = max(sum(1 if line.startswith("begin") else -1 for line in lines[:end]) for end in range(len(lines) + 1))
    assert together == 2
    assert sorted(sweep.notes("end")) == [f"trial_{number:04d}" for number in range(6)]


@pytest.mark.exhaustive
@SLOW
def test_workers_that_outlive_a_killed_sweep_repeat_nothing(sweep):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the launcher is in the extra scale")
    arguments = ("-m", *SPACE, "hydra.sweeper.trials=6", "hydra.sweeper.batch=4", "hydra/launcher=local", "pause=0.5")
    killed(sweep.start(*arguments), lambda: sweep.notes("end"))
    done = sweep(*arguments)
    assert done.returncode == 0, done.stderr
    assert "4 left by an interrupted sweep" in done.stdout
    assert [trial.state.name for trial in sweep.trials()] == ["COMPLETE"] * 6
    assert sorted(sweep.notes("begin")) == sorted(sweep.notes("end")) == [f"trial_{number:04d}" for number in range(6)]


@SLOW
def test_best_experiment_gives_the_best_configuration(sweep):
    done = sweep("experiment=steep", "hparams=search", "label=mine", "objective=gain",
                 "hydra.sweeper.direction=maximize")
    assert done.returncode == 0, done.stderr
    best = max(sweep.trials(), key=lambda trial: trial.value)
    written = (sweep.folder / "sweep" / "experiment" / "steep_best.yaml").read_text()
    assert written.startswith(f"# @package _global_\n# steep at the best of 4 points: gain {best.value:.6g} (trial")
    assert "# Found by: python app.py experiment=steep hparams=search" in written
    again = sweep("--config-dir", "sweep", "experiment=steep_best", "hydra.run.dir=again")
    assert again.returncode == 0, again.stderr
    kept = (sweep.folder / "sweep" / f"trial_{best.number:04d}" / ".hydra" / "config.yaml").read_text()
    assert (sweep.folder / "again" / ".hydra" / "config.yaml").read_text() == kept


@pytest.mark.parametrize(("arguments", "message"), [
    (["y=interval(0,1)"], "unknown key 'y': "),
    pytest.param(["x=interval(1,0)"], "parameter x: low 1.0 is not below high 0.0: give [low, high]", marks=SLOW),
    pytest.param(["x=1"], "nothing to search: choose hparams=", marks=SLOW),
    pytest.param(["x=interval(0,1)", "objective=los"],
                 "the task returns no metric 'los': set objective; did you mean loss", marks=SLOW),
    pytest.param(["x=interval(0,1)", "objective=null"],
                 "no objective: name a metric that the task returns, objective=<metric>", marks=SLOW),
    pytest.param(["x=interval(0,1)", "hydra.sweeper.direction=max"],
                 "direction=max is not one of maximize, minimize", marks=SLOW),
    pytest.param(["x=interval(0,1)", "hydra.sweeper.batch=0"],
                 "batch=0: both must be at least 1", marks=SLOW),
    pytest.param(["x=interval(0,1)", "hydra.sweeper.study=runs.csv"],
                 "runs.csv is no study of this Optuna", marks=SLOW),
])
def test_errors_of_the_user_are_one_line(sweep, arguments, message):
    (sweep.folder / "runs.csv").write_text("a,b\n" * 1000)
    done = sweep("-m", *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in error


@SLOW
def test_misspelt_objective_costs_one_run(sweep):
    assert sweep("-m", "x=interval(0,1)", "objective=los", "hydra.sweeper.trials=2").returncode == 1
    done = sweep("-m", "x=interval(0,1)", "objective=loss", "hydra.sweeper.trials=2")
    assert done.returncode == 0, done.stderr
    assert sweep.notes("begin") == ["trial_0000", "trial_0001"]


@SLOW
def test_study_of_something_else_is_not_continued(sweep):
    assert sweep("-m", *SPACE, "hydra.sweeper.trials=1").returncode == 0
    for changed, named in (("shape=cliff", "shape.name=bowl (now cliff)"), ("n=1,2", "hydra.sweeper.params.n="),
                           ("objective=gain", "objective=loss (now gain)")):
        done = sweep("-m", SPACE[0], changed if changed.startswith("n=") else SPACE[1], changed,
                     "hydra.sweeper.trials=2")
        assert done.returncode == 1
        assert named in done.stderr
    assert len(sweep.notes("begin")) == 1
