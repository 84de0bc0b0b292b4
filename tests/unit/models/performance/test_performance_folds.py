"""Folds by group: balanced, whole groups, stable when problems come."""

from collections import Counter

from sparloom.models.performance import assign_folds

GROUPS = [f"group{place % 17}" for place in range(60)]


def test_folds_hold_about_equally_many_problems():
    folds = assign_folds(GROUPS, 4, seed=0)
    sizes = Counter(folds[group] for group in GROUPS)
    assert set(sizes) == {0, 1, 2, 3}
    assert max(sizes.values()) - min(sizes.values()) <= 4


def test_known_groups_keep_their_fold_and_new_ones_fill_up():
    known = assign_folds(GROUPS[:9], 3, seed=0)
    folds = assign_folds(GROUPS, 3, seed=5, known=known)
    assert {group: folds[group] for group in known} == known
    sizes = Counter(folds[group] for group in GROUPS)
    assert max(sizes.values()) - min(sizes.values()) <= 4
