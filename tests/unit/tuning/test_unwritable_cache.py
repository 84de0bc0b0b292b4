"""Without a folder that can be written to, everything works, and one warning names the remedy: real processes."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from sparloom import jit
from sparloom.tuning import PlanCache

jit.compile_c([jit.Source("answer", (), "int answer(void) { return 1; }\\n")])
cache = PlanCache.of_this_user()
for kind in ("csr", "rates"):
    cache.put(kind, {"key": 1}, {"value": 1})
    assert cache.get(kind, {"key": 1}) is None
"""


@pytest.mark.cc
@pytest.mark.parametrize("place", ["/dev/null/x", "parts"])
def test_kernels_and_decisions_do_without_a_cache_and_one_warning_says_so(tmp_path, place):
    (tmp_path / "parts").mkdir()
    for part in ("jit", "plans"):
        (tmp_path / "parts" / part).write_text("in the way")
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "HOME": "/dev/null/home", "SPARLOOM_CACHE": str(tmp_path / place),
             "TMPDIR": str(tmp_path / "temporary")})
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert len(warnings) == 1
    assert "SPARLOOM_CACHE" in warnings[0]
