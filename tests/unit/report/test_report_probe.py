"""Predictions by samples, on generated seconds."""

import pandas as pd
import pytest

from sparloom.report import probe_frame, probe_metrics

SECONDS = {"safe": 4.0, "good": 2.0, "bad": 8.0}


def rows(sample, share, draw, seconds):
    return [{"op": "spmm", "matrix": "a", "width": 8, "nnz": 9, "sample": sample, "share": share, "draw": draw,
             "config": config, "median": taken, "seconds": [taken] * 4} for config, taken in seconds.items()]


def test_a_sample_that_behaves_as_all_rows_misses_nothing():
    tenth = {name: seconds / 10 for name, seconds in SECONDS.items()}
    frame = pd.DataFrame(rows("all", 1.0, 0, SECONDS) + rows("rows", 0.1, 0, tenth) + rows("rows", 0.1, 1, tenth))
    found = probe_metrics(frame, seed=0)
    for key in ("again/1", "rows/0.1", "rows/0.1/spmm"):
        assert found[f"{key}/error"] == pytest.approx(1)
        assert found[f"{key}/regret"] == pytest.approx(1)
        assert found[f"{key}/tau"] == pytest.approx(1)
    assert found["rows/0.1/spread"] == pytest.approx(1)
    assert found["safe/regret"] == found["safe/spmm/regret"] == pytest.approx(2)


def test_the_error_of_a_misleading_sample_is_reported():
    thinned = {"safe": 4.0, "good": 4.0, "bad": 2.0}
    found = probe_metrics(pd.DataFrame(rows("all", 1.0, 0, SECONDS) + rows("subgraph", 0.1, 0, thinned)), seed=0)
    assert found["subgraph/0.1/error"] == pytest.approx(8**0.5)  # good: 2 times, bad: 4 times
    assert found["subgraph/0.1/regret"] == pytest.approx(4)
    assert found["subgraph/0.1/tau"] < 0


def test_draws_that_differ_have_a_spread():
    draws = [rows("rows", 0.1, draw, {"safe": 1.0, "good": 0.5 * 2 ** draw, "bad": 2.0 * 2 ** draw})
             for draw in range(2)]
    found = probe_metrics(pd.DataFrame(rows("all", 1.0, 0, SECONDS) + draws[0] + draws[1]), seed=0)
    assert found["rows/0.1/spread"] == pytest.approx(2 ** 0.5**0.5)


def test_all_rows_are_judged_by_other_repetitions_than_they_predict_by():
    whole = rows("all", 1.0, 0, SECONDS)
    whole[1]["seconds"] = [2.0, 6.0, 2.0, 6.0]
    frame = probe_frame(pd.DataFrame(whole)).set_index("config")
    assert frame["predicted"].to_dict() == {"safe": 1, "good": 0.5, "bad": 2}
    assert frame["truth"].to_dict() == {"safe": 1, "good": 1.5, "bad": 2}
    assert frame["safe"].to_dict() == {"safe": True, "good": False, "bad": False}
