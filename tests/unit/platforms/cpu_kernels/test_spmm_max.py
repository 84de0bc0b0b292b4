"""The hand-written maximum of products with its argmax: ties, NaN, rows that are cut, any threads and order."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import patterns

from sparloom.ops import Operands, SpmmMax
from sparloom.platforms import CpuKernels
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

OP = SpmmMax()


@functools.cache
def family(threads):
    return CpuKernels(threads, 1).family(OP)


def run(operands, config, threads):
    """Compute the largest products and their argmax; without an argmax the products must be the same."""
    kernels = family(threads)
    result, argmax, alone = kernels.result(operands), kernels.argmax(operands), kernels.result(operands)
    kernels.bind(operands, config, result, argmax)()
    kernels.bind(operands, config, alone)()
    np.testing.assert_array_equal(alone, result)
    return result, argmax


def expected(operands):
    """Compute row by row in float32: a maximum of rounded products has one right value; its first index counts."""
    pattern, dense = operands.matrix.pattern, operands.dense["B"]
    result = np.zeros((pattern.rows, operands.width), np.float32)
    argmax = np.full((pattern.rows, operands.width), -1)
    with np.errstate(invalid="ignore"):
        for row in np.flatnonzero(pattern.row_lengths()):
            begin, end = pattern.indptr[row : row + 2]
            products = operands.matrix.values[begin:end, None] * dense[pattern.indices[begin:end]]
            result[row], argmax[row] = products.max(axis=0), begin + products.argmax(axis=0)
    return result, argmax


def check(operands, *, threads=(1, 3), configs=None):
    result, argmax = expected(operands)
    for count in threads:
        for config in configs or family(count).space():
            found, at = run(operands, config, count)
            message = f"width {operands.width}, {count} threads, {config}"
            np.testing.assert_array_equal(found, result, message)
            np.testing.assert_array_equal(at, argmax, message)


def operands_of(pattern, width, *, values=None, dense=None, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, pattern.nnz) if values is None else values
    dense = rng.uniform(-1, 1, (pattern.cols, width)) if dense is None else dense
    return Operands(SparseMatrix(pattern, values), {"B": dense.astype(np.float32)})


def varied():
    """Empty rows, a full row, rows of every length up to 70."""
    inside = np.random.default_rng(0).random((40, 70)) < np.linspace(0, 1, 40)[:, None]
    inside[[0, 17, 18, 39]] = False
    return Pattern.from_coo(*np.nonzero(inside), inside.shape)


def hubs():
    """Make two long rows that equal shares split, the first one into several parts, between rows of one nonzero."""
    rows = np.concatenate([[0], np.full(900, 2), np.full(300, 3), np.arange(5, 20)])
    cols = np.concatenate([[4], np.arange(900), 3 * np.arange(300), np.arange(5, 20)])
    return Pattern.from_coo(rows, cols, (20, 900))


@pytest.mark.parametrize("width", range(1, 71))
def test_every_width_is_right(width):
    space = family(1).space()
    for pattern in (varied(), hubs()):
        check(operands_of(pattern, width), configs=[space.default(), space.config(balance="nonzeros", prefetch=4)])


@pytest.mark.parametrize("width", [16, 100, 300])
def test_every_configuration_and_number_of_threads_is_right(width):
    for pattern in (varied(), hubs()):
        check(operands_of(pattern, width), threads=(1, 2, 3, 7))


@given(pattern=patterns(), width=st.integers(1, 40), threads=st.integers(1, 5), place=st.integers(0, 17),
       seed=st.integers(0, 3))
def test_any_pattern_is_right(pattern, width, threads, place, seed):
    check(operands_of(pattern, width, seed=seed), threads=[threads], configs=[list(family(1).space())[place]])


def test_rows_without_nonzeros_have_no_argmax():
    pattern = Pattern.from_coo(np.empty(0, int), np.empty(0, int), (5, 3))
    for config in family(2).space():
        result, argmax = run(operands_of(pattern, 9), config, 2)
        assert (result == 0).all()
        assert (argmax == -1).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_first_of_equal_products_is_taken(threads):
    pattern = hubs()
    operands = operands_of(pattern, 20, values=np.ones(pattern.nnz), dense=np.full((pattern.cols, 20), -2.5))
    for config in family(threads).space():
        result, argmax = run(operands, config, threads)
        filled = pattern.row_lengths() > 0
        assert (result[filled] == -2.5).all()
        assert (argmax[filled] == pattern.indptr[:-1][filled, None]).all()


def test_zeros_of_both_signs_are_equal():
    pattern = Pattern((2, 2), np.array([0, 2, 4]), np.array([0, 1, 0, 1]))
    operands = operands_of(pattern, 3, values=np.array([-1.0, 1.0, 1.0, -1.0]), dense=np.zeros((2, 3)))
    for config in family(1).space():
        result, argmax = run(operands, config, 1)
        assert np.signbit(result).tolist() == [[True] * 3, [False] * 3]
        assert argmax.tolist() == [[0] * 3, [2] * 3]


@pytest.mark.parametrize("width", [1, 8, 37, 64])
@pytest.mark.parametrize("where", [0, 1, 450, 899])
def test_one_nan_makes_its_element_nan_at_any_position(width, where):
    pattern = hubs()
    dense = np.random.default_rng(2).uniform(-1, 1, (pattern.cols, width))
    dense[where, width // 2] = np.nan
    operands = operands_of(pattern, width, dense=dense)
    check(operands)
    result, argmax = run(operands, family(3).space().config(balance="nonzeros"), 3)
    assert np.argwhere(np.isnan(result[2])).ravel().tolist() == [width // 2]
    assert pattern.indices[argmax[2, width // 2]] == where


@pytest.mark.parametrize("seed", range(5))
def test_any_mixture_of_nan_and_infinities_is_right(seed):
    rng, pattern = np.random.default_rng(seed), (varied(), hubs())[seed % 2]
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0])
    weights = (0.002, 0.02, 0.2, 0.2, 0.2, 0.178, 0.2)
    check(operands_of(pattern, 21, values=rng.choice(special, pattern.nnz, p=weights),
                      dense=rng.choice(special, (pattern.cols, 21), p=weights)))


@pytest.mark.parametrize("width", [5, 40])
def test_nothing_beyond_the_argmax_is_written(width):
    operands, kernels = operands_of(hubs(), width), family(3)
    _, argmax = expected(operands)
    for config in kernels.space():
        room = np.full((argmax.shape[0] + 2, width), 7, np.int32)
        kernels.bind(operands, config, kernels.result(operands), room[1:-1])()
        assert (room[[0, -1]] == 7).all()
        np.testing.assert_array_equal(room[1:-1], argmax)


def test_an_argmax_of_another_type_is_refused():
    operands, kernels = operands_of(varied(), 4), family(1)
    with pytest.raises(ValueError, match="not a contiguous array of int32"):
        kernels.bind(operands, kernels.space().default(), kernels.result(operands), np.empty((40, 4), np.int64))


def test_more_nonzeros_than_the_argmax_can_index_are_refused(monkeypatch):
    operands, kernels = operands_of(varied(), 4), family(1)
    default, result = kernels.space().default(), kernels.result(operands)
    monkeypatch.setattr("sparloom.platforms.cpu_kernels.sparse_kernels.MAX_ARGMAX", 100)
    with pytest.raises(ValueError, match=r"A has \d+ nonzeros, above the 100 that the argmax can index"):
        kernels.bind(operands, default, result, kernels.argmax(operands))
    kernels.bind(operands, default, result)()
    np.testing.assert_array_equal(result, expected(operands)[0])
