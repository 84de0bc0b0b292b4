"""Stored and generated samples behind one interface."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparloom.data import (
    JoinedSamples,
    MatrixInputs,
    Sample,
    SampleTable,
    Split,
    StoredSamples,
    TinySamples,
    coarsen,
    read_walks,
    write_statistics,
    write_walks,
)
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.sparse import WALK_STATISTICS, Pattern, walk_statistics

Make = Callable[..., Sample]
ROOT = Path(__file__).resolve().parents[3]
TINY = TinySamples(matrices=16, configs=30, seed=0)


def test_stored_files_are_found_by_platform_and_operation(tmp_path: Path, sample: Make) -> None:
    rows = [sample(platform="spade", op="sddmm", preset=preset, kind="simulated") for preset in ("low", "high")]
    SampleTable.of(rows).write(tmp_path / "synthetic" / "samples" / "spade_sddmm.parquet")
    Split({"g/a": "test"}, {"g/a": "a"}).write(tmp_path / "synthetic" / "split.csv")
    statistics = pd.DataFrame({"rows": [3.0]}, index=pd.Index(["g/a"], name="matrix"))
    write_statistics(tmp_path / "synthetic" / "statistics" / "statistics.parquet", statistics)
    pattern = Pattern.from_coo([0, 1], [1, 0], (2, 2))
    MatrixInputs.of([coarsen(pattern, name="g/a", cost=len)]).write(tmp_path / "synthetic" / "inputs" / "inputs.npz")
    source = StoredSamples(data=str(tmp_path), folder="synthetic", corpus="synthetic")
    assert len(source.table("spade", "low", "sddmm")) == 1
    assert source.split() == {"g/a": "test"}
    assert source.families() == {"g/a": "a"}
    pd.testing.assert_frame_equal(source.statistics(), statistics)
    assert source.inputs().names == ("g/a",)


def test_walks_come_back_as_they_were(tmp_path: Path) -> None:
    patterns = {name: Pattern.from_coo([0, 1, 2], [place, 0, 2], (3, 3)) for place, name in enumerate(("g/b", "g/a"))}
    walks = {name: walk_statistics(pattern) for name, pattern in patterns.items()}
    write_walks(tmp_path / "walks.parquet", walks)
    read = read_walks(tmp_path / "walks.parquet")
    assert set(read) == set(walks)
    for name, numbers in walks.items():
        assert set(read[name]) == set(numbers)
        for walk in numbers:
            np.testing.assert_array_equal(read[name][walk], numbers[walk])


def test_walks_of_another_version_are_refused(tmp_path: Path) -> None:
    write_walks(tmp_path / "walks.parquet", {"g/a": walk_statistics(Pattern.from_coo([0], [0], (2, 2)))})
    frame = pd.read_parquet(tmp_path / "walks.parquet").drop(columns=WALK_STATISTICS[0])
    frame.to_parquet(tmp_path / "walks.parquet")
    with pytest.raises(SchemaError, match="other statistics of walks than this version: run experiment=prepare_inputs"):
        read_walks(tmp_path / "walks.parquet")


def test_missing_samples_name_the_experiment_that_makes_them(tmp_path: Path) -> None:
    source = StoredSamples(data=str(tmp_path), folder="", corpus="suitesparse")
    with pytest.raises(MissingArtifact, match=r"cpu_sddmm\.parquet does not exist: run `python run.py") as caught:
        source.table("cpu", "", "sddmm")
    assert caught.value.experiment == "collect_cpu"
    assert caught.value.overrides == ("op=sddmm", "corpus=suitesparse")
    for read in (source.statistics, source.walks, source.inputs, source.split):
        with pytest.raises(MissingArtifact) as caught:
            read()
        assert caught.value.experiment == "prepare_inputs"


@pytest.mark.parametrize(("platform", "op", "experiment", "overrides"), [
    ("spade", "spmm", "collect_spade", ("op=spmm", "corpus=suitesparse")),
    ("cpu_many", "spmm", "collect_cpu_many", ("op=spmm", "corpus=suitesparse")),
    ("cpu_kernels", "sddmm", "collect_cpu_kernels", ("op=sddmm", "corpus=suitesparse")),
    ("cuda", "spmm", "collect_cuda", ("op=spmm", "corpus=suitesparse")),
    ("cuda_kernels", "attention", "collect_cuda",
     ("op=attention", "corpus=suitesparse", "platform@target=cuda_kernels")),
    ("cpu_kernels", "gemm", "collect_gemm", ()),
    ("triton", "gemm", "collect_gemm_cuda", ()),
])
def test_each_platform_names_an_experiment_that_exists(
    tmp_path: Path, platform: str, op: str, experiment: str, overrides: tuple[str, ...]
) -> None:
    source = StoredSamples(data=str(tmp_path), folder="", corpus="suitesparse")
    with pytest.raises(MissingArtifact) as caught:
        source.table(platform, "", op)
    assert (caught.value.experiment, caught.value.overrides) == (experiment, overrides)
    assert (ROOT / "conf" / "experiment" / f"{experiment}.yaml").is_file()


def test_missing_preset_lists_the_present_ones(tmp_path: Path, sample: Make) -> None:
    SampleTable.of([sample(preset="low")]).write(tmp_path / "samples" / "cpu_spmm.parquet")
    source = StoredSamples(data=str(tmp_path), folder="", corpus="suitesparse")
    with pytest.raises(MissingArtifact, match="has no samples of preset 'high'; presets: 'low'"):
        source.table("cpu", "high", "spmm")


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("platform", ["cpu", "cpu_many", "spade", "cuda"])
def test_tiny_samples_are_valid_and_repeatable(platform: str, op: str) -> None:
    table = TINY.table(platform, "any", op)
    table.validate()
    assert len(table) == 16 * 30
    again = TinySamples(matrices=16, configs=30, seed=0).table(platform, "any", op)
    pd.testing.assert_frame_equal(table.labels(), again.labels())


def test_samples_are_read_without_torch() -> None:
    code = "import sys, sparloom.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def two_parts(tmp_path: Path, sample: Make) -> Callable[..., JoinedSamples]:
    """Make a source of both parts, with a training and a test matrix each and samples of the CPU in one."""
    for folder, prefix in (("", "old"), ("final", "new")):
        home, names = tmp_path / folder, [f"{prefix}/{role}" for role in ("test", "train")]
        pattern = Pattern.from_coo([0, 1], [1, 0], (2, 2))
        for platform in ("spade", "cpu") if prefix == "old" else ("spade",):
            SampleTable.of([sample(platform=platform, preset="one", matrix=name) for name in names]).write(
                home / "samples" / f"{platform}_spmm.parquet")
        Split({name: name.partition("/")[2] for name in names}, {name: f"family of {name}" for name in names}).write(
            home / "split.csv")
        write_statistics(home / "statistics" / "statistics.parquet",
                         pd.DataFrame({"rows": [2.0, 2.0]}, index=pd.Index(names, name="matrix")))
        write_walks(home / "statistics" / "walks.parquet", {name: walk_statistics(pattern) for name in names})
        MatrixInputs.of([coarsen(pattern, name=name, cost=len) for name in names], {"sites": 8}).write(
            home / "inputs" / "inputs.npz")
    stored = {folder: StoredSamples(data=str(tmp_path), folder=folder, corpus="suitesparse +corpus.part=x")
              for folder in ("", "final")}
    return lambda training, test: JoinedSamples(stored[""], stored["final"], training, test)


@pytest.mark.parametrize(("training", "test", "names"), [
    ("development", "final", {"old/train", "new/test"}),
    ("development", "development", {"old/train", "old/test"}),
    (None, "final", {"old/train", "new/train", "new/test"}),
    (None, None, {"old/train", "old/test", "new/train", "new/test"}),
])
def test_each_role_comes_from_the_part_that_is_asked_for(two_parts, training, test, names) -> None:
    source = two_parts(training, test)
    assert source.split() == {name: name.partition("/")[2] for name in names}
    assert source.families() == {name: f"family of {name}" for name in names}
    assert set(source.table("spade", "one", "spmm").matrices) == names
    assert set(source.statistics().index) == set(source.walks()) == set(source.inputs().names) == names
    assert source.inputs().conditions == {"sites": 8}
    assert len(source.origins("spade", "spmm")) == 10


def test_a_matrix_in_both_parts_is_refused(two_parts) -> None:
    source = two_parts(None, None)
    with pytest.raises(SchemaError, match=r"2 matrices are in both parts \(old/test, old/train\): collect each in one"):
        JoinedSamples(source.development, source.development, None, None).split()


def test_models_are_found_where_the_same_matrices_are_learned_from(two_parts) -> None:
    assert [two_parts(training, "final").name for training in ("development", "final", None)] == [
        "real", "final", "joined"]
    assert two_parts(None, None).base.name == "real"
