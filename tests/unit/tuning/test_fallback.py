"""Products where no kernel can be compiled: right, told once, and refused on request."""

import logging

import numpy as np
import pytest
import scipy.sparse

import sparloom
from sparloom.errors import NoCompiler
from sparloom.ops import SDDMM, CsrAttention, Operands, SpMM, SpmmMax, SpmmMean
from sparloom.tuning.sparse import api, prepared

OPS = {"sum": SpMM(), "mean": SpmmMean(), "max": SpmmMax()}


@pytest.fixture
def without_compiler(monkeypatch):
    def kernel_library(name):
        raise NoCompiler("no C++ compiler found", source="", log="")

    monkeypatch.setattr(prepared, "kernel_library", kernel_library)
    monkeypatch.setattr(api, "native_core", lambda: None)  # other tests have loaded its kernels
    monkeypatch.setattr(prepared, "native_core", lambda: None)
    monkeypatch.setattr(api, "set_threads", lambda threads: False)
    for cached in (prepared.kernels_available, prepared._warn):
        cached.cache_clear()
    yield
    for cached in (prepared.kernels_available, prepared._warn):
        cached.cache_clear()


@pytest.fixture
def matrix():
    matrix = scipy.sparse.random(120, 90, 0.05, format="lil", dtype=np.float32, random_state=0)
    matrix[7] = 0
    matrix[30] = np.arange(90)
    matrix[119] = 0
    matrix = matrix.tocsr()
    matrix.eliminate_zeros()
    return matrix


def dense(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_products_are_right(without_compiler, matrix, reduce):
    prepared, x = sparloom.prepare(matrix), dense(90, 17)
    expected = OPS[reduce].oracle(Operands(prepared.matrix, {"B": x}))
    out = np.full((120, 17), np.nan, np.float32)
    assert prepared.spmm(x, reduce=reduce, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(prepared.spmm(x, reduce=reduce), expected, rtol=1e-4, atol=1e-4)


def test_the_argmax_is_the_first_nonzero_with_the_maximum(without_compiler, matrix):
    matrix.data = np.round(matrix.data)  # many equal products
    prepared, x = sparloom.prepare(matrix), np.round(dense(90, 5))
    x[3, 2] = np.nan
    largest, index = prepared.spmm_max(x)
    for row in range(120):
        nonzeros = np.arange(matrix.indptr[row], matrix.indptr[row + 1])
        products = matrix.data[nonzeros, None] * x[matrix.indices[nonzeros]]
        expected = nonzeros[np.argmax(products, axis=0)] if nonzeros.size else np.full(5, -1)  # NaN is the largest
        np.testing.assert_array_equal(index[row], expected)
        if nonzeros.size:
            np.testing.assert_array_equal(largest[row], products.max(axis=0))


def test_sampled_products_and_attention_are_right(without_compiler, matrix):
    prepared, q, k = sparloom.prepare(matrix), dense(120, 9), dense(90, 9)
    np.testing.assert_allclose(prepared.sddmm(q, k), SDDMM().oracle(Operands(prepared.matrix, {"B": q, "C": k})),
                               atol=1e-3)
    heads = {"Q": dense(120, 2, 8), "K": dense(90, 2, 8), "V": dense(90, 2, 3)}
    np.testing.assert_allclose(prepared.attention(*heads.values()),
                               CsrAttention(2).oracle(Operands(prepared.matrix, heads)), atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 4)])
def test_matrices_without_nonzeros(without_compiler, shape):
    empty = sparloom.prepare(scipy.sparse.csr_matrix(shape, dtype=np.float32))
    rows, cols = shape
    for reduce in OPS:
        np.testing.assert_array_equal(empty.spmm(dense(cols, 3), reduce=reduce), np.zeros((rows, 3)))
    assert empty.sddmm(dense(rows, 3), dense(cols, 3)).shape == (0,)
    assert not empty.attention(dense(rows, 1, 2), dense(cols, 1, 2), dense(cols, 1, 2)).any()


def test_it_is_told_once_and_nothing_is_planned(without_compiler, matrix, caplog):
    with caplog.at_level(logging.WARNING):
        prepared = sparloom.prepare(matrix)
        for width in (2, 3):
            prepared.spmm(dense(90, width))
            prepared.sddmm(dense(120, width), dense(90, width))
    assert [record.message for record in caplog.records] == [
        "sparse products run in SciPy and NumPy, on one thread: no C++ compiler found. SPARLOOM_NO_COMPILER=error "
        "raises instead"]
    with pytest.raises(NoCompiler, match="nothing to choose from"):
        prepared.plan("spmm", B=dense(90, 2))


@pytest.mark.parametrize(("value", "kind"), [("error", NoCompiler), ("numpy", ValueError)])
def test_it_is_refused_on_request(without_compiler, matrix, monkeypatch, value, kind):
    monkeypatch.setenv("SPARLOOM_NO_COMPILER", value)
    with pytest.raises(kind, match=r"no C.. compiler|give scipy or error"):
        sparloom.spmm(matrix, dense(90, 2))
