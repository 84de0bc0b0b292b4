"""Evolutionary search: for spaces that are too large to score every configuration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.search.exhaustive import Ranked
from sparloom.space import Config, GridSpace

__all__ = ["Evolution"]

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
