"""Select what to measure: configurations found by search or proposed by a cost model, and sample rows for them.

`best` searches a space: every configuration of a small one, by evolution in a large one. `shortlist` keeps the few
configurations that a cost model ranks first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ops import Operands
from sparloom.space import MAX_LISTED, Config, GridSpace
from sparloom.sparse import Pattern

if TYPE_CHECKING:
    pass

__all__ = [
    "CsrCostModel", "Evolution", "Ranked", "Sample", "best", "favour", "portfolio", "sample_rows", "shortlist",
]

ATTEMPTS = 20  # to make a legal child that was not scored before

NOT_FAVOURED = 1.5  # factor of configurations that are not favoured: less than a bad balance costs
BLOCK_ROWS, STRATA = 64, 8  # of samples

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


def favour(seconds: np.ndarray, configs: Sequence[Config], favoured: Collection[str]) -> np.ndarray:
    """Lengthen estimated seconds of configurations that are not favoured, unless none is.

    Formulas seldom tell similar configurations apart, so those that were measured to be good come first.

    Args:
        favoured: keys of configurations.
    """
    if not favoured:
        return seconds
    return seconds * np.array([1.0 if config.key in favoured else NOT_FAVOURED for config in configs])


class CsrCostModel(Protocol):
    """Ranks configurations of one operation for one problem."""

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score, (configs,): low = fast."""


def shortlist(
    model: CsrCostModel, op: str, operands: Operands, configs: Sequence[Config], *, count: int,
    kind: Callable[[Config], str],
) -> list[Config]:
    """Choose the most promising configurations, best first, with at least one of each kind if `count` allows.

    Args:
        count: of configurations; if there are more kinds, each is of another kind.
        kind: of a configuration; the model cannot compare those of different kinds well enough to drop a kind.
    """
    ranked = [configs[index] for index in np.argsort(model.score(op, operands, configs), kind="stable")]
    chosen = ranked[:count]
    for missing in dict.fromkeys(map(kind, ranked)):
        held = Counter(map(kind, chosen))
        if missing not in held:
            last = max((index for index, config in enumerate(chosen) if held[kind(config)] > 1), default=None)
            if last is None:
                break
            del chosen[last]
            chosen.append(next(config for config in ranked if kind(config) == missing))
    return chosen


@dataclass(frozen=True)
class Sample:
    """Rows, divided into parts that are samples themselves.

    Args:
        rows: (sampled,) int64, ascending.
        part: (sampled,) int64, part of each row; all 0 if there is only one.
    """

    rows: np.ndarray
    part: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """Rows of each part, ascending."""
        return [self.rows[self.part == number] for number in range(int(self.part.max(initial=0)) + 1)]


def sample_rows(pattern: Pattern, *, nonzeros: int, parts: int, seed: int) -> Sample:
    """Draw rows with about so many nonzeros; all rows, as one part, if the pattern has no more.

    Rows are drawn in blocks of neighbours, so they share as much in the caches as before; all their columns are kept,
    and the dense operands they read are whole. Blocks are drawn from strata of equal size by nonzeros. The block with
    the most nonzeros is always drawn, so hubs are in the sample; blocks without nonzeros never are.

    Args:
        parts: at most; the blocks of every stratum are dealt to them in turn.

    Departure from AutoSAGE, which probes an induced subgraph: that thins every row by the sampling fraction.
    """
    if pattern.nnz <= nonzeros:
        return Sample(np.arange(pattern.rows), np.zeros(pattern.rows, np.int64))
    begins = np.arange(0, pattern.rows, BLOCK_ROWS)
    held = np.diff(pattern.indptr[np.append(begins, pattern.rows)])
    begins, held = begins[held > 0], held[held > 0]
    rng, chosen = np.random.default_rng(seed), []
    *lighter, heavy = np.array_split(np.argsort(held, kind="stable"), min(STRATA, begins.size))
    drawn = [*map(rng.permutation, lighter), np.append(heavy[-1:], rng.permutation(heavy[:-1]))]
    for stratum in drawn:
        wanted, got = nonzeros * held[stratum].sum() / pattern.nnz, 0
        for block in stratum:
            if got + held[block] / 2 > wanted and block != heavy[-1]:
                break
            chosen.append(int(block))
            got += int(held[block])
    dealt = np.arange(len(chosen)) % min(parts, len(chosen))
    order = np.argsort(chosen)
    blocks = [np.arange(begins[block], min(begins[block] + BLOCK_ROWS, pattern.rows))
              for block in np.array(chosen)[order]]
    return Sample(np.concatenate(blocks), np.repeat(dealt[order], [rows.size for rows in blocks]))
