"""The threads of kernels: one below the grain, any number of callers at a time, the same bits whoever runs a piece."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from sparloom.fusion import Executor, Variant, unfused_schedule
from sparloom.jit import kernel_source
from sparloom.jit.toolchain import find_toolchain
from sparloom.ops import GEMM, SDDMM, CsrAttention, GemmShape, GemmSpmm, Operands, SpMM, SpmmMax
from sparloom.platforms.cpu_kernels import GRAIN, SPARSE_FAMILIES, GemmKernels, useful_threads
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

OPS = {"spmm": SpMM(), "spmm_max": SpmmMax(), "sddmm": SDDMM(), "attention": CsrAttention(1)}


def operands_of(name, rows=600, degree=12, width=96):
    rng = np.random.default_rng(0)
    nonzeros = rows * degree
    at = rng.integers(0, rows, (2, nonzeros))
    at[0, : nonzeros // 4] = 5  # a hub, which is cut
    pattern = Pattern.from_coo(*at, (rows, rows))
    return OPS[name].operands(SparseMatrix(pattern, rng.random(pattern.nnz, dtype=np.float32)), width, seed=1)


def bound(name, operands, threads, balance="nonzeros"):
    family = SPARSE_FAMILIES[name](threads, operands.width)
    result = family.result(operands)
    return family.bind(operands, family.space().default().replace(balance=balance), result), result


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("balance", ["nonzeros", "rows", "dynamic"])
def test_little_work_has_one_thread_in_every_configuration(name, balance):
    small, large = operands_of(name, rows=50, width=16), operands_of(name)
    assert useful_threads(small, 4) == 1
    assert useful_threads(large, 4) == 4
    for operands, threads in ((small, 1), (large, 4)):
        call, _ = bound(name, operands, 4, balance)
        assert call.arguments.rows.threads == threads
        assert threads > 1 or call.arguments.rows.pieces == 1 or balance == "dynamic"


@pytest.mark.parametrize(("nnz", "rows", "width", "threads"), [
    (GRAIN // 64 - 10, 10, 64, 3), (GRAIN // 64 - 11, 10, 64, 1), (GRAIN, 0, 1, 3), (0, GRAIN // 8, 8, 3)])
def test_the_grain_counts_nonzeros_and_rows_by_columns(nnz, rows, width, threads):
    indptr = np.zeros(rows + 1, np.int64) if not nnz else np.linspace(0, nnz, max(rows, 1) + 1).astype(np.int64)
    columns = np.concatenate([np.arange(count) for count in np.diff(indptr)]) if nnz else np.zeros(0, np.int32)
    pattern = Pattern((indptr.size - 1, max(nnz, 1)), indptr, columns)
    pattern = pattern if rows else Pattern((1, nnz), np.array([0, nnz]), np.arange(nnz))
    unfilled = Operands.unfilled(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), width)
    assert useful_threads(unfilled, 3) == threads


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("balance", ["nonzeros", "rows", "dynamic"])
def test_results_are_right_and_have_the_same_bits_whoever_runs_the_pieces(name, balance):
    operands = operands_of(name)
    oracle = OPS[name].oracle(operands)
    for threads in (2, 3, 9):
        call, result = bound(name, operands, threads, balance)
        call()
        first = result.copy()
        np.testing.assert_allclose(first.reshape(oracle.shape), oracle, rtol=2e-4, atol=1e-4)
        for _ in range(20):
            result.fill(np.nan)
            call()
            assert np.array_equal(result, first)


def test_many_python_threads_share_the_team():
    operands = operands_of("spmm")
    oracle = SpMM().oracle(operands)
    gate = threading.Barrier(20)  # more callers than jobs of the team

    def work(threads):
        call, result = bound("spmm", operands, threads)
        gate.wait()
        for _ in range(30):
            result.fill(np.nan)
            call()
            np.testing.assert_allclose(result, oracle, rtol=2e-4, atol=1e-4)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, [1, 2, 3, 4, 8] * 4))


def test_children_of_busy_processes_have_teams_of_their_own():
    call, result = bound("spmm", operands_of("spmm"), 3)
    call()
    expected, stop = result.copy(), threading.Event()

    def busy():
        own, _ = bound("spmm", operands_of("spmm"), 3)
        while not stop.is_set():
            own()

    other = threading.Thread(target=busy)
    other.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                result.fill(np.nan)
                call()
                os._exit(0 if np.array_equal(result, expected) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        other.join()
    call()
    assert np.array_equal(result, expected)


def test_a_dense_product_is_right_with_more_threads_than_processors():
    operands = GEMM().operands(GemmShape(210, 300, 128), seed=0)
    family = GemmKernels(7, 0)
    result = family.result(operands)
    call = family.bind(operands, family.space().default(), result)
    for _ in range(5):
        call()
        np.testing.assert_allclose(result, operands.dense["A"] @ operands.dense["B"], rtol=1e-4, atol=1e-4)


def test_pairs_of_products_have_the_same_bits_on_any_number_of_threads():
    matrix = operands_of("spmm").matrix
    operands = GemmSpmm(inner=16).operands(matrix, 32, seed=0)
    results = []
    for threads in (1, 2, 5):
        executor = Executor(GemmSpmm(inner=16), unfused_schedule(matrix.pattern, threads=threads), threads=threads,
                            variant=Variant())
        results.append(executor.result(operands))
        executor.bind(operands, results[-1])()
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_callers_use_threads_of_openmp_where_their_own_come_late(tmp_path):
    program, source = tmp_path / "team_openmp", Path(__file__).with_name("team_openmp.cpp")
    include = f"-I{kernel_source('cpu/team.hpp').parent}"
    subprocess.run([*find_toolchain("c++").command, "-std=c++17", "-O1", "-fopenmp", include, source, "-o", program],
                   check=True)
    ended = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout


def test_results_are_right_while_loops_of_openmp_take_turns_with_ours():
    operands, matrix = operands_of("spmm"), torch.ones(400, 400)
    call, result = bound("spmm", operands, 2)
    oracle = SpMM().oracle(operands)
    for _ in range(200):
        assert torch.equal((matrix @ matrix).relu()[0], torch.full((400,), 400.0))
        result.fill(np.nan)
        call()
        np.testing.assert_allclose(result, oracle, rtol=2e-4, atol=1e-4)
