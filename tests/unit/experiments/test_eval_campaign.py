"""Campaigns beside random trials, on matrices of which everything is known."""

import pandas as pd

from sparloom.experiments.cognate.eval_campaign import METHODS

SMALL = ("samples=tiny", "samples.configs=256", "task.matrices=4", "task.batch=4", "task.most=8", "task.seeds=[0]",
         "task.eval_role=test")


def test_campaigns_and_random_trials_are_compared(build, tmp_path) -> None:
    metrics = build("eval_campaign", *SMALL, "task.share=0.9", folder=tmp_path).run(tmp_path)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert set(frame["method"]) == set(METHODS)
    for method, rows in frame.groupby("method"):
        assert rows["trials"].tolist() == list(range(1, len(rows) + 1))
        assert rows["share"].is_monotonic_increasing
        reached = rows["share"] >= 0.9
        assert not reached[:-1].any()
        assert metrics[f"test/{method}/reached"] == reached.iloc[-1]
        assert metrics[f"test/{method}/trials"] == (rows["trials"].iloc[-1] if reached.iloc[-1] else 8)
    assert metrics["test/campaign_without_estimate/trials"] < metrics["test/random/trials"]
    assert (tmp_path / "trials.svg").stat().st_size > 1000
