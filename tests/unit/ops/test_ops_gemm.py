"""GEMM: shapes and their names, oracle, tolerance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparloom.ops import GEMM, GemmShape, OracleBounds

extents = st.integers(1, 10**6)


@given(m=extents, n=extents, k=extents)
def test_names_read_back(m, n, k):
    shape = GemmShape(m, n, k)
    assert GemmShape.of(shape.matrix, shape.width) == shape


def test_other_matrices_are_no_shapes():
    with pytest.raises(ValueError, match=r"matrix 'HB/ash85' is not dense/<m>x<k>"):
        GemmShape.of("HB/ash85", 32)


def test_work_is_counted_once():
    shape = GemmShape(2, 3, 5)
    work = GEMM().work(shape)
    assert (work.flops, work.bytes) == (shape.flops, shape.bytes) == (60, 4 * (10 + 15 + 6))


def test_oracle_adds_up_products():
    operands = GEMM().operands(GemmShape(4, 3, 6), seed=1)
    a, b = (operands.dense[name].astype(np.float64) for name in "AB")
    np.testing.assert_allclose(GEMM().oracle(operands), a @ b, rtol=1e-12)
    assert operands.shape == GemmShape(4, 3, 6)
    assert operands.width == 3


def test_operands_repeat_by_seed():
    first, again, other = (GEMM().operands(GemmShape(4, 3, 6), seed=seed) for seed in (1, 1, 2))
    for name, array in first.dense.items():
        np.testing.assert_array_equal(array, again.dense[name])
        assert (array != other.dense[name]).any()
        assert array.dtype == np.float32


def bounded():
    op, shape = GEMM(), GemmShape(5, 7, 300)
    operands = op.operands(shape, seed=0)
    how = {"terms": op.terms(shape), "scale": op.scale(operands)}
    return op.oracle(operands), how, OracleBounds(op.oracle(operands), **how)


def test_bounds_accept_the_rounded_oracle():
    oracle, _, bounds = bounded()
    bounds.check(oracle.astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e3])
def test_bounds_refuse_one_wrong_element(value):
    oracle, _, bounds = bounded()
    wrong = oracle.astype(np.float32)
    wrong[3, 2] = value
    with pytest.raises(AssertionError, match=r"element \(3, 2\) is .* 1 of 35 elements differ"):
        bounds.check(wrong)
