"""Invalid or excessive numbers of threads are refused before any thread is started."""

import numpy as np
import pytest
import scipy.sparse
import torch

import sparloom
from sparloom import nn
from sparloom.fusion import Budget, Executor, fprange, fuse, unfused_schedule
from sparloom.jit import compile_c
from sparloom.measure import checked_threads
from sparloom.ops import Operands, SpmmSpmm
from sparloom.platforms import CpuKernels
from sparloom.ragged import NormSchedule, compiled_layer_norm
from sparloom.solvers import JacobiSolver
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import plan_pair

A = SparseMatrix(Pattern.identity(8), np.full(8, 2.0, np.float32))
X = np.ones((8, 4), np.float32)
PAIR = Operands(A, {"C": X}, A)
SCIPY = scipy.sparse.csr_array(scipy.sparse.eye_array(8, dtype=np.float32))
DOORS = {
    "checked_threads": checked_threads,
    "spmm": lambda threads: sparloom.spmm(SCIPY, X, threads=threads),
    "sddmm": lambda threads: sparloom.sddmm(SCIPY, X, X, threads=threads),
    "csr_attention": lambda threads: sparloom.csr_attention(SCIPY, X, X, X, threads=threads),
    "spmm of another format": lambda threads: sparloom.spmm(SCIPY.tocoo(), X, threads=threads),
    "prepare": lambda threads: sparloom.prepare(SCIPY, threads=threads),
    "plan_pair": lambda threads: plan_pair(SpmmSpmm(), PAIR, threads=threads),
    "jacobi": lambda threads: JacobiSolver(A, 2, threads=threads),
    "executor": lambda threads: Executor(SpmmSpmm(), unfused_schedule(A.pattern, threads=1), threads),
    "fuse": lambda threads: fuse(twice, budget=Budget(threads, 1 << 16))(SCIPY, X),
    "kernels": lambda threads: CpuKernels(threads, 8),
    "ragged layer": lambda threads: compiled_layer_norm(8, 1e-5, NormSchedule(), threads=threads).inference,
    "library": lambda threads: compile_c([]).set_threads(threads),
}


def twice(A, X):
    n, width = X.shape
    Y, Z = np.empty((n, width), np.float32), np.empty((n, width), np.float32)
    for i in fprange(n):
        for k in range(width):
            Y[i, k] = X[i, k]
    for j in fprange(n):
        for k in range(width):
            Z[j, k] = Y[j, k]
    return Z


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("door", DOORS)
def test_invalid_numbers_of_threads_are_refused(door):
    for threads in (40_000, 10**6, 2**31, 2**70):
        with pytest.raises(ValueError, match=rf"{threads} threads: give at most \d+ on this machine"):
            DOORS[door](threads)
    for threads in (0, -1):
        with pytest.raises(ValueError, match=rf"{threads}.* at least 1"):
            DOORS[door](threads)
    for threads in (True, 2.5, 2.0, "2", np.float32(2), np.True_):
        with pytest.raises(TypeError, match=r"threads=.*: give a whole number, at least 1"):
            DOORS[door](threads)


def test_any_integer_type_is_accepted_for_threads():
    assert [checked_threads(threads) for threads in (1, np.int64(2), np.uint8(3), 64)] == [1, 2, 3, 64]
    assert checked_threads(None) >= 1


@pytest.mark.parametrize("call", [
    lambda: nn.LayerNorm(8)(torch.ones(8, 8), [3, 5]),
    lambda: nn.GCNConv(64, 64)(torch.ones(2000, 64), torch.arange(40_000).remainder(2000).reshape(2, -1)),
    lambda: nn.spmm((torch.arange(9), torch.arange(8), torch.ones(8), (8, 8)), torch.ones(8, 2)),
], ids=["layer", "convolution", "operation"])
def test_too_many_torch_threads_are_refused(monkeypatch, call):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 40_000)
    with pytest.raises(ValueError, match=r"torch.get_num_threads\(\): 40000 threads: give at most"):
        call()
