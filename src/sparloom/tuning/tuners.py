"""Tuners that search on each judged matrix by itself: random search, Optuna's TPE, SMAC3, a Gaussian process.

All begin with the same number of random configurations and never pay for a configuration twice. After any number of
labels their choice is the fastest configuration that was tried, so one run shows them at every smaller budget.
"""

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pandas as pd

from sparloom.data import TuningProblem
from sparloom.lazy import install_command

INITIAL = 5
"""Random configurations with which searches begin."""
REPEATS = 20  # proposals of known configurations in a row, after which an unknown one is drawn
RETRAIN_AFTER = 8  # of SMAC3, its default
COVERING = 4  # random candidates of SMAC3 per configuration of the space, so that few are left out
LEAVES = 1024  # of a tree of SMAC3, more than there are labels; its default reserves memory for a million
REFIT_GROWTH = 1.25  # of the labels, at which the hyperparameters of a Gaussian process are fitted again


def random_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Try random configurations without repetition."""
    for number, name in enumerate(problem.judged):
        for config in _rng(seed, number).permutation(len(problem.configs))[:problem.left(name)]:
            problem.evaluate(name, int(config))
    return _choices(problem)


def tpe_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by the tree-structured Parzen estimator of Optuna, multivariate, over categories.

    Source: Bergstra et al., NeurIPS 2011; Optuna's `TPESampler`.

    Raises:
        ImportError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ImportError(f"tuner tpe needs Optuna: {install_command('tuners')}, or leave it out") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values, numbers = _grid(problem.configs)
    space = {name: optuna.distributions.CategoricalDistribution(each) for name, each in values.items()}
    for place, name in enumerate(problem.judged):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # multivariate is marked as experimental
            sampler = optuna.samplers.TPESampler(n_startup_trials=INITIAL, multivariate=True, seed=_seed(seed, place))
        study = optuna.create_study(sampler=sampler)

        def ask(study: Any = study) -> tuple[Any, int]:
            trial = study.ask(space)
            return trial, numbers[tuple(trial.params[each] for each in values)]

        def told(trial: Any, number: int, value: float, study: Any = study) -> None:
            if trial is None:
                params = {each: int(problem.configs.at[number, each]) for each in values}
                study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
            else:
                study.tell(trial, value)

        _search(problem, name, ask, told, _rng(seed, place))
    return _choices(problem)


def smac_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by SMAC3: a random forest of log seconds and expected improvement, in its facade for hyperparameters.

    Source: Lindauer et al., JMLR 2022; `smac.HyperparameterOptimizationFacade`. Departures: it begins with `INITIAL`
    configurations of its Sobol sequence; candidates are drawn at random, more than the space has, instead of by local
    search, and leaves of a tree are limited to LEAVES; both save time.

    Raises:
        ImportError: SMAC3 is not installed.
    """
    try:
        from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, OrdinalHyperparameter
        from smac import HyperparameterOptimizationFacade, Scenario
        from smac.acquisition.maximizer import RandomSearch
        from smac.main.exceptions import ConfigurationSpaceExhaustedException
        from smac.model.random_forest import RandomForest
        from smac.runhistory.dataclasses import TrialValue
    except ImportError:
        raise ImportError(f"tuner smac needs SMAC3: {install_command('tuners')}, or leave it out") from None
    values, numbers = _grid(problem.configs)
    for place, name in enumerate(problem.judged):
        own = _seed(seed, place)
        space = ConfigurationSpace(seed=own)
        space.add([OrdinalHyperparameter(each, listed) if len(listed) > 2 else CategoricalHyperparameter(each, listed)
                   for each, listed in values.items()])
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scenario = Scenario(space, deterministic=True, n_trials=10_000, seed=own, output_directory=folder)
            forest = RandomForest(
                configspace=space, instance_features=scenario.instance_features, seed=own, log_y=True, n_trees=10,
                ratio_features=1.0, min_samples_split=2, min_samples_leaf=1, max_leaf_nodes=LEAVES, n_jobs=1)
            facade = HyperparameterOptimizationFacade(
                scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=False, model=forest,
                acquisition_maximizer=RandomSearch(space, challengers=COVERING * len(problem.configs), seed=own),
                initial_design=HyperparameterOptimizationFacade.get_initial_design(scenario, n_configs=INITIAL),
                config_selector=HyperparameterOptimizationFacade.get_config_selector(
                    scenario, retrain_after=RETRAIN_AFTER))

            def ask(facade: Any = facade) -> tuple[Any, int]:
                trial = facade.ask()
                return trial, numbers[tuple(trial.config[each] for each in values)]

            def told(trial: Any, _: int, value: float, facade: Any = facade) -> None:
                if trial is not None:
                    facade.tell(trial, TrialValue(cost=value))

            with contextlib.suppress(StopIteration, ConfigurationSpaceExhaustedException):  # nothing more to propose
                _search(problem, name, ask, told, _rng(seed, place))
            for config in _rng(seed, place).permutation(len(problem.configs)):
                if problem.left(name) and config not in problem.evaluated[name]:
                    problem.evaluate(name, int(config))
    return _choices(problem)


