"""Performance models as a task: trained, scored on unseen problems, saved, exported."""

import ctypes
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from gemm_table import drawn_shapes, write_gemm_table, write_triton_table
from sparse_table import write_spmm_table

from sparloom.data import StoredSamples
from sparloom.errors import MissingArtifact, SchemaError, Unsupported
from sparloom.experiments.trees import gemm_subject
from sparloom.models.performance import (
    GEMM_FEATURES,
    Target,
    load_interval,
    load_performance,
)
from sparloom.ops import GEMM, LAYOUTS, GemmShape, SpMM
from sparloom.platforms import CpuKernels, CudaPlatform
from sparloom.space import gemm_program

SMALL = (
    "task.sparse=[]", "task.others=[raw]", "task.folds=3", "growth.trees=20", "growth.leaves=15", "growth.threads=1",
    "growth.learning_rate=0.3", "distilled.trees=30", "distilled.threads=1", "task.distillation.shapes=100",
)
SPARSE = (*SMALL, "task.sparse=[{_target_: sparloom.ops.SpMM}]", "growth.rows_per_leaf=5")
METRICS = {"mean_efficiency", "p10_efficiency", "min_efficiency", "noise_ceiling", "static_efficiency",
           "raw_mean_efficiency", "m1_mean_efficiency", "nn_mean_efficiency", "few_rows_mean_efficiency",
           "many_rows_p10_efficiency"}


@pytest.fixture(scope="module")
def fitted(build, tmp_path_factory) -> tuple[Path, dict]:
    """Folder with everything, metrics of the run."""
    folder = tmp_path_factory.mktemp("trees")
    write_gemm_table(folder / "data", drawn_shapes(32), step=16)
    out = folder / "out"
    out.mkdir()
    return folder, dict(build("fit_trees", *SMALL, folder=folder).run(out))


def models(folder: Path) -> Path:
    return folder / "artifacts" / "checkpoints" / "real" / "performance_cpu_kernels_t1_gemm"


@pytest.mark.cc
def test_metrics_have_the_names_that_were_agreed(fitted):
    _, metrics = fitted
    assert {f"oof/{name}" for name in METRICS} <= set(metrics)
    assert metrics["oof/problems"] == 30
    assert metrics["oof/unasked_problems"] == 2
    assert metrics["oof/rows"] == 30 * 32
    assert 0 < metrics["oof/min_efficiency"] <= metrics["oof/p10_efficiency"] <= metrics["oof/noise_ceiling"] <= 1
    assert metrics["oof/mean_efficiency_low"] < metrics["oof/mean_efficiency"] < metrics["oof/mean_efficiency_high"]
    share = metrics["oof/mean_efficiency"] / metrics["oof/noise_ceiling"]
    assert metrics["oof/of_noise_ceiling"] == pytest.approx(share)


@pytest.mark.cc
def test_trees_choose_better_than_one_configuration_and_random_ones(fitted):
    _, metrics = fitted
    assert metrics["oof/mean_efficiency"] > metrics["oof/static_efficiency"] > metrics["oof/random_efficiency"]
    assert metrics["oof/speedup_over_vendor"] == pytest.approx(1.3 * metrics["oof/mean_efficiency"], rel=0.1)
    assert metrics["oof/lead_over_static_low"] <= metrics["oof/lead_over_static"]


@pytest.mark.cc
def test_every_choice_is_written(fitted):
    folder, metrics = fitted
    rows = pd.read_parquet(folder / "out" / "per_problem.parquet")
    model = rows[rows["method"] == "model"]
    assert len(model) == 30
    assert model["efficiency"].mean() == pytest.approx(metrics["oof/mean_efficiency"])
    assert set(rows["method"]) == {"model", "distilled", "raw", "static", "noise_ceiling", "random",
                                   "vendor"}
    assert set(model["slice"]) <= {"m1", "tiny", "medium", "large"}
    assert model.groupby("fold").size().tolist() == [10, 10, 10]


@pytest.mark.cc
def test_the_saved_model_is_the_scored_one(fitted):
    folder, metrics = fitted
    model = load_performance(models(folder) / "full", spec=GEMM_FEATURES, platform="cpu_kernels", preset="t1")
    assert model.trees == metrics["oof/trees"]
    assert len(model.members) == len(set(model.folds.values())) == 3
    lineage = json.loads((models(folder) / "lineage.json").read_text())
    assert [entry["base"] for entry in lineage] == [None]
    interval = load_interval(models(folder) / "interval", spec=GEMM_FEATURES)
    assert interval.coverage == metrics["interval/meant"] == 0.9
    assert metrics["interval/coverage"] > 0.75


