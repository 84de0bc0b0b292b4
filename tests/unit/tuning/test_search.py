"""Search of a space, shortlists, portfolios, and the rows of a sample."""


import numpy as np
import pytest

from sparloom.ops import Operands
from sparloom.space import Config, GridSpace, Parameter, SpmmSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Evolution, best, portfolio
from sparloom.tuning.sparse import sample_rows, shortlist

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


def test_each_one_helps_most_where_those_before_do_not():
    seconds = np.array([[1.0, 9.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 2.0]])
    assert portfolio(seconds, 1) == [2]
    assert portfolio(seconds, 3) == [2, 1, 0]


def test_a_portfolio_ends_if_another_configuration_would_not_help():
    assert portfolio(np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 5.0]]), 3) == [0]
    assert portfolio(np.ones((4, 3)), 3) == [0]


class Known:
    """Model with given scores."""

    def __init__(self, scores):
        self.scores = scores

    def score(self, op, operands, configs):
        return np.array([self.scores[config] for config in configs])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_best_are_listed_with_as_many_kinds_as_there_is_room_for(count):
    configs, rng = list(SpmmSpace(16)), np.random.default_rng(count)
    pattern = Pattern.identity(3)
    operands = Operands(SparseMatrix(pattern, np.ones(3, np.float32)), {"B": np.ones((3, 16), np.float32)})
    for _ in range(20):
        scores = dict(zip(configs, rng.permutation(len(configs)), strict=True))
        listed = shortlist(Known(scores), "spmm", operands, configs, count=count,
                           kind=lambda config: config["balance"])
        assert len(listed) == count
        assert listed == sorted(listed, key=scores.__getitem__)
        assert listed[0] == min(configs, key=scores.__getitem__)
        kinds = [config["balance"] for config in sorted(configs, key=scores.__getitem__)]
        assert {config["balance"] for config in listed} >= set([*dict.fromkeys(kinds)][:count])


def test_the_parts_of_a_sample_are_its_rows_and_have_hubs():
    lengths = np.full(6400, 5)
    lengths[::640] = 300
    pattern = Pattern((6400, 6400), np.concatenate([[0], np.cumsum(lengths)]),
                      np.concatenate([np.arange(length) for length in lengths]))
    parts = sample_rows(pattern, nonzeros=pattern.nnz // 4, parts=3, seed=0)
    rows = np.concatenate(parts)
    assert np.unique(rows).size == rows.size < 6400 / 2
    held = [lengths[rows] for rows in parts]
    assert len(held) == 3
    assert all((part == 300).any() and (part == 5).any() for part in held)
    assert sum(part.sum() for part in held) == pytest.approx(pattern.nnz / 4, rel=0.3)
    whole = sample_rows(pattern, nonzeros=pattern.nnz, parts=3, seed=0)
    assert np.array_equal(whole, [np.arange(6400)])


def test_rows_that_hold_most_are_in_the_sample_and_blocks_without_nonzeros_are_not():
    lengths = np.zeros(6400, np.int64)
    lengths[640:3200:7], lengths[700] = 2, 3000
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(length) for length in lengths])
    pattern = Pattern((lengths.size, 3000), indptr, indices.astype(np.int32))
    for seed in range(5):
        rows = np.sort(np.concatenate(sample_rows(pattern, nonzeros=200, parts=3, seed=seed)))
        assert 700 in rows
        assert lengths[rows.reshape(-1, 64)].sum(1).min() > 0
