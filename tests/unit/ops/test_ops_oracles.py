"""Oracles against dense NumPy, and the tolerance for comparing with them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import matrices

from sparloom.ops import SDDMM, Operands, SpMM, SpmmMax, assert_close
from sparloom.sparse import Pattern, SparseMatrix

OPS = [SpMM(), SDDMM(), SpmmMax()]


def example(rows=7, cols=5, seed=0):
    rng = np.random.default_rng(seed)
    row, col = np.nonzero(rng.random((rows, cols)) < 0.4)
    pattern = Pattern.from_coo(row, col, (rows, cols))
    return SparseMatrix(pattern, rng.normal(size=pattern.nnz).astype(np.float32))


def dense_result(op, operands):
    matrix = operands.matrix.to_scipy().toarray().astype(np.float64)
    if op.name == "spmm":
        return matrix @ operands.dense["B"].astype(np.float64)
    if op.name == "spmm_max":
        return largest_products(operands)
    full = matrix * (operands.dense["B"].astype(np.float64) @ operands.dense["C"].astype(np.float64).T)
    return full[operands.matrix.pattern.row_ids(), operands.matrix.pattern.indices]


def largest_products(operands):
    matrix, pattern = operands.matrix.to_scipy().toarray(), operands.matrix.pattern
    stored = pattern.to_scipy().toarray() != 0
    products = matrix[:, :, None] * operands.dense["B"].astype(np.float64)
    largest = np.where(stored[:, :, None], products, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(stored.any(axis=1)[:, None], largest, 0)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_oracle_equals_the_dense_computation(op):
    operands = op.operands(example(), width=3, seed=1)
    np.testing.assert_allclose(op.oracle(operands), dense_result(op, operands), rtol=1e-12)
    assert op.oracle(operands).dtype == np.float64


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@settings(max_examples=30, deadline=None)
@given(matrix=matrices(), width=st.integers(1, 4))
def test_oracle_handles_empty_rows_and_matrices(op, matrix, width):
    operands = op.operands(matrix, width, seed=0)
    expected = dense_result(op, operands)
    np.testing.assert_allclose(op.oracle(operands), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max(initial=0))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_operands_repeat_by_seed(op):
    first, again, other = (op.operands(example(), 4, seed=seed) for seed in (1, 1, 2))
    for name, array in first.dense.items():
        np.testing.assert_array_equal(array, again.dense[name])
        assert (array != other.dense[name]).any()
        assert array.dtype == np.float32


def test_work_counts_every_operand_once():
    pattern = example(rows=7, cols=5).pattern
    assert SpMM().work(pattern, 4).flops == 2 * pattern.nnz * 4
    assert SpMM().work(pattern, 4).bytes == 8 * pattern.nnz + 8 * 8 + 16 * 12
    assert SDDMM().work(pattern, 4).flops == 9 * pattern.nnz
    assert SDDMM().work(pattern, 4).bytes == 12 * pattern.nnz + 8 * 8 + 16 * 12


def test_the_largest_product_may_be_negative_or_nan():
    matrix = SparseMatrix(Pattern((3, 2), np.array([0, 2, 2, 4]), np.array([0, 1, 0, 1])), np.array([1, 2, 1, 1]))
    operands = Operands(matrix, {"B": np.array([[-3, np.nan], [-2, 5]], np.float32)})
    np.testing.assert_array_equal(SpmmMax().oracle(operands), [[-3, np.nan], [0, 0], [-2, np.nan]])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("magnitude", [1e-20, 1.0, 1e12])
def test_float32_results_lie_within_the_tolerance(op, magnitude):
    matrix = example(rows=40, cols=60, seed=2)
    matrix = SparseMatrix(matrix.pattern, matrix.values * np.float32(magnitude))
    operands = op.operands(matrix, 33, seed=0)
    values = {name: array.astype(np.float32) for name, array in operands.dense.items()}
    if op.name == "spmm":
        actual = matrix.to_scipy() @ values["B"]
    elif op.name == "spmm_max":
        actual = largest_products(operands).astype(np.float32)
    else:
        rows, cols = matrix.pattern.row_ids(), matrix.pattern.indices
        actual = matrix.values * np.einsum("nk,nk->n", values["B"][rows], values["C"][cols])
    assert_close(actual, op.oracle(operands), terms=op.terms(matrix.pattern, 33), scale=op.scale(operands))


def test_one_wrong_element_is_found_and_named():
    oracle = np.ones((3, 4))
    actual = oracle.astype(np.float32)
    actual[1, 2] += 1e-4
    with pytest.raises(AssertionError, match=r"element \(1, 2\) is 1.0001.*1 of 12 elements differ"):
        assert_close(actual, oracle, terms=np.array([[5], [5], [5]]))
    assert_close(actual, oracle, terms=np.array([[5], [5000], [5]]))


def test_nan_and_wrong_shapes_differ():
    with pytest.raises(AssertionError, match=r"element \(1\) is nan"):
        assert_close(np.array([0, np.nan], np.float32), np.zeros(2), terms=10**9)
    with pytest.raises(AssertionError, match=r"shape \(2,\) where the oracle has \(3,\)"):
        assert_close(np.zeros(2, np.float32), np.zeros(3), terms=1)
    assert_close(np.zeros(0, np.float32), np.zeros(0), terms=1)
