"""Signs of published effects against ours, by hand."""

import pandas as pd
import pytest

from sparloom.experiments.spade import judge_signs


def record(table, paper, ours, setting=""):
    return {"table": table, "matrix": "ASI", "op": "spmm", "width": 32, "setting": setting, "paper": paper,
            "ours": ours}


@pytest.mark.parametrize(("paper", "ours", "verdict"), [
    (22.8, 5.1, "agree"), (0.0, -4.9, "agree"), (-7.0, -0.3, "tie"), (1.0, 30.0, "tie"), (-29.6, 12.0, "opposite")])
def test_verdict_compares_signs_beyond_five_percent(paper, ours, verdict):
    assert judge_signs(pd.DataFrame([record("barrier", paper, ours)]))["verdict"].tolist() == [verdict]


def test_gain_is_judged_by_its_percent_above_one():
    found = judge_signs(pd.DataFrame([record("gain", 1.44, 1.02)]))
    assert found["paper_effect"][0] == pytest.approx(44)
    assert found["verdict"][0] == "tie"


def test_tiles_are_judged_by_their_time_over_the_base_tile():
    rows = [record("tiles", 0.9, 0.5, "1024 x small"), record("tiles", 0.45, 1.0, "256 x all")]
    found = judge_signs(pd.DataFrame(rows)).set_index("setting")
    assert found["paper_effect"]["1024 x small"] == pytest.approx(100)
    assert found["our_effect"]["1024 x small"] == pytest.approx(-50)
    assert found["verdict"].to_dict() == {"1024 x small": "opposite", "256 x all": "base"}


@pytest.mark.cc
@pytest.mark.slow
def test_a_run_counts_every_case_once(build, tmp_path):
    task = build("check_spade_signs", "task.factor=56", "task.matrices=[MYC]", "task.widths=[32]", "task.jobs=1",
                 folder=tmp_path)
    metrics = task.run(tmp_path)
    assert {name: metrics[f"{name}/cases"] for name in ("barrier", "bypass", "gain", "tiles")} == {
        "barrier": 2, "bypass": 2, "gain": 2, "tiles": 8}
    for name in ("barrier", "bypass", "gain", "tiles"):
        assert sum(metrics[f"{name}/{verdict}"] for verdict in ("agree", "tie", "opposite")) == metrics[f"{name}/cases"]
    assert len(pd.read_parquet(tmp_path / "signs.parquet")) == 15
