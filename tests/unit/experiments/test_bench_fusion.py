"""The whole bench of tile fusion on small anchors, killed again and again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[3]
OVERRIDES = (
    "experiment=bench_fusion", "task.parts=[anchors]", "anchors.scale=0.001", "anchors.reordered=false", "timing=quick",
    "task.blocks.anchors.widths=[16]", "task.blocks.anchors.ops=[gemm_spmm,spmm_spmm]",
    "task.blocks.fused_anchors.widths=[16]", "task.blocks.fused_anchors.ops=[gemm_spmm]",
    "task.blocks.compilers_anchors.widths=[16]", "task.blocks.steps_anchors.widths=[16]",
    "task.blocks.one_thread_anchors.widths=[16]", "task.blocks.one_thread_anchors.ops=[gemm_spmm]",
)
KILLS = 2


def started(folder: Path) -> subprocess.Popen:
    places = {"ARTIFACTS": "artifacts", "OUTPUTS": "outputs"}
    environment = os.environ | {f"SPARLOOM_{name}": str(folder / place) for name, place in places.items()}
    command = [sys.executable, str(ROOT / "run.py"), *OVERRIDES, f"hydra.run.dir={folder / 'run'}"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "artifacts").rglob("*.jsonl"))


@pytest.mark.cc
@pytest.mark.slow
def test_a_run_killed_repeatedly_resumes(tmp_path):
    for number in range(KILLS):
        before, process = lines(tmp_path), started(tmp_path)
        while process.poll() is None and lines(tmp_path) < before + 2:
            time.sleep(0.01)
        assert process.poll() is None, number
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert lines(tmp_path) >= 2 * KILLS
    assert started(tmp_path).wait() == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for op in ("gemm_spmm", "spmm_spmm"):
        assert metrics[f"anchors/{op}/16/matrices"] == 6
        for name in ("auto_over_unfused", "auto_over_torch", "auto_over_scipy", "auto_over_separated"):
            assert metrics[f"anchors/{op}/16/{name}_low"] <= metrics[f"anchors/{op}/16/{name}"]
        assert metrics[f"anchors/{op}/16/auto_over_unfused_min"] > 0
    assert metrics["anchors/gemm_spmm/16/t1/auto_over_torch"] > 0
    assert metrics["anchors/gemm_spmm/16/auto_over_atomic"] > 0
    assert metrics["anchors/gemm_spmm/16/auto_over_listing_matrices"] == 6
    assert metrics["anchors/gemm_spmm/16/lap2d/auto_over_unfused"] > 0
    frame = pd.read_parquet(tmp_path / "run" / "per_matrix.parquet")
    assert frame.groupby(["matrix", "op", "width", "threads", "method"]).size().max() == 1
    assert np.isfinite(frame.loc[frame["method"] == "auto", "decision_seconds"]).all()
    assert (tmp_path / "run" / "anchors_gemm_spmm_rates.svg").exists()
    assert not list((tmp_path / "artifacts" / "bench_fusion").iterdir())
