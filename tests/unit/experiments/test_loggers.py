"""Loggers of other programs receive the curves of every training and the metrics of the run."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CURVES = {f"{stage}/{name}" for stage in ("train", "validation") for name in ("prl", "opa", "kendall_tau")}


def pretrain(command: list[str], folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Pre-train a small network for two epochs."""
    settings = {f"SPARLOOM_{name}": str(folder / name.lower()) for name in ("ARTIFACTS", "OUTPUTS", "DATA")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [*command, "experiment=pretrain_cpu", "samples=tiny", "trainer=smoke",
         "encoder.epochs=20", "model.net.featurizer.channels=[4,4,8,8,8,8,8,8,8,8,8,8]", "hydra.run.dir=run",
         *arguments],
        capture_output=True, text=True, cwd=folder, timeout=600, stdin=subprocess.DEVNULL,
        env={**kept, "OMP_NUM_THREADS": "1", "HOME": str(folder), "NETRC": str(folder / "netrc"), **settings,
             **environment})


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"no {package}: it is in the extra track")


def read(script: str, folder: Path) -> Any:
    """Read the rows of a logger."""
    shown = subprocess.run([sys.executable, str(Path(__file__).with_name(script)), str(folder)], capture_output=True,
                           text=True, check=True)
    return json.loads(shown.stdout)


def expected(folder: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Read the curves and metrics that the run wrote."""
    curves = pd.read_csv(folder / "run" / "curves.csv")
    assert set(curves.columns) >= CURVES
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert metrics
    return {name: list(curves[name]) for name in sorted(CURVES)}, metrics


def same(rows: list[dict[str, float]], curves: dict[str, list[float]]) -> None:
    """Return whether rows of a logger contain all curves."""
    for name, values in curves.items():
        assert [row[name] for row in rows if name in row] == pytest.approx(values), name


def test_tensorboard_gets_curves_and_metrics(run_command, tmp_path):
    needs("tensorboard")
    done = pretrain(run_command, tmp_path, "logger=tensorboard")
    assert done.returncode == 0, done.stderr
    scalars = read("event_files.py", tmp_path / "run")
    curves, metrics = expected(tmp_path)
    for name, values in curves.items():
        assert scalars["training"][name] == pytest.approx(values), name
    assert {name: scalars["."][name] for name in metrics} == {
        name: pytest.approx([value], rel=1e-6) for name, value in metrics.items()}


def test_wandb_offline_needs_no_account_and_no_network(run_command, tmp_path):
    needs("wandb")
    done = pretrain(run_command, tmp_path, "logger=wandb", WANDB_BASE_URL="http://127.0.0.1:9")  # nobody listens
    assert done.returncode == 0, done.stderr
    curves, metrics = expected(tmp_path)
    training, = (tmp_path / "run" / "training" / "wandb").glob("offline-run-*")
    end, = (tmp_path / "run" / "wandb").glob("offline-run-*")
    same(read("wandb_files.py", training), curves)
    row, = read("wandb_files.py", end)
    assert {name: row[name] for name in metrics} == metrics


@pytest.mark.parametrize(("logger", "package"), [("wandb", "wandb"), ("tensorboard", "tensorboard")])
def test_missing_package_is_reported_before_anything_runs(tmp_path, logger, package):
    command = [sys.executable, str(Path(__file__).with_name("without_package.py")), package, str(ROOT / "run.py")]
    done = pretrain(command, tmp_path, f"logger={logger}")
    assert done.returncode == 1
    assert f"error: logger={logger} needs the package {package}: pip install 'sparloom[track]' (in a" in done.stderr
    assert not (tmp_path / "artifacts").exists()
