"""Collection of GEMM: sweeps, vendor rows, resuming after kill -9, reports of wrong results."""

import os
import shutil
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from warm_python import WarmProgram

from sparloom.data import Journal, SampleTable
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


def test_second_run_measures_nothing(collected):
    assert collect(collected).run(collected)["new_rows"] == 0


def test_samples_missing_from_a_torn_journal_are_measured_again(collected):
    path = next((collected / "journals").rglob("*1x130x100.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:100]) + lines[100][:50])
    assert collect(collected).run(collected)["new_rows"] == len(lines) - 100
    assert len(read(collected)) == 2 * 2 * (CONFIGS + 1)


def test_rows_of_another_platform_stay_in_its_own_table(collected, tmp_path):
    shutil.copytree(collected, tmp_path / "copy")
    folder = tmp_path / "copy" / "journals" / "gemm"
    own, other = (Journal(folder, (*platform, "gemm", "dense/9x7x20"))
                  for platform in (("cpu_kernels", "t1"), ("triton", "h200")))
    other.append([replace(own.samples()[0], platform="triton", preset="h200")])
    assert collect(tmp_path / "copy").run(tmp_path)["new_rows"] == 0
    assert set(read(tmp_path / "copy").frame()["platform"]) == {"cpu_kernels"}


def test_shapes_without_journal_keep_their_rows(collected, tmp_path):
    (tmp_path / "data").symlink_to(collected / "data")
    one = collect(tmp_path, count=1)
    metrics = one.run(tmp_path)
    assert metrics["shapes"] == 1
    assert len(read(collected)) == 2 * 2 * (CONFIGS + 1)


@pytest.mark.parametrize("count", [0, -1, 3, 1.5, True, "all"])
def test_an_invalid_count_is_refused_before_any_work(tmp_path, count):
    with pytest.raises(ValueError, match=r"count=.* shapes: give an integer from 1 to 2, or null for all"):
        collect(tmp_path, count=count).run(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("processes_loaded")
def test_processes_collect_the_same_rows(tmp_path):
    metrics = collect(tmp_path, jobs=2, alone_bytes=1e9).run(tmp_path)
    assert metrics["new_rows"] == len(read(tmp_path)) == 2 * 2 * (CONFIGS + 1)


def test_threads_of_several_jobs_would_disturb_each_other(tmp_path):
    with pytest.raises(ValueError, match=r"2 jobs of preset t2 would disturb each other's times: task.jobs=1"):
        collect(tmp_path, platform=CpuKernels(2, 32), jobs=2).run(tmp_path)


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


def test_too_many_processes_are_refused():
    with claim_processor(), pytest.raises(RuntimeError, match="all 1 processors are claimed"), claim_processor():
        pass


def test_the_experiment_collects_all_shapes_and_configurations(build, tmp_path):
    task = build("collect_gemm", folder=tmp_path)
    assert len(task.shapes.problems()) * len(task.platform.space(_Gemm())) * task.timing.rounds >= 120_000
    assert task.platform.preset == "t1"


class _Gemm:
    name = "gemm"


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {here!r}
from test_collect_gemm import collect
if __name__ == "__main__":
    collect(Path(sys.argv[1]), jobs=int(sys.argv[2]), alone_bytes=1e9).run(Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_killed_repeatedly_resumes(python_of_runs, tmp_path, jobs):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(here=[str(Path(__file__).parents[up]) for up in (0, 2)]))
    kills = 0
    for _ in range(30):
        before = _rows(tmp_path)
        process = WarmProgram(python_of_runs, [str(script), str(tmp_path), str(jobs)], folder=tmp_path, copied=True)
        while process.poll() is None and _rows(tmp_path) == before:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.returncode == 0
    assert kills >= 2
    table = read(tmp_path)
    assert len(table) == 2 * 2 * (CONFIGS + 1)
    least = np.array([min(seconds) for seconds in table.frame()["seconds"]])
    assert (least > 1e-9).all()
    assert not list(Path(tmp_path, "journals").rglob("*.partial"))


def _rows(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "journals").rglob("*.jsonl"))


def test_journals_are_one_per_shape(collected):
    names = sorted(path.name for path in (collected / "journals" / "gemm").glob("*.jsonl"))
    assert names == ["cpu_kernels,t1,gemm,dense%2F1x130x100.jsonl", "cpu_kernels,t1,gemm,dense%2F9x7x20.jsonl"]
    journal = Journal(collected / "journals" / "gemm", ("cpu_kernels", "t1", "gemm", "dense/9x7x20"))
    assert len(journal.samples()) == 2 * (CONFIGS + 1)
