"""Tasks that prepare samples and check the simulator."""

import pytest

from sparloom.data import MatrixInputs, SampleTable, Split, read_statistics
from sparloom.experiments.harness import data_folder
from sparloom.sparse import SuiteSparseCorpus


def test_inputs_statistics_and_split_cover_the_corpus(build, tmp_path):
    metrics = build("prepare_inputs", "corpus=tiny", "task.jobs=1", folder=tmp_path).run(tmp_path)
    data = tmp_path / "data" / "synthetic"
    inputs = MatrixInputs.read(data / "inputs" / "inputs.npz")
    assert metrics["matrices"] == len(inputs) == 10
    assert set(inputs.names) == set(read_statistics(data / "statistics" / "statistics.parquet").index)
    assert set(Split.read(data / "split.csv").roles) == set(inputs.names)
    assert all(len(item.counts) <= 4096 for item in inputs)


@pytest.mark.cc
def test_simulated_collection_of_both_presets_shares_its_configurations(build, tmp_path):
    task = build("collect_spade", "corpus=tiny", "task.jobs=1", "task.roles=[train]", folder=tmp_path)
    metrics = task.run(tmp_path)
    found = SampleTable.read(tmp_path / "data" / "synthetic" / "samples" / "spade_spmm.parquet")
    assert found.presets() == ("cognate32", "cognate32_205")
    assert metrics["new_rows"] == len(found) == metrics["matrices"] * 512
    slow, fast = (found.filter(preset=preset).labels()["seconds"].sum() for preset in found.presets())
    assert fast < slow


@pytest.mark.cc
@pytest.mark.slow
def test_both_levels_of_the_simulator_are_compared(build, tmp_path):
    task = build("validate_simulator", "corpus=tiny", "~corpus.rows", "+corpus.rows=[200]", "task.matrices=2",
                 "task.configs=8", "task.jobs=1", folder=tmp_path)
    metrics = task.run(tmp_path)
    assert metrics["points"] == 32
    assert metrics["spmm/spearman_worst"] > 0.9
    assert metrics["sddmm/traffic_worst"] < 0.05


@pytest.mark.parametrize(("part", "folder"), [(None, "."), ("development", "."), ("final", "final")])
def test_the_final_part_of_the_real_matrices_has_a_folder_of_its_own(tmp_path, part, folder):
    corpus = SuiteSparseCorpus("mirror", "cache", count=None, role=None, seed=0, part=part)
    assert data_folder(str(tmp_path), corpus) == tmp_path / folder
