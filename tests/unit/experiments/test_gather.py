"""Gathered samples equal those of their source, are restricted to a manifest, and must be of the same matrices."""

from pathlib import Path

import pytest

from sparloom.data import Manifest, StoredSamples, TinySamples
from sparloom.errors import SchemaError

TINY = TinySamples(matrices=8, configs=20, seed=0)
SMALL = ("samples=tiny", "samples.matrices=8", "samples.configs=20")


@pytest.fixture
def gathered(build, tmp_path) -> Path:
    out = tmp_path / "gathered"
    metrics = build("gather_samples", *SMALL, folder=tmp_path).run(out)
    assert metrics == {"matrices": 8, "cpu_spmm/rows": 160, "cpu_spmm/matrices": 8, "spade_spmm/rows": 160,
                       "spade_spmm/matrices": 8}
    return out


def test_gathered_samples_equal_their_source(gathered):
    stored = StoredSamples(str(gathered), folder="", corpus="suitesparse")
    assert dict(stored.split()) == dict(TINY.split())
    assert dict(stored.families()) == dict(TINY.families())
    assert stored.inputs().names == TINY.inputs().names
    assert stored.statistics().equals(TINY.statistics().sort_index())
    assert set(stored.walks()) == set(TINY.walks())
    ours, theirs = (source.table("spade", "cognate32", "spmm").labels().sort_values(["matrix", "config"])
                    for source in (stored, TINY))
    assert ours["seconds"].tolist() == pytest.approx(theirs["seconds"].tolist())


def test_files_that_learning_reads_are_listed(gathered):
    stored = StoredSamples(str(gathered), folder="", corpus="suitesparse")
    assert [path.name for path in stored.origins("spade", "spmm")] == [
        "spade_spmm.parquet", "split.csv", "inputs.npz", "statistics.parquet", "walks.parquet"]


def test_only_matrices_of_the_manifest_are_taken(build, tmp_path):
    listed = Manifest.of(TINY.inputs()).matrices
    Manifest({name: listed[name] for name in list(listed)[:3]}).write(tmp_path / "three.csv")
    metrics = build("gather_samples", *SMALL, f"task.manifest={tmp_path / 'three.csv'}", folder=tmp_path).run(tmp_path)
    assert (metrics["matrices"], metrics["cpu_spmm/rows"]) == (3, 60)
    stored = StoredSamples(str(tmp_path), folder="", corpus="suitesparse")
    for names in (stored.inputs().names, stored.statistics().index, stored.walks(), stored.split(),
                  stored.table("cpu", "two_threads", "spmm").matrices):
        assert sorted(names) == sorted(listed)[:3]


def test_samples_of_other_matrices_are_refused(build, tmp_path):
    Manifest.of(TinySamples(matrices=8, configs=20, seed=1).inputs()).write(tmp_path / "other.csv")
    task = build("gather_samples", *SMALL, f"task.manifest={tmp_path / 'other.csv'}", folder=tmp_path)
    match = r"tiny/banded0 differs from the manifest .*: collect the samples of this matrix again"
    with pytest.raises(SchemaError, match=match):
        task.run(tmp_path / "out")
    assert not (tmp_path / "out").exists()
