"""Tuners that search a table of configurations, on each judged matrix or device by itself.

The rule is the same for all. A configuration costs one label when it is first tried, also if it fails. A point of the
grid of all values that is no configuration violates a constraint: the library is told that it failed, and it costs
nothing. After `REPEATS` proposals in a row that cost nothing, a random configuration is tried. The choice is the
fastest configuration that was tried, so one run shows a tuner at every smaller budget.
"""

import logging
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from sparloom.data import TuningProblem
from sparloom.files import scratch_folder
from sparloom.lazy import install_command
from sparloom.space import SearchSpace
from sparloom.tuning.optimizer import Optimizer
from sparloom.tuning.transfer import Source

INITIAL = 5
"""Random configurations with which searches begin."""
REPEATS = 20  # proposals in a row that cost nothing, after which a random configuration is tried
LEAVES = 1024  # of a tree of SMAC3, more than there are labels; its default reserves memory for a million
REFIT_GROWTH = 1.1  # of the labels, at which the hyperparameters of a Gaussian process are fitted again
CANDIDATES = 2048  # that BoTorch scores at once

Point = tuple[int, ...]
"""Of the grid of all values: for each parameter, the place of its value among the sorted ones."""


@dataclass(frozen=True)
class Grid:
    """The configurations of a table as points of the grid of all values; parameters with one value are left out.

    Args:
        values: parameter -> its sorted values.
        points: (configs, parameters).
        numbers: point -> number of its configuration.
    """

    values: Mapping[str, Sequence[Any]]
    points: np.ndarray
    numbers: Mapping[Point, int]

    @classmethod
    def of(cls, configs: pd.DataFrame) -> "Grid":
        coded = {name: np.unique(configs[name], return_inverse=True) for name in configs}
        coded = {name: pair for name, pair in coded.items() if len(pair[0]) > 1}
        points = np.stack([places for _, places in coded.values()], axis=1)
        return cls({name: values.tolist() for name, (values, _) in coded.items()}, points,
                   {tuple(point): number for number, point in enumerate(points.tolist())})

    def point(self, values: Iterable[Any]) -> Point:
        """Return the point with these values of the parameters, in their order."""
        return tuple(listed.index(value) for listed, value in zip(self.values.values(), values, strict=True))


class NothingToPropose(Exception):
    """A library has no further point."""


class Library(Protocol):
    """A search by a library, which proposes points and receives their seconds."""

    def ask(self) -> tuple[Any, Point]:
        """Propose a trial, whose content is up to the library, and its point.

        Raises:
            NothingToPropose: the library has no further point.
        """

    def tell(self, trial: Any, point: Point, seconds: float) -> None:
        """Receive a proposed trial, or None for a point that was drawn here; NaN: it failed or is infeasible."""


def random_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Try random configurations without repetition."""
    for place, name in enumerate(problem.judged):
        _try_random(problem, name, _rng(seed, place))
    return _choices(problem)


def tpe_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by the tree-structured Parzen estimator of Optuna, multivariate, over categories.

    A point that failed or is infeasible is told as pruned, that is as worse than all others.
    Source: Bergstra et al., NeurIPS 2011; Optuna's `TPESampler`.

    Raises:
        ImportError: Optuna is not installed.
    """
    return _search(problem, seed, _tpe)


def optuna_gp_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by the Gaussian process of Optuna on log seconds, over the places of values.

    A point that failed or is infeasible is told as infinite, which Optuna replaces by the worst.
    Source: Optuna's `GPSampler`.

    Raises:
        ImportError: Optuna is not installed.
    """
    return _search(problem, seed, _optuna_gp)


def smac_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by SMAC3: a random forest of log seconds and expected improvement, in its facade for hyperparameters.

    A point that failed or is infeasible is told as crashed and as slow as the slowest.
    Source: Lindauer et al., JMLR 2022; `smac.HyperparameterOptimizationFacade`. Departures: it begins with `INITIAL`
    configurations of its Sobol sequence, and leaves of a tree are limited to LEAVES, which saves time.

    Raises:
        ImportError: SMAC3 is not installed.
    """
    return _search(problem, seed, _Smac)


