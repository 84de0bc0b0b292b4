"""A collection fanned out through Hydra's launchers, and the whole path from an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparloom.data import SampleTable

ROOT = Path(__file__).parents[3]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    settings = {f"SPARLOOM_{name}": str(folder / name.lower()) for name in ("ARTIFACTS", "OUTPUTS", "DATA")}
    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments], capture_output=True, text=True, cwd=folder, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", **settings})


@pytest.mark.cc
@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "package"), [("local", "hydra_plugins.hydra_joblib_launcher"),
                                                   ("ray_local", "hydra_plugins.hydra_ray_launcher")])
def test_shards_of_a_collection_run_under_a_launcher(tmp_path, launcher, package):
    pytest.importorskip(package, reason="needs the extra scale")
    arguments = ("experiment=collect_spade", "corpus=tiny", "task.jobs=1")
    shards = run("-m", *arguments, f"hydra/launcher={launcher}", "task.shard=0/2,1/2", folder=tmp_path)
    assert shards.returncode == 0, shards.stderr
    whole = run(*arguments, folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    table = SampleTable.read(tmp_path / "data" / "synthetic" / "samples" / "spade_spmm.parquet")
    assert len(table) == 10 * 512
    assert "0 new" in whole.stdout or "new_rows" not in whole.stdout


@pytest.mark.slow
def test_what_is_missing_is_made_first_and_said(tmp_path):
    shown = run("experiment=finetune_tiny", "encoder.epochs=20", "task.seeds=[0]", "source.orders=waco",
                "model.net.featurizer.channels=[4,4,8,8,8,8,8,8,8,8,8,8]", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for experiment in ("autoencode_spade", "pretrain_cpu", "autoencode_cpu"):
        assert f"running experiment={experiment}" in shown.stdout
    assert "platform@target=cpu target.orders=waco first" in shown.stdout
    assert "COGNATE top-1" in shown.stdout
    (metrics,) = (tmp_path / "outputs" / "finetune_tiny").glob("*/metrics.json")
    assert metrics.exists()


@pytest.mark.slow
def test_without_preparing_the_error_stays(tmp_path):
    shown = run("experiment=finetune_tiny", "prepare=false", folder=tmp_path)
    assert shown.returncode == 1
    assert "experiment=autoencode_spade op=spmm" in shown.stderr.splitlines()[0]
