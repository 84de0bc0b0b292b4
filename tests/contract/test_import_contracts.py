"""Layers of the package: imports go downwards, learning libraries and Hydra stay in their packages."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_imports_go_downwards():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kept, broken = map(int, re.search(r"(\d+) kept, (\d+) broken", done.stdout).groups())
    assert kept >= 4
    assert broken == 0
