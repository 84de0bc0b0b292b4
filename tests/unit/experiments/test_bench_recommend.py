"""The benchmark of recommendations on generated samples, with their matrices as files in a mirror."""

import csv

import numpy as np
import pandas as pd
import pytest
from small import SMALL

from sparloom import files
from sparloom.data import TinySamples
from sparloom.experiments.cognate import by_rows, calibration, quality, timings
from sparloom.sparse import SparseMatrix, write_matrix

COLUMNS = ("group", "name", "family", "rows", "cols", "nnz", "symmetric", "kind", "sha256")
SAMPLES = TinySamples(matrices=24, configs=256, seed=0)
ROLES = SAMPLES.split()
TEST = sorted(name for name, role in ROLES.items() if role == "test")


def write_mirror(home, patterns):
    rows = []
    for name, pattern in patterns.items():
        path = home / f"{name}.tar.gz"
        write_matrix(path, SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)))
        rows.append((*name.split("/"), name, *pattern.shape, pattern.nnz, 0, "toy", files.sha256(path)))
    with (home / "index.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return home


@pytest.fixture(scope="module")
def files_of_tiny(tmp_path_factory):
    return write_mirror(tmp_path_factory.mktemp("mirror"), SAMPLES._patterns)


def bench(build, trained, mirror, *overrides):
    return build("bench_recommend", *SMALL, "recommender=finetuned", f"paths.mirror={mirror}", *overrides,
                 folder=trained)


@pytest.fixture(scope="module")
def finished(build, trained, files_of_tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    return out, bench(build, trained, files_of_tiny).run(out)


@pytest.mark.slow
def test_every_test_matrix_is_judged_once(finished):
    out, metrics = finished
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert frame["matrix"].tolist() == TEST
    assert metrics["test/matrices"] == len(TEST)
    assert (frame["best_seconds"] <= frame["top5_seconds"]).all()
    assert (frame["top5_seconds"] <= frame["top1_seconds"]).all()
    assert (frame[["read_seconds", "rank_seconds", "draw_seconds"]] > 0).all().all()
    assert frame["nnz"].tolist() == [SAMPLES._patterns[name].nnz for name in TEST]


@pytest.mark.slow
def test_metrics_can_be_made_again_from_the_rows(finished):
    out, metrics = finished
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert {f"test/{key}": value for key, value in quality(frame, seed=0).items()}.items() <= metrics.items()
    assert timings(frame).items() <= metrics.items()
    assert metrics["load_seconds"] > 0
    assert {f"test/{key}": value for key, value in by_rows(frame, seed=0).items()}.items() <= metrics.items()
    assert all("/" not in key.removeprefix("test/").removeprefix("rows<8192/") for key in metrics)


@pytest.mark.slow
def test_choices_are_those_of_recommend(build, trained, files_of_tiny, finished, tmp_path):
    first = pd.read_parquet(finished[0] / "per_matrix.parquet").iloc[0]
    path = files_of_tiny / f"{first['matrix']}.tar.gz"
    build("recommend", *SMALL, f"matrix='{path}'", "recommender=finetuned", folder=trained).run(tmp_path)
    written = pd.read_json(tmp_path / "recommendation.json", typ="series")
    assert written["configurations"][0]["config"] == first["config"]


@pytest.mark.slow
def test_matrices_of_the_training_are_refused(build, trained, files_of_tiny, tmp_path):
    message = (r"finetuned_spade_cognate32_spmm_cognate-\w+\.pt was trained on 12 of the 12 matrices "
               r"\(tiny/.*, \.\.\.\), so its choices for them say nothing: task\.role=test")
    with pytest.raises(ValueError, match=message):
        bench(build, trained, files_of_tiny, "task.role=train").run(tmp_path)


@pytest.mark.slow
def test_calibrated_choices_are_judged_on_other_matrices(build, trained, files_of_tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "LEAST_MATRICES", 2)
    small = "recommender.learning.selection"
    given = ("recommender=sparloom", f"{small}.matrices=4", f"{small}.configs_per_matrix=4")
    metrics = bench(build, trained, files_of_tiny, *given).run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet")
    lost = frame["top1_seconds"] / frame["best_seconds"] - 1
    assert metrics["test/coverage"] == pytest.approx((lost <= frame["loss_bound"]).mean())
    assert (frame["static_seconds"] >= frame["best_seconds"]).all()
    with pytest.raises(ValueError, match=r"are calibrated on \d+ of the \d+ .* take validation out"):
        bench(build, trained, files_of_tiny, *given, "task.role=validation").run(tmp_path)
    other = bench(build, trained, files_of_tiny, *given, "task.role=validation",
                  "recommender.calibration_roles=[train]")
    assert other.run(tmp_path)["validation/matrices"] > 0


def choices(**changes):
    frame = pd.DataFrame({
        "top1_seconds": [2.0, 3.0], "top5_seconds": [1.0, 3.0], "best_seconds": [1.0, 1.5],
        "baseline_seconds": [4.0, 3.0], "static_seconds": [1.9, 3.0], "nnz": [10, 2_000_000],
        "read_seconds": [0.1, 0.4],
        "rank_seconds": [1.0, 0.2], "draw_seconds": [0.5, 0.1]})
    return frame.assign(**changes)


def test_quality_by_hand():
    found = quality(choices(), seed=0)
    assert (found["regret"], found["regret_max"]) == pytest.approx((2.0, 2.0))
    assert found["regret_top5"] == pytest.approx(2**0.5)
    assert found["regret_top5_p90"] == pytest.approx(1.9)
    assert found["speedup"] == pytest.approx(2**0.5)
    assert (found["of_optimum"], found["top5_of_optimum"]) == pytest.approx((0.5, 0.5**0.5))
    assert found["over_static"] == pytest.approx(0.95**0.5)
    assert (found["slower_than_static"], found["slower_than_default"]) == (0.5, 0)
    assert "coverage" not in found
    bounded = quality(choices(expected_loss=[0.1, 0.2], loss_bound=[0.9, 1.1]), seed=0)
    assert (bounded["coverage"], bounded["bound_median"]) == (0.5, 1.0)
    assert found["regret_top5_low"] == pytest.approx(1.0)
    assert found["regret_top5_high"] == pytest.approx(2.0)


def test_choices_are_judged_by_bins_of_rows():
    found = by_rows(choices(rows=[8191, 131_072]), seed=0)
    assert {key: found[key] for key in found if not key.endswith(("_low", "_high"))} == pytest.approx({
        "rows<8192/matrices": 1, "rows<8192/of_optimum": 0.5, "rows<8192/over_static": 0.95,
        "rows>=131072/matrices": 1, "rows>=131072/of_optimum": 0.5, "rows>=131072/over_static": 1.0})


def test_timings_by_hand():
    found = timings(choices())
    assert found["first_seconds"] == pytest.approx(1.6)
    assert (found["after_seconds_median"], found["after_seconds_max"]) == pytest.approx((0.9, 1.5))
    assert (found["large_matrices"], found["after_seconds_max_large"]) == (1, pytest.approx(0.3))
    assert "seconds_max_large" not in timings(choices(nnz=[10, 20]))
