"""Weights of hard examples, and coverage of intervals."""

from pathlib import Path

import numpy as np
import pytest
from gemm_cases import GROWTH, LOG1P, efficiency, measured, origin

from sparloom.models.performance import (
    GEMM_FEATURES,
    Grid,
    Mining,
    PerformanceModel,
    assign_folds,
    bounds_out_of_fold,
    load_interval,
    mine_hard_examples,
    problem_folds,
    save_interval,
)


def cases(noise: float = 0.02):
    data = measured(45, noise=noise)
    grid = Grid.of(GEMM_FEATURES, data, target=LOG1P)
    return data, grid, problem_folds(data, assign_folds(data.groups, 3, seed=0))


def test_hard_problems_weigh_more_and_the_scored_fold_is_not_used():
    data, grid, folds = cases()
    mining = Mining(rounds=2, share=0.2, factor=2.0, most=3.0)
    asked = []

    def judge(learned):
        asked.append(learned)
        return efficiency(data, -learned)

    found = list(mine_hard_examples(grid, GROWTH.with_trees(20), folds, mining=mining, judge=judge))
    assert len(found) == 3
    assert all(np.isfinite(learned).all() for learned in found)
    assert not np.array_equal(found[0], found[1])
    assert len(asked) == 2 * 3
    for place, learned in enumerate(asked):
        assert (learned[(folds == place % 3).ravel()] == 0).all()


def test_intervals_have_their_nominal_coverage():
    data, grid, folds = cases(noise=0.1)
    bounds = bounds_out_of_fold(grid, GROWTH, folds, coverage=0.8)
    assert bounds.cover(grid.targets).mean() == pytest.approx(0.8, abs=0.07)
    assert bounds.cover_plain(grid.targets).mean() < bounds.cover(grid.targets).mean()
    assert not bounds.cover(np.full_like(grid.targets, np.nan)).any()
    model = PerformanceModel(spec=GEMM_FEATURES, target=LOG1P, origin=origin(), names=grid.names, members=())
    low, high = bounds.interval(model).predict(data.problems, data.configs)
    rates = LOG1P.restore(grid.targets)
    assert (low <= high).all()
    assert 0.6 < ((low <= rates) & (rates <= high)).mean() <= 1


def test_intervals_come_back_from_disk(tmp_path: Path):
    data, grid, folds = cases()
    bounds = bounds_out_of_fold(grid, GROWTH.with_trees(5), folds, coverage=0.8)
    interval = bounds.interval(PerformanceModel(spec=GEMM_FEATURES, target=LOG1P, origin=origin(), names=grid.names,
                                                members=()))
    save_interval(tmp_path / "interval", interval)
    again = load_interval(tmp_path / "interval", spec=GEMM_FEATURES)
    assert (again.margin, again.coverage) == (interval.margin, 0.8)
    np.testing.assert_array_equal(again.predict(data.problems, data.configs),
                                  interval.predict(data.problems, data.configs))
