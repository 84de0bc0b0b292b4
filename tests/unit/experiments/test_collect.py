"""Collection: complete, resumable after kill -9, failures as rows, shards."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_emulator import Emulator
from toy import SIMULATED, ToyCorpus, ToyPlatform

from sparloom.data import SampleTable
from sparloom.experiments import Collect
from sparloom.experiments.cognate import FLUSH_SECONDS
from sparloom.measure import TimingProtocol
from sparloom.ops import CsrAttention, SpMM
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import AttentionProgram

TABLE = Path("toy", "samples", "toy_spmm.parquet")


def read(folder: Path) -> SampleTable:
    return SampleTable.read(folder / TABLE)


def collect(folder: Path, **changes) -> Collect:
    fields = {
        "op": SpMM(), "platforms": [ToyPlatform()], "corpus": ToyCorpus(), "timing": SIMULATED, "width": 16,
        "configs": "all", "roles": ["train", "validation", "test"], "matrices": [], "shard": "0/1", "jobs": 1,
        "journals": str(folder / "journals"), "data": str(folder), "partial": False, "seed": 0,
    }
    return Collect(**{**fields, **changes})


def test_collects_every_configuration_of_every_matrix(tmp_path):
    metrics = collect(tmp_path).run(tmp_path)
    table = read(tmp_path)
    assert metrics["new_rows"] == len(table) == 4 * 256
    assert table.matrices == ("toy/m10", "toy/m11", "toy/m8", "toy/m9")


def test_second_run_measures_nothing(tmp_path):
    collect(tmp_path).run(tmp_path)
    assert collect(tmp_path).run(tmp_path)["new_rows"] == 0


@pytest.mark.parametrize("configs", [0, -1, 257, 2.5, True, "many", "10", None])
def test_an_invalid_count_is_refused_before_any_work(tmp_path, configs):
    with pytest.raises(ValueError, match=r"configs=.* per matrix: give all, or an integer from 1 to 256"):
        collect(tmp_path, configs=configs).run(tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_width_is_collected_and_kept(tmp_path):
    collect(tmp_path, configs=10).run(tmp_path)
    assert collect(tmp_path, configs=10, width=32).run(tmp_path)["new_rows"] == 40
    assert collect(tmp_path, configs=10, width=16).run(tmp_path)["new_rows"] == 0
    assert read(tmp_path).frame()["width"].value_counts().to_dict() == {16: 40, 32: 40}


def test_shards_are_disjoint_and_complete(tmp_path):
    for shard in ("0/2", "1/2"):
        assert not (tmp_path / TABLE).exists()
        collect(tmp_path, shard=shard).run(tmp_path)
    assert len(read(tmp_path)) == 4 * 256


def test_failed_sample_is_a_row_with_its_reason(tmp_path):
    metrics = collect(tmp_path, platforms=[ToyPlatform(fails="bypass=1")]).run(tmp_path)
    failures = read(tmp_path).failures()
    assert metrics["new_failures"] == len(failures) == 4 * 128
    assert set(failures["failure"]) == {"does not fit"}


def test_only_raising_configurations_fail(tmp_path):
    class Broken(ToyPlatform):
        def measure_many(self, op, operands, configs, timing):
            for config, turn, measurement in super().measure_many(op, operands, configs, timing):
                if config["bypass"] and config["reorder"]:
                    raise RuntimeError("lost the device")
                yield config, turn, measurement

    collect(tmp_path, platforms=[Broken()], matrices=["toy/m8"]).run(tmp_path)
    table = read(tmp_path)
    assert (len(table), len(table.failures())) == (256, 64)
    assert set(table.failures()["failure"]) == {"RuntimeError: lost the device"}


def test_repeats_of_the_baseline_keep_their_rounds(tmp_path):
    class Repeating(ToyPlatform):
        def measure_many(self, op, operands, configs, timing):
            for turn in range(timing.rounds):
                for config, _, measurement in super().measure_many(op, operands, configs, timing):
                    yield config, turn, measurement
                for extra in range(2):
                    yield configs[0], timing.rounds + 2 * turn + extra, measurement

    twice = replace(SIMULATED, rounds=2)
    collect(tmp_path / "once", platforms=[Repeating()], timing=twice, configs=5).run(tmp_path)
    frame = read(tmp_path / "once").frame()
    assert frame["round"].value_counts().to_dict() == {0: 20, 1: 20, 2: 4, 3: 4, 4: 4, 5: 4}


def test_unreadable_matrix_is_left_out_and_tried_again(tmp_path):
    metrics = collect(tmp_path, corpus=ToyCorpus(broken="toy/m9")).run(tmp_path)
    assert (metrics["matrices"], metrics["left_out"]) == (3, 1)
    assert collect(tmp_path).run(tmp_path)["new_rows"] == 256


def test_processes_give_the_same_table(tmp_path):
    collect(tmp_path / "one").run(tmp_path)
    collect(tmp_path / "two", jobs=2).run(tmp_path)
    first, second = (read(tmp_path / name).frame() for name in ("one", "two"))
    volatile = ["started", "commit"]  # the checkout may change while tests run
    assert first.drop(columns=volatile).equals(second.drop(columns=volatile))


HERE = [str(Path(__file__).parents[up]) for up in (0, 2)]  # of this file, and of what all tests share
SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {here!r}
from test_collect import collect
from toy import ToyPlatform, lines
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    calls = str(folder / "calls")
    Path(calls + ".most").write_text(str(lines(calls) + 16))
    platform = ToyPlatform(calls=calls, sleep_seconds={seconds}, kind={kind!r})
    collect(folder, jobs=int(sys.argv[2]), configs=12, platforms=[platform]).run(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "kind", "seconds"), [
    pytest.param(1, "device", 0.01, marks=pytest.mark.exhaustive),
    (2, "simulated", FLUSH_SECONDS + 0.01),  # so slow that no two are written together
])
def test_a_collector_killed_repeatedly_loses_at_most_the_sample_in_flight(tmp_path, jobs, kind, seconds):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(here=HERE, kind=kind, seconds=seconds))
    kills = 0
    for _ in range(30):
        before = _rows(tmp_path)
        process = subprocess.Popen([sys.executable, str(script), str(tmp_path), str(jobs)], start_new_session=True)
        while process.poll() is None and _rows(tmp_path) < before + 12:
            time.sleep(0.003)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        _wait_for_orphans(process.pid)
    assert process.returncode == 0
    assert kills >= 3
    table = read(tmp_path)
    measured = len((tmp_path / "calls").read_text().splitlines())
    assert len(table) == 48
    assert measured - 48 <= kills * jobs


@pytest.mark.cc
def test_attention_on_a_gpu_is_collected(tmp_path, monkeypatch):
    """A head has 4 columns: 12 configurations are legal with warps=4; the baseline is repeated twice."""
    op, platform = CsrAttention(4), CudaPlatform("cuda_kernels", "h200", 16)
    whole = platform.space(op)
    space = replace(whole, parameters=tuple(replace(each, values=(4,)) if each.name == "warps" else each
                                            for each in whole.parameters))
    monkeypatch.setattr(platform, "space", lambda _: space)
    platform.gpu = Emulator(sorted({AttentionProgram.of(config, 4).text for config in space}), tmp_path)
    timing = TimingProtocol(rounds=1, repetitions=1, short_seconds=0.0, most_repetitions=1, slow_factor=4.0,
                            steal_ratio=1.5, retakes=0, seed=0)
    metrics = collect(tmp_path, op=op, platforms=[platform], timing=timing).run(tmp_path)
    table = SampleTable.read(tmp_path / "toy" / "samples" / "cuda_kernels_attention.parquet")
    assert metrics["new_rows"] == len(table) == 4 * (12 + 2)
    assert metrics["new_failures"] == 0


def _rows(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "journals").rglob("*.jsonl"))


def _wait_for_orphans(session: int) -> None:
    """Wait until the processes of a killed collector have ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        alive = [pid for pid in os.listdir("/proc") if pid.isdigit() and _session(pid) == session]
        if not alive:
            return
        time.sleep(0.02)
    pytest.fail(f"processes {alive} outlive the collector")


def _session(pid: str) -> int:
    try:
        return os.getsid(int(pid))
    except OSError:
        return -1
