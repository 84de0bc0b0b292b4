"""Campaigns beside random trials, on matrices of which everything is known."""

import pandas as pd

from sparloom.experiments.cognate.eval_campaign import METHODS

SMALL = ("samples=tiny", "samples.configs=256", "task.matrices=4", "task.batch=4", "task.most=5", "task.seeds=[0]",
         "task.eval_role=test")


def test_campaigns_and_random_trials_are_compared(build, tmp_path) -> None:
    metrics = build("eval_campaign", *SMALL, "task.share=0.9", folder=tmp_path).run(tmp_path)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert set(frame["method"]) == set(METHODS)
    assert frame.groupby("method")["trials"].agg(["min", "max"]).to_numpy().tolist() == [[1, 5]] * len(METHODS)
    assert ((frame["share"] > 0) & (frame["share"] <= 1)).all()
    for method, rows in frame.groupby("method"):
        reached = rows[rows["share"] >= 0.9]
        assert metrics[f"test/{method}/trials"] == (reached["trials"].iloc[0] if len(reached) else 5)
        assert metrics[f"test/{method}/reached"] == (len(reached) > 0)
        assert metrics[f"test/{method}/share"] == rows["share"].iloc[-1]
    assert metrics["test/campaign/share"] > metrics["test/random/share"]
    ratio = metrics["test/random_model/trials"] / metrics["test/campaign/trials"]
    assert abs(metrics["test/random_model_over_campaign"] - ratio) < 1e-9
    assert (tmp_path / "trials.svg").stat().st_size > 1000
