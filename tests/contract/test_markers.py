"""Tests are skipped without the hardware or programs that their markers name, and distributed in a fixed order."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import file_order
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


@pytest.mark.parametrize("loaded", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 1, 2, 0)])
def test_the_longest_files_go_first_then_those_with_most_tests(loaded):
    folder = ROOT / "tests"
    assert all((folder / name).is_file() for name in file_order.LONGEST)
    dealt = [SimpleNamespace(path=folder / name) for name in ("few.py", "many.py", "many.py", file_order.LONGEST[1],
                                                              file_order.LONGEST[0], "equally_few.py")]
    expected = [dealt[place] for place in (4, 3, 1, 2, 5, 0)]  # of the last two by name
    items = [dealt[place] for place in loaded]
    file_order.pytest_collection_modifyitems(SimpleNamespace(rootpath=ROOT, workerinput={}), items)
    assert items == expected
