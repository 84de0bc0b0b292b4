"""The compiler describes a program to the inspector like the product that it computes."""

import numpy as np
import pytest
from fused_cases import CASES, operands
from interpreted import InterpretedLibrary

from sparloom.fusion import Budget, Reads, fuse, gemm_spmm_loops, spmm_gemm_loops, spmm_spmm_loops


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)


def _loops(name):
    """Loops as the compiler describes them, and the operands by name."""
    function, names = CASES[name]
    arguments = dict(zip(names, operands(names, n=8, real=np.float32, seed=0), strict=True))
    fused = fuse(function)
    program, given = fused._compile(tuple(arguments.values()), {})
    return program.loops(given), arguments


def _reads(matrix):
    return Reads(matrix.p, matrix.i, matrix.shape[1])


@pytest.mark.parametrize("name", ["gemm_spmm", "gemm_spmm_transposed"])
def test_gemm_spmm(name):
    loops, given = _loops(name)
    _assert_alike(loops, gemm_spmm_loops(_reads(given["A"]), inner=5, width=3, element_bytes=4))


def test_spmm_spmm():
    loops, given = _loops("spmm_spmm")
    _assert_alike(loops, spmm_spmm_loops(_reads(given["A"]), _reads(given["S"]), width=3, element_bytes=4))


def test_spmm_gemm():
    loops, given = _loops("spmm_gemm")
    _assert_alike(loops, spmm_gemm_loops(_reads(given["A"]), inner=5, width=3, element_bytes=4))
    assert loops.two.reads is None


def _assert_alike(actual, expected):
    for loop, other in ((actual.one, expected.one), (actual.two, expected.two)):
        assert _numbers(loop) == _numbers(other)
        assert (loop.reads is None) == (other.reads is None)
        if loop.reads is not None:
            np.testing.assert_array_equal(loop.reads.indptr, other.reads.indptr)
            np.testing.assert_array_equal(loop.reads.indices, other.reads.indices)
            assert loop.reads.extent == other.reads.extent


def _numbers(loop):
    return loop.iterations, loop.iteration_bytes, loop.nonzero_bytes, loop.column_bytes


def test_the_budget_of_this_machine_is_positive():
    budget = Budget.of_this_machine()
    assert min(budget.threads, budget.cache_bytes, budget.ct_size) >= 1
