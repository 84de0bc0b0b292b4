"""Exhaustive search: score every configuration of the space; right for spaces of a few thousand points.

Evolutionary search: for spaces that are too large to score every configuration.

Search that fits the space: every configuration of a small one, an evolution in a large one.

A few configurations of which one is near the best on every problem.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.models import CostModel, MatrixView
from sparloom.space import Config, ConfigSpace, GridSpace
from sparloom.sparse import Pattern

__all__ = ["Evolution", "Ranked", "best", "portfolio", "top_k"]


@dataclass(frozen=True)
class Ranked:
    """A configuration and its score; low = fast."""

    config: Config
    score: float


def top_k(model: CostModel, matrix: Pattern | MatrixView, space: ConfigSpace, k: int) -> list[Ranked]:
    """Find the k configurations with the lowest scores, best first; equal scores keep the order of the space.

    Args:
        space: bound or not; it is bound to the shape of the matrix here.

    Raises:
        ValueError: k is not in 1..len(space), or the model gave a score that is not a number.
    """
    if not 1 <= k <= len(space):
        raise ValueError(f"top {k} of space {space.name} ({space.op}): choose k from 1 to {len(space)}")
    configs = list(space.bind(matrix.shape))
    scores = np.asarray(model.score(matrix, configs), np.float64)
    if scores.shape != (len(configs),) or np.isnan(scores).any():
        raise ValueError(f"{type(model).__name__} gave {scores.size} scores, {np.isnan(scores).sum()} of them NaN, for "
                         f"{len(configs)} configurations: its training diverged, train it again")
    best = np.argsort(scores, kind="stable")[:k]
    return [Ranked(configs[place], float(scores[place])) for place in best]


Scorer = Callable[[Sequence[Config]], np.ndarray]
"""Configurations -> scores, low = fast."""

ATTEMPTS = 20  # to make a legal child that was not scored before


@dataclass(frozen=True)
class Evolution:
    """A population whose children take each value from either parent, and some values from neither.

    Args:
        population: configurations that may have children; as many children are born in each generation.
        generations: at most.
        patience: generations without a better one after which it ends.
        mutation: probability that a value is drawn anew; half of the draws are of a neighbouring value.
        tournament: candidates among which the best becomes a parent.
        seed: of all draws.
    """

    population: int
    generations: int
    patience: int
    mutation: float
    tournament: int
    seed: int

    def top_k(self, score: Scorer, space: GridSpace, k: int) -> list[Ranked]:
        """Find k configurations with low scores, best first.

        Raises:
            ValueError: k is not in 1..population.
        """
        if not 1 <= k <= self.population:
            raise ValueError(f"top {k} of a population of {self.population}: choose k from 1 to {self.population}")
        rng = np.random.default_rng(self.seed)
        scored = _scored(score, space.sample(min(self.population, len(space)), rng))
        living, idle = _best(scored, self.population), 0
        for _ in range(self.generations):
            children = self._children(living, space, scored, rng)
            if idle == self.patience or not children:
                break
            before = scored[living[0]]
            scored |= _scored(score, children)
            living = _best(scored, self.population)
            idle = 0 if scored[living[0]] < before else idle + 1
        return [Ranked(config, scored[config]) for config in living[:k]]

    def _children(
        self, living: Sequence[Config], space: GridSpace, known: dict[Config, float], rng: np.random.Generator
    ) -> list[Config]:
        children: dict[Config, None] = {}
        for _ in range(self.population):
            for _ in range(ATTEMPTS):
                first, second = (living[min(rng.integers(len(living), size=self.tournament))] for _ in range(2))
                child = self._child(first, second, space, rng)
                if child not in known and child not in children and _legal(child, space):
                    children[child] = None
                    break
        return list(children)

    def _child(self, first: Config, second: Config, space: GridSpace, rng: np.random.Generator) -> Config:
        values = {}
        for parameter in space.parameters:
            value = (first, second)[rng.integers(2)][parameter.name]
            if rng.random() < self.mutation:
                value = _mutated(parameter.values, parameter.values.index(value), rng)
            values[parameter.name] = value
        return first.replace(**values)


def _mutated(values: tuple, place: int, rng: np.random.Generator) -> object:
    if rng.random() < 0.5:
        return values[min(len(values) - 1, max(0, place + (1 if rng.random() < 0.5 else -1)))]
    return values[rng.integers(len(values))]


def _legal(config: Config, space: GridSpace) -> bool:
    try:
        space.validate(config)
    except IllegalSchedule:
        return False
    return True


def _scored(score: Scorer, configs: Sequence[Config]) -> dict[Config, float]:
    return dict(zip(configs, np.asarray(score(configs), np.float64).tolist(), strict=True))


def _best(scored: dict[Config, float], count: int) -> list[Config]:
    return sorted(scored, key=scored.__getitem__)[:count]


LISTED = 4096  # configurations of a space that is scored whole


def best(
    score: Callable[[Sequence[Config]], np.ndarray], space: GridSpace, k: int, *, evolution: Evolution
) -> list[Ranked]:
    """Find k configurations with low scores, best first.

    Args:
        score: configurations -> scores, low = fast.
        evolution: for a space of more than 4096 configurations.
    """
    if len(space) > LISTED:
        return evolution.top_k(score, space, k)
    configs = list(space)
    scores = np.asarray(score(configs), np.float64)
    return [Ranked(configs[place], float(scores[place])) for place in np.argsort(scores, kind="stable")[:k]]


def portfolio(seconds: np.ndarray, count: int) -> list[int]:
    """Choose configurations one by one, each as the mean logarithm of the least seconds falls the most.

    Args:
        seconds: (problems, configurations).
        count: of configurations, at most: it ends where another one would not help.

    Returns:
        Columns, in the order in which they were chosen.
    """
    logs, chosen = np.log(seconds), []
    least = np.full(len(logs), np.inf)
    while len(chosen) < count:
        means = np.minimum(logs, least[:, None]).mean(axis=0)
        best = int(means.argmin())
        if best in chosen or not means[best] < least.mean():
            break
        chosen.append(best)
        least = np.minimum(least, logs[:, best])
    return chosen
