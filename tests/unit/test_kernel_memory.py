"""Compiled functions without memory raise an exception, and use fewer threads if none can be created."""

import os
import subprocess
import sys

import pytest

from sparloom.jit import check_memory

pytestmark = [pytest.mark.cc, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")]

BEGIN = """
import resource
import numpy as np

def limit(spare):
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, resource.getrlimit(resource.RLIMIT_AS)[1]))

def lift():
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
"""

NO_MEMORY = BEGIN + """
from sparloom.fusion import FusedLoops, Loop, Reads, schedule_tiles
from sparloom.platforms.cpu_schedules import Layout, Packer
from sparloom.platforms.spade import simulate as native
from sparloom.sparse import Pattern, SparseMatrix

def attempt(name, work, spare=64 << 20):
    lift()
    work(1)  # compiles and loads what it needs
    limit(spare)
    try:
        work(2**31 - 1)
    except MemoryError as error:
        print(name, "|", error)
    lift()

def schedule(threads):
    def run(extent):
        reads = [Reads(np.arange(65, dtype=np.int64), np.zeros(64, np.int32), each) for each in (extent, 64)]
        loops = FusedLoops(*(Loop(64, each, 8, 8, 8) for each in reads))
        schedule_tiles(loops, threads=threads, cache_bytes=1200, ct_size=64)
    return run

def pack(extent):
    pattern = Pattern((2, extent), np.array([0, 1, 1]), np.zeros(1, np.int32))
    layout = Layout.of(pattern.shape, rows_tile=2, cols_tile=1, order=("io", "jo", "ii", "ji"), formats="UCCC")
    Packer(SparseMatrix(pattern, np.ones(1, np.float32))).count(layout)

def simulate(extent):
    numbers, places = [np.zeros(8, np.int32) for _ in range(4)], [np.zeros(8, np.int64) for _ in range(2)]
    native.call("spade_tile", [1, extent, np.array([0, 1]), np.zeros(1, np.int32), 1, 1, *numbers[:2], places[0],
                               *numbers[2:], places[1]])

attempt("tiles", schedule(1))
attempt("tiles in threads", schedule(2))
attempt("pack", pack)
attempt("spade", simulate)
print("alive")
"""

NO_THREADS = BEGIN + """
from sparloom.tuning.sparse import CpuBackend
from sparloom.tuning.sparse import NativeReplay
from sparloom.ir import I64, For, Kernel, Param, Ref, Store
from sparloom.jit import compile_c
from sparloom.ops import Operands, SpMM
from sparloom.sparse import Pattern, SparseMatrix

def replay(threads):
    place = CpuBackend(threads)
    return NativeReplay(place.kernels(SpMM(), 1), place.default_config(SpMM(), operands))

rng = np.random.default_rng(0)
pattern = Pattern.from_coo(rng.integers(0, 400, 4000), rng.integers(0, 400, 4000), (400, 400))
A = SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))
operands = Operands(A, {"B": np.ones((400, 128), np.float32)})  # enough work for two threads
expected = np.repeat(np.diff(pattern.indptr)[:, None], 128, axis=1)
replay(1)(operands)
ready = replay(2)
out = (Param("y", I64, True, False),)
library = compile_c([Kernel("k", out, [For("i", 0, 8, [Store("y", Ref("i"), Ref("i"))], "parallel")])])
y = np.zeros(8, np.int64)
library.set_threads(1)
limit(6 << 20)  # less than the stack of a thread
library.set_threads(2)
library.function("k")(y)
np.testing.assert_array_equal(y, np.arange(8))
for _ in range(3):
    np.testing.assert_array_equal(ready(operands), expected)
lift()
np.testing.assert_array_equal(ready(operands), expected)
print("alive")
"""


def test_out_of_memory_errors_name_their_purpose():
    told = dict(line.split(" | ") for line in run(NO_MEMORY, "alive").splitlines() if " | " in line)
    assert set(told) == {"tiles", "tiles in threads", "pack", "spade"}
    assert all(text.startswith("no memory to ") and "MiB: free some" in text for text in told.values())
    assert "sort SparseMatrix(2 x 2147483647, 1 nonzeros) by columns, which takes about 8192.0 MiB" in told["pack"]


def test_without_memory_for_threads_fewer_are_used():
    run(NO_THREADS, "alive")


def test_the_message_names_size_and_purpose():
    check_memory(0, "work", 1)
    with pytest.raises(MemoryError, match=r"no memory to cut it, which takes about 3\.0 MiB: free some, or"):
        check_memory(1, "cut it", 3 << 20)


def run(script, last):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300,
                          check=False, env=os.environ | {"AUTOSAGE_CACHE": "0", "OMP_NUM_THREADS": "2"})
    assert last in done.stdout, done.stdout + done.stderr
    return done.stdout
