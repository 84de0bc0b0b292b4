"""Fused functions compute what Python computes."""

import copy

import numpy as np
import pytest
from fused_cases import CASES, operands

from sparloom.fusion import check_schedule, fuse

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.fixture(scope="module")
def fused():
    """The functions, compiled once."""
    return {name: fuse(function, bodies="generated") for name, (function, _) in CASES.items()}


@pytest.mark.parametrize(
    ("name", "real"), [*((name, np.float32) for name in CASES), ("gemm_spmm", np.float64), ("stencil", np.float64)])
def test_fused_and_unfused_results_equal_python(fused, name, real):
    function, names = CASES[name]
    for n in (0, 1, 2, 9, 40):
        arguments = operands(names, n=n, real=real, seed=n)
        expected, results = copy.deepcopy(arguments), {}
        returned = function(*expected)
        for way in ("__call__", "unfused"):
            results[way] = copy.deepcopy(arguments)
            actual = getattr(fused[name], way)(*results[way])
            _assert_equal(actual, returned, real)
            _assert_equal(_dense(results[way]), _dense(expected), real)


@pytest.mark.parametrize("name", CASES)
def test_schedules_respect_all_dependences(fused, name):
    _, names = CASES[name]
    arguments = operands(names, n=40, real=np.float32, seed=3)
    check_schedule(fused[name].schedule(*arguments), fused[name].graph(*arguments))


def test_fused_and_unfused_sum_in_the_same_order(fused):
    arguments = operands(CASES["gemm_spmm"][1], n=300, real=np.float32, seed=0)
    np.testing.assert_array_equal(fused["gemm_spmm"](*arguments), fused["gemm_spmm"].unfused(*arguments))


def _dense(arguments):
    return tuple(each for each in arguments if isinstance(each, np.ndarray))


def _assert_equal(actual, expected, real):
    """Tolerance for sums of at most 45 products of numbers below 1: 45 ulps of 45."""
    actual, expected = (each if isinstance(each, tuple) else (each,) for each in (actual, expected))
    for a, b in zip(actual, expected, strict=True):
        if b is not None:
            np.testing.assert_allclose(a, b, rtol=0, atol=45 * 45 * np.finfo(real).eps)
