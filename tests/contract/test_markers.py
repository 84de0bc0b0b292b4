"""What tests do without the hardware or the programs that their markers name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_without_a_compiler_tests_that_need_one_are_skipped_with_the_reason():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit/jit/test_compile.py"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "CC": "no-such-compiler"}, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CC='no-such-compiler' is not a program on PATH: set CC to a compiler or unset it" in done.stdout
    assert "passed" not in done.stdout.splitlines()[-1]
