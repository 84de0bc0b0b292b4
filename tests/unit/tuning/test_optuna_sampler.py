"""The sampler in real studies of Optuna: few trials, constraints, failures, sources, storage, and several workers."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from sparloom.errors import SchemaError
from sparloom.tuning import Source

optuna = pytest.importorskip("optuna")
from sparloom.tuning import OptunaSampler  # noqa: E402 - needs Optuna


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


DISTRIBUTIONS = {
    "block_x": optuna.distributions.CategoricalDistribution([16, 32, 64, 128]),
    "block_y": optuna.distributions.IntDistribution(1, 16, log=True),
    "layout": optuna.distributions.CategoricalDistribution(["row major", None, True]),
    "share": optuna.distributions.FloatDistribution(0.0, 1.0),
}


def seconds(trial) -> float:
    x = trial.suggest_categorical("block_x", [16, 32, 64, 128])
    y = trial.suggest_int("block_y", 1, 16, log=True)
    layout = trial.suggest_categorical("layout", ["row major", None, True])
    share = trial.suggest_float("share", 0.0, 1.0)
    return 1e-3 * (1 + abs(math.log2(x * y / 256)) + (layout is not None) + abs(share - 0.3))


def test_it_finds_nearly_the_best_and_keeps_constraints() -> None:
    study = optuna.create_study(sampler=OptunaSampler(DISTRIBUTIONS, constraints=["block_x * block_y <= 512"]))
    study.optimize(seconds, n_trials=40)
    assert study.best_value < 1.2e-3
    assert study.best_params["layout"] is None
    assert all(each.params["block_x"] * each.params["block_y"] <= 512 for each in study.trials)
    assert isinstance(study.best_params["block_x"], int)


def test_parameters_are_learned_from_the_first_trial() -> None:
    study = optuna.create_study(sampler=OptunaSampler(seed=1))
    study.optimize(seconds, n_trials=30)
    assert study.best_value < 1.6e-3


def test_a_throughput_is_maximised_and_failures_count() -> None:
    def throughput(trial) -> float:
        found = seconds(trial)
        if trial.params["layout"] == "row major":
            raise RuntimeError("does not compile")
        if trial.params["layout"] is True:
            raise optuna.TrialPruned
        return 1 / found

    study = optuna.create_study(direction="maximize", sampler=OptunaSampler(DISTRIBUTIONS))
    study.optimize(throughput, n_trials=30, catch=(RuntimeError,))
    assert study.best_value > 1 / 1.3e-3
    assert 0 < sum(each.state != optuna.trial.TrialState.COMPLETE for each in study.trials) < 20


def old_device() -> Source:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"block_x": rng.choice([16, 32, 64, 128], 200), "block_y": rng.integers(1, 17, 200)})
    rows["seconds"] = 1 + np.abs(np.log2(rows["block_x"] * rows["block_y"] / 256))
    return Source("old device", rows)


def test_sources_help() -> None:
    near = {False: 0, True: 0}
    for has_source, seed in itertools.product(near, range(8)):
        study = optuna.create_study(sampler=OptunaSampler(
            DISTRIBUTIONS, seed=seed, sources=[old_device()] if has_source else []))
        study.optimize(seconds, n_trials=10)
        threads = [each.params["block_x"] * each.params["block_y"] for each in study.trials[3:]]  # after random ones
        near[has_source] += sum(abs(math.log2(each / 256)) < 0.5 for each in threads)
    assert near[True] > 1.2 * near[False]
    assert near[True] > 0.4 * 8 * 7  # random trials would give a seventh


def test_a_study_in_storage_goes_on(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    sampler = OptunaSampler(DISTRIBUTIONS, sources=[old_device()])
    optuna.create_study(study_name="s", storage=storage, sampler=sampler).optimize(seconds, n_trials=10)
    again = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
    again.optimize(seconds, n_trials=4, n_jobs=2)
    params = [tuple(each.params.values()) for each in again.trials]
    assert len(set(params)) == len(params) == 14


def test_a_study_that_has_run_everything_goes_on() -> None:
    def one(trial) -> float:
        return 1.0 + trial.suggest_int("a", 0, 2)

    study = optuna.create_study(sampler=OptunaSampler({"a": optuna.distributions.IntDistribution(0, 2)}))
    study.optimize(one, n_trials=5)
    assert {each.params["a"] for each in study.trials} == {0, 1, 2}


@pytest.mark.parametrize(("value", "directions", "constraints", "error", "message"), [
    (-1.0, ["minimize"], [], ValueError, "trial 0 has the value -1.0: OptunaSampler takes positive"),
    (1.0, ["minimize", "minimize"], [], ValueError, "this study has 2 objectives"),
    (1.0, ["minimize"], ["a * bloc <= 3"], SchemaError, "bloc"),
])
def test_what_it_cannot_do_is_refused(value, directions, constraints, error, message) -> None:
    sampler = OptunaSampler({"a": optuna.distributions.IntDistribution(0, 9)}, constraints=constraints)
    study = optuna.create_study(directions=directions, sampler=sampler)
    with pytest.raises(error, match=message):
        study.optimize(lambda trial: [value + 0 * trial.suggest_int("a", 0, 9)] * len(directions), n_trials=2)
