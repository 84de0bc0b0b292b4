"""Stored and generated samples behind one interface."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparloom.data import (
    MatrixInputs,
    Sample,
    SampleTable,
    Split,
    StoredSamples,
    TinySamples,
    coarsen,
    read_statistics,
    read_walks,
    write_statistics,
    write_walks,
)
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.space import CpuSpace, SpadeSpace
from sparloom.sparse import STATISTICS, WALK_STATISTICS, Pattern, walk_statistics

Make = Callable[..., Sample]
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
    with pytest.raises(MissingArtifact) as caught:
        source.table("cpu_kernels", "t1", "gemm")
    assert caught.value.experiment == "collect_gemm"
    for read in (source.statistics, source.walks, source.inputs, source.split):
        with pytest.raises(MissingArtifact) as caught:
            read()
        assert caught.value.experiment == "prepare_inputs"


def test_missing_preset_lists_the_present_ones(tmp_path: Path, sample: Make) -> None:
    SampleTable.of([sample(preset="low")]).write(tmp_path / "samples" / "cpu_spmm.parquet")
    source = StoredSamples(data=str(tmp_path), folder="", corpus="suitesparse")
    with pytest.raises(MissingArtifact, match="has no samples of preset 'high'; presets: 'low'"):
        source.table("cpu", "high", "spmm")


def test_statistics_need_their_index(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="need a unique index named matrix"):
        write_statistics(tmp_path / "s.parquet", pd.DataFrame({"rows": [1.0]}))
    pd.DataFrame({"rows": [1.0]}).to_parquet(tmp_path / "s.parquet")
    with pytest.raises(SchemaError, match="have the index matrix, not None"):
        read_statistics(tmp_path / "s.parquet")


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("platform", ["cpu", "spade", "cuda"])
def test_tiny_samples_are_valid_and_repeatable(platform: str, op: str) -> None:
    table = TINY.table(platform, "any", op)
    table.validate()
    assert len(table) == 16 * 30
    again = TinySamples(matrices=16, configs=30, seed=0).table(platform, "any", op)
    pd.testing.assert_frame_equal(table.labels(), again.labels())


def test_tiny_samples_belong_to_their_space() -> None:
    for platform, space in (("cpu", CpuSpace("spmm")), ("spade", SpadeSpace("spmm"))):
        for key in set(TINY.table(platform, "", "spmm").labels()["config"]):
            space.parse(key)


def test_tiny_matrices_differ_in_their_best_configuration() -> None:
    labels = TinySamples(matrices=16, configs=256, seed=0).table("spade", "", "spmm").labels()
    best = labels.loc[labels.groupby("matrix")["seconds"].idxmin(), "config"]
    assert best.nunique() > 1


def test_tiny_parts_fit_together() -> None:
    names = set(TINY.table("spade", "", "spmm").matrices)
    assert len(names) == 16
    assert names == set(TINY.split()) == set(TINY.statistics().index) == set(TINY.inputs().names)
    assert set(TINY.split().values()) == {"train", "validation", "test"}
    assert tuple(TINY.statistics().columns) == STATISTICS


def test_unknown_platform_of_tiny_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="tiny samples support the platforms cpu, cuda, spade, not abacus"):
        TINY.table("abacus", "", "spmm")


def test_samples_are_read_without_torch() -> None:
    code = "import sys, sparloom.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
