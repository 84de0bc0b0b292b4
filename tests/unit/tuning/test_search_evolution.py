"""Evolutionary search finds points outside of the first sample, respects the space, and is repeatable."""

import numpy as np

from sparloom.space import Config, GridSpace, Parameter
from sparloom.tuning import Evolution, best

SEARCH = Evolution(population=32, generations=60, patience=15, mutation=0.2, tournament=2, seed=0)


def refuse(config: Config) -> str | None:
    return "odd and even do not go together" if (int(config["p0"]) + int(config["p1"])) % 2 else None


def space(parameters: int = 8, values: int = 12) -> GridSpace:
    return GridSpace(
        name="large", op="gemm", parameters=tuple(Parameter(f"p{place}", tuple(range(values)))
                                                  for place in range(parameters)),
        defaults=(0,) * parameters, refuse=refuse, coupled=("p0", "p1"))


class Distance:
    """Model that counts its scores; the best point is at 7, 7, 3, 3, ..."""

    def __init__(self) -> None:
        self.seen: list[Config] = []

    def __call__(self, configs: list[Config]) -> np.ndarray:
        self.seen.extend(configs)
        best = [7, 7] + [3] * 6
        return np.array([sum((int(value) - wanted) ** 2 for (_, value), wanted in zip(config.values, best, strict=True))
                         for config in configs], float)


def test_a_large_space_is_searched_beyond_its_first_sample():
    score, large = Distance(), space()
    first, *rest = SEARCH.top_k(score, large, 5)
    assert len(large) > 2e8
    assert first.score <= 2
    assert first.config not in score.seen[:32]
    assert [entry.score for entry in rest] == sorted(entry.score for entry in rest)
    assert len(set(score.seen)) == len(score.seen) <= 32 * 61


def test_a_space_smaller_than_the_population_is_scored_whole():
    score, small = Distance(), space(values=4, parameters=2)

    def scored(configs: list[Config]) -> np.ndarray:
        score.seen.extend(configs)
        return np.array([float(config["p0"]) for config in configs])

    assert SEARCH.top_k(scored, small, 1)[0].score == 0
    assert len(score.seen) == len(small) == 8


def test_small_spaces_are_scored_whole_and_large_ones_searched():
    whole, part = Distance(), Distance()
    first = best(part, space(), 1, evolution=SEARCH)[0]
    assert first == SEARCH.top_k(Distance(), space(), 1)[0]
    assert len(part.seen) < 3000
    small = space(parameters=8, values=2)
    found = best(whole, small, 3, evolution=SEARCH)
    assert len(whole.seen) == len(small) == 128
    assert found[0].score == min(Distance()(list(small)))
    assert [entry.score for entry in found] == sorted(entry.score for entry in found)
