"""A made-up chip from a CSV and a YAML file alone: fine-tune, evaluate, recommend for a new matrix."""

import csv
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sparloom.errors import Unsupported
from sparloom.space import read_description
from sparloom.sparse import Pattern, SparseMatrix, write_matrix

pytestmark = pytest.mark.slow

CHIP = """
name: chip
parameters:
  block_rows: {kind: integer, values: [8, 64], default: 64, tiles: i}
  block_cols: {kind: integer, values: [32, all], default: all, tiles: j}
  order: {kind: permutation, of: [i, j], orders: true, default: i.j}
  prefetch: {kind: integer, values: [0, 2], default: 0, own: true}
  codec: {kind: categorical, values: [none, delta, bitmap], default: none, own: true}
  double_buffer: {kind: boolean, default: no, own: true}
illegal:
  - {block_cols: 32, codec: bitmap}
"""
BASE = ("~samples.base.data", "~samples.base.folder", "~samples.base.corpus",
        "samples.base._target_=sparloom.data.TinySamples", "+samples.base.matrices=8", "+samples.base.configs=20",
        "+samples.base.seed=0")  # samples of the CPU
SHORT = ("trainer=smoke", "logger=none", "encoder.epochs=20", "model.net.featurizer.channels=[4,4,8,8,8,8,8,8,8,8,8,8]",
         "pretraining.matrices=3", "pretraining.configs_per_matrix=10")
LEARN = ("trees.bags=2", "trees.rounds=20", "task.seeds=[0]", "task.methods=[trees,cognate]", "selection.matrices=3",
         "selection.configs_per_matrix=20", "samples.files.spmm=chip.csv")


def scattered(seed: int) -> SparseMatrix:
    rng = np.random.default_rng(seed)
    pattern = Pattern.from_coo(rng.integers(0, 90 + seed, 600), rng.integers(0, 120, 600), (90 + seed, 120))
    return SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))


def milliseconds(pattern: Pattern, config) -> float:
    codec = {"none": 1.0, "delta": 0.8, "bitmap": 0.6}[config["codec"]]
    blocks = pattern.rows / config["block_rows"] * (1 if config["block_cols"] == "all" else 4)
    return pattern.nnz * 1e-3 * codec + blocks * (0.05 if config["prefetch"] else 0.1) + 0.1 * config["double_buffer"]


@pytest.fixture(scope="module")
def chip(tmp_path_factory) -> Path:
    """Write chip.yaml, chip.csv of 10 matrices, their files, and new.npz."""
    folder = tmp_path_factory.mktemp("chip")
    (folder / "chip.yaml").write_text(CHIP)
    (folder / "matrices").mkdir()
    space = read_description(folder / "chip.yaml").space("spmm")
    rows = [["matrix", *space.default().names, "ms"]]
    for number in range(10):
        matrix = scattered(number)
        write_matrix(folder / "matrices" / f"m{number}.npz", matrix)
        rows += [[f"m{number}", *(value for _, value in config.values), milliseconds(matrix.pattern, config)]
                 for config in space]
    with (folder / "chip.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    write_matrix(folder / "new.npz", scattered(99))
    return folder


@pytest.fixture(scope="module")
def run(chip, run_command):
    places = [f"paths.{name}={chip / name}" for name in ("artifacts", "data", "outputs")]

    def command(experiment: str, *overrides: str) -> subprocess.CompletedProcess:
        return subprocess.run([*run_command, f"experiment={experiment}", "space=chip.yaml", *places, *BASE, *SHORT,
                               *overrides], cwd=chip, capture_output=True, text=True, check=False)

    return command


def output(folder: Path, experiment: str, name: str) -> dict:
    run, = (folder / "outputs" / experiment).iterdir()
    return json.loads((run / name).read_text())


@pytest.fixture(scope="module")
def tuned(chip, run) -> Path:
    done = run("finetune_spade", "paths.mirror=matrices", *LEARN)
    assert done.returncode == 0, done.stdout + done.stderr
    return chip


def test_one_command_fine_tunes_and_evaluates(tuned):
    metrics = output(tuned, "finetune_spade", "metrics.json")
    assert metrics["test/matrices"] == 3
    assert metrics["test/labels_per_seed"] == 3 * 20
    assert metrics["test/optimum_speedup"] > 1
    assert metrics["test/top1_speedup"] > 0
    assert metrics["test/trees_top1_speedup"] > 1


def test_the_encoder_of_own_parameters_is_trained_first(tuned):
    metrics = output(tuned, "autoencode_spade", "metrics.json")
    assert metrics["codes"] == 2 * 3 * 2
    stored = sorted(path.name.rpartition("-")[0] for path in (tuned / "artifacts/checkpoints/csv").glob("*chip*"))
    version = read_description(tuned / "chip.yaml").space("spmm").digest()[:8]
    assert stored == [f"finetuned_chip-{version}_csv_spmm_cognate", f"latent_chip-{version}_spmm_autoencoder"]


def test_a_configuration_is_recommended_for_a_new_matrix(tuned, run):
    done = run("recommend", "matrix=new.npz")
    assert done.returncode == 0, done.stdout + done.stderr
    advice = output(tuned, "recommend", "recommendation.json")
    space = read_description(tuned / "chip.yaml").space("spmm")
    assert (advice["platform"], len(advice["configurations"])) == ("chip", 5)
    assert all(space.parse(entry["config"]) for entry in advice["configurations"])
    assert advice["loss_bound"] is None  # too few matrices have all configurations


def test_the_chip_is_not_run_from_here(tuned, build):
    task = build("recommend", f"space={tuned / 'chip.yaml'}", "platform@target=custom", "samples=csv", "verify=top",
                 f"matrix={tuned / 'new.npz'}", folder=tuned)
    with pytest.raises(Unsupported, match="verify=top runs configurations, and chip cannot be run from here"):
        task.run(tuned)
