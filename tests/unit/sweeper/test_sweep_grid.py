"""Grids: all combinations, comparison of their results, and resuming."""

import os
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from hydra_plugins.sparloom_sweeps._jobs import Point, State, best, read_grid
from hydra_plugins.sparloom_sweeps._results import shown
from hydra_plugins.sparloom_sweeps.grid import folder_name
from sparloom.cli import UsageError

SLOW = pytest.mark.slow
GRID = ("-m", "hydra/sweeper=sparloom_grid", "~hydra.sweeper.poll_seconds")


def read(params=None, *arguments):
    return read_grid(params or {}, arguments, OverridesParser.create().parse_overrides)


def test_all_values_are_combined_the_last_changing_first():
    grid = read({"lr": "1e-4,1e-3"}, "experiment=try", "seeds=[0],[1]")
    assert grid.fixed == ["experiment=try"]
    assert [(point.number, dict(point.params)) for point in grid.points()] == [
        (0, {"lr": "0.0001", "seeds": "[0]"}), (1, {"lr": "0.0001", "seeds": "[1]"}),
        (2, {"lr": "0.001", "seeds": "[0]"}), (3, {"lr": "0.001", "seeds": "[1]"})]
    assert grid.points()[1].user_attrs["point"] == ["lr=0.0001", "seeds=[1]"]


def test_command_line_wins_over_the_file():
    assert read({"lr": "1,2", "n": "3,4"}, "lr=5", "n=6,7").varied == {"n": ["n=6", "n=7"]}
    assert read({"lr": 1}).points()[0].params == {}


def test_range_without_steps_is_no_grid():
    with pytest.raises(UsageError, match=r"lr=interval\(0,1\) is no list of values: give some, lr=1,2, or sea"):
        read({}, "lr=interval(0,1)")


def points(*values):
    """Points with these values; None: it failed."""
    return [Point(number, {"n": str(number)}, {}, State.FAIL if value is None else State.COMPLETE, value,
                  {} if value is None else {"metrics": {"a": value, "b": 2, "c": 3, "d": 4, "e": 5}})
            for number, value in enumerate(values)]


def test_best_is_the_first_of_the_best():
    assert best(points(1.0, None, 2.0, 2.0), maximize=True).number == 2
    assert best(points(1.0, None, 2.0, 1.0), maximize=False).number == 0
    assert best(points(None), maximize=True) is None


def test_without_objective_the_table_shows_the_first_metrics():
    table = shown(points(None, 0.25), maximize=True, objective=None)
    assert [column.header for column in table.columns] == ["trial", "a", "b", "c", "d", "n", "seconds", ""]
    assert [list(column.cells) for column in table.columns][:2] == [["1", "0"], ["0.25", ""]]


@SLOW
def test_grid_ends_with_table_figures_and_best_experiment(sweep):
    done = sweep(*GRID, "experiment=wide", "x=1,0.3,0", "n=2,4")
    assert done.returncode == 0, done.stderr
    assert [(row["x"], row["n"], row["state"]) for row in sweep.rows()] == [
        (x, n, "complete") for x in ("1", "0.3", "0") for n in ("2", "4")]
    leader = min(sweep.rows(), key=lambda row: float(row["objective"]))
    assert f"best: loss {float(leader['objective']):.6g}, trial {leader['trial']}" in done.stdout
    for name in ("objective.png", "objective.svg", "slices.png", "slices.svg", "multirun.yaml"):
        assert (sweep.folder / "sweep" / name).stat().st_size > 0, name
    again = sweep("--config-dir", "sweep", "experiment=wide_best", "hydra.run.dir=again")
    assert again.returncode == 0, again.stderr
    kept = sweep.folder / "sweep" / leader["folder"] / ".hydra" / "config.yaml"
    assert (sweep.folder / "again" / ".hydra" / "config.yaml").read_text() == kept.read_text()


@SLOW
def test_second_start_runs_missing_and_changed_points(sweep):
    assert sweep(*GRID, "x=0,1", "shape=cliff").returncode == 1
    assert sweep.notes("begin") == ["0", "1"]
    done = sweep(*GRID, "x=0,1", "shape=cliff", "hydra.sweeper.direction=minimize")
    assert "grid: 1 of 2 runs done" in done.stdout
    assert sweep.notes("begin") == ["0", "1", "1"]
    os.remove(sweep.folder / "runs.txt")
    sweep(*GRID, "x=0,1", "shape=cliff", "n=3")
    assert sweep.notes("begin") == ["0", "1"]


@SLOW
def test_grid_without_objective_has_a_table_only(sweep):
    done = sweep(*GRID, "x=0,1", "objective=null")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4].split() == ["trial", "loss", "gain", "x", "seconds"]
    assert not (sweep.folder / "sweep" / "experiment").exists()


