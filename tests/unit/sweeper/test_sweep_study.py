"""The study file: one sweep at a time, points that do not depend on interruptions, trials left behind."""

import subprocess
import sys

import pytest

from hydra_plugins.sparloom_sweeps._study import Choice, Integers, Interval, Study
from sparloom.cli import UsageError

optuna = pytest.importorskip("optuna", reason="Optuna is in the extra scale")
SPACE = {"x": Interval(0.0, 1.0), "n": Integers(1, 100), "kind": Choice(("a", "b"))}


def opened(path, direction="minimize"):
    return Study(path, direction=direction, seed=0, make_pruner=optuna.pruners.NopPruner,
                 make_sampler=lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=2))


def test_interrupted_study_draws_the_points_of_a_whole_one(tmp_path):
    def run(study, count):
        for _ in range(count):
            trial, _ = study.next(SPACE)
            study.tell(trial, float(trial.params["x"] + trial.params["n"]))

    with opened(tmp_path / "whole.db") as study:
        run(study, 5)
        whole = [trial.params for trial in study.trials()]
    with opened(tmp_path / "parts.db") as study:
        run(study, 2)
        study.next(SPACE)
    with opened(tmp_path / "parts.db") as study:
        assert (study.finished, study.left) == (2, 1)
        run(study, 3)
        assert [trial.params for trial in study.trials()] == whole


def test_trial_killed_while_it_was_drawn_is_completed(tmp_path):
    with opened(tmp_path / "study.db") as study:
        trial, _ = study.next({"x": SPACE["x"]})
        drawn = trial.params["x"]
    with opened(tmp_path / "study.db") as study:
        trial, point = study.next(SPACE)
        assert (trial.number, trial.params["x"]) == (0, drawn)
        assert point == [f"x={drawn!r}", f"n={trial.params['n']}", f"kind={trial.params['kind']}"]


@pytest.mark.parametrize(("direction", "best"), [("minimize", 1), ("maximize", 0)])
def test_best_is_the_first_of_the_best(tmp_path, direction, best):
    with opened(tmp_path / "study.db", direction) as study:
        for value in (2.0, 1.0, 2.0, 1.0):
            study.tell(study.next(SPACE)[0], value)
        study.tell(study.next(SPACE)[0], "no value")
        assert study.best().number == best


def test_two_sweeps_do_not_share_a_study(tmp_path):
    with opened(tmp_path / "study.db"), pytest.raises(UsageError, match=r"study.db is in use by another sweep: wait"):
        opened(tmp_path / "study.db")
    with opened(tmp_path / "study.db"):
        pass


def test_missing_optuna_is_answered_with_the_extra(tmp_path):
    code = ("import sys; sys.modules['optuna'] = None\n"
            "from pathlib import Path\n"
            "from hydra_plugins.sparloom_sweeps._study import Study\n"
            f"Study(Path({str(tmp_path / 'study.db')!r}), direction='minimize', seed=0, make_pruner=None, "
            "make_sampler=None)")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "hydra/sweeper=sparloom_optuna needs Optuna: pip install 'sparloom[scale]' (in a checkout: " in shown.stderr
