"""Predictions by samples, on generated seconds."""

import pandas as pd

from sparloom.report import probe_frame

SECONDS = {"safe": 4.0, "good": 2.0, "bad": 8.0}


def rows(sample, share, draw, seconds):
    return [{"op": "spmm", "matrix": "a", "width": 8, "nnz": 9, "sample": sample, "share": share, "draw": draw,
             "config": config, "median": taken, "seconds": [taken] * 4} for config, taken in seconds.items()]


def test_all_rows_are_judged_by_other_repetitions_than_they_predict_by():
    whole = rows("all", 1.0, 0, SECONDS)
    whole[1]["seconds"] = [2.0, 6.0, 2.0, 6.0]
    frame = probe_frame(pd.DataFrame(whole)).set_index("config")
    assert frame["predicted"].to_dict() == {"safe": 1, "good": 0.5, "bad": 2}
    assert frame["truth"].to_dict() == {"safe": 1, "good": 1.5, "bad": 2}
    assert frame["safe"].to_dict() == {"safe": True, "good": False, "bad": False}
