"""Oracles of the products of three matrices against dense NumPy; operands of either element type."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.ops import GemmSpmm, SpmmGemm, SpmmSpmm, assert_close
from sparloom.sparse import Pattern, SparseMatrix

OPS = {
    "gemm_spmm": GemmSpmm(), "inner": GemmSpmm(inner=5), "transposed": GemmSpmm(inner=3, c_transposed=True),
    "spmm_spmm": SpmmSpmm(), "addends": SpmmSpmm(addends=True), "spmm_gemm": SpmmGemm(inner=2),
}
ops = pytest.mark.parametrize("op", OPS.values(), ids=OPS)

PATTERN = Pattern.from_coo(np.array([0, 0, 2, 3, 3, 3]), np.array([1, 3, 0, 0, 2, 3]), (4, 4))


def matrix(pattern=PATTERN, dtype=np.float32):
    return SparseMatrix(pattern, np.random.default_rng(0).normal(size=pattern.nnz), dtype)


def dense_result(op, operands):
    a = operands.matrix.to_scipy().toarray().astype(np.float64)
    dense = {name: array.astype(np.float64) for name, array in operands.dense.items()}
    if op.name == "spmm_spmm":
        f, g = dense.get("F", 0), dense.get("G", 0)
        return a @ (operands.right.to_scipy().toarray().astype(np.float64) @ dense["C"] + f) + g
    c = dense["C"].T if getattr(op, "c_transposed", False) else dense["C"]
    return a @ dense["B"] @ c


@ops
@settings(max_examples=30, deadline=None)
@given(pattern=patterns(square=True), width=st.integers(1, 4))
def test_oracle_equals_the_dense_computation(op, pattern, width):
    operands = op.operands(matrix(pattern), width, seed=1)
    np.testing.assert_allclose(op.oracle(operands), dense_result(op, operands), rtol=1e-9, atol=1e-12)


@ops
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operands_repeat_by_seed_and_have_the_type(op, dtype):
    op = replace(op, dtype=dtype)
    first, again, other = (op.operands(matrix(), 4, seed=seed) for seed in (1, 1, 2))
    assert first.matrix.values.dtype == dtype
    for name, array in first.dense.items():
        np.testing.assert_array_equal(array, again.dense[name])
        assert (array != other.dense[name]).any()
        assert array.dtype == dtype


@ops
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounded_results_lie_within_the_tolerance_and_wrong_ones_do_not(op, dtype):
    op = replace(op, dtype=dtype)
    operands = op.operands(matrix(), 6, seed=0)
    oracle, bounds = op.oracle(operands), {"terms": op.terms(PATTERN, 6), "scale": op.scale(operands)}
    assert_close(dense_result(op, operands).astype(dtype), oracle, **bounds)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_close((oracle + 1e-3 * np.abs(oracle).max()).astype(dtype), oracle, **bounds)


def test_work_counts_the_flops_of_the_unfused_code():
    pattern, width = PATTERN, 6
    assert GemmSpmm(inner=5).work(pattern, width).flops == 2 * 4 * 5 * width + 2 * pattern.nnz * width
    assert SpmmSpmm().work(pattern, width).flops == 4 * pattern.nnz * width
    assert SpmmGemm(inner=5).work(pattern, width).flops == 2 * pattern.nnz * 5 + 2 * 4 * 5 * width
    sparse = 8 * pattern.nnz + 8 * 5
    assert GemmSpmm(inner=5).work(pattern, width).bytes == sparse + 4 * (4 * 5 + 5 * width + 4 * width)
    assert SpmmSpmm().work(pattern, width).bytes == 2 * sparse + 4 * 2 * 4 * width
    affine = SpmmSpmm(addends=True).work(pattern, width)
    assert (affine.flops, affine.bytes) == (4 * pattern.nnz * width + 2 * 4 * width, 2 * sparse + 4 * 4 * 4 * width)
    assert SpmmGemm(dtype="float64").work(pattern, width).bytes == sparse + 4 * pattern.nnz + 8 * (24 + 36 + 24)


def test_impossible_operands_are_refused():
    with pytest.raises(ValueError, match="inner 0 must be at least 1"):
        GemmSpmm(inner=0).operands(matrix(), 4, seed=0)
    with pytest.raises(ValueError, match="2 x 3 matrix for both A and B"):
        SpmmSpmm().operands(matrix(Pattern((2, 3), [0, 0, 0], [])), 4, seed=0)
