"""Eight threads share packed models, structures, matrices, graphs and fused functions, with forced switches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch_geometric")

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache"), pytest.mark.slow]
STRESS = Path(__file__).parents[1] / "stress_threads.py"


SCENARIOS = ("BertModel", "TransformerEncoder", "ragged", "sparse", "graphs", "fused")


def test_threads_get_the_results_of_one():
    done = subprocess.run([sys.executable, "-W", "ignore", str(STRESS), *SCENARIOS, "--calls", "64"],
                          env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, timeout=900,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(" 0 failed") == len(SCENARIOS)
