"""Every kind of parallel call works in forked children, even if other threads held locks at the fork."""

import os
import subprocess
import sys
import threading

import pytest

from sparloom.forks import forkable

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")

SCRIPT = """
import ctypes, os, sys, threading, time
import numpy as np, torch
import sparloom, sparloom.nn as nn
from sparloom.tuning import PlanCache, plan_pair
from sparloom.ops import GemmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.solvers import jacobi

torch.set_num_threads(2)
rng = np.random.default_rng(0)
import scipy.sparse
A = scipy.sparse.random_array((400, 400), density=0.05, format="csr", dtype=np.float32, rng=rng)
D = (A + 50 * scipy.sparse.eye_array(400, dtype=np.float32)).tocsr()
W = np.ones((400, 64), np.float32)  # enough work for two threads
X, Q = np.ones((400, 16), np.float32), rng.standard_normal((400, 2, 8)).astype(np.float32)
B = np.ones((400, 1), np.float32)
prepared = {n: sparloom.prepare(A, threads=n, libraries={}) for n in (1, 2)}
op = GemmSpmm()
operands = op.operands(SparseMatrix(Pattern(A.shape, A.indptr, A.indices), A.data), width=8, seed=0)
pairs = {n: plan_pair(op, operands, threads=n, fuse="always", cache=PlanCache(None)) for n in (1, 2)}
gcn, edges = nn.GCNConv(16, 16), torch.from_numpy(np.stack(A.nonzero()).astype(np.int64))
encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0).eval()
tokens, lengths = torch.ones(60, 16), torch.tensor([30, 10, 20])


def pair(plan):
    result = plan.executor.result(operands)
    plan.executor.bind(operands, result)()
    return result


CALLS = {
    "spmm": lambda n: prepared[n].spmm(W),
    "max": lambda n: prepared[n].spmm(W, reduce="max"),
    "sddmm": lambda n: prepared[n].sddmm(W, W),
    "attention": lambda n: prepared[n].attention(Q, Q, Q),
    "pair": lambda n: pair(pairs[n]),
    "jacobi": lambda n: jacobi(SparseMatrix(Pattern(D.shape, D.indptr, D.indices), D.data), B, threads=n, fuse="never",
                             numbering="natural").solution,
    "gcn": lambda n: gcn(torch.from_numpy(X), edges).detach().numpy(),
    "encoder": lambda n: encoder(tokens, lengths).detach().numpy(),
}


def check():
    for name, call in CALLS.items():
        for n in (2, 1):
            np.testing.assert_allclose(call(n), expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def forked(work, fork=os.fork):
    child = fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(type(error), error, flush=True)
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, f"a child ended with {status}"
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("a child hangs")


def family():
    check()
    forked(check)


expected = {name: np.array(call(2)) for name, call in CALLS.items()}
check()
forked(family)  # a child, and a child of it
forked(check, ctypes.PyDLL(None).fork)  # without the functions that Python calls before and after
check()  # the parent has threads again
stop = threading.Event()


def busy():
    while not stop.is_set():
        prepared[2].spmm(W)


others = [threading.Thread(target=busy) for _ in range(2)]
for other in others:
    other.start()
for _ in range(2):
    forked(check)  # others are in the middle of calls
thread = threading.Thread(target=forked, args=(check,))  # a fork by another thread than the main one
thread.start()
thread.join()
stop.set()
for other in others:
    other.join()
print("works", len(CALLS))
"""

LATE = """
import os, sys, time
import torch
torch.set_num_threads(2)
a = torch.ones(600, 600)
torch.exp(a @ a)
child = os.fork()
if child == 0:
    import numpy as np, scipy.sparse, sparloom
    A = scipy.sparse.eye_array(500, dtype=np.float32, format="csr")
    total = sparloom.prepare(A, threads=2, libraries={}).spmm(np.ones((500, 8), np.float32)).sum()
    os._exit(0 if total == 4000 else 1)
end = time.monotonic() + 60
while time.monotonic() < end:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        print("status", status)
        break
    time.sleep(0.01)
else:
    os.kill(child, 9)
    print("hangs")
"""


@pytest.mark.slow
@pytest.mark.cc
def test_all_parallel_calls_work_in_children_and_grandchildren(tmp_path):
    assert "works 8" in _run(SCRIPT, tmp_path)


@pytest.mark.slow
@pytest.mark.cc
@pytest.mark.parametrize("before", ["", "import sparloom"], ids=["imported in the child", "imported in the parent"])
def test_a_child_works_if_its_parent_used_only_torch(tmp_path, before):
    assert "status 0" in _run(f"{before}\n{LATE}", tmp_path)


def test_locks_held_by_other_threads_are_free_in_children():
    locks = [forkable(threading.Lock()), forkable(threading.RLock())]
    held, leave = threading.Event(), threading.Event()

    def hold():
        with locks[0], locks[1]:
            held.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if all(lock.acquire(timeout=5) for lock in locks) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not locks[0].acquire(blocking=False), "that of the parent stays held"
    leave.set()
    holder.join()


def test_an_rlock_of_the_forking_thread_stays_held():
    lock = forkable(threading.RLock())
    with lock:
        child = os.fork()
        if child == 0:
            try:
                lock.release()
            except RuntimeError:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def _run(script, folder):
    environment = os.environ | {"AUTOSAGE_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
    return done.stdout + done.stderr