@pytest.mark.cc
def test_the_header_compiles_alone_and_was_compared(fitted, tmp_path):
    folder, metrics = fitted
    assert metrics["predict/c_error"] < 1e-6
    assert metrics["predict/c_milliseconds"] < metrics["predict/distilled_milliseconds"]
    user = tmp_path / "user.c"
    user.write_text('#include "sparloom_gemm.h"\nint best(double m, double n, double k, double a, double b) '
                    "{ return sparloom_gemm_best(m, n, k, a, b); }\n")
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{models(folder)}", "-o",
                    tmp_path / "user.so", user, "-lm"], check=True)
    library = ctypes.CDLL(str(tmp_path / "user.so"))
    library.best.argtypes = [ctypes.c_double] * 5
    assert 0 <= library.best(64, 64, 64, 0, 1) < 32


@pytest.mark.cc
def test_kernels_are_recommended_for_a_shape(fitted, build, tmp_path, capsys):
    folder, _ = fitted
    metrics = build("recommend", "shape=[48,64,80]", "verify=top", "kernels.rounds=1", folder=folder).run(tmp_path)
    written = json.loads((tmp_path / "recommendation.json").read_text())
    rates = [entry["gflops"] for entry in written["configurations"]]
    assert rates == sorted(rates, reverse=True)
    assert len({entry["config"] for entry in written["configurations"]}) == 5
    assert all(entry["low"] <= entry["high"] for entry in written["configurations"])
    assert written["configurations"][0]["seconds"] > 0
    assert metrics["regret"] >= 1
    assert metrics["gflops"] == rates[0]
    shown = capsys.readouterr().out
    assert "90% interval" in shown
    assert "measured" in shown


def test_configurations_that_are_one_program_share_its_seconds(tmp_path):
    shapes = [GemmShape(20, 40, 60, layout) for layout in LAYOUTS] + [GemmShape(2, 3, 5)]
    write_gemm_table(tmp_path / "data", shapes)
    samples = StoredSamples(str(tmp_path / "data"), "", "")
    subject = gemm_subject(samples, CpuKernels(1, 32), GEMM(), judging=1)
    assert subject.offered.all()
    assert len(subject.measured.configs) == 493
    assert len(set(subject.measured.groups)) == 2  # a shape is a group, whatever its layouts
    layouts = subject.judged.about["layout"].tolist()
    columns = {config: column for column, config in enumerate(subject.measured.configs)}
    for seconds, layout in zip(subject.judged.seconds, layouts, strict=True):
        for config, column in columns.items():
            assert seconds[column] == seconds[columns[gemm_program(config, layout)]]


def test_without_a_model_the_experiment_that_makes_it_is_named(build, tmp_path):
    with pytest.raises(MissingArtifact, match="no performance model of gemm on cpu_kernels t1") as error:
        build("recommend", "shape=[64,64,64]", folder=tmp_path).run(tmp_path)
    assert error.value.experiment == "fit_trees"
    on_gpu = ("platform@single=triton", "single.device=a100")
    with pytest.raises(MissingArtifact, match="no performance model of gemm on triton a100") as error:
        build("recommend", "shape=[64,64,64]", *on_gpu, folder=tmp_path).run(tmp_path)
    assert (error.value.experiment, error.value.overrides) == ("fit_trees_cuda", ("single.device=a100",))


@pytest.mark.cc
def test_a_model_grows_further_on_more_shapes(fitted, build, tmp_path):
    folder, _ = fitted
    write_gemm_table(tmp_path / "data", drawn_shapes(32) + drawn_shapes(40, seed=1)[:8], step=16)
    task = build("fit_trees", *SMALL, f"task.base={models(folder) / 'full'}", "growth.more_trees=10",
                 folder=tmp_path)
    metrics = task.run(tmp_path)
    lineage = json.loads((models(tmp_path) / "lineage.json").read_text())
    assert [entry["problems"] for entry in lineage] == [30, 38]
    assert lineage[1]["trees"] == metrics["oof/trees"] == lineage[0]["trees"] + 3 * 10
    other = replace(task, target=Target("throughput", "raw")).run(tmp_path)  # of new models; this one has its own
    assert {key: value for key, value in other.items() if key.startswith("interval/")} == {
        key: value for key, value in metrics.items() if key.startswith("interval/")}


