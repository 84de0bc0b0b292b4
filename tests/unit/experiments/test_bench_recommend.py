"""The benchmark of recommendations on generated samples, with their matrices as files in a mirror."""

import csv

import numpy as np
import pandas as pd
import pytest
from small import SMALL

from sparloom import files
from sparloom.data import TinySamples
from sparloom.experiments.cognate import calibration
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
