"""Selection of matrices and configurations for training."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from sparloom.data import Coverage, Random, Selection, Spread, Stratified, Uncertainty, draw_labels
from sparloom.sparse import ROW_BINS, row_bin

ROWS = {"<8192": 4000, "<32768": 20_000, "<65536": 50_000, "<131072": 100_000, ">=131072": 200_000}
ALL = (Random(matrices=5, configs_per_matrix=10), Stratified(matrices=5, configs_per_matrix=10),
       Coverage(matrices=5, configs_per_matrix=10), Spread(matrices=5, configs_per_matrix=10))
every = pytest.mark.parametrize("selection", ALL, ids=lambda selection: type(selection).__name__)


def made_up(per_bin: dict[str, int]) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = {
        f"{name}/{place}": {
            "rows": ROWS[name] + place, "density": 10.0 ** rng.uniform(-6, -1), "row_mean": rng.lognormal(2)}
        for name, count in per_bin.items() for place in range(count)
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")


STATISTICS = made_up({"<8192": 40, "<32768": 20, "<65536": 8, "<131072": 4, ">=131072": 3})
NAMES = list(STATISTICS.index)


@every
def test_choice_is_distinct_sorted_and_repeatable(selection: Selection) -> None:
    chosen = selection.choose(STATISTICS, NAMES, 5, 7)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 5
    assert chosen == selection.choose(STATISTICS, NAMES[::-1], 5, 7)


@pytest.mark.parametrize("seed", range(5))
def test_stratified_takes_one_matrix_of_each_row_bin(seed: int) -> None:
    chosen = ALL[1].choose(STATISTICS, NAMES, 5, seed)
    assert {row_bin(int(STATISTICS.loc[name, "rows"])) for name in chosen} == set(ROW_BINS)


def test_stratified_fills_bins_evenly_and_never_beyond_their_size() -> None:
    chosen = ALL[1].choose(STATISTICS, NAMES, 32, 0)
    counts = Counter(row_bin(int(STATISTICS.loc[name, "rows"])) for name in chosen)
    assert counts["<131072"] == 4
    assert counts[">=131072"] == 3
    assert sorted(counts[name] for name in ROW_BINS[:3]) == [8, 8, 9]


def test_stratified_spans_the_densities() -> None:
    statistics = made_up(dict.fromkeys(ROWS, 50))
    for seed in range(5):
        chosen = ALL[1].choose(statistics, list(statistics.index), 5, seed)
        ranks = statistics.groupby(statistics.index.str.split("/").str[0])["density"].rank() - 1
        assert sorted(int(ranks[name]) // 10 for name in chosen) == [0, 1, 2, 3, 4]


def test_coverage_takes_one_matrix_of_each_cluster() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(5) * 50 + 100
    rows = {f"c{cluster}/{place}": rng.normal(centres[cluster], 0.5) for cluster in range(5) for place in range(20)}
    statistics = pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")
    for seed in range(5):
        chosen = ALL[2].choose(statistics, list(statistics.index), 5, seed)
        assert {name.split("/")[0] for name in chosen} == {f"c{cluster}" for cluster in range(5)}


def labels() -> pd.DataFrame:
    rows = [(name, f"knob={value}", 1.0, 0.01) for name in NAMES[:60] for value in range(12)]
    return pd.DataFrame(rows, columns=["matrix", "config", "seconds", "spread"])


@every
def test_drawn_labels_are_the_chosen_matrices_with_that_many_configurations(selection: Selection) -> None:
    drawn = draw_labels(selection, labels(), statistics=STATISTICS, candidates=NAMES, seed=3)
    assert drawn.groupby("matrix").size().tolist() == [10] * 5
    assert set(drawn["matrix"]) <= set(NAMES[:60])
    assert not drawn.duplicated(["matrix", "config"]).any()


def test_only_a_budget_above_the_samples_warns(caplog) -> None:
    draw_labels(Random(2, 61), labels(), statistics=STATISTICS, candidates=NAMES, seed=0)
    most = labels().groupby("matrix").size().min()
    assert f"a matrix has samples of only {most} configurations" in caplog.text
    caplog.clear()
    draw_labels(Random(2, int(most)), labels(), statistics=STATISTICS, candidates=NAMES, seed=0)
    assert not caplog.records


def grid_labels(names: list[str]) -> pd.DataFrame:
    keys = [f"tile={tile},flag={flag}" for tile in (4, 8, 16, 32) for flag in (0, 1)]
    return pd.DataFrame([{"matrix": name, "config": key, "seconds": 1.0} for name in names for key in keys])


@pytest.mark.parametrize(("per_matrix", "matrices"), [(1, 8), (2, 4), (4, 2)])
def test_spread_tries_everything_once_before_anything_twice(per_matrix: int, matrices: int) -> None:
    selection = Spread(matrices=matrices, configs_per_matrix=per_matrix)
    drawn = draw_labels(selection, grid_labels(NAMES), statistics=STATISTICS, candidates=NAMES, seed=1)
    assert drawn["config"].nunique() == len(drawn) == 8


def test_spread_shows_every_value_on_every_matrix() -> None:
    selection = Spread(matrices=6, configs_per_matrix=4)
    drawn = draw_labels(selection, grid_labels(NAMES), statistics=STATISTICS, candidates=NAMES, seed=2)
    for _, rows in drawn.groupby("matrix"):
        parts = [dict(part.split("=") for part in key.split(",")) for key in rows["config"]]
        assert {part["tile"] for part in parts} == {"4", "8", "16", "32"}
        assert Counter(part["flag"] for part in parts) == {"0": 2, "1": 2}


def test_uncertainty_prefers_disagreement_among_good_configurations() -> None:
    selection = Uncertainty(matrices=4, configs_per_matrix=1, first=0.5, rounds=2, promising=2)
    agree = np.array([[0.0, 1.0, 5.0], [0.0, 1.0, 5.0]])
    differ = np.array([[0.0, 3.0, 5.0], [1.0, 0.0, 9.0]])
    assert selection.most_uncertain({"g/a": agree, "g/b": differ}, 1) == {"g/b": [1]}
    assert selection.initial().matrices == 2
    assert selection.quotas() == [1, 1]
