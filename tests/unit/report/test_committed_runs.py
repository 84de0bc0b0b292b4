"""Metrics of committed runs, made again from their tables: equal to the last digits."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import pytest

from sparloom import report
from sparloom.experiments.autosage import learned_choice
from sparloom.experiments.cognate import by_rows, quality, timings
from sparloom.experiments.fusion import fuse_metrics
from sparloom.experiments.trees.evaluation import Judgement

RESULTS = Path(__file__).parents[3] / "results"
SCHEDULES = ("per_case", "decisions", "candidates")
Tables = Callable[[str], pd.DataFrame]


def of_ragged(table: Tables) -> Mapping[str, float]:
    frame = table("per_case")
    return {key: value for part in report.RAGGED_PARTS.values() for key, value in part.metrics(frame).items()}


def of_recommendations(table: Tables) -> Mapping[str, float]:
    frame = table("per_matrix")
    judged = quality(frame, seed=0) | by_rows(frame, seed=0)
    return timings(frame) | {f"test/{key}": value for key, value in judged.items()}


def of_designs(table: Tables) -> Mapping[str, float]:
    gains = report.design_gains(table("designs"))
    return {f"gain/{row.parameter}={row.value:g}/optimum": row.optimum for row in gains.itertuples()}


def of_learnings(table: Tables) -> Mapping[str, float]:
    value, low, high = report.contrast(table("per_problem"), {"log1p": 1, "raw": -1}, seed=0)
    return {"1/log1p_over_raw": value, "1/log1p_over_raw_low": low, "1/log1p_over_raw_high": high}


def of_trees(table: Tables) -> Mapping[str, float]:
    rows = table("per_problem")
    return Judgement("oof/", rows[rows["op"] == "gemm"], seed=0).metrics()


def of_comparison(table: Tables) -> Mapping[str, float]:
    frame = table("per_matrix")
    return report.row_metrics(report.row_statistics(frame, reference="cognate", seed=0))


RUNS: Mapping[str, Callable[[Tables], Mapping[str, float]]] = {
    "bench_autosage": lambda table: report.autosage_metrics(table("decisions"), table("whole"), seed=0),
    "bench_dispatch_cuda": lambda table: report.device_dispatch_metrics(table("per_case"), table("decisions"), seed=0),
    "bench_dispatch_final": lambda table: report.dispatch_metrics(*map(table, SCHEDULES), seed=0),
    "bench_encoders_models": lambda table: report.encoder_metrics(table("per_case"), seed=0),
    "bench_encoders_start": lambda table: report.encoder_metrics(table("per_case"), seed=0),
    "bench_fuse": lambda table: fuse_metrics(table("per_matrix"), seed=0),
    "bench_fusion": lambda table: report.fusion_metrics(table("per_matrix"), seed=0),
    "bench_gcn": lambda table: report.gcn_metrics(table("per_matrix"), seed=0),
    "bench_jacobi": lambda table: report.jacobi_metrics(table("per_matrix"), seed=0),
    "bench_minibatch": lambda table: report.minibatch_metrics(table("per_matrix"), seed=0),
    "bench_ragged": lambda table: report.ragged_metrics(table("per_case"), layers=6, seed=0),
    "bench_recommend": of_recommendations,
    "check_learnings": of_learnings,
    "choose_kernels": lambda table: learned_choice.choice_metrics(table("per_case"), seed=0),
    "dse_spade": of_designs,
    "eval_figure04": of_comparison,
    "eval_ragged": of_ragged,
    "finetune_spade": lambda table: report.summary(table("per_matrix"), headline="cognate", prefix="test", seed=0),
    "fit_trees": of_trees,
    "rank_tuners": lambda table: {f"test/{name}": value
                                  for name, value in report.tuner_metrics(table("per_matrix")).items()},
}


@pytest.mark.parametrize("name", RUNS)
def test_metrics_of_a_run_are_made_again_from_its_tables(name) -> None:
    run = report.read_run(RESULTS / name)
    found = RUNS[name](run.table)
    assert len(found) > 2
    assert found == pytest.approx({key: run.metrics[key] for key in found}, rel=1e-12, nan_ok=True)
