"""Repeated calls of a prepared matrix: the same results, and whatever the first call refuses, later ones refuse."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse

import sparloom
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CsrPolicy
from sparloom.tuning.sparse.repeated import RepeatedCall

pytestmark = pytest.mark.cc
ROWS, COLS, WIDTH = 40, 30, 8


@pytest.fixture
def served(monkeypatch):
    """Whether each call was served without another look at its operands."""
    answers, original = [], RepeatedCall.__call__

    def call(self, given, out):
        result = original(self, given, out)
        answers.append(result is not None)
        return result

    monkeypatch.setattr(RepeatedCall, "__call__", call)
    return answers


def sparse():
    return scipy.sparse.random_array((ROWS, COLS), density=0.3, format="csr", dtype=np.float32,
                                     rng=np.random.default_rng(0))


@pytest.fixture
def matrix():
    return sparse()


def ready(matrix):
    """Prepare a matrix, and decide: one candidate is left."""
    prepared = sparloom.prepare(matrix, threads=2, libraries={}, cache=PlanCache(None, keep_busy=True),
                                policy=CsrPolicy(least_seconds=1e9))
    for _ in range(3):
        prepared.spmm(dense())
        prepared.sddmm(left(), dense())
    return prepared


def dense(seed=0, width=WIDTH, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((COLS, width)).astype(dtype)


def left(seed=0, width=WIDTH):
    return np.random.default_rng(seed).standard_normal((ROWS, width)).astype(np.float32)


def test_calls_with_other_arrays_of_the_same_shape_are_served_at_once(matrix, served):
    prepared = ready(matrix)
    served.clear()
    out = np.empty((ROWS, WIDTH), np.float32)
    for seed in range(5):
        x = dense(seed)
        assert prepared.spmm(x, out=out) is out
        np.testing.assert_allclose(out, matrix @ x, rtol=1e-5, atol=1e-5)
        new = prepared.spmm(x)
        assert new is not out
        assert np.array_equal(new, out)
        found = prepared.sddmm(left(seed), x)
        np.testing.assert_allclose(found, (matrix * (left(seed) @ x.T)).tocsr()[matrix.nonzero()], rtol=1e-4, atol=1e-5)
    assert served == [True] * 15


def test_values_are_read_anew_and_other_values_are_not_kept(matrix, served):
    prepared, x = ready(matrix), dense()
    other = np.ones(matrix.nnz, np.float32)
    expected = matrix @ x
    np.testing.assert_allclose(prepared.spmm(x, values=other), (matrix != 0).astype(np.float32) @ x, rtol=1e-5,
                               atol=1e-5)
    np.testing.assert_allclose(prepared.spmm(x), expected, rtol=1e-5, atol=1e-5)
    matrix.data *= 2
    np.testing.assert_allclose(prepared.spmm(x), 2 * expected, rtol=1e-5, atol=1e-5)
    assert served[-2:] == [True, True]


@pytest.mark.parametrize("x", [
    dense(width=WIDTH + 1), dense(dtype=np.float64), np.asfortranarray(dense()), dense()[::-1],
    np.frombuffer(b"\0" + dense().tobytes(), np.uint8)[1:].view(np.float32).reshape(COLS, WIDTH),
    dense().view(np.matrix)], ids=range(6))
def test_other_operands_are_looked_at(matrix, served, x):
    prepared = ready(matrix)
    served.clear()
    result = prepared.spmm(x)
    np.testing.assert_allclose(result, matrix @ np.asarray(x, np.float64), rtol=1e-4, atol=1e-5)
    assert served == [False]


def refused(matrix):
    """Calls that a prepared matrix refuses, by name."""
    x, out = dense(), np.zeros((ROWS, WIDTH), np.float32)
    memory = np.zeros((ROWS + COLS, WIDTH), np.float32)
    read_only = out.copy()
    read_only.flags.writeable = False
    values = matrix.data[:ROWS * WIDTH].reshape(ROWS, WIDTH)
    return {
        "list": (x.tolist(), None), "bytes": (x.astype(">f4"), None), "read-only": (x, read_only),
        "rows": (np.zeros((COLS + 1, WIDTH), np.float32), None),
        "type": (x, out.astype(np.float64)), "shape": (x, out[:-1]), "order": (x, np.asfortranarray(out)),
        "operand": (memory[:COLS], memory[COLS - 1: COLS - 1 + ROWS]), "values": (x, values),
        "mask": (x, np.ma.masked_array(out)), "masked operand": (np.ma.masked_array(x, x > 9), out)}


@pytest.mark.parametrize("name", refused(sparse()))
def test_what_the_first_call_refuses_later_ones_refuse(matrix, name, served):
    fresh = sparloom.prepare(matrix, threads=2, libraries={}, cache=PlanCache(None, keep_busy=True))
    prepared = ready(matrix)
    served.clear()
    x, out = refused(matrix)[name]
    with pytest.raises((TypeError, ValueError)) as first:
        fresh.spmm(x, out=out)
    with pytest.raises(first.type) as later:
        prepared.spmm(x, out=out)
    assert str(later.value) == str(first.value)
    assert served == [False]


def test_operands_of_the_last_call_are_not_kept(matrix):
    prepared, x = ready(matrix), dense()
    found = weakref.ref(prepared.spmm(x)), weakref.ref(x)
    del x
    gc.collect()
    assert [each() for each in found] == [None, None]


def test_changed_indices_are_refused(matrix, served):
    prepared = ready(matrix)
    matrix.indices[0] = (matrix.indices[0] + 1) % COLS
    with pytest.raises(ValueError, match="indices of A was changed in place"):
        prepared.spmm(dense())
    assert served[-1] is False


def test_threads_that_share_a_matrix_get_their_own_results(matrix):
    prepared, gate = ready(matrix), threading.Barrier(4)

    def work(seed):
        x, out = dense(seed), np.empty((ROWS, WIDTH), np.float32)
        expected = matrix @ x
        gate.wait()
        for _ in range(300):
            out.fill(np.nan)
            prepared.spmm(x, out=out)
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