def botorch_search(problem: TuningProblem, seed: int) -> dict[str, int]:
    """Search by a Gaussian process of BoTorch on log seconds and logarithmic expected improvement.

    All configurations that were not tried are candidates, so it proposes no infeasible point and none twice. Those that
    failed count as the slowest. Hyperparameters are fitted when there are REFIT_GROWTH times as many labels.
    Source: Balandat et al., NeurIPS 2020; `botorch.models.SingleTaskGP` with its own kernel and priors.

    Raises:
        ImportError: BoTorch is not installed.
    """
    return _search(problem, seed, _BoTorch)


def kernel_tuner_search(problem: TuningProblem, seed: int, *, strategy: str) -> dict[str, int]:
    """Search by a strategy of Kernel Tuner, with its default options, in the simulation mode of Kernel Tuner.

    Departures: a strategy does not learn of the configurations that were drawn after REPEATS known ones, infeasible
    points do not count among these, and a strategy that ends early is continued by random configurations. bayes_opt
    draws its first configurations without a seed.
    Source: van Werkhoven, FGCS 2019; `kernel_tuner.tune_kernel`.

    Raises:
        ImportError: Kernel Tuner is not installed.
        ValueError: it has no such strategy.
    """
    try:
        from kernel_tuner.interface import strategy_map, tune_kernel
    except ImportError:
        raise _missing("kernel_tuner", "Kernel Tuner") from None
    if strategy not in strategy_map:
        raise ValueError(f"kernel_tuner_{strategy} is unknown: Kernel Tuner has {', '.join(strategy_map)}")
    grid = Grid.of(problem.configs)

    def feasible(*values: Any, **named: Any) -> bool:  # called in both ways
        return grid.point(values or named.values()) in grid.numbers

    for place, name in enumerate(problem.judged):
        rng = _rng(seed, place)
        with redirect_stdout(StringIO()), warnings.catch_warnings(), _seeded_generators(_seed(seed, place)):
            warnings.simplefilter("ignore")
            tune_kernel(
                "kernel", "", 1, [], dict(grid.values), restrictions=[feasible], lang="C", simulation_mode=True,
                strategy=_KernelTuner(strategy_map[strategy], problem, name, grid, rng), quiet=True,
                strategy_options={"max_fevals": problem.left(name)})
        _try_random(problem, name, rng)
    return _choices(problem)


def optimizer_search(
    problem: TuningProblem, seed: int, *, space: SearchSpace, sources: Sequence[Source],
) -> dict[str, int]:
    """Search by our `Optimizer`; configurations of the problem have the parameters of the space."""
    return _search(problem, seed, partial(_Ours, problem.configs, space, sources))


def _search(
    problem: TuningProblem, seed: int, start: Callable[[Grid, int, Path], Library],
) -> dict[str, int]:
    """Let a library propose points until the labels are spent, and draw configurations where it proposes no more.

    Args:
        start: grid, seed and a folder for temporary files -> search.
    """
    grid = Grid.of(problem.configs)
    for place, name in enumerate(problem.judged):
        rng = _rng(seed, place)
        with scratch_folder("tuner") as folder, warnings.catch_warnings(), suppress(NothingToPropose):
            warnings.simplefilter("ignore")
            library, idle = start(grid, _seed(seed, place), folder), 0
            while problem.left(name) > 0:
                if idle == REPEATS:
                    trial, point = None, tuple(grid.points[rng.choice(_untried(problem, name))].tolist())
                else:
                    trial, point = library.ask()
                number = grid.numbers.get(point)
                idle = idle + 1 if number is None or number in problem.evaluated[name] else 0
                library.tell(trial, point, math.nan if number is None else problem.evaluate(name, number))
        _try_random(problem, name, rng)
    return _choices(problem)


class _Optuna:
    """Search by a sampler of Optuna, which is told log seconds.

    Args:
        failed: what it is told of a point that failed, arguments of `Study.tell`.
    """

    def __init__(self, sampler: Any, space: Mapping[str, Any], failed: Mapping[str, Any]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=sampler)
        self._space, self._failed = space, failed

    def ask(self) -> tuple[Any, Point]:
        trial = self._study.ask(self._space)
        return trial, tuple(trial.params[name] for name in self._space)

    def tell(self, trial: Any, point: Point, seconds: float) -> None:
        if trial is None:
            self._study.enqueue_trial(dict(zip(self._space, point, strict=True)))
            trial = self._study.ask(self._space)
        self._study.tell(trial, **(self._failed if math.isnan(seconds) else {"values": math.log(seconds)}))


