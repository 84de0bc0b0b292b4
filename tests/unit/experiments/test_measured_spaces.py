"""Ranking of tuners on measured spaces: the rule, names of metrics, resumed runs, and what is refused."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments import RankOnSpaces
from sparloom.experiments.spade import measured_spaces
from sparloom.report import source_gains, space_metrics

VALUES = {"block_x": [16, 32, 64, 128, 256], "block_y": [1, 2, 4, 8], "unroll": [0, 1, 2], "vector": [1, 2, 4]}
DEVICES = {"A100": 6.0, "W6600": 5.0, "odd_one": 1.0}  # -> logarithm of the best block_x


def seconds_of(config: dict, best: float) -> float:
    x, y, unroll, vector = config.values()
    return float(np.exp(0.4 * (abs(np.log2(x) - best) + abs(np.log2(y) - 1) + unroll + (vector != 2))))


def result(config: dict, best: float) -> dict:
    failed = config["vector"] == 4 and config["unroll"] == 2
    return {"configuration": config, "invalidity": "compile" if failed else "correct", "correctness": int(not failed),
            "measurements": [] if failed else [{"name": "time", "value": seconds_of(config, best), "unit": "ms"}],
            "objectives": ["time"], "times": {}}


@pytest.fixture(scope="module")
def spaces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spaces")
    parameters = [{"Name": name, "Type": "int", "Values": str(values), "Default": values[0]}
                  for name, values in VALUES.items()]
    conditions = [{"Expression": "block_x * block_y <= 512", "Parameters": ["block_x", "block_y"]}]
    (folder / "stencil_T1.json").write_text(json.dumps({
        "General": {"BenchmarkName": "stencil"},
        "ConfigurationSpace": {"TuningParameters": parameters, "Conditions": conditions}}))
    valid = [dict(zip(VALUES, point, strict=True)) for point in itertools.product(*VALUES.values())
             if point[0] * point[1] <= 512]
    for device, best in DEVICES.items():
        (folder / f"stencil_{device}_T4.json").write_text(json.dumps({
            "metadata": {"timeunit": "miliseconds"}, "schema_version": "1.0.0",
            "results": [result(config, best) for config in valid]}))
    return folder


@pytest.fixture
def task(spaces, tmp_path, monkeypatch):
    monkeypatch.setattr(measured_spaces, "TRIALS", 60)
    return RankOnSpaces(str(spaces), None, ["A100"], ["random", "sparloom_from_W6600"], [0], 1,
                        str(tmp_path / "unfinished"))


def test_metrics_are_named_by_space_method_and_trials(task, tmp_path):
    task = replace(task, devices=["A100", "odd_one"], methods=["random", "sparloom", "sparloom_from_W6600",
                                                              "sparloom_all", "sparloom_reversed"])
    metrics = task.run(tmp_path)
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    assert len(curves) == 2 * 5 * 60
    shares = curves[(curves["device"] == "A100") & (curves["method"] == "random")]["share"]
    assert metrics["stencil/A100/random/25"] == shares.iloc[24]
    assert shares.is_monotonic_increasing
    assert shares.iloc[-1] <= 1
    assert metrics["stencil/odd_one/sparloom/50"] > 0.9
    assert {"sparloom/trials_to_0.90", "sparloom_all/worse", "single_source/worse"} <= metrics.keys()
    assert (tmp_path / "stencil.png").stat().st_size > 1000
    gains = source_gains(curves, pd.read_parquet(tmp_path / "correlations.parquet"))
    assert set(gains["source"]) == {"W6600", "reversed"}
    assert gains.loc[gains["source"] == "reversed", "correlation"].eq(-1).all()


def test_a_failed_configuration_costs_a_trial_and_an_infeasible_one_does_not(task):
    table = measured_spaces._times(task.spaces, "stencil", "A100")
    assert len(table) == 5 * 4 * 9 - 3 * 9  # without three pairs of blocks that are too large
    assert table["seconds"].isna().sum() == len(table) / 9
    (row,) = measured_spaces.measure_curve(measured_spaces.Curve(task.spaces, "stencil", "A100", "random", 1))
    assert len(row["share"]) == 60


def test_a_killed_run_continues(task, tmp_path, monkeypatch):
    def fail(curve):
        if curve.method == "sparloom_from_W6600":
            raise KeyboardInterrupt
        return measure(curve)

    measure = measured_spaces.measure_curve
    monkeypatch.setattr(measured_spaces, "measure_curve", fail)
    with pytest.raises(KeyboardInterrupt):
        task.run(tmp_path)
    monkeypatch.setattr(measured_spaces, "PEERS", {"random": None})  # is not called again
    monkeypatch.setattr(measured_spaces, "measure_curve", measure)
    assert "stencil/A100/random/50" in task.run(tmp_path)
    assert not list((tmp_path / "unfinished").iterdir())


@pytest.mark.parametrize(("option", "wrong", "message"), [
    ("kernels", ["gemm"], r"task.kernels=gemm is unknown: choose from stencil"),
    ("devices", ["H100"], r"task.devices=H100 is unknown: choose from A100, W6600, odd_one"),
    ("methods", ["kernel_tuner_pso"], r"task.methods=kernel_tuner_pso is unknown: choose from random, tpe, .*_odd_one"),
    ("spaces", "nowhere", r"spaces=nowhere has no <kernel>_T1.json with"),
])
def test_unknown_names_are_refused(task, tmp_path, option, wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(task, **{option: wrong}).run(tmp_path)


def test_one_experiment_ranks_on_both(build, spaces, tmp_path):
    assert isinstance(build("rank_tuners", f"spaces={spaces}", "task.seeds=[0]", folder=tmp_path), RankOnSpaces)
    with pytest.raises(Exception, match=r"task.kernels chooses among measured spaces: give spaces="):
        build("rank_tuners", "task.kernels=[stencil]", folder=tmp_path)


def test_ours_is_worse_only_where_a_source_costs_more_than_two_percent():
    rows = [{"kernel": "k", "device": "d", "method": method, "seed": 0, "trial": trial, "share": share,
             "seconds_per_trial": 1.0}
            for method, share in (("sparloom", 0.9), ("sparloom_from_e", 0.87), ("sparloom_reversed", 0.89))
            for trial in (25, 50, 100, 200)]
    metrics = space_metrics(pd.DataFrame(rows))
    assert (metrics["sparloom_from_e/worse"], metrics["sparloom_reversed/worse"]) == (1, 0)
    assert metrics["single_source/worse"] == 0.5
    assert metrics["sparloom/trials_to_0.90"] == 25
    assert "sparloom/trials_to_0.95" not in metrics


def test_means_are_over_devices_and_seeds_with_bounds():
    rows = [{"kernel": "k", "device": device, "method": "tpe", "seed": seed, "trial": 25, "share": share,
             "seconds_per_trial": 1.0} for device, shares in (("d", (0.5, 0.7)), ("e", (0.9, 0.7)))
            for seed, share in enumerate(shares)]
    metrics = space_metrics(pd.DataFrame(rows))
    assert metrics["k/d/tpe/25"] == pytest.approx(0.6)
    assert metrics["k/mean/tpe/25"] == pytest.approx(0.7)
    assert 0.5 <= metrics["k/mean/tpe/25_low"] < 0.7 < metrics["k/mean/tpe/25_high"] <= 0.9
