"""Searches on one matrix: they keep to the budget, pay once, and find what is easy to find."""

import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from sparloom.data import TuningProblem
from sparloom.tuning import gaussian_process_search, random_search, smac_search, tpe_search

GRID = {"rows": [4, 32, 256, 2048], "columns": [0, 1024, 16384], "barrier": [0, 1]}
CONFIGS = pd.DataFrame(list(itertools.product(*GRID.values())), columns=list(GRID))
NEEDS = {"tpe": "optuna", "smac": "smac", "random": "numpy", "gaussian_process": "sklearn"}
SEARCHES = {"tpe": tpe_search, "smac": smac_search, "random": random_search,
            "gaussian_process": gaussian_process_search}


def problem(budget: int) -> TuningProblem:
    cost = np.abs(np.log2(CONFIGS["rows"]) - 8) + CONFIGS["barrier"] + (CONFIGS["columns"] == 0)
    labels = {"m": np.exp(0.3 * cost.to_numpy()), "n": np.exp(0.3 * cost.to_numpy()[::-1])}
    return TuningProblem(configs=CONFIGS, default=0, statistics=pd.DataFrame(), labels=labels, train=(),
                         judged=("m", "n"), budget=budget, labels_on="judged")


@pytest.fixture(params=SEARCHES)
def search(request):
    pytest.importorskip(NEEDS[request.param], reason=f"{request.param} is in the extra tuners")
    return SEARCHES[request.param]


def test_a_search_spends_its_budget_and_returns_the_best_of_it(search):
    made = problem(9)
    chosen = search(made, 0)
    for name in made.judged:
        assert len(made.evaluated[name]) == len(set(made.evaluated[name])) == 9
        assert chosen[name] == min(made.evaluated[name], key=lambda config: made.labels[name][config])


def test_a_search_of_everything_finds_the_optimum(search):
    made = problem(500)
    chosen = search(made, 0)
    assert {name: made.labels[name][chosen[name]] for name in made.judged} == {
        name: made.labels[name].min() for name in made.judged}


def test_models_need_fewer_labels_than_chance():
    made, chance = problem(12), problem(12)
    gaussian_process_search(made, 0)
    assert all(made.labels[name][made.best_evaluated(name)] == made.labels[name].min() for name in made.judged)
    random_search(chance, 0)
    assert sum(chance.labels[name][chance.best_evaluated(name)] for name in chance.judged) >= sum(
        made.labels[name].min() for name in made.judged)


def test_grids_with_holes_are_refused():
    pytest.importorskip("optuna")
    made = problem(3)
    made.configs = CONFIGS.iloc[1:].reset_index(drop=True)
    with pytest.raises(ValueError, match=r"is no configuration: tpe and smac need all combinations of values"):
        tpe_search(made, 0)


@pytest.mark.parametrize(("library", "search", "tuner"), [("optuna", "tpe_search", "tpe needs Optuna"),
                                                        ("smac", "smac_search", "smac needs SMAC3")])
def test_missing_libraries_are_answered_with_the_extra(library, search, tuner):
    code = f"import sys; sys.modules[{library!r}] = None\nimport sparloom.tuning as t\nt.{search}(None, 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"ImportError: tuner {tuner}: pip install 'sparloom[tuners]'" in done.stderr
