"""Evaluation of choices: small cases computed by hand, and general properties."""

import itertools

import numpy as np
import pandas as pd
import pytest

from sparloom.report import RuntimeTable, judge, random_choice, summary
from sparloom.report.evaluation import interval
from sparloom.space import SpadeSpace


def test_perfect_scores_choose_the_optimum(truth):
    choice = judge("cognate", 0, truth, truth.seconds)
    np.testing.assert_array_equal(choice.top1, truth.best)
    np.testing.assert_array_equal(choice.opa, 1)
    np.testing.assert_allclose(choice.tau, 1)


def test_reversed_scores_choose_the_slowest(truth):
    choice = judge("cognate", 0, truth, -truth.seconds)
    np.testing.assert_array_equal(choice.top1, truth.seconds.max(axis=1))
    np.testing.assert_array_equal(choice.opa, 0)


def test_first_five_are_different_programs(truth):
    small = dict(zip(truth.matrices, truth.programs, strict=True))["a/small"]
    wide = [place for place, config in enumerate(truth.configs) if config["column_panel"] != 1024]
    assert len(set(small)) < len(set(truth.programs[1]))
    assert len({small[place] for place in wide}) == len({small[place] for place in wide
                                                         if truth.configs[place]["column_panel"] == "all"})
    scores = np.ones_like(truth.seconds)
    same = np.flatnonzero(small == small[0])
    scores[0, same] = 0.0                      # one program under many names comes first
    assert judge("cognate", 0, truth, scores).top5[0] <= truth.seconds[0, same[0]]
    others = [place for place in range(256) if small[place] != small[0]]
    scores[0, others[:4]] = 0.5
    scores[0, others[4:]] = 0.9
    distinct = [place for number, place in enumerate(others[:4]) if small[place] not in small[others[:number]]]
    expected = min(truth.seconds[0, same[0]], *truth.seconds[0, distinct])
    assert judge("cognate", 0, truth, scores).top5[0] <= expected


def test_missing_configuration_is_refused():
    space = SpadeSpace("spmm")
    labels = pd.DataFrame([{"matrix": "a/b", "config": config.key, "seconds": 1.0} for config in list(space)[1:]])
    with pytest.raises(ValueError, match="1 of 1 matrices lack seconds, a/b for 1 of 256 configurations"):
        RuntimeTable.of(labels, space, {"a/b": (9, 9)})


def test_random_choice_is_the_average_over_all_choices():
    space = SpadeSpace("spmm")
    seconds = np.arange(1.0, 257.0)
    labels = pd.DataFrame({"matrix": "a/b", "config": [config.key for config in space], "seconds": seconds})
    choice = random_choice(RuntimeTable.of(labels, space, {"a/b": (9, 9)}))
    np.testing.assert_allclose(np.log(choice.top1), [np.log(seconds).mean()])


def test_least_of_five_agrees_with_counting():
    from sparloom.report.evaluation import _least_of

    counted = np.zeros(7)
    for drawn in itertools.combinations(range(7), 3):
        counted[min(drawn)] += 1
    np.testing.assert_allclose(_least_of(3, 7), counted / counted.sum())


def test_summary_by_hand(frame):
    metrics = summary(frame, headline="cognate", prefix="test", seed=0)
    rows = frame[frame["method"] == "cognate"]
    logs = np.log(rows["baseline_seconds"] / rows["top1_seconds"])
    by_seed = np.exp(logs.groupby(rows["seed"]).mean())
    assert metrics["test/top1_speedup"] == pytest.approx(by_seed.mean())
    assert metrics["test/matrices"] == 2
    assert metrics["test/seeds"] == 2
    errors = rows["top1_seconds"] / rows["best_seconds"] - 1
    assert metrics["test/ape_time"] == pytest.approx(errors.mean() * 100)


