"""A collection distributed by Hydra's launchers, and the whole path from an empty folder."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sparloom.data import SampleTable
from sparloom.report import read_runs


def environment(folder: Path) -> dict[str, str]:
    settings = {f"SPARLOOM_{name}": str(folder / name.lower()) for name in ("ARTIFACTS", "OUTPUTS", "DATA")}
    return {**os.environ, "OMP_NUM_THREADS": "1", **settings}


@pytest.fixture
def run(run_command):
    """Start run.py in a folder and wait for its end."""
    return lambda *arguments, folder: subprocess.run([*run_command, *arguments], capture_output=True, text=True,
                                                     cwd=folder, env=environment(folder), timeout=600, check=False)


@pytest.mark.cc
@pytest.mark.slow
def test_shards_of_a_collection_run_under_a_launcher(run, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the launcher is in the extra scale")
    arguments = ("experiment=collect_spade", "corpus=tiny", "task.jobs=1")
    shards = run("-m", *arguments, "hydra/launcher=local", "task.shard=0/2,1/2", folder=tmp_path)
    assert shards.returncode == 0, shards.stderr
    whole = run(*arguments, folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    table = SampleTable.read(tmp_path / "data" / "synthetic" / "samples" / "spade_spmm.parquet")
    assert len(table) == 10 * 512
    assert "0 new" in whole.stdout or "new_rows" not in whole.stdout
    ended = read_runs(tmp_path / "outputs")
    assert list(ended["status"]) == ["finished"] * 3
    assert sorted(map(tuple, ended["overrides"].map(lambda overrides: overrides[3:]))) == [
        (), ("task.shard=0/2",), ("task.shard=1/2",)]


@pytest.mark.slow
def test_missing_prerequisites_are_made_first_and_reported(run, tmp_path):
    shown = run("experiment=finetune_tiny", "encoder.epochs=20", "task.seeds=[0]", "platform@source=cpu",
                "source.orders=waco",
                "model.net.featurizer.channels=[4,4,8,8,8,8,8,8,8,8,8,8]",
                "hydra.run.dir='outputs/finetune_tiny/run[1]'", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "finetune_tiny/run[1]" in shown.stdout
    for experiment in ("autoencode_spade", "pretrain_cpu", "autoencode_cpu"):
        assert f"running experiment={experiment}" in shown.stdout
    assert "platform@target=cpu target.orders=waco first" in shown.stdout
    assert "COGNATE top-1" in shown.stdout
    (metrics,) = (tmp_path / "outputs" / "finetune_tiny").glob("*/metrics.json")
    ended = read_runs(tmp_path / "outputs")
    assert list(ended["experiment"]) == ["autoencode_spade", "autoencode_cpu", "pretrain_cpu", "finetune_tiny"]
    assert set(ended["status"]) == {"finished"}
    assert ended["test/top1_speedup"].iloc[-1] == json.loads(metrics.read_text())["test/top1_speedup"]


@pytest.mark.slow
def test_without_preparing_the_error_stays(run, tmp_path):
    shown = run("experiment=finetune_tiny", "prepare=false", folder=tmp_path)
    assert shown.returncode == 1
    assert "experiment=autoencode_spade op=spmm" in shown.stderr.splitlines()[0]


@pytest.mark.slow
def test_interrupted_training_is_reported(run_command, tmp_path):
    command = (*run_command, "experiment=pretrain_cpu", "samples=tiny", "encoder.epochs=20", "trainer=cpu",
               "trainer.epochs=10000", "model.net.featurizer.channels=[4,4,8,8,8,8,8,8,8,8,8,8]", "hydra.run.dir=run")
    printed, told = (tmp_path / name for name in ("printed", "told"))
    with printed.open("wb") as output, told.open("wb") as errors:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=output, stderr=errors)
    try:
        while process.poll() is None and not (tmp_path / "run" / "training").exists():
            time.sleep(0.1)
        for _ in range(6):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):  # Python ignores an interrupt that comes within a finaliser
                process.wait(timeout=20)
                break
    finally:
        process.kill()
    assert process.returncode == 130
    assert told.read_text().splitlines()[-1].startswith("interrupted: ")
    ended = read_runs(tmp_path / "outputs")
    assert list(ended["status"]) == ["finished", "failed"]
    assert list(ended["reason"])[1] == "interrupted"