@pytest.mark.cc
def test_kernels_of_a_gpu_are_chosen_from_one_sweep(build, tmp_path, capsys):
    write_triton_table(tmp_path / "data", drawn_shapes(32), step=16)
    small = [option for option in SMALL if not option.startswith("task.sparse")]
    metrics = build("fit_trees_cuda", *small, folder=tmp_path).run(tmp_path)
    assert metrics["oof/problems"] == 30
    assert metrics["oof/mean_efficiency"] > metrics["oof/static_efficiency"] > metrics["oof/random_efficiency"]
    assert metrics["oof/vendor_efficiency"] == pytest.approx(1 / 1.1)
    assert not any("noise_ceiling" in name for name in metrics)
    assert metrics["predict/c_error"] < 1e-6
    with pytest.raises(SchemaError, match=r"sweep 0 judges and another one measures the noise, but the table has 1"):
        gemm_subject(StoredSamples(str(tmp_path / "data"), "", "suitesparse"), CudaPlatform("triton", "h200", 256),
                     GEMM(), judging=0)
    on_gpu = ("platform@single=triton", "single.device=h200")
    found = build("recommend", "shape=[480,640,800]", *on_gpu, folder=tmp_path).run(tmp_path)
    assert found["gflops"] > 0
    assert "block_m=" in json.loads((tmp_path / "recommendation.json").read_text())["configurations"][0]["config"]
    with pytest.raises(Unsupported, match=r"triton read A and B as they are multiplied, give \[m,n,k\]"):
        build("recommend", "shape=[48,64,80,tn]", *on_gpu, folder=tmp_path).run(tmp_path)


@pytest.fixture(scope="module")
def sparse_fitted(build, tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("sparse_trees")
    write_gemm_table(folder / "data", drawn_shapes(10), step=200)
    write_spmm_table(folder / "data", 16)
    return folder, dict(build("fit_trees", *SPARSE, folder=folder).run(folder))


@pytest.mark.cc
def test_sparse_kernels_are_chosen_out_of_families_that_are_known(sparse_fitted):
    folder, metrics = sparse_fitted
    assert metrics["spmm/oof_problems"] == 32
    assert metrics["spmm/oof_rows"] == 16 * (72 + 90)
    assert metrics["spmm/oof_mean_efficiency"] > metrics["spmm/oof_static_efficiency"]
    assert {"spmm/oof_width_32_mean_efficiency", "spmm/oof_width_128_mean_efficiency"} <= set(metrics)
    rows = pd.read_parquet(folder / "per_problem.parquet")
    narrow = rows[(rows["op"] == "spmm") & (rows["width"] == 32) & (rows["config"] != "")]
    assert not narrow["config"].str.contains("strip=64").any()


@pytest.mark.cc
def test_models_of_fewer_roles_have_their_own_folder(build, sparse_fitted, tmp_path):
    folder, _ = sparse_fitted
    kept = folder / "artifacts" / "checkpoints" / "real"
    usual = kept / "performance_cpu_kernels_t2_spmm" / "full"
    before = load_performance(usual).folds
    task = build("fit_trees", *SPARSE, "task.roles=[train]", "task.others=[]", folder=folder)
    task.run(tmp_path)
    split = task.samples.split()
    unseen = load_performance(kept / "performance_cpu_kernels_t2_spmm_without_validation_without_test" / "full").folds
    assert {split[name] for name in before} == {"train", "validation", "test"}
    assert {split[name] for name in unseen} == {"train"}
    assert load_performance(usual).folds == before
    assert task.models.find(task.sparse_platform, SpMM(), task.samples) == usual.parent


def test_a_width_without_samples_is_refused_before_anything_is_trained(build, tmp_path):
    write_gemm_table(tmp_path / "data", drawn_shapes(10), step=200)
    write_spmm_table(tmp_path / "data", 4)
    task = build("fit_trees", *SPARSE, "width=48", folder=tmp_path)
    with pytest.raises(ValueError, match="no samples of spmm on cpu_kernels with 48 columns: give the platform a width "
                                         "of 32, 128, or collect them"):
        task.run(tmp_path)
    assert not (tmp_path / "artifacts").exists()
