"""AutoSAGE's graphs: sizes and degrees as in its tables, or near."""

import numpy as np
import pytest

from sparloom.sparse import AUTOSAGE_GRAPHS, AutosageCorpus

SMALL = AutosageCorpus(scale=1 / 500)


def test_a_graph_is_reproducible_and_matches_its_entry():
    again = AutosageCorpus(scale=1 / 500)
    assert [entry.name for entry in SMALL.entries()] == list(AUTOSAGE_GRAPHS)
    for entry in SMALL.entries():
        matrix = SMALL.load(entry.name)
        assert matrix == again.load(entry.name)
        assert (*matrix.pattern.shape, matrix.pattern.nnz) == (entry.rows, entry.cols, entry.nnz)
        assert -1 <= matrix.values.min() < 0 < matrix.values.max() < 1
    assert set(SMALL.split().values()) == {"test"}


def test_stress_tests_have_the_nonzeros_of_the_paper():
    full = AutosageCorpus(scale=1.0, graphs=["erdos_renyi", "hub_skew"])
    uniform, hubs = (full.load(name).pattern for name in ("erdos_renyi", "hub_skew"))
    assert (uniform.rows, hubs.rows) == (200_000, 200_000)
    assert abs(uniform.nnz - 799_994) < 50
    assert abs(hubs.nnz - 219_999) < 50
    assert (hubs.row_lengths() >= 30_000).sum() == 4


def test_hub_rows_have_their_degree():
    lengths = AutosageCorpus(scale=1.0, graphs=["hub_split"]).load("hub_split").pattern.row_lengths()
    assert (lengths > 4_000).sum() == 200
    assert np.median(lengths) == 64


@pytest.mark.parametrize(("name", "mean", "median"), [("reddit_like", 492, 230), ("products_like", 50.5, 26)])
def test_social_graphs_have_the_degrees_of_the_real_ones(name, mean, median):
    lengths = AutosageCorpus(scale=0.05, graphs=[name]).load(name).pattern.row_lengths()
    assert 0.75 * mean < lengths.mean() < 1.05 * mean
    assert 0.8 * median < np.median(lengths) < 1.2 * median
    assert lengths.max() > 5 * mean
