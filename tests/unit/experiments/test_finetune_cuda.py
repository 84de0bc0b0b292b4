"""Fine-tuning on GPU kernels: missing inputs without a GPU, every method on generated samples, samples of a device."""

import numpy as np
import pandas as pd
import pytest
from cuda_emulator import Emulator
from small import SMALL

from sparloom.baselines import cuda as sparse_vendor
from sparloom.data import SampleTable
from sparloom.errors import MissingArtifact, Unsupported
from sparloom.experiments import Collect, PrepareInputs
from sparloom.measure import TimingProtocol
from sparloom.ops import SpMM
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import SpmmProgram
from sparloom.sparse import SyntheticCorpus

WHOLE = (*SMALL, "samples.configs=324")  # every configuration of either space
WIDTH = 16
AGAIN = 2  # of the baseline, by which drift is told


def test_missing_prerequisites_are_made_by_the_experiments_of_the_platform(build, tmp_path):
    for methods, experiment, overrides in (
            ("cognate", "autoencode_cuda", ("op=sddmm",)),
            ("static", "collect_cuda", ("op=sddmm", "corpus=suitesparse"))):
        with pytest.raises(MissingArtifact) as missing:
            build("finetune_cuda", "op=sddmm", f"task.methods=[{methods}]", folder=tmp_path).run(tmp_path)
        assert (missing.value.experiment, missing.value.overrides) == (experiment, overrides)
    assert "run `python run.py experiment=collect_cuda op=sddmm corpus=suitesparse`" in str(missing.value)


def test_the_encoder_is_of_the_same_space(build, tmp_path):
    for op in ("spmm", "sddmm"):
        tuned, made = (build(name, f"op={op}", folder=tmp_path) for name in ("finetune_cuda", "autoencode_cuda"))
        assert made.platform.space(made.op).digest() == tuned.target.space(tuned.op).digest()


@pytest.mark.slow
def test_every_method_learns_from_five_matrices(build, trained, tmp_path):
    build("autoencode_cuda", *SMALL, folder=trained).run(tmp_path)
    metrics = build("finetune_cuda", *WHOLE, "task.seeds=[0]", folder=trained).run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet")
    assert set(frame["method"]) == {"random", "static", "trees", "zero_shot", "no_transfer", "cognate", "optimum"}
    assert (metrics["test/labels_per_seed"], metrics["test/cognate_target_matrices"]) == (500, 5)
    for name in ("top1", "static", "zero_shot_top1", "no_transfer_top1"):
        assert 0 < metrics[f"test/{name}_of_optimum"] <= 1
    assert metrics["test/top1_of_optimum"] <= metrics["test/top5_of_optimum"] <= 1
    assert list(trained.rglob("finetuned_cuda_h100_spmm_cognate-*.pt"))


def test_sddmm_is_judged_on_its_own_space(build, tmp_path):
    metrics = build("finetune_cuda", *WHOLE, "op=sddmm", "task.methods=[static,trees]", "task.seeds=[0]",
                    folder=tmp_path).run(tmp_path)
    assert metrics["test/labels_per_seed"] == 500
    assert metrics["test/optimum_speedup"] >= metrics["test/static_speedup"]


def dense_product(gpu, placed, result):
    """Stand in for cuSPARSE on an emulated device."""
    matrix = placed.host.matrix
    full = np.zeros(matrix.pattern.shape, np.float32)
    full[matrix.pattern.row_ids(), matrix.pattern.indices] = matrix.values
    return lambda: np.matmul(full, placed.dense["B"], out=result)


def absent(gpu, placed, result):
    raise Unsupported("no such algorithm")


@pytest.mark.cc
@pytest.mark.parametrize("vendors", [
    pytest.param({}, marks=pytest.mark.exhaustive, id="none"),
    pytest.param({"cusparse": dense_product, "cusparse_alg2": absent}, id="one"),
    pytest.param({"cusparse": absent}, marks=pytest.mark.exhaustive, id="refused"),
])
def test_samples_of_a_device_are_judged(build, tmp_path, monkeypatch, vendors):
    """Dense operands of 16 columns: 72 configurations are legal."""
    monkeypatch.setattr(sparse_vendor, "CupyGpu", Emulator)
    monkeypatch.setattr(sparse_vendor, "VENDORS", {"spmm": vendors})
    data = tmp_path / "data"
    corpus = SyntheticCorpus([24], 1, 0, ["star_2d", "banded", "staircase", "nearest", "netlist"])
    platform = CudaPlatform("cuda", "h200", WIDTH)
    platform.gpu = Emulator(sorted({SpmmProgram.of(config).text for config in platform.space(SpMM())}), tmp_path)
    timing = TimingProtocol(rounds=1, repetitions=1, short_seconds=0.0, most_repetitions=1, slow_factor=4.0,
                            steal_ratio=1.5, retakes=0, seed=0)
    PrepareInputs(corpus, sites=256, flops=1e9, jobs=1, data=str(data)).run(tmp_path)
    collect = Collect(
        op=SpMM(), platforms=[platform], corpus=corpus, timing=timing, width=WIDTH, configs="all",
        roles=["train", "validation", "test"], matrices=[], shard="0/1", jobs=1, journals=str(tmp_path / "journals"),
        data=str(data), partial=False, seed=0)
    collected, refused = collect.run(tmp_path), list(vendors.values()).count(absent)
    assert (collected["new_rows"], collected["new_failures"]) == (5 * (72 + AGAIN + len(vendors)), 5 * refused)
    assert collect.run(tmp_path)["new_rows"] == 0
    table = SampleTable.read(data / "synthetic" / "samples" / "cuda_spmm.parquet")
    assert set(table.presets()) == {"h200", *(["vendor"] if vendors else [])}
    if vendors:
        assert set(table.filter(preset="vendor").frame()["config"]) == {f"vendor={name}" for name in vendors}
    metrics = build("finetune_cuda", "samples=synthetic", f"target.width={WIDTH}", "target.device=h200",
                    "selection.matrices=3", "selection.configs_per_matrix=20", "task.methods=[static,trees]",
                    "task.seeds=[0]", "trees.bags=2", "trees.rounds=20", folder=tmp_path).run(tmp_path)
    assert (metrics["test/matrices"], metrics["test/labels_per_seed"]) == (2, 60)
    assert ("test/vendor_speedup" in metrics) == (dense_product in vendors.values())
    if dense_product in vendors.values():
        rows = pd.read_parquet(tmp_path / "per_matrix.parquet").set_index(["method", "matrix"]).loc["vendor"]
        speedup = np.exp(np.log(rows["baseline_seconds"] / rows["top1_seconds"]).mean())
        assert metrics["test/vendor_speedup"] == pytest.approx(speedup)
        assert len(rows) == 2
    assert 0 < metrics["test/static_of_optimum"] <= 1
