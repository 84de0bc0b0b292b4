"""In-place changes of A: calls detect changed values, and changed indices on request; unchanged parts stay prepared."""

from functools import partial

import numpy as np
import pytest
from csr_operands import close, dense, matrix

import sparloom
from sparloom.ops import SpMM, assert_close
from sparloom.sparse import Pattern, SparseMatrix

DECIDED = 80  # calls after which it is decided how further ones run

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("bind", [
    lambda a: partial(sparloom.spmm, a), lambda a: partial(sparloom.spmm, (a.indptr, a.indices, a.data)),
    lambda a: partial(sparloom.spmm, SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data)),
    lambda a: sparloom.prepare(a).spmm], ids=["bare", "tuple", "ours", "prepared"])
def test_values_may_change_in_place(bind, reduce):
    a, x = matrix(), dense(200, 8)
    call = bind(a)
    for _ in range(DECIDED):
        before = call(x, reduce=reduce)
    for factor in (2, 4):
        a.data *= 2
        assert np.array_equal(call(x, reduce=reduce), factor * before)


def test_a_change_in_place_is_detected_on_request():
    a, x = matrix(), dense(200, 8)
    sparloom.spmm(a, x)
    changed_columns(a)
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x, changed=True))
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))


def changed_columns(a):
    """Move the last nonzero of the longest row, in place."""
    row = int(np.argmax(np.diff(a.indptr)))
    last = a.indptr[row + 1] - 1
    a.indices[last] = 199 if a.indices[last] != 199 else a.indices[last - 1] + 1


@pytest.mark.parametrize("known", [(1, 2), (2, 1)])
@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("there", [np.int32, np.int64])
def test_a_change_is_detected_with_any_number_of_threads(known, asked, there):
    a, x = matrix(), dense(200, 8)
    a.indices, a.indptr = a.indices.astype(there), a.indptr.astype(there)
    for threads in known:
        sparloom.spmm(a, x, threads=threads)
    changed_columns(a)
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x, changed=True, threads=asked))
    for threads in (*known, asked):
        close(SpMM(), a, {"B": x}, sparloom.spmm(a, x, threads=threads))


@pytest.mark.parametrize("there", [np.int32, np.int64])
def test_rows_unsorted_in_place_are_detected_on_request(there):
    a, x = matrix(seed=3), dense(200, 8)
    row = int(np.argmax(np.diff(a.indptr)))
    parts, part = (a.indptr.astype(there), a.indices.astype(there), a.data.copy()), slice(*a.indptr[row:row + 2])
    expected = sparloom.spmm(parts, x).astype(np.float64)
    for _ in range(2):
        for array in parts[1:]:
            array[part] = array[part][::-1].copy()
        for changed in (True, False):
            assert_close(sparloom.spmm(parts, x, changed=changed), expected, terms=40)


def test_masked_values_are_refused_though_the_indices_are_known():
    a, x, q = matrix(), dense(200, 8), dense(300, 8)
    sparloom.spmm(a, x)
    masked = (a.indptr, a.indices, np.ma.masked_array(a.data, a.data > 0.5), a.shape)
    ready = sparloom.prepare(a)
    for call in (lambda: sparloom.spmm(masked, x), lambda: sparloom.sddmm(masked, q, x),
                 lambda: sparloom.csr_attention(masked, q, x, x), lambda: ready.spmm(x, values=masked[2])):
        with pytest.raises(TypeError, match=r"values is a masked array: pass values.filled\(0\)"):
            call()
