"""Export of a benchmark set from generated matrices; an interrupted one continues."""

from dataclasses import replace

import numpy as np
import pytest

from sparloom.data import TinySamples, load_benchmark
from sparloom.experiments.spade import ExportBenchmark, export_benchmark
from sparloom.platforms.spade import EVENTS, estimate_joules, simulate_events
from sparloom.sparse import SparseMatrix

pytestmark = pytest.mark.cc
GRID = ("task.designs=grid", "task.grid.pes=[32]", "task.grid.llc_kib=[1536]", "task.grid.dram_gb_per_s=[29.3,58.6]")
SMALL = "pes=32,llc_kib=1536,dram_gb_per_s=29.3"


class Generated:
    """The matrices of generated samples as a corpus."""

    def __init__(self, samples: TinySamples) -> None:
        self.samples = samples

    def load(self, name: str) -> SparseMatrix:
        pattern = self.samples._patterns[name]
        return SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))


@pytest.fixture(scope="module")
def tiny(build):
    """Make a task on the matrices of generated samples."""

    def made(*overrides: str, folder) -> ExportBenchmark:
        task = build("export_benchmark", "samples=tiny", "samples.configs=256", "task.matrices=4", *overrides,
                     folder=folder)
        return replace(task, corpus=Generated(task.samples))

    return made


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """A run with energies. Generated seconds are a formula, so the check of stored ones is left out."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_benchmark, "TOLERANCE", np.inf)
        task = tiny(folder=folder)
        return task, task.run(folder / "run"), folder


def test_every_label_is_there_with_its_energy(exported):
    task, metrics, folder = exported
    found = load_benchmark(folder / "run")
    assert set(found.labels) == {("spmm", "cognate32"), ("sddmm", "cognate32")}
    assert metrics["labels"] == 2 * metrics["matrices"] * 256
    assert metrics["labels"] == sum(each.seconds.size for each in found.labels.values())
    assert set(found.matrices["role"]) == {"train", "validation", "test"}
    for labels in found.labels.values():
        assert list(labels.events) == list(EVENTS)
        counts = np.stack([labels.events[name] for name in EVENTS], axis=-1)
        assert labels.joules == pytest.approx(estimate_joules(counts, task.energies["picojoules"]), rel=1e-6)
        assert (labels.events["multiplications"] == labels.events["multiplications"][:, :1]).all()
    text = (folder / "run" / "README.md").read_text(encoding="utf-8")
    assert "ISSCC 2014" in text
    assert all(f"| {name} |" in text for name in (*EVENTS, "estimated_joules", "simulated_seconds"))


def test_an_interrupted_export_simulates_only_what_is_missing(tiny, exported, monkeypatch, tmp_path):
    _, metrics, folder = exported
    kept = sorted((folder / "artifacts" / "benchmark").rglob("*.parquet"))
    assert len(kept) == 2 * metrics["matrices"]
    kept[0].unlink()
    kept[-1].write_bytes(kept[-1].read_bytes()[:-40])
    asked = []

    def counted(pattern, configs, **given):
        asked.extend(configs)
        return simulate_events(pattern, configs, **given)

    monkeypatch.setattr(export_benchmark, "TOLERANCE", np.inf)
    monkeypatch.setattr("sparloom.platforms.spade.simulate_events", counted)
    tiny(folder=folder).run(tmp_path)
    assert sorted(asked) == ["sddmm", "spmm"]
    first, again = (load_benchmark(path).labels["spmm", "cognate32"] for path in (folder / "run", tmp_path))
    assert (first.joules == again.joules).all()


def test_without_energies_nothing_is_simulated(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("sparloom.platforms.spade.simulate_events", None)
    metrics = tiny("task.energies=null", folder=tmp_path).run(tmp_path)
    labels = load_benchmark(tmp_path).labels["spmm", "cognate32"]
    assert labels.joules is None
    assert not labels.events
    assert metrics["simulation_seconds"] == 0


def test_other_designs_are_simulated(tiny, tmp_path):
    metrics = tiny(*GRID, "task.energies=null", folder=tmp_path).run(tmp_path)
    found = load_benchmark(tmp_path)
    assert found.designs["dram_gb_per_s"].to_dict() == {"cognate32": 58.6, SMALL: 29.3}
    assert found.labels["spmm", SMALL].seconds.shape == (metrics["matrices"], 256)


def test_stored_seconds_of_another_simulator_are_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"stored seconds of spmm on tiny/\w+ differ from simulated ones by .*: they"):
        tiny(folder=tmp_path).run(tmp_path)


def test_only_reordered_matrices_may_differ_from_stored_samples(tiny, tmp_path, caplog):
    task = tiny(folder=tmp_path)
    stored = np.ones((2, len(task.configs)))
    for place, config in enumerate(task.configs):
        seconds = stored.copy()
        seconds[1, place] = 1.25
        if config["reorder"]:
            caplog.clear()
            task._compare(seconds, stored, ["a/a", "b/b"], "spmm")
            assert "1 of 2 matrices have another order" in caplog.text
        else:
            with pytest.raises(ValueError, match=r"stored seconds of spmm on b/b differ from simulated ones by 0\.25"):
                task._compare(seconds, stored, ["a/a", "b/b"], "spmm")


def test_wrong_options_are_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"task\.designs=all is unknown: use base or grid"):
        tiny("task.designs=all", folder=tmp_path).run(tmp_path)
    with pytest.raises(ValueError, match=r"energies: none missing, flops unknown"):
        tiny("+task.energies.picojoules.flops=1", folder=tmp_path).run(tmp_path)
    with pytest.raises(ValueError, match=r"task\.matrices=0: give a number of at least 1"):
        tiny("task.matrices=0", folder=tmp_path).run(tmp_path)


def test_the_grid_is_that_of_the_exploration(build, tmp_path):
    assert build("export_benchmark", folder=tmp_path).grid == build("dse_spade", folder=tmp_path).grid
