"""Recognised products run on the hand-written kernels, and near-products on generated code."""


import numpy as np
import pytest
from fused_cases import CASES, operands

import sparloom.fusion.recognition
from sparloom.fusion import Budget, Csr, Executor, fprange, fuse

pytestmark = pytest.mark.cc

BUDGET = Budget(threads=2, cache_bytes=1 << 12, ct_size=8)
PRODUCTS = ("gemm_spmm", "gemm_spmm_transposed", "spmm_spmm", "spmm_gemm")


@pytest.fixture
def executed(monkeypatch):
    """The executors that calls have made."""
    made = []

    def make(*args, **kwargs):
        made.append(Executor(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(sparloom.fusion.recognition, "Executor", make)
    return made


@pytest.fixture(scope="module")
def fused():
    """The products, compiled once."""
    return {name: fuse(CASES[name][0], budget=BUDGET) for name in PRODUCTS}


def _check(function, arguments, executed, *, by_hand):
    """Fused and unfused calls agree with Python; `by_hand`: the hand-written kernels ran."""
    expected = function.__wrapped__(*arguments)
    real = next(each.x.dtype for each in arguments if isinstance(each, Csr))
    for way in (function, function.unfused):
        executed.clear()
        actual = way(*arguments)
        assert len(executed) == by_hand
        assert actual.dtype == real
        np.testing.assert_allclose(actual, expected, rtol=0, atol=45 * 45 * np.finfo(real).eps)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_run_on_the_hand_written_kernels(fused, executed, name, real):
    for n in (1, 2, 9, 40):
        arguments = operands(CASES[name][1], n=n, real=real, seed=n)
        _check(fused[name], arguments, executed, by_hand=True)


def test_products_follow_the_schedule_of_the_call(fused, executed):
    arguments = operands(CASES["gemm_spmm"][1], n=40, real=np.float32, seed=0)
    fused["gemm_spmm"](*arguments)
    fused["gemm_spmm"].unfused(*arguments)
    assert executed[0].schedule is fused["gemm_spmm"].schedule(*arguments)
    assert executed[0].schedule.fused > 0
    assert executed[1].schedule.fused == 0


def test_generated_bodies_run_on_request(executed):
    function, names = CASES["gemm_spmm"]
    arguments = operands(names, n=9, real=np.float32, seed=0)
    _check(fuse(function, budget=BUDGET, bodies="generated"), arguments, executed, by_hand=False)


@pytest.mark.parametrize("name", PRODUCTS)
def test_empty_matrices_are_supported(fused, executed, name):
    names = CASES[name][1]
    _check(fused[name], operands(names, n=0, real=np.float32, seed=0), executed, by_hand=False)
    arguments = [_without_nonzeros(each) for each in operands(names, n=7, real=np.float32, seed=0)]
    _check(fused[name], arguments, executed, by_hand=True)


def _without_nonzeros(operand):
    if not isinstance(operand, Csr):
        return operand
    return Csr(np.zeros_like(operand.p), operand.i[:0], operand.x[:0], operand.shape)


def test_loops_over_parts_of_matrices_run_generated_code(fused, executed):
    A, B, C, n = operands(("A", "B", "C", "n"), n=9, real=np.float32, seed=0)
    gemm_spmm = fused["gemm_spmm"]
    _check(gemm_spmm, [A, B, C, n, 4, 3], executed, by_hand=False)
    _check(gemm_spmm, [A, B, C, n, 5, 2], executed, by_hand=False)
    _check(gemm_spmm, [A, np.vstack([B, B]), C, n, 5, 3], executed, by_hand=False)
    _check(gemm_spmm, [A, B, C, n, 5, 3], executed, by_hand=True)
    narrow = Csr(np.array([*range(9), 8]), np.arange(8, dtype=np.int32), np.ones(8, np.float32), (9, 8))
    _check(gemm_spmm, [narrow, B, C, n, 5, 3], executed, by_hand=False)


def test_unsorted_columns_run_generated_code(fused, executed):
    _, B, C, n = operands(("A", "B", "C", "n"), n=3, real=np.float32, seed=0)
    for columns in ([2, 1, 0], [1, 1, 2]):
        A = Csr(np.array([0, 3, 3, 3]), np.array(columns, np.int32), np.array([1, 2, 4], np.float32), (3, 3))
        _check(fused["gemm_spmm"], [A, B, C, n, 5, 3], executed, by_hand=False)


def test_one_array_may_serve_as_two_operands(fused, executed):
    S, X, n, width = operands(("S", "X", "n", "cCol"), n=12, real=np.float32, seed=0)
    _check(fused["spmm_spmm"], [S, S, X, n, width], executed, by_hand=True)
    square = np.random.default_rng(0).uniform(-1, 1, (6, 6)).astype(np.float32)
    A, = operands(("A",), n=6, real=np.float32, seed=0)
    _check(fused["gemm_spmm"], [A, square, square, 6, 6, 6], executed, by_hand=True)
    _check(fused["gemm_spmm_transposed"], [A, square, square, 6], executed, by_hand=True)
    _check(fused["spmm_gemm"], [A, square, square, 6, 6, 6], executed, by_hand=True)


def test_changed_values_are_used(fused, executed):
    A, B, *rest = operands(CASES["gemm_spmm"][1], n=20, real=np.float32, seed=0)
    first = fused["gemm_spmm"](A, B, *rest)
    kept = first.copy()
    A.x[:] = 2 * A.x[::-1]
    B[:] = B[::-1]
    _check(fused["gemm_spmm"], [A, B, *rest], executed, by_hand=True)
    _check(fused["gemm_spmm"], [A._replace(x=-A.x), 3 * B, *rest], executed, by_hand=True)
    np.testing.assert_array_equal(first, kept)


def whole_only(A, B, C, n):
    """The same loops, but rows beyond n stay zero."""
    D1 = np.zeros((B.shape[0], 3))
    D = np.zeros((B.shape[0], 3))
    for i in fprange(n):
        for k in range(5):
            for c in range(3):
                D1[i, c] += B[i, k] * C[k, c]
    for j in fprange(n):
        for e in range(A.p[j], A.p[j + 1]):
            for c in range(3):
                D[j, c] += A.x[e] * D1[A.i[e], c]
    return D


def test_rows_outside_the_loops_stay_zero(executed):
    A, B, C, n = operands(("A", "B", "C", "n"), n=9, real=np.float32, seed=0)
    _check(fuse(whole_only, budget=BUDGET), [A, B, C, n], executed, by_hand=True)
    _check(fuse(whole_only, budget=BUDGET), [A, B, C, n - 4], executed, by_hand=False)


def test_reentrant_calls_are_correct(fused, monkeypatch):
    function = fused["gemm_spmm"]
    one, two = (operands(CASES["gemm_spmm"][1], n=45, real=np.float32, seed=seed) for seed in (0, 1))
    expected = [function.__wrapped__(*arguments) for arguments in (one, two)]
    function(*one)
    inside, bind = [], Executor.bind

    def interrupted(executor, *given, **options):
        call = bind(executor, *given, **options)
        if not inside:
            inside.append(1)
            np.testing.assert_allclose(function(*two), expected[1], atol=1e-3)
            inside.clear()
        return call

    monkeypatch.setattr(Executor, "bind", interrupted)
    np.testing.assert_allclose(function(*one), expected[0], atol=1e-3)
