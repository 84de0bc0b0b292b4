"""Statistics against counts made by hand and by dense arrays."""

import itertools

import numpy as np
import pytest

from sparloom.sparse import STATISTICS, Pattern, SyntheticCorpus, statistics


def empty(shape):
    return Pattern(shape, np.zeros(shape[0] + 1, np.int64), np.zeros(0, np.int32))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (7, 3)])
def test_without_nonzeros_all_are_finite(shape):
    result = statistics(empty(shape))
    assert tuple(result) == STATISTICS
    assert np.isfinite(list(result.values())).all()
    assert (result["rows"], result["cols"], result["nnz"]) == (*shape, 0)
    assert result["row_empty"] == (1 if shape[0] else 0)


def test_values_of_a_small_matrix():
    #  x . x x        row lengths 3 0 1 2, column lengths 2 1 1 2
    #  . . . .
    #  x . . .
    #  . x . x
    pattern = Pattern.from_coo(np.array([0, 0, 0, 2, 3, 3]), np.array([0, 2, 3, 0, 1, 3]), (4, 4))
    result = statistics(pattern)
    expected = {
        "density": 6 / 16, "aspect": 0, "row_mean": 1.5, "row_max": 3, "row_empty": 0.25, "row_top1": 0.5,
        "row_cv": np.std([3, 0, 1, 2]) / 1.5, "row_p99": np.percentile([3, 0, 1, 2], 99),
        "row_gini": sum(abs(a - b) for a in (3, 0, 1, 2) for b in (3, 0, 1, 2)) / (2 * 16 * 1.5),
        "col_max": 2, "col_empty": 0,
        "bandwidth_max": 3 / 4, "bandwidth_mean": (0 + 2 + 3 + 2 + 2 + 0) / 6 / 4,
        "profile": (0 + 2 + 2) / 4 / 4, "span_mean": (4 + 1 + 3) / 3 / 4, "runs": 6 / 5,
        "fill_4": 6 / 16, "fill_16": 6 / 256, "reuse_4": 6 / 4, "imbalance_4": 1,
        "tiles": 1, "tile_cv": 0, "diagonal": 2 / 4, "symmetry": 4 / 6,
    }  # fmt: skip
    assert {name: result[name] for name in expected} == pytest.approx(expected)


def test_fill_and_reuse_agree_with_dense_counts():
    rng = np.random.default_rng(1)
    dense = rng.random((150, 90)) < 0.03
    pattern = Pattern.from_coo(*np.nonzero(dense), dense.shape)
    result = statistics(pattern)
    for block in (4, 16, 64):
        corners = itertools.product(range(0, 150, block), range(0, 90, block))
        touched = sum(dense[row : row + block, col : col + block].any() for row, col in corners)
        assert result[f"fill_{block}"] == pytest.approx(pattern.nnz / (touched * block**2))
    for panel in (4, 32, 256, 2048):
        distinct = sum(dense[row : row + panel].any(axis=0).sum() for row in range(0, 150, panel))
        assert result[f"reuse_{panel}"] == pytest.approx(pattern.nnz / distinct)
        fullest = [dense[row : row + panel].sum() for row in range(0, 150, panel)]
        assert result[f"imbalance_{panel}"] == pytest.approx(max(fullest) / np.mean(fullest))


def test_tiles_agree_with_dense_counts():
    rng = np.random.default_rng(2)
    dense = rng.random((600, 3000)) < np.where(np.arange(3000) < 1024, 0.01, 0.00001)
    counts = [dense[row : row + 256, col : col + 1024].sum() for row in (0, 256, 512) for col in (0, 1024, 2048)]
    filled = [count for count in counts if count]
    result = statistics(Pattern.from_coo(*np.nonzero(dense), dense.shape))
    assert result["tiles"] == pytest.approx(len(filled) / 9)
    assert result["tile_cv"] == pytest.approx(np.std(filled) / np.mean(filled))


def test_one_hub_row():
    pattern = Pattern.from_coo(np.zeros(500, int), np.arange(500), (500, 500))
    result = statistics(pattern)
    assert result["row_max"] == 500
    assert result["row_empty"] == pytest.approx(499 / 500)
    assert result["row_gini"] == pytest.approx(499 / 500)
    assert result["runs"] == 500


def test_ordered_statistics_describe_the_reordered_pattern():
    scrambled = SyntheticCorpus([1000], 1, 0, ["scrambled_band"]).load("scrambled_band/n1000_v0_s0").pattern
    result = statistics(scrambled)
    assert result["ordered_reuse_32"] > 2 * result["reuse_32"]
    assert result["ordered_bandwidth"] < 0.1 * result["bandwidth_mean"]


@pytest.mark.slow
@pytest.mark.timeout(300)  # a second here; hours if one statistic took quadratic time
def test_statistics_of_two_and_a_half_million_nonzeros_are_finite():
    rng = np.random.default_rng(0)
    base = np.repeat(np.arange(125_000), 21)
    pattern = Pattern.from_coo(base, np.clip(base + rng.integers(-500, 500, base.size), 0, 124_999), (125_000, 125_000))
    assert pattern.nnz > 2_500_000
    assert all(map(np.isfinite, statistics(pattern).values()))
