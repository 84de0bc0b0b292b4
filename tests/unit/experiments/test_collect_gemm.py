"""Collection of GEMM: sweeps, vendor rows, resuming after kill -9, reports of wrong results."""

import os
import tempfile
from pathlib import Path

import pytest

from sparloom.data import SampleTable
from sparloom.experiments import CollectGemm
from sparloom.experiments.harness import claim_processor
from sparloom.measure import TimingProtocol
from sparloom.ops import GemmShape, GemmShapes
from sparloom.platforms import CpuKernels, GemmKernels

pytestmark = pytest.mark.cc

QUICK = TimingProtocol(rounds=2, repetitions=2, short_seconds=2e-5, most_repetitions=2, slow_factor=3.0,
                       steal_ratio=1e9, retakes=0, seed=0)
CONFIGS = 493
TABLE = Path("data", "samples", "cpu_kernels_gemm.parquet")


@pytest.fixture(scope="module", autouse=True)
def _own_locks(tmp_path_factory):
    """Use separate locks, so that tests and a real collection on this machine do not wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("locks")))
        patch.setattr(tempfile, "tempdir", None)
        yield


class TwoShapes(GemmShapes):
    """One below 10 MFLOP, one whose operands exceed 40 kB."""

    def __init__(self) -> None:
        super().__init__({"tiny": 0}, flops=1, bytes=1, seed=0)

    def problems(self):
        from sparloom.ops import GemmProblem

        return tuple(GemmProblem(shape, "test") for shape in (GemmShape(9, 20, 7), GemmShape(1, 100, 130)))


def collect(folder: Path, **changes) -> CollectGemm:
    fields = {
        "platform": CpuKernels(1, 32), "shapes": TwoShapes(), "timing": QUICK, "count": None, "jobs": 1,
        "alone_bytes": 4e4, "journals": str(folder / "journals"), "data": str(folder / "data"),
    }
    return CollectGemm(**{**fields, **changes})


def read(folder: Path) -> SampleTable:
    return SampleTable.read(folder / TABLE)


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("collected")
    metrics = collect(folder).run(folder)
    assert (metrics["shapes"], metrics["new_rows"], metrics["new_failures"]) == (2, 2 * 2 * (CONFIGS + 1), 0)
    assert metrics["small/rows_per_second_0"] > 0
    assert metrics["memory/rows_per_second_1"] > 0
    return folder


def test_every_configuration_and_the_vendor_have_a_row_in_every_sweep(collected):
    table = read(collected)
    table.validate()
    frame = table.frame()
    counts = frame.groupby(["matrix", "width", "round", "preset"], observed=True).size()
    assert sorted(set(counts.index)) == [
        (matrix, width, turn, preset) for matrix, width in (("dense/1x130", 100), ("dense/9x7", 20))
        for turn in (0, 1) for preset in ("t1", "vendor")]
    assert set(counts[:, :, :, "t1"]) == {CONFIGS}
    assert set(frame[frame.preset == "vendor"].config) <= {"vendor=mkl", "vendor=torch"}
    assert table.provenance[0]["processes"] == 1


def test_the_second_sweep_begins_when_the_first_has_ended(collected):
    started = read(collected).frame().groupby("round")["started"]
    assert started.max()[0] <= started.min()[1]


def test_wrong_results_are_failed_rows_and_reported(tmp_path, monkeypatch, caplog, capsys):
    bind = GemmKernels.bind

    def spoiled(family, operands, config, result):
        call = bind(family, operands, config, result)
        return call if config["micro"] != "12x32" else lambda: result.fill(1)

    monkeypatch.setattr(GemmKernels, "bind", spoiled)
    metrics = collect(tmp_path, count=1).run(tmp_path)
    wrong = read(tmp_path).failures()
    assert metrics["new_failures"] == len(wrong) == 2 * 48
    assert set(wrong["config"].str.extract("micro=([^,]*)")[0]) == {"12x32"}
    assert "96 of 988 new rows are wrong results: mend the kernels before using the table" in caplog.text
    assert "96 of 988 samples failed" in capsys.readouterr().out


def test_two_processes_claim_two_processors():
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one processor")
    with claim_processor() as first:
        assert os.sched_getaffinity(0) == {first}
        os.sched_setaffinity(0, before)
        with claim_processor() as second:
            assert first != second
    assert os.sched_getaffinity(0) == before
