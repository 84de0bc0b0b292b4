"""Search a space by a cost model: every configuration of a small one, by evolution in a large one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.space import MAX_LISTED, Config, GridSpace

ATTEMPTS = 20  # to make a legal child that was not scored before

Scorer = Callable[[Sequence[Config]], np.ndarray]
"""Configurations -> scores, low = fast."""


@dataclass(frozen=True)
class Ranked:
    """A configuration and its score; low = fast."""

    config: Config
    score: float


@dataclass(frozen=True)
class Evolution:
    """Evolutionary search: children take each value from either parent, or a mutated one.

    Args:
        population: configurations that may have children, and number of children in each generation.
        generations: at most.
        patience: stop after so many generations without improvement.
        mutation: probability that a value is redrawn; half of the draws are of a neighbouring value.
        tournament: size; the best of these candidates becomes a parent.
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


def _mutated(values: tuple, index: int, rng: np.random.Generator) -> object:
    if rng.random() < 0.5:
        return values[min(len(values) - 1, max(0, index + (1 if rng.random() < 0.5 else -1)))]
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


def best(score: Scorer, space: GridSpace, k: int, *, evolution: Evolution) -> list[Ranked]:
    """Find k configurations with low scores, best first.

    Args:
        evolution: searches a space of more than 4096 configurations.
    """
    if len(space) > MAX_LISTED:
        return evolution.top_k(score, space, k)
    configs = list(space)
    scores = np.asarray(score(configs), np.float64)
    return [Ranked(configs[index], float(scores[index])) for index in np.argsort(scores, kind="stable")[:k]]


def portfolio(seconds: np.ndarray, count: int) -> list[int]:
    """Choose configurations greedily, each to lower the mean logarithm of the least seconds the most.

    Args:
        seconds: (problems, configurations).
        count: of configurations, at most; fewer if another one would not help.

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
