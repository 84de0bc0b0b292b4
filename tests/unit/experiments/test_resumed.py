"""Collections resume only with samples of the same conditions; benchmarks start again otherwise."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from toy import SIMULATED, ToyCorpus, ToyPlatform

from sparloom.data import Journal, SampleTable
from sparloom.data.sample import conditions_entry
from sparloom.errors import SchemaError
from sparloom.experiments import Collect, CollectGemm
from sparloom.experiments.harness import check_samples, conditions_of, journal_folder
from sparloom.experiments.harness import journal as case_journal
from sparloom.ops import CsrAttention, GemmShapes, SpMM
from sparloom.platforms import CpuKernels, SpadePlatform
from sparloom.platforms.spade import Machine
from sparloom.ragged import LengthCorpus, generated_lengths
from sparloom.space import Readings
from sparloom.sparse import AnchorCorpus

TABLE = Path("toy", "samples", "toy_spmm.parquet")
GROUP = ("spmm", "toy", "only")


def collect(folder: Path, **changes) -> Collect:
    given = {
        "op": SpMM(), "platforms": [ToyPlatform()], "corpus": ToyCorpus(), "timing": SIMULATED, "width": 16,
        "configs": 5, "roles": ["train", "validation", "test"], "matrices": [], "shard": "0/1", "jobs": 1,
        "journals": str(folder / "journals"), "data": str(folder), "partial": False, "seed": 0,
    }
    return Collect(**{**given, **changes})


@pytest.fixture(scope="module")
def spade(build, tmp_path_factory) -> SpadePlatform:
    return build("collect_spade", folder=tmp_path_factory.mktemp("spade")).platforms[0]


def digest(platform, op=None, timing=SIMULATED, **further) -> str:
    return conditions_of(platform, op or SpMM(), timing, **further).digest


@pytest.mark.parametrize("name", [*(field.name for field in fields(Machine)), "level"])
def test_every_parameter_of_a_simulated_machine_counts(spade, name):
    value = getattr(spade, name)
    changed = {"dealing": "first_free", "level": "t0"}.get(name) or value + 1
    assert digest(replace(spade, **{name: changed})) != digest(spade)


def test_the_simulator_counts_and_what_rows_name_themselves_does_not(spade, monkeypatch):
    same = replace(spade, preset="another", width=32, readings=Readings(numbers="raw"))
    assert digest(same) == digest(spade)
    first = digest(spade)
    monkeypatch.setattr("sparloom.platforms.spade.platform.simulator_digest", lambda: "2-0")
    assert digest(spade) != first


@pytest.mark.parametrize("name", ["repetitions", "short_seconds", "most_repetitions", "slow_factor", "steal_ratio",
                                  "retakes", "seed"])
def test_the_timing_counts_but_not_the_number_of_rounds(name):
    changed = {name: getattr(SIMULATED, name) + 1 if name not in ("slow_factor", "steal_ratio") else 2.0}
    if name == "repetitions":
        changed["most_repetitions"] = 2
    assert digest(ToyPlatform(), timing=replace(SIMULATED, **changed)) != digest(ToyPlatform())
    assert digest(ToyPlatform(), timing=replace(SIMULATED, rounds=3)) == digest(ToyPlatform())


def test_threads_sources_compiler_machine_and_heads_of_real_kernels_count(monkeypatch):
    made = digest(CpuKernels(2, 64))
    assert digest(CpuKernels(2, 128)) == made
    assert len({made, digest(CpuKernels(1, 64)), digest(CpuKernels(2, 64), CsrAttention(2)),
                digest(CpuKernels(2, 64), CsrAttention(4))}) == 4
    for name, other in (("platforms.cpu_kernels.kernels.sources_digest", "0"),
                         ("platforms.cpu_kernels.kernels.compiler_version", "cc 1"),
                         ("experiments.harness.conditions.describe_machine", {"name": "another machine"})):
        with monkeypatch.context() as patch:
            patch.setattr(f"sparloom.{name}", lambda *given, other=other: other)
            assert digest(CpuKernels(2, 64)) != made


def test_samples_of_another_machine_are_refused_before_anything_is_measured(tmp_path):
    collect(tmp_path).run(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for more in ({}, {"configs": 9}, {"width": 32}, {"matrices": ["toy/m8"]}):
        other = collect(tmp_path, platforms=[ToyPlatform(sleep_seconds=1e-5)], **more)
        with pytest.raises(SchemaError, match=r"jsonl holds samples of spmm on toy only .* \(platform.sleep_seconds 0 "
                                              r"-> 1e-05\): .* give other folders .* or .*task.overwrite=true"):
            other.run(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_overwriting_drops_what_was_made_under_other_conditions(tmp_path):
    collect(tmp_path).run(tmp_path)
    other = {"platforms": [ToyPlatform(sleep_seconds=1e-5)], "matrices": ["toy/m8"]}
    assert collect(tmp_path, **other, overwrite=True).run(tmp_path)["new_rows"] == 5
    table = SampleTable.read(tmp_path / TABLE)
    assert (table.matrices, len(table)) == (("toy/m8",), 5)
    assert table.conditions() == {GROUP: collect(tmp_path, **other)._resumed.conditions["only"].digest}
    assert collect(tmp_path, **other).run(tmp_path)["new_rows"] == 0


def test_samples_without_conditions_are_read_but_not_extended(tmp_path):
    collect(tmp_path).run(tmp_path)
    table = SampleTable.read(tmp_path / TABLE)
    SampleTable(table._rows, [{"seed": 0}]).write(tmp_path / TABLE)
    assert SampleTable.read(tmp_path / TABLE).conditions() == {GROUP: ""}
    with pytest.raises(SchemaError, match=r"toy_spmm.parquet .*it does not say under which conditions"):
        collect(tmp_path).run(tmp_path)
    table.write(tmp_path / TABLE)
    journal = Journal.at(next((tmp_path / "journals").rglob("*.jsonl")))
    rows = journal.samples()
    journal.path.unlink()
    journal.append(replace(row, conditions="") for row in rows)
    with pytest.raises(SchemaError, match=r"jsonl .*it does not say under which conditions"):
        collect(tmp_path).run(tmp_path)
    assert collect(tmp_path, overwrite=True).run(tmp_path)["new_rows"] == 5


def test_another_matrix_of_the_same_name_is_refused(tmp_path):
    class Changed(ToyCorpus):
        def identity(self, name):
            return "others" if name == "toy/m9" else name

    class Same(ToyCorpus):
        def identity(self, name):
            return name

    collect(tmp_path, corpus=Same()).run(tmp_path)
    Changed.__name__ = Same.__name__  # one folder of journals
    with pytest.raises(SchemaError, match=r"toy%2Fm9.jsonl .*toy/m9 was another matrix"):
        collect(tmp_path, corpus=Changed()).run(tmp_path)


def test_drawn_configurations_of_another_seed_are_refused_and_the_whole_space_has_none(tmp_path):
    assert collect(tmp_path, seed=1)._resumed.conditions != collect(tmp_path)._resumed.conditions
    whole = {"configs": "all"}
    assert collect(tmp_path, seed=1, **whole)._resumed.conditions == collect(tmp_path, **whole)._resumed.conditions
    assert collect(tmp_path, jobs=2, shard="1/2")._resumed.conditions == collect(tmp_path)._resumed.conditions


def test_rows_of_the_vendor_under_other_threads_are_refused(tmp_path, sample_row):
    task = CollectGemm(platform=CpuKernels(1, 32), shapes=GemmShapes({"tiny": 1}, flops=1e6, bytes=1e6, seed=0),
                       timing=SIMULATED, count=None, jobs=1, alone_bytes=1, journals=str(tmp_path), data=str(tmp_path))
    Journal(tmp_path / "gemm", ("cpu_kernels", "t2", "gemm", "dense/8x8x8")).append(
        [replace(sample_row, preset="vendor", conditions="1" * 16 + ":")])
    with pytest.raises(SchemaError, match=r"t2,gemm.* made under other conditions"):
        task.run(tmp_path)


@pytest.fixture
def sample_row():
    from sparloom.data import Sample

    return Sample(op="gemm", platform="cpu_kernels", preset="t1", matrix="dense/8x8", width=8, config="a=1", round=0,
                  seconds=(1e-3,), cpu_seconds=(), kind="wall", failure=None, stolen=False, machine="m", commit="c",
                  started="2025-01-02T03:04:05Z")


def test_benchmarks_start_again_if_a_condition_of_their_rows_differs(monkeypatch):
    def name(*settings, scale=0.01):
        corpus = AnchorCorpus(scale, reordered=False)
        return journal_folder("journals", *(settings or ({"a": 1, "b": [2]},)), corpora=[corpus]).name

    first = name()
    assert name({"b": (2.0,), "a": np.int64(1)}) == first
    assert first not in {name({"a": 1, "b": [3]}), name(scale=0.02), name({"a": 1, "b": [2]}, "more")}
    for function, value in (("code", "abc+1"), ("compiler_version", "cc 1"), ("package_versions", {"numpy": "0"}),
                            ("describe_machine", {"name": "another"})):
        with monkeypatch.context() as patch:
            patch.setattr(case_journal, function, lambda *given, value=value: value)
            assert name() != first


def test_lengths_count_by_their_content_and_not_by_their_path(tmp_path, monkeypatch):
    import gzip

    values = generated_lengths("cola", seed=0).values
    for folder, shift in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / folder).mkdir()
        with gzip.open(tmp_path / folder / "cola.txt.gz", "wt") as file:
            file.write("".join(f"{value + shift}\n" for value in values))
    first, second, third = (journal_folder("", lengths=LengthCorpus(str(tmp_path / name), ["cola"], 0))
                            for name in "abc")
    assert first == second != third


def test_samples_of_a_machine_with_other_parameters_teach_nothing_about_this_one(spade):
    entry = conditions_entry(("spmm", "spade", "cognate32"), "", conditions_of(spade, SpMM(), SIMULATED))
    table = SampleTable.of([], [entry])
    check_samples(table, replace(spade, readings=Readings(numbers="raw"), width=32), SpMM())
    check_samples(SampleTable.of([]), replace(spade, dram_gb_per_s=5), SpMM())
    with pytest.raises(SchemaError, match=r"another machine .* \(machine.dram_gb_per_s 58.6 -> 5\): .*collect"):
        check_samples(table, replace(spade, dram_gb_per_s=5), SpMM())
