"""Tasks that prepare, audit and summarise samples."""

import numpy as np
import pandas as pd
import pytest

from sparloom.data import MatrixInputs, Sample, SampleTable, Split, read_statistics
from sparloom.experiments.cognate import audit, describe_optimum, knob_effects
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


def table(passes: list[np.ndarray]) -> SampleTable:
    samples = []
    for turn, seconds in enumerate(passes):
        for place, value in enumerate(seconds):
            samples.append(Sample(
                op="spmm", platform="cpu", preset="", matrix="a/b", width=8, config=f"x={place}", round=turn,
                seconds=(float(value), float(value) * 2), cpu_seconds=(), kind="wall", failure=None, stolen=False,
                machine="m", commit="c", started="2026-01-01T00:00:00Z"))
    return SampleTable.of(samples)


def test_equal_passes_agree_fully():
    seconds = np.linspace(1, 5, 40)
    found = audit(table([seconds, seconds]), "x=39").loc["a/b"]
    assert (found["tau"], found["tau_fastest"], found["agreement"]) == pytest.approx((1, 1, 1))
    assert found["noise"] == 0
    assert found["gain"] == pytest.approx(5)


def test_unrelated_passes_do_not_agree():
    rng = np.random.default_rng(0)
    found = audit(table([rng.uniform(1, 9, 200), rng.uniform(1, 9, 200)]), "x=0").loc["a/b"]
    assert abs(found["tau"]) < 0.2
    assert abs(found["agreement"] - 0.5) < 0.1


def test_one_pass_cannot_be_audited():
    with pytest.raises(ValueError, match="no matrix has two rounds"):
        audit(table([np.ones(9)]), "x=0")


def test_audit_task_runs_on_made_up_samples(build, tmp_path):
    with pytest.raises(ValueError, match="two rounds"):
        build("audit_cpu_labels", "samples=tiny", folder=tmp_path).run(tmp_path)


def test_summary_of_samples_describes_both_operations_and_presets(build, tmp_path, capsys):
    metrics = build("summarise_spade", "samples=tiny", "samples.configs=256", folder=tmp_path).run(tmp_path)
    assert {key.rsplit("/", 1)[0] for key in metrics} == {
        f"{op}/{preset}" for op in ("spmm", "sddmm") for preset in ("cognate32", "cognate32_205")}
    assert metrics["spmm/cognate32/optimum"] >= 1
    assert metrics["spmm/cognate32/optimum_max"] >= metrics["spmm/cognate32/optimum"]
    assert len(pd.read_parquet(tmp_path / "knobs.parquet")) == 4 * (6 + 6 + 1 + 1 + 1 + 1)
    assert "best configuration over the default" in capsys.readouterr().out


def test_parameter_effects_by_hand():
    from sparloom.report import RuntimeTable
    from sparloom.space import SpadeSpace

    space = SpadeSpace("spmm")
    seconds = [2.0 if config["bypass"] else 1.0 for config in space]
    labels = pd.DataFrame({"matrix": "a/b", "config": [config.key for config in space], "seconds": seconds})
    truth = RuntimeTable.of(labels, space, {"a/b": (100_000, 100_000)})
    effects = knob_effects(truth, space).set_index("knob")
    assert effects.loc["bypass", "slower"] == 1
    assert effects.loc["bypass", "change"] == pytest.approx(2)
    assert effects.loc["barrier", "change"] == pytest.approx(1)
    assert describe_optimum(truth)["optimum"] == 1


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
def test_simulator_bench_repeats_itself(build, tmp_path):
    metrics = build("bench_simulator", "corpus=tiny", "task.matrices=2", folder=tmp_path).run(tmp_path)
    assert metrics["bit_equal"] == 1
    assert metrics["points"] == 512


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
