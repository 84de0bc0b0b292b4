"""Training data of every member of a model: rows, weights and predictions."""


import numpy as np
import pytest

from sparloom.models.performance import (
    BoostingConfig,
    Grid,
    Mining,
    cross_fit,
    mine_hard_examples,
    train_per_fold,
)

PROBLEMS, CONFIGS = 12, 3
FOLDS = np.arange(PROBLEMS)[:, None] % 3
SMALL = BoostingConfig(
    trees=3, patience=2, leaves=4, depth=-1, rows_per_leaf=1, learning_rate=0.5, lasso=0.0, ridge=0.0,
    row_share=1.0, column_share=1.0, bins=63, threads=1, seed=7)


@pytest.fixture
def grid() -> Grid:
    """Targets name the problem and the configuration that they belong to."""
    features = np.random.default_rng(0).uniform(size=(PROBLEMS, CONFIGS, 2))
    targets = np.arange(1.0, PROBLEMS + 1)[:, None] + np.arange(CONFIGS) / 10
    return Grid(("x", "y"), features, targets)


@pytest.fixture
def grown(monkeypatch):
    """Record the training data of models and train them."""
    found = []
    train, best_tree_count = BoostingConfig.train, BoostingConfig.best_tree_count

    def recorded(self, rows, names, *, base=None, quantile=None):
        found.append(("train", rows, None, quantile))
        return train(self, rows, names, base=base, quantile=quantile)

    def sized(self, rows, held, names, *, quantile=None):
        found.append(("size", rows, held, quantile))
        return best_tree_count(self, rows, held, names, quantile=quantile)

    monkeypatch.setattr(BoostingConfig, "train", recorded)
    monkeypatch.setattr(BoostingConfig, "best_tree_count", sized)
    return found


def folds_of(rows) -> set[int]:
    """Folds whose problems are among the rows."""
    return {int(target - 1) % 3 for target in rows.targets}


def weights_by_problem(rows) -> dict[int, float]:
    return {int(target) - 1: weight for target, weight in zip(rows.targets, rows.weights, strict=True)}


def test_cross_fit_sizes_and_grows_without_the_scored_fold(grid, grown):
    members = cross_fit(grid, SMALL, FOLDS, quantile=0.25)
    assert len(members) == 3
    for fold in range(3):
        (kind, rows, held, asked), (then, all_rows, _, again) = grown[2 * fold : 2 * fold + 2]
        assert (kind, then, asked, again) == ("size", "train", 0.25, 0.25)
        assert folds_of(held) == {(fold + 1) % 3}
        assert folds_of(rows) == {(fold + 2) % 3}
        assert folds_of(all_rows) == {0, 1, 2} - {fold}


def test_train_per_fold_omits_its_fold_and_other_rows(grid, grown):
    assert len(train_per_fold(grid, SMALL, FOLDS)) == 3
    assert [folds_of(rows) for _, rows, _, _ in grown] == [{1, 2}, {0, 2}, {0, 1}]
    assert [len(rows) for _, rows, _, _ in grown] == [8 * CONFIGS] * 3
    grown.clear()
    train_per_fold(grid, SMALL, FOLDS, kept=np.arange(PROBLEMS)[:, None] >= 6)
    assert [len(rows) for _, rows, _, _ in grown] == [4 * CONFIGS] * 3
    assert all(rows.targets.min() > 6 for _, rows, _, _ in grown)


def test_hard_examples_are_found_without_the_scored_fold_and_weigh_more(grid, grown):
    """A judge that calls problem p worth p: the least of the training part are hard, in every round the same."""
    judged = []

    def judge(learned):
        judged.append(learned)
        return np.arange(float(PROBLEMS))

    mining = Mining(rounds=2, share=2 / 7, factor=2.0, most=3.0)
    assert len(list(mine_hard_examples(grid, SMALL, FOLDS, mining=mining, judge=judge))) == 3
    turn = 3 + 3 * 2  # a member for each fold, then for each pair of folds
    assert len(grown) == 2 * turn + 3
    for fold in range(3):
        inside = [place for place in range(PROBLEMS) if place % 3 != fold]
        hard = inside[:3]  # the quantile is the third of eight
        for round_, factor in enumerate((1.0, 2.0, 3.0)):  # the limit is 3
            expected = {place: factor if place in hard else 1.0 for place in inside}
            rows = grown[round_ * turn + fold][1]
            assert weights_by_problem(rows) == expected
            if round_ < 2:
                for pair, other in enumerate(each for each in range(3) if each != fold):
                    rows = grown[round_ * turn + 3 + 2 * fold + pair][1]
                    assert folds_of(rows) == {0, 1, 2} - {fold, other}
                    assert weights_by_problem(rows).items() <= expected.items()
        assert (judged[fold][(fold == FOLDS).ravel()] == 0).all()
        assert (judged[fold][(fold != FOLDS).ravel()] > 0).all()


def test_held_out_problems_are_predicted_by_the_member_without_them(grid):
    judged = []

    def judge(learned):
        judged.append(learned)
        return learned[:, 0]

    list(mine_hard_examples(grid, SMALL, FOLDS, mining=Mining(1, 0.5, 2.0, 4.0), judge=judge))
    for fold, learned in enumerate(judged):
        for other in {0, 1, 2} - {fold}:
            member = SMALL.train(grid.rows((fold != FOLDS) & (other != FOLDS), np.ones((PROBLEMS, 1))), grid.names)
            asked = (other == FOLDS).ravel()
            wanted = [member.predict(features) for features in grid.features[asked]]
            np.testing.assert_allclose(learned[asked], wanted)
