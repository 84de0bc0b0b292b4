"""Build the platform wheel, install it in an empty environment, and call it without a compiler.

    python tests/wheel_without_compiler.py [FOLDER]

Takes some minutes, most of them for compiling kernels at three levels of processors. Prints the packages that were
installed, the seconds of `pip install` and of the first product, and the speed of ready-built kernels over native ones.
The wheel stays in FOLDER (default: a temporary folder, which is removed).
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = """
import time; began = time.perf_counter()
import numpy as np, scipy.sparse, sparloom
A = scipy.sparse.random(3000, 2000, 0.01, format="csr", dtype=np.float32)
x = np.ones((2000, 32), np.float32)
q = np.ones((3000, 32), np.float32)
loaded = time.perf_counter()
y = sparloom.spmm(A, x)
first = time.perf_counter()
assert np.allclose(y, A @ x, atol=1e-3)
assert np.allclose(sparloom.sddmm(A, q, x), A.data * 32, rtol=1e-4)
assert sparloom.csr_attention(A, q, x, x).shape == (3000, 32)
from sparloom.jit.toolchain import _ready_built
level = {path.parent.name for path in _ready_built().values()}
print(f"import {loaded - began:.2f} s, first spmm {first - loaded:.2f} s, kernels {level}")
"""
RATES = """
import numpy as np, os, scipy.sparse, statistics, time
from sparloom.jit import compile_cpp
from sparloom.ops import SpMM
from sparloom.platforms.cpu_kernels import SpmmKernels, sparse_kernels
from sparloom.tuning.sparse.inputs import matrix_of
A = scipy.sparse.random(40000, 40000, 4e-4, format="csr", dtype=np.float32, random_state=0)
operands = SpMM().operands(matrix_of(A), 128, 0)
calls = []
for native in (False, True):
    library = compile_cpp(["cpu/spmm.cpp"], native=native)
    sparse_kernels.kernel_library = lambda name, element, library=library: library if name == "spmm" else compile_cpp(
        [f"cpu/{name}.cpp"])
    family = SpmmKernels(len(os.sched_getaffinity(0)), 128)
    calls.append(family.bind(operands, family.space().default(), family.result(operands)))
seconds = [[], []]
for _ in range(60):
    for index, call in enumerate(calls):
        began = time.perf_counter(); call(); seconds[index].append(time.perf_counter() - began)
ready, native = map(statistics.median, seconds)
print(f"SpMM, 40,000 rows, 640,000 nonzeros, 128 columns: ready-built {1e3 * ready:.2f} ms, native {1e3 * native:.2f} "
      f"ms, ratio {native / ready:.3f}")
"""


def run(*arguments: str, **options: object) -> str:
    done = subprocess.run(arguments, check=True, text=True, stdout=subprocess.PIPE, **options)
    return done.stdout


def say(text: str) -> None:
    sys.stdout.write(f"{text.rstrip()}\n")
    sys.stdout.flush()


def main(folder: Path) -> None:
    began = time.perf_counter()
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT),
        env={**os.environ, "SPARLOOM_PREBUILD": "1"})
    wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    say(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, built in {time.perf_counter() - began:.0f} s")
    home = folder / "environment"
    run(sys.executable, "-m", "venv", str(home))
    python = str(home / "bin" / "python")
    began = time.perf_counter()
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    say(f"installed in {time.perf_counter() - began:.0f} s")
    say(run(python, "-m", "pip", "list", "--disable-pip-version-check"))
    bare = {"PATH": "/nowhere", "HOME": str(folder / "home")}
    say("without a compiler: " + run(python, "-W", "error", "-c", FIRST, cwd="/", env=bare))
    say(run(python, "-c", RATES, cwd="/", env={**os.environ, "SPARLOOM_CACHE": str(folder / "cache")}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