def _tpe(grid: Grid, seed: int, folder: Path) -> Library:
    try:
        import optuna
    except ImportError:
        raise _missing("tpe", "Optuna") from None
    space = {name: optuna.distributions.CategoricalDistribution(range(len(listed)))
             for name, listed in grid.values.items()}
    return _Optuna(optuna.samplers.TPESampler(n_startup_trials=INITIAL, multivariate=True, seed=seed), space,
                   {"state": optuna.trial.TrialState.PRUNED})


def _optuna_gp(grid: Grid, seed: int, folder: Path) -> Library:
    try:
        import optuna
    except ImportError:
        raise _missing("optuna_gp", "Optuna") from None
    space = {name: optuna.distributions.IntDistribution(0, len(listed) - 1) for name, listed in grid.values.items()}
    return _Optuna(optuna.samplers.GPSampler(n_startup_trials=INITIAL, deterministic_objective=True, seed=seed), space,
                   {"values": math.inf})


class _Smac:
    """Search by SMAC3, see `smac_search`."""

    def __init__(self, grid: Grid, seed: int, folder: Path) -> None:
        try:
            from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, OrdinalHyperparameter
            from smac import HyperparameterOptimizationFacade as Facade
            from smac import Scenario
            from smac.model.random_forest import RandomForest
        except ImportError:
            raise _missing("smac", "SMAC3") from None
        self._names = list(grid.values)  # the space sorts them
        self._space, self._slowest, self._waiting = ConfigurationSpace(seed=seed), 0.0, []
        self._space.add([(OrdinalHyperparameter if len(listed) > 2 else CategoricalHyperparameter)(
            name, range(len(listed))) for name, listed in grid.values.items()])
        scenario = Scenario(self._space, deterministic=True, n_trials=10**6, seed=seed, output_directory=folder)
        forest = RandomForest(
            configspace=self._space, instance_features=scenario.instance_features, seed=seed, log_y=True, n_trees=10,
            ratio_features=1.0, min_samples_split=2, min_samples_leaf=1, max_leaf_nodes=LEAVES, n_jobs=1)
        logging.getLogger("smac").setLevel(logging.ERROR)  # not of proposals that it must draw at random
        self._facade = Facade(
            scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=False, model=forest,
            initial_design=Facade.get_initial_design(scenario, n_configs=INITIAL))

    def ask(self) -> tuple[Any, Point]:
        from smac.main.exceptions import ConfigurationSpaceExhaustedException

        try:
            trial = self._facade.ask()
        except (StopIteration, ConfigurationSpaceExhaustedException):
            raise NothingToPropose from None
        return trial, tuple(int(trial.config[name]) for name in self._names)

    def tell(self, trial: Any, point: Point, seconds: float) -> None:
        from ConfigSpace import Configuration
        from smac.runhistory import StatusType, TrialInfo, TrialValue

        if trial is None:
            trial = TrialInfo(Configuration(self._space, values=dict(zip(self._names, point, strict=True))), seed=0)
        self._waiting.append((trial, seconds))
        self._slowest = max(self._slowest, 0.0 if math.isnan(seconds) else seconds)
        while self._slowest and self._waiting:  # failures are told once something has run
            trial, seconds = self._waiting.pop(0)
            self._facade.tell(trial, TrialValue(self._slowest, status=StatusType.CRASHED) if math.isnan(seconds)
                              else TrialValue(seconds), save=False)


class _BoTorch:
    """Search by a Gaussian process of BoTorch, see `botorch_search`."""

    def __init__(self, grid: Grid, seed: int, folder: Path) -> None:
        try:
            import botorch  # noqa: F401
            import torch
        except ImportError:
            raise _missing("botorch", "BoTorch") from None
        self._grid, self._logs = grid, dict[int, float]()
        self._inputs = torch.from_numpy(grid.points / grid.points.max(axis=0))
        self._order = _rng(seed, 0).permutation(len(grid.points))
        self._hyperparameters, self._fitted_labels = dict[str, Any](), 0

    def ask(self) -> tuple[Any, Point]:
        logs = np.array(list(self._logs.values()))
        if np.isfinite(logs).sum() < INITIAL:
            chosen = next((number for number in self._order if number not in self._logs), self._order[0])
        else:
            improvement = self._improvement(np.where(np.isnan(logs), np.nanmax(logs), logs))
            improvement[list(self._logs)] = -np.inf
            chosen = improvement.argmax()
        return None, tuple(self._grid.points[chosen].tolist())

    def tell(self, trial: Any, point: Point, seconds: float) -> None:
        self._logs[self._grid.numbers[point]] = math.log(seconds)  # of NaN: NaN

    def _improvement(self, logs: np.ndarray) -> np.ndarray:
        """Return the logarithmic expected improvement of all configurations."""
        import torch
        from botorch.acquisition import LogExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        model = SingleTaskGP(self._inputs[list(self._logs)], torch.from_numpy(logs)[:, None])
        if len(logs) >= REFIT_GROWTH * self._fitted_labels:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            self._fitted_labels = len(logs)
            self._hyperparameters = {name: value.detach() for name, value in model.named_parameters()}
        else:
            model.load_state_dict(self._hyperparameters, strict=False)
            model.eval()
        improvement = LogExpectedImprovement(model, best_f=logs.min(), maximize=False)
        with torch.no_grad():
            return np.concatenate([improvement(part[:, None]).numpy() for part in self._inputs.split(CANDIDATES)])


