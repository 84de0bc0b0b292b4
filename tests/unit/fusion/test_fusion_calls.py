"""Calls of fused functions: operands, types, cached schedules."""

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import scipy.sparse
from fused_cases import CASES, operands
from interpreted import InterpretedLibrary

from sparloom.fusion import Budget, frontend, fuse
from sparloom.fusion.frontend import read_program
from sparloom.sparse import Pattern, SparseMatrix

BUDGET = Budget(threads=2, cache_bytes=1 << 16, ct_size=4)


SUM = """
def total(x):
    found = 0.0
    for i in range(len(x)):
        found += x[i] * {factor}
    return found
"""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)


@pytest.fixture
def gemm_spmm():
    return fuse(CASES["gemm_spmm"][0], budget=BUDGET, bodies="generated")


def _arguments(real=np.float32):
    return operands(CASES["gemm_spmm"][1], n=9, real=real, seed=0)


def test_all_kinds_of_sparse_operands_give_the_same_result(gemm_spmm):
    A, *dense = _arguments()
    pattern = Pattern(A.shape, A.p, A.i)
    narrow = scipy.sparse.csr_array((A.x, A.i, A.p.astype(np.int32)), shape=A.shape)
    expected = gemm_spmm(A, *dense)
    kinds = (SparseMatrix(pattern, A.x), narrow, narrow.tocsc(), narrow.tocoo(), scipy.sparse.csr_matrix(narrow))
    for operand in kinds:
        np.testing.assert_array_equal(gemm_spmm(operand, *dense), expected)
    ones = gemm_spmm(A._replace(x=np.ones_like(A.x)), *dense)
    np.testing.assert_array_equal(gemm_spmm(pattern, *dense), ones)


def test_arrays_allocated_without_dtype_have_the_type_of_the_operands(gemm_spmm):
    assert gemm_spmm(*_arguments(np.float32)).dtype == np.float32
    assert gemm_spmm(*_arguments(np.float64)).dtype == np.float64


def test_operands_may_be_views_and_keyword_arguments(gemm_spmm):
    A, B, C, n, inner, width = _arguments()
    expected = gemm_spmm(A, B, C, n, inner, width)
    wide = np.repeat(B, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(
        gemm_spmm(A, wide, np.asfortranarray(C), cCol=width, bCol=np.int32(inner), n=np.int64(n)), expected)


def test_written_arrays_must_be_contiguous():
    function, names = CASES["smoothed_in_place"]
    A, X, n = operands(names, n=4, real=np.float32, seed=0)
    with pytest.raises(TypeError, match="X is not a C-contiguous NumPy array"):
        fuse(function)(A, np.asfortranarray(X), n)


def test_a_new_pattern_at_the_address_of_a_dead_one_is_scheduled(gemm_spmm):
    _, *dense = _arguments()
    for seed in range(5):
        A = operands(("A",), n=9, real=np.float32, seed=seed)[0]
        np.testing.assert_allclose(gemm_spmm(A, *dense), CASES["gemm_spmm"][0](A, *dense), rtol=1e-5, atol=1e-6)
        del A
        gc.collect()


def test_schedules_respect_the_budget(gemm_spmm):
    schedule = gemm_spmm.schedule(*_arguments())
    assert schedule.largest_tile <= BUDGET.ct_size
    assert schedule.tiles[0] >= BUDGET.threads


def _compiled_by_numba(factor):
    made = {}
    exec(SUM.format(factor=factor), made)
    return numba.njit(made["total"])(np.ones(3))


def test_functions_are_compiled_from_several_threads_beside_those_of_numba(monkeypatch):
    """All threads start at once and switch after every few instructions, and each function is read only once."""
    interval, together, read = sys.getswitchinterval(), threading.Barrier(4), []
    monkeypatch.setattr(frontend, "read_program", lambda *given: read.append(given[0]) or read_program(*given))
    shared, arguments = fuse(CASES["gemm_spmm"][0], budget=BUDGET, bodies="generated"), _arguments()
    expected = CASES["gemm_spmm"][0](*arguments)

    def call(number):
        together.wait(60)
        if number == 3:
            assert [_compiled_by_numba(factor) for factor in (1, 2)] == [3, 6]
            return
        own = fuse(CASES["gemm_spmm"][0], budget=BUDGET, bodies="generated")
        for function in (shared, own):
            np.testing.assert_allclose(function(*arguments), expected, rtol=1e-4, atol=1e-5)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert len(read) == 4, "once for what is shared, once for each other"