@SLOW
@pytest.mark.parametrize(("arguments", "message"), [
    (["x=interval(0,1)"], "x=interval(0,1) is no list of values"),
    (["y=0,1"], "unknown key 'y'"),
    (["x=0,1", "hydra.sweeper.direction=up"], "direction=up is not one of maximize, minimize"),
    (["x=0,1", "objective=los"], "2 of 2 runs failed"),
])
def test_errors_of_the_user_are_one_line(sweep, arguments, message):
    done = sweep(*GRID, *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in error


NAMED = "hydra.sweep.dir=${hydra.runtime.choices.experiment}/sweep"
BY_OPTIONS = ("hydra.sweep.subdir=${hydra.job.override_dirname}",
              "hydra.job.config.override_dirname.exclude_keys=[experiment,runs]")


@SLOW
@pytest.mark.parametrize("sweeper", [GRID, ("-m", "hydra.sweeper.trials=2")], ids=["grid", "search"])
def test_a_sweep_over_experiments_is_kept_together(sweep, sweeper):
    given = [*sweeper, "experiment=wide,steep", *(["x=0,0.3", *BY_OPTIONS] if sweeper == GRID else [])]
    done = sweep(*given, NAMED)
    assert done.returncode == 0, done.stderr
    assert not (sweep.folder / "None").exists()
    sweep.folder /= "wide,steep"
    rows = sweep.rows()
    assert len(rows) == 4 if sweeper == GRID else 2
    for row in rows:
        assert row["experiment"] in ("wide", "steep")
        assert float(row["objective"]) > 0
        assert float(row["seconds"]) >= 0
        assert Path(row["folder"]).parent == sweep.folder / "sweep"
    if sweeper == GRID:
        assert {Path(row["folder"]).name for row in rows} == {
            f"experiment={name},x={x}" for name in ("wide", "steep") for x in ("0", "0.3")}
        assert [float(row["metrics/gain"]) for row in rows] == [-float(row["objective"]) for row in rows]
    sweep.folder = sweep.folder.parent
    again = sweep(*given, f"hydra.sweep.dir={sweep.folder}/wide,steep/sweep".replace(",", "\\,"))
    assert ("4 of 4 runs done" if sweeper == GRID else "2 of 2 trials done") in again.stdout
    assert len(sweep.notes("begin")) == len(rows)


LATE = {  # what an experiment chooses -> its settings, and the remedy
    "launcher": ("hydra:\n  launcher: {n_jobs: 3}\n", "hydra.launcher.n_jobs=3"),
    "sweeper": ("hydra:\n  sweeper: {direction: maximize}\n", "hydra.sweeper.direction=maximize"),
    "sweep.dir": ("hydra:\n  sweep: {dir: elsewhere}\n", "hydra.sweep.dir=<folder>"),
}


@SLOW
@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("sweeper", [GRID, ("-m", "hydra.sweeper.trials=2")], ids=["grid", "search"])
def test_what_swept_experiments_choose_too_late_is_refused(sweep, sweeper, what):
    (sweep.folder / "conf" / "experiment").mkdir(parents=True)
    settings, remedy = LATE[what]
    (sweep.folder / "conf" / "experiment" / "late.yaml").write_text(f"# @package _global_\nn: 3\n{settings}")
    launcher = ("hydra/launcher=joblib",) if what == "launcher" else ()
    done = sweep("--config-dir", "conf", *sweeper, *launcher, "experiment=wide,late", "x=0,0.3")
    assert done.returncode == 1
    assert f"error: experiment=late {'' if sweeper != GRID else 'x=0 '}chooses a {what} of its own" in done.stderr
    assert f"give {remedy} on the command line" in done.stderr
    assert not sweep.notes("begin")


@SLOW
def test_experiments_with_different_objectives_have_a_table_only(sweep):
    (sweep.folder / "conf" / "experiment").mkdir(parents=True)
    (sweep.folder / "conf" / "experiment" / "other.yaml").write_text("# @package _global_\nobjective: gain\n")
    done = sweep("--config-dir", "conf", *GRID, "experiment=wide,other")
    assert done.returncode == 0, done.stderr
    assert [float(row["metrics/loss"]) == -float(row["metrics/gain"]) for row in sweep.rows()] == [True, True]
    assert not (sweep.folder / "sweep" / "experiment").exists()
    done = sweep("--config-dir", "conf", "-m", "experiment=wide,other")
    assert "experiment=other has the objective gain, and others loss: give one for all, objective=" in done.stderr


@SLOW
def test_runs_do_not_share_a_folder(sweep):
    done = sweep(*GRID, "x=0,0.3", "hydra.sweep.subdir=same")
    assert done.returncode == 1
    assert "error: x=0.3 has the folder of another run" in done.stderr
    assert not sweep.notes("begin")


def test_folders_are_named_after_changed_options():
    for changes in ("lr=0.1,seed=3", "matrix=/data/one.mtx,op=spmm", "matrix=../one.mtx,op=spmm"):
        assert folder_name(changes) == changes


@pytest.mark.parametrize("changes", ["matrix=/data/../one.mtx", "matrix=a/./b.mtx", f"matrix={'x' * 300}.mtx",
                                     f"matrix={'ü' * 150}.mtx", f"matrix={'/x' * 800}.mtx"])
def test_folders_that_lead_elsewhere_or_are_too_long_end_in_a_digest(changes):
    name = folder_name(changes)
    assert len(name.encode()) <= 90
    assert "/" not in name
    assert folder_name(changes.replace("mtx", "npz")) != name
