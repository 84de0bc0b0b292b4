"""Public calls of spmm, sddmm and csr_attention: results, operands of every kind, refusals."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from csr_operands import close, dense, matrix
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

import sparloom
from sparloom.errors import NotDecided
from sparloom.ops import SDDMM, SpMM
from sparloom.sparse import SparseMatrix
from sparloom.tuning import Decision, PlanCache
from sparloom.tuning.sparse import CsrChoice, CsrDecider, CsrPolicy

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.mark.parametrize("rows", [0, 300])
def test_no_columns_give_empty_results(rows):
    """As in SciPy; no decision is made for them."""
    a = matrix()[:rows]
    ready, x, q = sparloom.prepare(a), np.zeros((200, 0), np.float32), np.zeros((rows, 0), np.float32)
    for _ in range(2):
        for reduce in ("sum", "mean", "max"):
            assert sparloom.spmm(a, x, reduce=reduce).shape == (rows, 0)
            assert ready.spmm(x, reduce=reduce, out=np.empty((rows, 0), np.float32)).shape == (rows, 0)
        assert [each.shape for each in ready.spmm_max(x)] == [(rows, 0)] * 2
        out = np.ones(a.nnz, np.float32)
        assert ready.sddmm(q, x, out=out) is out
        assert not out.any()
        assert not sparloom.sddmm(a, q, x).any()
        heads = dense(rows, 2, 3), dense(200, 2, 3)
        assert sparloom.csr_attention(a, *heads, np.zeros((200, 2, 0), np.float32)).shape == (rows, 2, 0)
    with pytest.raises(ValueError, match="attention divides by the width of a head: give at least 1"):
        sparloom.csr_attention(a, q, x, dense(200, 4))
    with pytest.raises(ValueError, match=r"spmm with operands of shapes \(\(0,\),\) computes nothing"):
        ready.plan("spmm", B=x)


@pytest.mark.parametrize("libraries", [{}, {"spmm_max": {"other": lambda matrix, threads: None}}],
                         ids=["own", "library"])
def test_the_argmax_of_maxima(tmp_path, monkeypatch, libraries):
    """The argmax comes from our kernel, even if another candidate was chosen for the maxima alone."""
    if libraries:
        monkeypatch.setattr(CsrDecider, "decide", lambda *_: (CsrChoice(library="other"), Decision("rule", "chosen")))
    a = matrix()
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), libraries=libraries, policy=CsrPolicy())
    lengths = np.diff(a.indptr)
    for x, values in ((dense(200, 16), None), (dense(200, 16, seed=4), None), (dense(200, 16), -a.data)):
        result, places = ready.spmm_max(x, values=values)
        products = (a.data if values is None else values)[:, None] * x[a.indices]
        assert (places[lengths == 0] == -1).all()
        assert (result[lengths == 0] == 0).all()
        filled = places[lengths > 0]
        assert np.array_equal(result[lengths > 0], products[filled, np.arange(16)])
        assert np.array_equal(result[lengths > 0], np.maximum.reduceat(products, a.indptr[:-1][lengths > 0]))
        assert (np.searchsorted(a.indptr, filled, side="right") - 1 == np.flatnonzero(lengths)[:, None]).all()
    assert ready.plan("spmm_max", B=x).choice.library == ("other" if libraries else "")


def test_the_argmax_needs_a_decision(tmp_path):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), replay_only=True)
    with pytest.raises(NotDecided, match="no plan for spmm_max"):
        ready.spmm_max(dense(200, 8))
    with pytest.raises(ValueError, match=r"X has shape \(199, 8\): it must be \(200, width\)"):
        ready.spmm_max(dense(199, 8))


@settings(max_examples=30, deadline=None)
@given(pattern=patterns(max_rows=40), width=st.integers(1, 40), threads=st.integers(1, 3))
def test_any_pattern_is_right(pattern, width, threads):
    values = np.random.default_rng(0).uniform(-1, 1, pattern.nnz).astype(np.float32)
    ready = sparloom.prepare(SparseMatrix(pattern, values), threads=threads)
    x, q = dense(pattern.cols, width), dense(pattern.rows, width)
    a = ready.matrix.to_scipy()
    close(SpMM(), a, {"B": x}, ready.spmm(x))
    close(SDDMM(), a, {"B": q, "C": x}, ready.sddmm(q, x))


def test_torch_is_not_imported():
    code = ("import sys, numpy, scipy.sparse, sparloom; a = scipy.sparse.eye_array(5, format='csr', dtype='float32'); "
            "x = numpy.ones((5, 3), 'float32'); assert (sparloom.spmm(a, x) == x).all(); "
            "assert 'torch' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_go_where_the_caller_wants_them():
    a, x = matrix(), dense(200, 12)
    expected = sparloom.spmm(a, x)
    out = np.full((300, 12), 7, np.float32)
    assert sparloom.spmm(a, x, out=out) is out
    assert np.array_equal(out, expected)
    ready = sparloom.prepare(a)
    scores = np.empty(a.nnz, np.float32)
    assert ready.sddmm(dense(300, 12), x, out=scores) is scores
    with pytest.raises(ValueError, match=r"out is \(300, 11\): it must be an array of shape \(300, 12\)"):
        sparloom.spmm(a, x, out=out[:, :11])
    square = matrix(200, 200)
    with pytest.raises(ValueError, match="out lies in the memory of an operand"):
        sparloom.spmm(square, x, out=x)
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="the result is read-only"):
        sparloom.spmm(a, x, out=frozen)


@pytest.mark.parametrize("rows", [300, 20_000])
def test_threads_may_share_a_prepared_matrix(rows):
    """Results of many rows reuse memory of dead results, never of live ones."""
    ready, xs = sparloom.prepare(matrix(rows), libraries={}), [dense(200, 8, seed=seed) for seed in range(16)]
    expected = [ready.spmm(x) for x in xs]
    copies = [each.copy() for each in expected]

    def held(place):
        found = [ready.spmm(xs[place]) for _ in range(3)]
        del found[0]
        found.append(ready.spmm(xs[place]))
        return all(np.array_equal(each, expected[place]) for each in found)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(pool.map(held, range(len(xs))))
    assert all(map(np.array_equal, expected, copies))
