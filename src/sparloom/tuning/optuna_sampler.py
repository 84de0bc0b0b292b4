"""A sampler for studies of Optuna that chooses trials as campaigns do."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from sparloom.errors import IllegalSchedule
from sparloom.space import Config, SearchParameter, SearchSpace
from sparloom.tuning.engine import ONLY, Engine, Trials
from sparloom.tuning.transfer import Source

FAILED = (TrialState.FAIL, TrialState.PRUNED)


class OptunaSampler(BaseSampler):
    """Sample the parameters of a study of Optuna by the model of campaigns.

    The objective is seconds to minimise, or a throughput to maximise: a positive number whose ratios count. Trials that
    raise an exception which `study.optimize(catch=...)` catches, or are pruned, count as failed.

    Args:
        distributions: of all parameters, if the objective suggests the same ones in every trial. Without them, the
            first trial is random and may violate constraints, as its parameters are not known before it runs.
        constraints: expressions over parameters that a trial must satisfy, such as "block_x * block_y <= 1024".
        sources: trials of other devices, problem sizes, versions or a simulator.
        seed: of what is drawn.

    Raises:
        SchemaError: a constraint is faulty, or a source has no parameter in common.
        ValueError: the study has several objectives, or a value is not positive and finite.
    """

    def __init__(
        self, distributions: Mapping[str, BaseDistribution] | None = None, *, constraints: Sequence[str] = (),
        sources: Sequence[Source] = (), seed: int = 0,
    ) -> None:
        self._distributions = None if distributions is None else dict(distributions)
        self._constraints, self._sources, self._seed = tuple(constraints), tuple(sources), seed
        self._intersection = IntersectionSearchSpace()
        self._independent = RandomSampler(seed=seed)
        self._engines: dict[str, Engine] = {}
        self._asked: dict[int, Config] = {}  # number of a trial -> its configuration
        self._lock = threading.Lock()  # `study.optimize(n_jobs=...)` samples in several threads

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def reseed_rng(self) -> None:
        """Draw differently in another process."""
        self._independent.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that the model chooses: those given, or those of all trials so far."""
        return self._distributions if self._distributions is not None else self._intersection.calculate(study)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Choose the parameters of a trial; none if all configurations have run."""
        if len(study.directions) > 1:
            raise ValueError(f"this study has {len(study.directions)} objectives: OptunaSampler takes one")
        if not search_space:
            return {}
        with self._lock:
            engine = self._engine(search_space)
            chosen = engine.choose(self._trials(study, trial, engine.space, search_space), 1)
            if chosen:
                self._asked[trial.number] = chosen[0].config
        return _params(search_space, chosen[0].config) if chosen else {}

    def _trials(
        self, study: Study, trial: FrozenTrial, space: SearchSpace, search_space: Mapping[str, BaseDistribution]
    ) -> Trials:
        """Return the other trials of a study, also those of other threads whose parameters are not stored yet."""
        done, running = [], []
        for each in study.get_trials(deepcopy=False):
            config = _config(space, search_space, each.params)
            if each.state == TrialState.RUNNING and config is None:
                config = self._asked.get(each.number)
            if each.number == trial.number or config is None:
                continue
            if each.state in FAILED:
                done.append((ONLY, config, math.nan))
            elif each.state == TrialState.COMPLETE:
                done.append((ONLY, config, _seconds(each, study.direction)))
            elif each.state == TrialState.RUNNING:
                running.append((ONLY, config))
        return Trials(done, running)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a parameter that the model does not know yet."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _engine(self, search_space: Mapping[str, BaseDistribution]) -> Engine:
        key = repr(sorted(search_space.items()))
        if key not in self._engines:
            parameters = tuple(_parameter(name, each) for name, each in sorted(search_space.items()))
            space = SearchSpace("study", parameters, self._constraints)
            self._engines = {key: Engine(space, {ONLY: {}}, sources=self._sources, seed=self._seed)}
        return self._engines[key]


def _parameter(name: str, distribution: BaseDistribution) -> SearchParameter:
    """Return the parameter of a distribution; categories that are numbers keep their order."""
    if isinstance(distribution, IntDistribution):
        values = range(distribution.low, distribution.high + 1, distribution.step)
        return SearchParameter(name, "integer", values[0], values, scale="log" if distribution.log else None)
    if isinstance(distribution, FloatDistribution):
        scale = "log" if distribution.log else "linear"
        if distribution.low == distribution.high:
            return SearchParameter(name, "float", distribution.low, (distribution.low,))
        if distribution.step is None:
            return SearchParameter(name, "float", distribution.low, interval=(distribution.low, distribution.high),
                                   scale=scale)
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        values = [distribution.low + place * distribution.step for place in range(count)]
        return SearchParameter(name, "float", values[0], values)
    assert isinstance(distribution, CategoricalDistribution)
    choices = distribution.choices
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in choices):
        return SearchParameter.of_values(name, choices)
    return SearchParameter.of_values(name, [f"c{place}" for place in range(len(choices))])


def _config(
    space: SearchSpace, search_space: Mapping[str, BaseDistribution], params: Mapping[str, Any]
) -> Config | None:
    """Return the configuration of a trial; None if it has other parameters or violates a constraint."""
    if not search_space.keys() <= params.keys():
        return None
    values = {}
    for parameter in space.parameters:
        value = params[parameter.name]
        if parameter.kind == "categorical":
            value = f"c{search_space[parameter.name].choices.index(value)}"
        values[parameter.name] = value
    try:
        return space.parse(values)
    except IllegalSchedule:
        return None


def _params(search_space: Mapping[str, BaseDistribution], config: Config) -> dict[str, Any]:
    """Return the values of a configuration as the distributions have them."""
    params = {}
    for name, value in config.values:
        distribution = search_space[name]
        if isinstance(distribution, CategoricalDistribution):
            choices = distribution.choices
            params[name] = choices[int(value[1:]) if isinstance(value, str) else choices.index(value)]
        else:
            params[name] = value
    return params


def _seconds(trial: FrozenTrial, direction: StudyDirection) -> float:
    value = trial.value
    if value is None or not 0 < value < math.inf:
        raise ValueError(f"trial {trial.number} has the value {value}: OptunaSampler takes positive, finite "
                         "objectives, such as seconds to minimise or a throughput to maximise")
    return value if direction == StudyDirection.MINIMIZE else 1 / value
