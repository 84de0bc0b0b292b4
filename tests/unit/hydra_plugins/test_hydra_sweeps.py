"""Sweeps from the user's view: a grid and a search of run.py, continued in the same folder."""

import os
import subprocess

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from hydra_plugins.sparloom import sweeps
from sparloom.cli import UsageError

TINY = ("-m", "experiment=validate_simulator", "task.matrices=1", "task.configs=4", "task.nonzeros=20000",
        "task.jobs=1", "+corpus.families=[uniform]", "corpus.rows=[200]")


@pytest.fixture
def sweep(tmp_path, run_command):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([*run_command, *TINY, "hydra.sweep.dir=sweep", *arguments], cwd=tmp_path, text=True,
                              capture_output=True, timeout=600, check=False, env={
                                  **os.environ, "OMP_NUM_THREADS": "1", "SPARLOOM_OUTPUTS": str(tmp_path / "outputs")})

    return run


@pytest.mark.slow
def test_a_grid_ends_with_a_table_and_repeats_nothing(sweep, tmp_path):
    done = sweep("corpus.rows=[200],[400]")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "sweep" / "trials.csv")
    assert list(table["corpus.rows"]) == ["[200]", "[400]"]
    assert set(table["state"]) == {"finished"}
    assert table["seconds"].min() > 0
    written = [(tmp_path / "sweep" / name / "metrics.json").stat().st_mtime_ns for name in "01"]
    assert sweep("corpus.rows=[200],[400],[600]").returncode == 0
    assert [(tmp_path / "sweep" / name / "metrics.json").stat().st_mtime_ns for name in "01"] == written
    assert len(pd.read_csv(tmp_path / "sweep" / "trials.csv")) == 3


def test_a_launcher_that_a_swept_experiment_chooses_is_refused(run_command, tmp_path):
    experiments = tmp_path / "conf" / "experiment"
    experiments.mkdir(parents=True)
    for name, launcher in (("near", ""), ("apart", "  - override /hydra/launcher: local\n")):
        (experiments / f"{name}.yaml").write_text(f"# @package _global_\ndefaults:\n  - plans\n{launcher}"
                                                  f"task:\n  folder: {tmp_path / 'decisions'}\n")
    done = subprocess.run([*run_command, "--config-dir", str(tmp_path / "conf"), "-m", "experiment=apart,near",
                           f"paths.outputs={tmp_path / 'outputs'}"],
                          cwd=tmp_path, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 1
    assert "this experiment chooses the launcher local, but the sweep runs by basic" in done.stderr


@pytest.mark.slow
def test_a_failed_run_of_a_grid_does_not_stop_the_others(sweep, tmp_path):
    done = sweep("task.matrices=-1,1")
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert (tmp_path / "sweep" / "1" / "metrics.json").exists()


@pytest.mark.slow
def test_a_search_continues_and_prints_the_best(sweep, tmp_path):
    optuna = pytest.importorskip("optuna", reason="Optuna is in the extra scale")
    search = ("hydra/sweeper=sparloom_optuna", "objective=spmm/error_median", "hydra.sweeper.direction=minimize",
              "corpus.seed=int(interval(0,9))")
    first = sweep(*search, "hydra.sweeper.trials=1")
    assert first.returncode == 0, first.stderr
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(
        str(tmp_path / "sweep" / sweeps.STUDY)))
    study = optuna.load_study(study_name="sweep", storage=storage)
    left = study.ask()  # as a sweep that was killed leaves it
    drawn = left.suggest_int("corpus.seed", 0, 9)
    done = sweep(*search, "hydra.sweeper.trials=2")
    assert done.returncode == 0, done.stderr
    study = optuna.load_study(study_name="sweep", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.trials[2].params == {"corpus.seed": drawn}
    assert f"best: {study.best_value:.6g}, trial {study.best_trial.number}" in done.stdout
    other = sweep(*search, "hydra.sweeper.trials=2", "task.configs=8")
    assert other.returncode == 1
    assert "the trials of this sweep were made with other options (task.configs=4, task.configs=8)" in other.stderr


@pytest.mark.parametrize(("text", "kind", "value"), [
    ("x=interval(-1,2.5)", "suggest_float", "0.5"), ("x=tag(log,interval(1e-5,1e-3))", "suggest_float", "0.5"),
    ("x=int(interval(1,8))", "suggest_int", "3"), ("x=range(20,201,20)", "suggest_int", "3"),
    ("x=choice(a,b)", "suggest_categorical", "a"), ("x=1.5,2", "suggest_categorical", "1.5"),
])
def test_values_are_drawn_as_hydra_writes_them(text, kind, value):
    calls = []

    class Drawn:
        def suggest_float(self, *arguments, **options):
            calls.append("suggest_float")
            return 0.5

        def suggest_int(self, *arguments, **options):
            calls.append("suggest_int")
            return 3

        def suggest_categorical(self, key, values):
            calls.append("suggest_categorical")
            return values[0]

    assert sweeps._suggest(Drawn(), "x", OverridesParser.create().parse_override(text)) == value
    assert calls == [kind]


def test_other_options_are_refused_and_the_same_are_not(tmp_path):
    pytest.importorskip("optuna", reason="Optuna is in the extra scale")
    study = sweeps._open(tmp_path / "study", "maximize")
    sweeps._refuse_other_options(study, ["a=1", "b=2"])
    sweeps._refuse_other_options(study, ["b=2", "a=1"])
    with pytest.raises(UsageError, match=r"other options \(a=1, a=3\): give the same"):
        sweeps._refuse_other_options(study, ["a=3", "b=2"])