def test_summary_has_every_promised_key_with_bounds(frame):
    metrics = summary(frame, headline="cognate", prefix="test", seed=0)
    promised = ["top1_speedup", "top5_speedup", "optimum_speedup", "top1_of_optimum", "top5_of_optimum",
                "random_speedup", "static_speedup", "ape_time", "ape_speedup", "opa", "kendall_tau", "top1_over_static"]
    for key in promised:
        assert metrics[f"test/{key}_low"] <= metrics[f"test/{key}"] <= metrics[f"test/{key}_high"], key


def test_bounds_of_a_ratio_use_the_same_resamples():
    logs = np.log(np.random.default_rng(0).uniform(1, 9, (1, 40)))
    draw = np.random.default_rng(1).integers(40, size=(200, 40))
    assert interval(logs, draw, over=logs) == pytest.approx((1.0, 1.0, 1.0))


def test_bootstrap_covers_the_mean_about_as_often_as_promised():
    rng = np.random.default_rng(2)
    draw = rng.integers(60, size=(400, 60))
    hits = 0
    for _ in range(200):
        value = rng.normal(0.3, 0.2, (1, 60))
        _, low, high = interval(value, draw)
        hits += low <= np.exp(0.3) <= high
    assert 0.88 <= hits / 200 <= 0.99


def sized(shares: dict[str, list[float]], rows: list[int]) -> pd.DataFrame:
    """Rows of methods that reach these shares of an optimum of one second, and of the optimum."""
    parts = [pd.DataFrame({"matrix": [f"m{place}" for place in range(len(rows))], "method": method, "seed": 0,
                           "top1_seconds": 1 / np.array(found), "top5_seconds": 1.0, "best_seconds": 1.0,
                           "baseline_seconds": 2.0, "opa": 0.5, "kendall_tau": 0.0, "rows": rows})
             for method, found in {**shares, "optimum": [1.0] * len(rows)}.items()]
    return pd.concat(parts, ignore_index=True)


def test_bins_of_rows_weigh_equally():
    rows = [10, 20, 30, 40, 40_000, 50_000]
    made = sized({"cognate": [1, 1, 1, 1, 0.5, 0.5], "static": [1, 1, 1, 1, 0.25, 0.25]}, rows)
    metrics = summary(made, headline="cognate", prefix="test", seed=0)
    assert metrics["test/top1_of_optimum"] == pytest.approx(0.5 ** (1 / 3))
    assert metrics["test/equal_bins/top1_of_optimum"] == pytest.approx(0.5 ** 0.5)  # two bins have matrices
    assert metrics["test/equal_bins/static_of_optimum"] == pytest.approx(0.5)
    assert metrics["test/equal_bins/top1_over_static"] == pytest.approx(2 ** 0.5)
    assert metrics["test/large/top1_of_optimum"] == pytest.approx(0.5)
    assert (metrics["test/equal_bins/matrices"], metrics["test/large/matrices"]) == (6, 2)
    assert metrics["test/large/top1_over_static_low"] == pytest.approx(2) == metrics["test/large/top1_over_static_high"]


def test_bounds_of_bins_vary_within_each_bin():
    made = sized({"cognate": [1, 0.5, 1, 0.5, 0.25, 0.25]}, [10, 20, 30, 40, 40_000, 50_000])
    metrics = summary(made, headline="cognate", prefix="test", seed=0)
    share = metrics["test/equal_bins/top1_of_optimum"]
    assert share == pytest.approx((0.5 ** 0.5 * 0.25) ** 0.5)
    assert metrics["test/equal_bins/top1_of_optimum_low"] == pytest.approx((0.5 * 0.25) ** 0.5, rel=0.2)
    assert metrics["test/equal_bins/top1_of_optimum_high"] == pytest.approx(0.25 ** 0.5, rel=0.2)


def test_without_large_matrices_there_are_only_their_number_and_the_bins():
    metrics = summary(sized({"cognate": [1, 0.5]}, [10, 20]), headline="cognate", prefix="test", seed=0)
    assert [key for key in metrics if key.startswith("test/large/")] == ["test/large/matrices"]
    assert metrics["test/equal_bins/top1_of_optimum"] == pytest.approx(metrics["test/top1_of_optimum"])
