"""The stratified choice: even over bins and density, repeatable, never too many."""

from collections import Counter

import pytest

from sparloom.sparse import ROW_BINS, MatrixEntry, family_role, row_bin, stratified_choice


def entry(rows, nnz, number):
    return MatrixEntry(f"g/{rows}_{number}", f"f{number}", rows, rows, nnz, False, "toy", row_bin(rows))


SIZES = (1000, 10_000, 40_000, 100_000, 200_000)
ENTRIES = [entry(rows, rows * degree, degree) for rows in SIZES for degree in range(9)]


def bins_of(names):
    return Counter(row_bin(int(name[2:].partition("_")[0])) for name in names)


@pytest.mark.parametrize(
    ("rows", "name"),
    [(0, "<8192"), (8191, "<8192"), (8192, "<32768"), (32768, "<65536"), (65536, "<131072"), (131072, ">=131072")],
)
def test_row_bins(rows, name):
    assert row_bin(rows) == name


def test_bins_are_filled_evenly():
    assert bins_of(stratified_choice(ENTRIES, 15, seed=0)) == dict.fromkeys(ROW_BINS, 3)
    assert max(bins_of(stratified_choice(ENTRIES, 7, seed=0)).values()) == 2


def test_each_stratum_of_density_gives_one():
    only = [found for found in ENTRIES if found.rows == 1000]
    for seed in range(10):
        degrees = [int(name.partition("_")[2]) for name in stratified_choice(only, 3, seed=seed)]
        assert [degree // 3 for degree in degrees] == [0, 1, 2]


def test_choice_depends_on_the_seed_and_not_on_the_order():
    assert stratified_choice(ENTRIES, 10, seed=3) == stratified_choice(ENTRIES[::-1], 10, seed=3)
    assert len({stratified_choice(ENTRIES, 10, seed=seed) for seed in range(20)}) == 20


def test_roles_by_hash_are_frozen_and_have_their_shares():
    roles = Counter(family_role(f"family{number}") for number in range(2000))
    assert roles["train"] == pytest.approx(1000, abs=80)
    assert roles["validation"] == pytest.approx(200, abs=50)
    assert [family_role(name) for name in ("a", "b", "c", "d")] == ["test", "train", "train", "train"]
