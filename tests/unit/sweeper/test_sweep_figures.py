"""Slices show the whole searched range, not only the drawn points."""

import pytest
from matplotlib.figure import Figure

from hydra_plugins.sparloom_sweeps._figures import _draw_slice, draw_objective, draw_slices

optuna = pytest.importorskip("optuna", reason="Optuna is in the extra scale")
SPACE = {
    "x": optuna.distributions.FloatDistribution(0, 1),
    "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
    "n": optuna.distributions.IntDistribution(3, 3), "kind": optuna.distributions.CategoricalDistribution(["a", "b"]),
}


def trial(number, value, state="COMPLETE", **params):
    made = optuna.trial.create_trial(
        value=value, state=optuna.trial.TrialState[state], params=params,
        distributions={key: SPACE[key] for key in params})
    made.number = number
    return made


TRIALS = [trial(0, 2.0, x=0.4, lr=1e-3, n=3, kind="a"), trial(1, None, "FAIL"),
          trial(2, 3.0, "PRUNED", x=0.5, lr=1e-2, n=3, kind="b"), trial(3, 1.0, x=0.6, lr=1e-4, n=3, kind="b")]


@pytest.mark.parametrize(("key", "scale", "limits"), [
    ("x", "linear", (-0.04, 1.04)), ("lr", "log", (1e-5 / 1e4 ** 0.04, 1e-1 * 1e4 ** 0.04)),
    ("n", "linear", (2.5, 3.5)), ("kind", "linear", (-0.5, 1.5)),
])
def test_slice_covers_the_range(key, scale, limits):
    axes = Figure().subplots()
    _draw_slice(axes, [TRIALS[0], TRIALS[3]], key, best=3)
    assert axes.get_xscale() == scale
    assert axes.get_xlim() == pytest.approx(limits)


def test_figures_take_failed_and_pruned_trials(tmp_path):
    draw_objective(TRIALS, tmp_path / "objective", maximize=False, objective="loss")
    draw_slices(TRIALS, tmp_path / "slices", best=3, objective="loss")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "objective.png", "objective.svg", "slices.png", "slices.svg"]
