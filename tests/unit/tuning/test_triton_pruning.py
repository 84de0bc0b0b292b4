"""Pruning of `triton.autotune` by a model of measured trials."""

import numpy as np
import pandas as pd
import pytest

from sparloom.errors import SchemaError
from sparloom.tuning import prune_configs_by


def trials(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({
        "BLOCK": rng.choice([16, 32, 64, 128, 256], count), "num_warps": rng.choice([1, 2, 4, 8], count),
        "M": rng.choice([128, 512, 2048], count), "EVEN": rng.choice([True, False], count),
        "layout": rng.choice(["row", "column"], count), "num_stages": 2})
    rows["seconds"] = [seconds(**row) for row in rows.to_dict("records")]
    return rows


def seconds(BLOCK, num_warps, M, EVEN, layout, num_stages=2) -> float:
    return 1e-6 * M * (1 + abs(np.log2(BLOCK / 64)) + 0.5 * abs(np.log2(num_warps / 4)) + EVEN * 0.2) * (
        2 if layout == "row" else 1)


def test_the_model_ranks_configurations_of_new_sizes() -> None:
    perf_model = prune_configs_by(trials(150))["perf_model"]
    expected, true = [], []
    for block in (16, 32, 64, 128, 256):
        for warps in (1, 2, 4, 8):
            given = {"BLOCK": block, "num_warps": warps, "M": 1024, "EVEN": True, "layout": "row"}
            expected.append(perf_model(**given, stride=7, num_ctas=1))
            true.append(seconds(**given))
    assert np.corrcoef(np.log(expected), np.log(true))[0, 1] > 0.97
    assert int(np.argmin(true)) in np.argsort(expected)[:2]


def test_triton_times_only_the_best_configurations() -> None:
    triton = pytest.importorskip("triton")
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 32, 64, 128, 256)
               for warps in (1, 2, 4, 8)]
    rows = trials(150)
    rows = rows[rows["EVEN"] & (rows["layout"] == "row")]
    tuned = triton.autotune(configs, key=["M"], prune_configs_by=prune_configs_by(rows, top_k=3))(
        triton.jit(kernel))
    tuned.nargs = {"M": 1024}
    pruned = tuned.prune_configs({})
    assert len(pruned) == 3
    assert any(each.kwargs["BLOCK"] == 64 and each.num_warps == 4 for each in pruned)


def kernel(M, BLOCK: "tl.constexpr") -> None:  # noqa: F821 - Triton reads it, it is never compiled here
    pass


@pytest.mark.parametrize(("rows", "error", "message"), [
    (trials(2), SchemaError, "2 trials with seconds, and .* give at least three"),
    (trials(9)[["num_stages", "seconds"]], SchemaError, "9 trials with seconds, and 0 columns that vary"),
    (trials(9).assign(seconds=-1.0), ValueError, "trial 0: seconds=-1.0: give a positive number"),
])
def test_trials_that_teach_nothing_are_refused(rows, error, message) -> None:
    with pytest.raises(error, match=message):
        prune_configs_by(rows)


def test_a_missing_argument_is_named() -> None:
    perf_model = prune_configs_by(trials(20))["perf_model"]
    with pytest.raises(SchemaError, match="the trials differ in num_warps, which is neither"):
        perf_model(BLOCK=16, M=128, EVEN=True, layout="row")
