"""The benchmark of the featurizer: its report, and its speed relative to a matrix product."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL

from sparloom.experiments.cognate import draw_patterns, peak_shares

GENERATED = ("banded", "scattered", "power")


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_stored_and_generated_inputs_have_the_same_report(build, tmp_path, capsys):
    task = build("bench_featurizer", *SMALL, "task.matrices=2", "task.sites=64", "task.rounds=2",
                 "task.steal_ratio=100", folder=tmp_path)
    metrics = task.run(tmp_path)
    assert json.dumps(metrics)
    kinds = [name.removesuffix("/share_of_peak") for name in metrics if name.endswith("/share_of_peak")]
    assert kinds == ["real", *GENERATED]
    assert [metrics[f"{kind}/matrices"] for kind in kinds] == [2, 1, 1, 1]
    assert all(0 < metrics[f"{kind}/sites"] <= 64 for kind in GENERATED)
    assert all(0 < metrics[f"{kind}/{name}"] < 2 for kind in kinds
               for name in ("share_of_peak", "share_of_peak_least", "share_of_peak_processor"))
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in kinds)
    passes = pd.read_parquet(tmp_path / "passes.parquet")
    assert len(passes) == 2 * (1 + 2 + 3)


def test_shares_are_medians_over_inputs_of_medians_over_rounds():
    rounds = {("sgemm", "product", 0, 8.0): (1.0, 2.0, 1.0), ("real", "a", 10, 2.0): (1.0, 1.0, 9.0),
              ("real", "b", 20, 1.0): (1.0, 1.0, 1.0), ("power", "power", 30, 4.0): (1.0, 1.0, 1.0)}
    rows = [{"inputs": kind, "name": name, "sites": sites, "gflop": gflop, "seconds": seconds,
             "processor_seconds": seconds / 2 if kind == "sgemm" else seconds}
            for (kind, name, sites, gflop), taken in rounds.items() for seconds in taken]
    assert peak_shares(pd.DataFrame(rows)) == {
        "sgemm_gflops": 8.0,
        "real/matrices": 2.0, "real/sites": 15.0, "real/gflop_per_pass": 1.5, "real/gflops": 1.5,
        "real/share_of_peak": 1.5 / 8, "real/share_of_peak_least": 1 / 8, "real/share_of_peak_processor": 1.5 / 16,
        "power/matrices": 1.0, "power/sites": 30.0, "power/gflop_per_pass": 4.0, "power/gflops": 4.0,
        "power/share_of_peak": 0.5, "power/share_of_peak_least": 0.5, "power/share_of_peak_processor": 0.25,
    }


def test_patterns_have_distinct_sites_in_row_major_order():
    for name, coords in draw_patterns(200, seed=0).items():
        assert 0 < len(coords) <= 200, name
        np.testing.assert_array_equal(np.unique(coords, axis=0), coords, err_msg=name)
        assert coords.min() >= 0, name


def test_every_pass_is_timed_beside_the_matrix_product(build, tmp_path, one_thread):
    build("bench_featurizer", "samples=tiny", "task.matrices=1", "task.product=[64,64,64]", "task.rounds=2",
          "task.sites=200", "task.steal_ratio=100", folder=tmp_path).run(tmp_path)
    passes = pd.read_parquet(tmp_path / "passes.parquet")
    assert set(passes["inputs"]) >= {*GENERATED, "sgemm"}
    assert (passes[["gflop", "processor_seconds"]] > 0).all(axis=None)