class _Ours:
    """Search by our optimizer."""

    def __init__(
        self, configs: pd.DataFrame, space: SearchSpace, sources: Sequence[Source], grid: Grid, seed: int, folder: Path,
    ) -> None:
        self._configs, self._grid = configs, grid
        self._optimizer = Optimizer(space, sources=sources, seed=seed)

    def ask(self) -> tuple[Any, Point]:
        proposals = self._optimizer.ask(1)
        if not proposals:
            raise NothingToPropose
        config = proposals[0].config
        values = dict(config.values)
        return config, self._grid.point(values[name] for name in self._grid.values)

    def tell(self, trial: Any, point: Point, seconds: float) -> None:
        config = trial or self._configs.iloc[self._grid.numbers[point]].to_dict()
        self._optimizer.tell(config, **({"failure": "runtime"} if math.isnan(seconds) else {"seconds": seconds}))


class _KernelTuner:
    """A strategy of Kernel Tuner whose configurations are evaluated here, in milliseconds."""

    def __init__(
        self, strategy: Any, problem: TuningProblem, name: str, grid: Grid, rng: np.random.Generator,
    ) -> None:
        self._strategy, self._problem, self._name, self._grid, self._rng = strategy, problem, name, grid, rng
        self._idle = 0

    def tune(self, searchspace: Any, runner: Any, options: Any) -> Any:
        """Run the strategy, as Kernel Tuner asks of one that is given as an object."""
        runner.run = self.run
        return self._strategy.tune(searchspace, runner, options)

    def run(self, configs: Iterable[Sequence[Any]], options: Any) -> list[dict[str, Any]]:
        """Evaluate feasible configurations; the strategy is stopped when the labels are spent."""
        from kernel_tuner.util import RuntimeFailedConfig, StopCriterionReached

        results = []
        for values in configs:
            number = self._grid.numbers[self._grid.point(values)]
            self._idle = self._idle + 1 if number in self._problem.evaluated[self._name] else 0
            if self._idle == REPEATS:
                self._problem.evaluate(self._name, self._rng.choice(_untried(self._problem, self._name)))
                self._idle = 0
            if self._problem.left(self._name) == 0:
                raise StopCriterionReached("all labels are spent")
            seconds = self._problem.evaluate(self._name, number)
            outcome = {"__error__": RuntimeFailedConfig()} if math.isnan(seconds) else {"time": 1000 * seconds}
            results.append(dict(zip(self._grid.values, values, strict=True)) | outcome)
        options.budget.num_fevals = len(self._problem.evaluated[self._name])
        return results


@contextmanager
def _seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy, which Kernel Tuner draws from, and restore them."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _try_random(problem: TuningProblem, name: str, rng: np.random.Generator) -> None:
    """Spend the labels that are left on random configurations."""
    for config in rng.permutation(_untried(problem, name))[:problem.left(name)]:
        problem.evaluate(name, int(config))


def _untried(problem: TuningProblem, name: str) -> list[int]:
    return sorted(set(range(len(problem.configs))) - set(problem.evaluated[name]))


def _choices(problem: TuningProblem) -> dict[str, int]:
    return {name: problem.best_evaluated(name) for name in problem.judged}


def _missing(tuner: str, library: str) -> ImportError:
    return ImportError(f"tuner {tuner} needs {library}: {install_command('tuners')}, or leave it out")


def _rng(seed: int, place: int) -> np.random.Generator:
    return np.random.default_rng([seed, place])


def _seed(seed: int, place: int) -> int:
    return int(_rng(seed, place).integers(2**31))