def gaussian_process_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by a Gaussian process of log labels and expected improvement over all configurations.

    The kernel is Matern 5/2 with one length per parameter, on ranks of their values.
    Source: Jones et al. 1998; scikit-learn's `GaussianProcessRegressor`.
    """
    from scipy.stats import norm
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    points = _points(problem.configs)
    for place, name in enumerate(problem.judged):
        known: dict[int, float] = {}
        for config in _rng(seed, place).permutation(len(points))[:min(INITIAL, problem.left(name))]:
            known[int(config)] = np.log(problem.evaluate(name, int(config)))
        kernel = (ConstantKernel(1.0, (0.05, 20)) * Matern(np.ones(points.shape[1]), (0.1, 20), nu=2.5)
                  + WhiteKernel(1e-4, (1e-6, 1e-1)))
        fitted_with = 0
        while problem.left(name) > 0:
            logs, refit = np.array(list(known.values())), len(known) >= fitted_with * REFIT_GROWTH
            model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0,
                                             optimizer="fmin_l_bfgs_b" if refit else None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(points[list(known)], logs)
            if refit:
                kernel, fitted_with = model.kernel_, len(known)
            mean, deviation = model.predict(points, return_std=True)
            gain = (logs.min() - mean) / np.maximum(deviation, 1e-12)
            improvement = deviation * (gain * norm.cdf(gain) + norm.pdf(gain))
            improvement[list(known)] = -np.inf
            chosen = int(improvement.argmax())
            known[chosen] = np.log(problem.evaluate(name, chosen))
    return _choices(problem)


def _search(
    problem: TuningProblem, matrix: str, ask: Callable[[], tuple[Any, int]],
    told: Callable[[Any, int, float], None], rng: np.random.Generator,
) -> None:
    """Let a library propose configurations until the labels on a matrix are spent; known ones are free.

    Args:
        ask: returns a trial and the number of its configuration.
        told: receives a trial, None for a configuration that was drawn here, its number and its label.
    """
    repeats = 0
    while problem.left(matrix) > 0:
        trial, number = ask()
        known = number in problem.evaluated[matrix]
        told(trial, number, problem.evaluate(matrix, number))
        repeats = repeats + 1 if known else 0
        if repeats == REPEATS:
            unknown = sorted(set(range(len(problem.configs))) - set(problem.evaluated[matrix]))
            drawn = int(rng.choice(unknown))
            told(None, drawn, problem.evaluate(matrix, drawn))
            repeats = 0


def _choices(problem: TuningProblem) -> dict[str, int]:
    return {name: problem.best_evaluated(name) for name in problem.judged}


def _grid(configs: pd.DataFrame) -> tuple[dict[str, list[int]], dict[tuple[Hashable, ...], int]]:
    """List the values of every parameter, and number the configurations by theirs.

    Raises:
        ValueError: some combinations of values are no configurations, so libraries would propose what does not exist.
    """
    values = {name: sorted(int(value) for value in set(configs[name])) for name in configs}
    numbers = {tuple(int(value) for value in row): int(number)
               for number, row in zip(configs.index, configs.itertuples(index=False), strict=True)}
    absent = next((point for point in itertools.product(*values.values()) if point not in numbers), None)
    if absent is not None:
        raise ValueError(f"{dict(zip(values, absent, strict=True))} is no configuration: tpe and smac need all "
                         "combinations of values; use random or gaussian_process")
    return values, numbers


def _points(configs: pd.DataFrame) -> np.ndarray:
    """Scale parameters to [0, 1]: ranks of their values, 0 (all columns) as the greatest."""
    columns = []
    for name in configs:
        numbers = configs[name].to_numpy(np.float64)
        greatest = len(set(numbers)) > 2
        ranks = np.unique(np.where((numbers == 0) & greatest, np.inf, numbers), return_inverse=True)[1]
        columns.append(ranks / max(1, ranks.max()))
    return np.stack(columns, axis=1)


def _rng(seed: int, place: int) -> np.random.Generator:
    return np.random.default_rng([seed, place])


def _seed(seed: int, place: int) -> int:
    return int(_rng(seed, place).integers(2**31))

