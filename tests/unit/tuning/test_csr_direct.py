"""Direct calls: patterns seen for the first time are computed without being prepared, and always rightly."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from csr_operands import close, dense, matrix

import sparloom
from sparloom.ops import SDDMM, CsrAttention, SpMM, SpmmMax
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.sparse import Prepared, api, classes, direct
from sparloom.tuning.sparse.direct import Csr, DirectCalls

ROWS, COLS = 300, 200

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def unprepared(monkeypatch):
    """Let nothing be prepared, looked up or stored."""
    monkeypatch.setattr(Prepared, "__init__", None)
    monkeypatch.setattr(Pattern, "digest", None)
    monkeypatch.setattr(PlanCache, "get", None)
    monkeypatch.setattr(PlanCache, "put", None)
    monkeypatch.setattr(direct, "PREPARE_WORK", 10**12)
    monkeypatch.setattr(classes, "WARM_CALLS", 10**12)


def forms(a):
    """The same matrix with index arrays of all types, in all containers that identify it."""
    wide = a.copy()
    wide.indptr, wide.indices = a.indptr.astype(np.int64), a.indices.astype(np.int64)
    yield from (a, wide, scipy.sparse.csr_matrix(a), SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data))
    for pointers in (np.int32, np.int64):
        for columns in (np.int32, np.int64):
            yield a.indptr.astype(pointers), a.indices.astype(columns), a.data, a.shape
    yield a.indptr, a.indices, a.data


def hub(rows=40, cols=500):
    """A row with nearly all nonzeros, empty rows around it."""
    inside = np.zeros((rows, cols), np.float32)
    inside[7] = 1
    inside[9, 3] = 2
    return scipy.sparse.csr_array(inside)


EMPTY = scipy.sparse.csr_array((ROWS, COLS), dtype=np.float32)


@pytest.mark.parametrize("a", [matrix(), hub(), EMPTY, matrix(1, 1), matrix(800, 600)], ids=[
    "random", "hub", "empty", "one", "threads"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_operation_on_every_form_is_right(unprepared, a, threads):
    rows, cols = a.shape
    x, q = dense(cols, 40), dense(rows, 40)
    q3, k3, v3 = dense(rows, 2, 8), dense(cols, 2, 8), dense(cols, 2, 5)
    for form in forms(a):
        close(SpMM(), a, {"B": x}, sparloom.spmm(form, x, threads=threads))
        close(SpmmMax(), a, {"B": x}, sparloom.spmm(form, x, threads=threads, reduce="max"))
        mean = sparloom.spmm(form, x, threads=threads, reduce="mean")
        np.testing.assert_allclose(mean, a @ x / np.maximum(1, np.diff(a.indptr))[:, None], rtol=1e-4, atol=1e-5)
        close(SDDMM(), a, {"B": q, "C": x}, sparloom.sddmm(form, q, x, threads=threads))
        close(CsrAttention(2), a, {"Q": q3, "K": k3, "V": v3},
              sparloom.csr_attention(form, q3, k3, v3, threads=threads))


def test_direct_and_prepared_results_of_one_thread_have_equal_bits():
    a, x = matrix(), dense(COLS, 24)
    for reduce in ("sum", "mean", "max"):
        first = sparloom.spmm(a.copy(), x, reduce=reduce, threads=1)
        assert np.array_equal(first, sparloom.prepare(a, threads=1).spmm(x, reduce=reduce))


def test_out_is_written(unprepared):
    a, x, out = matrix(), dense(COLS, 8), np.full((ROWS, 8), np.nan, np.float32)
    assert sparloom.spmm(a, x, out=out) is out
    close(SpMM(), a, {"B": x}, out)


def test_unsorted_and_double_columns_are_summed_without_preparing(unprepared):
    a, x = matrix(), dense(COLS, 8)
    doubled = 2 * a.indptr, np.repeat(a.indices, 2), np.repeat(a.data / 2, 2), a.shape
    close(SpMM(), a, {"B": x}, sparloom.spmm(doubled, x))
    backwards = a[:, ::-1]
    backwards = backwards.indptr, COLS - 1 - backwards.indices, backwards.data, a.shape
    close(SpMM(), a, {"B": x}, sparloom.spmm(backwards, x))


def test_double_columns_count_once_where_it_matters():
    a, x, q = matrix(), dense(COLS, 8), dense(ROWS, 8)
    doubled = 2 * a.indptr, np.repeat(a.indices, 2), np.repeat(a.data / 2, 2), a.shape
    mean = sparloom.spmm(doubled, x, reduce="mean")
    np.testing.assert_allclose(mean, a @ x / np.maximum(1, np.diff(a.indptr))[:, None], rtol=1e-4, atol=1e-5)
    close(SpmmMax(), a, {"B": x}, sparloom.spmm(doubled, x, reduce="max"))
    close(SDDMM(), a, {"B": q, "C": x}, sparloom.sddmm(doubled, q, x))


def test_arrays_rewritten_before_every_call_are_computed_anew():
    indptr, indices, values, x = np.empty(ROWS + 1, np.int32), np.empty(900, np.int32), None, dense(COLS, 16)
    for seed in range(40):
        a = matrix(ROWS, COLS, seed)[:, :].astype(np.float32)
        keep = a.indptr[a.indptr <= 900].size - 1  # rows that fit
        indptr[:] = np.minimum(a.indptr, a.indptr[keep])
        indptr[keep:] = 900
        indices[:] = np.resize(a.indices[: indptr[keep - 1]], 900)
        indices[indptr[keep - 1]:] = np.arange(900 - indptr[keep - 1]) % COLS
        values = np.ones(900, np.float32)
        expected = scipy.sparse.csr_array((values, indices.copy(), indptr.copy()), shape=(ROWS, COLS)) @ x
        np.testing.assert_allclose(sparloom.spmm((indptr, indices, values, (ROWS, COLS)), x), expected, rtol=1e-4,
                                   atol=1e-5)


def test_arrays_at_the_address_of_freed_ones_are_computed_anew():
    x = dense(COLS, 16)
    for seed in range(30):
        a = matrix(seed=seed)
        close(SpMM(), a, {"B": x}, sparloom.spmm((a.indptr, a.indices, a.data, a.shape), x))
        del a


def test_a_pattern_that_recurs_is_prepared(monkeypatch):
    monkeypatch.setattr(direct, "PREPARE_WORK", 3 * direct.CALL_WORK)
    a, x = matrix(), dense(COLS, 1)
    made = []
    monkeypatch.setattr(api, "Prepared", lambda *given, **options: made.append(1) or Prepared(*given, **options))
    for _ in range(6):
        close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))
    assert made == [1]


@pytest.mark.parametrize("work", [0, 3 * direct.CALL_WORK])
def test_a_pattern_that_changes_before_every_call_is_never_prepared(unprepared, monkeypatch, work):
    monkeypatch.setattr(direct, "PREPARE_WORK", work)
    a, x = matrix(), dense(COLS, 1)
    for call in range(12):
        a.indices[-1] = COLS - 1 - call % 2
        close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))


@pytest.mark.parametrize("pointers", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [np.int32, np.int64])
def test_wrong_arrays_are_left_to_the_messages_of_prepared_matrices(pointers, columns):
    a, x, calls = matrix(), dense(COLS, 8), DirectCalls(2)
    limits = np.iinfo(pointers)
    out = np.zeros((ROWS, 8), np.float32)
    for place, wrong in ((1, -1), (0, 1), (0, -1), (-1, a.nnz + 1), (5, limits.max), (5, limits.min), (-2, a.nnz + 1)):
        indptr = a.indptr.astype(pointers)
        indptr[place] = wrong
        assert calls.spmm(Csr(indptr, a.indices.astype(columns), a.data, a.shape), x, out=out) is None
        with pytest.raises(ValueError, match="indptr of A must be 301 numbers that rise"):
            sparloom.spmm((indptr, a.indices.astype(columns), a.data, a.shape), x)
    limits = np.iinfo(columns)
    for place in (0, 1, a.nnz // 2, a.nnz - 1):
        for wrong in (-1, COLS, limits.max, limits.min, *([2**32, 2**32 + 1] if columns is np.int64 else [])):
            indices = a.indices.astype(columns)
            indices[place] = wrong
            assert calls.spmm(Csr(a.indptr.astype(pointers), indices, a.data, a.shape), x, out=out) is None
            with pytest.raises(ValueError, match="indices of A run from"):
                sparloom.spmm((a.indptr.astype(pointers), indices, a.data, a.shape), x)
    assert not out.any()


def test_values_in_gaps_and_overlapping_results_are_left_to_prepared_matrices():
    a, x, calls = matrix(), dense(COLS, 8), DirectCalls(2)
    gaps = np.repeat(a.data, 2)[::2]
    assert calls.spmm(Csr(a.indptr, a.indices, gaps, a.shape), x) is None
    close(SpMM(), a, {"B": x}, sparloom.spmm((a.indptr, a.indices, gaps, a.shape), x))
    square = matrix(COLS, COLS)
    with pytest.raises(ValueError, match="out lies in the memory of an operand, X"):
        sparloom.spmm(square, x, out=x)


def test_python_threads_may_call_at_once():
    x = dense(COLS, 16)
    given = [matrix(seed=seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for a, found in zip(given, pool.map(lambda a: sparloom.spmm(a, x, threads=2), given), strict=True):
            close(SpMM(), a, {"B": x}, found)


def test_a_one_dimensional_array_is_refused():
    with pytest.raises(ValueError, match="two axes"):
        sparloom.spmm(scipy.sparse.csr_array(np.ones(5, np.float32)), np.ones((5, 2), np.float32))


def test_as_many_matrices_as_one_likes_leave_nothing_behind():
    calls, x = DirectCalls(1), dense(COLS, 2)
    for seed in range(300):
        a = matrix(20, COLS, seed)
        calls.spmm(Csr(a.indptr, a.indices, a.data, a.shape), x)
        assert len(calls._sightings._seen) <= 256
    for width in range(1, 300):
        calls.spmm(Csr(a.indptr, a.indices, a.data, a.shape), dense(COLS, width))
        assert len(calls._ready) <= direct.MAX_KINDS
