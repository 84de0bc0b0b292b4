"""Searches of a table: they keep to the budget, pay once, and find what is easy to find."""

import itertools
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest

from sparloom.data import TuningProblem
from sparloom.files import scratch_folder
from sparloom.tuning import (
    botorch_search,
    kernel_tuner_search,
    optuna_gp_search,
    random_search,
    smac_search,
    tpe_search,
    tuners,
)

GRID = {"rows": [4, 32, 256, 2048], "columns": [0, 1024, 16384], "barrier": [0, 1], "constant": [7]}
CONFIGS = pd.DataFrame(list(itertools.product(*GRID.values())), columns=list(GRID))
STRATEGIES = ("adaptive_tabu_greywolf", "bayes_opt", "genetic_algorithm", "hybrid_vndx")
SEARCHES = {
    "random": (random_search, "numpy"), "tpe": (tpe_search, "optuna"), "optuna_gp": (optuna_gp_search, "optuna"),
    "smac": (smac_search, "smac"), "botorch": (botorch_search, "botorch"),
    **{name: (partial(kernel_tuner_search, strategy=name), "kernel_tuner") for name in STRATEGIES},
}


def problem(budget: int, *, holes: bool = False) -> TuningProblem:
    """Make a problem on two matrices; with holes, a third of the grid is infeasible, and a sixth fails."""
    configs = CONFIGS[CONFIGS["rows"] * CONFIGS["columns"] < 2**22] if holes else CONFIGS
    cost = np.exp(0.3 * (np.abs(np.log2(configs["rows"]) - 8) + configs["barrier"] + (configs["columns"] == 0)))
    labels = {"m": cost.to_numpy().copy(), "n": cost.to_numpy()[::-1].copy()}
    if holes:
        labels["m"][configs["rows"] == 32] = np.nan
        labels["n"][3] = np.nan
    return TuningProblem(configs=configs.reset_index(drop=True), default=0, statistics=pd.DataFrame(), labels=labels,
                         train=(), judged=("m", "n"), budget=budget, labels_on="judged")


@pytest.fixture(params=SEARCHES)
def search(request):
    function, library = SEARCHES[request.param]
    pytest.importorskip(library, reason=f"{request.param} is in the extra tuners")
    return function


@pytest.mark.parametrize("holes", [False, True])
def test_a_search_spends_its_budget_and_returns_the_best_of_it(search, holes):
    made = problem(9, holes=holes)
    chosen = search(made, 0)
    for name in made.judged:
        assert len(made.evaluated[name]) == len(set(made.evaluated[name])) == 9
        assert made.labels[name][chosen[name]] == np.nanmin(made.labels[name][made.evaluated[name]])


@pytest.mark.parametrize("holes", [False, True])
def test_a_search_of_everything_finds_the_optimum(search, holes):
    if search is optuna_gp_search:
        pytest.skip("its proposals of known points take minutes")
    made = problem(500, holes=holes)
    chosen = search(made, 0)
    assert {name: made.labels[name][chosen[name]] for name in made.judged} == {
        name: np.nanmin(made.labels[name]) for name in made.judged}


def test_a_search_is_repeatable(search, request):
    if "bayes_opt" in request.node.name:
        pytest.skip("it draws its first configurations without a seed")
    made, again = problem(12, holes=True), problem(12, holes=True)
    search(made, 3)
    search(again, 3)
    assert made.evaluated == again.evaluated


def test_points_of_smac_have_its_own_values():
    """The names of the parameters are not sorted, and each has another number of values."""
    pytest.importorskip("smac")
    configs = pd.DataFrame(list(itertools.product(range(5), range(2), range(3))), columns=["z", "m", "a"])
    with scratch_folder("tuner") as folder:
        library = tuners._Smac(tuners.Grid.of(configs), 0, folder)
        for _ in range(12):
            trial, point = library.ask()
            assert dict(zip(configs.columns, point, strict=True)) == dict(trial.config)
            library.tell(trial, point, 1.0 + sum(point))
        library.tell(None, (4, 1, 2), 8.0)  # a point that was drawn


def test_a_library_learns_which_point_is_fast(search):
    if search in (random_search, optuna_gp_search):
        pytest.skip("it draws, or takes minutes")
    configs = pd.DataFrame(list(itertools.product(range(5), range(2), range(3))), columns=["z", "m", "a"])
    cost = (1 + configs["z"] + 10 * configs["m"] + 100 * configs["a"]).to_numpy(float)
    made = TuningProblem(configs=configs, default=0, statistics=pd.DataFrame(), labels={"m": cost}, train=(),
                         judged=("m",), budget=15, labels_on="judged")
    assert cost[search(made, 0)["m"]] <= 5  # one trial in six is


def test_models_need_fewer_labels_than_chance():
    pytest.importorskip("botorch")
    made = problem(12)
    botorch_search(made, 0)
    assert all(made.labels[name][made.best_evaluated(name)] == made.labels[name].min() for name in made.judged)


def test_strategies_of_kernel_tuner_have_names():
    pytest.importorskip("kernel_tuner")
    with pytest.raises(ValueError, match=r"kernel_tuner_brute is unknown: Kernel Tuner has .*hybrid_vndx"):
        kernel_tuner_search(problem(3), 0, strategy="brute")


@pytest.mark.parametrize(("library", "search", "tuner"), [
    ("optuna", "tpe_search", "tpe needs Optuna"), ("optuna", "optuna_gp_search", "optuna_gp needs Optuna"),
    ("smac", "smac_search", "smac needs SMAC3"), ("botorch", "botorch_search", "botorch needs BoTorch"),
    ("kernel_tuner", "partial(t.kernel_tuner_search, strategy='pso')", "kernel_tuner needs Kernel Tuner")])
def test_missing_libraries_are_answered_with_the_extra(library, search, tuner):
    code = f"""
import sys; sys.modules[{library!r}] = None
from functools import partial
import pandas as pd, sparloom.tuning as t
from sparloom.data import TuningProblem
made = TuningProblem(configs=pd.DataFrame({{"a": [0, 1]}}), default=0, statistics=pd.DataFrame(), labels={{}}, train=(),
                     judged=("m",), budget=1, labels_on="judged")
({search if "partial" in search else f"t.{search}"})(made, 0)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"ImportError: tuner {tuner}: pip install 'sparloom[tuners]'" in done.stderr
