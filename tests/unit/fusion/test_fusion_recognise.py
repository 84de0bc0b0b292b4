"""Products are recognised by their structure."""

import numpy as np
import pytest
from fused_cases import CASES, operands

from sparloom.fusion import fprange, fuse
from sparloom.fusion.recognition import recognise

PRODUCTS = {
    "gemm_spmm": ("gemm_spmm", {"A": "A", "B": "B", "C": "C"}, False),
    "gemm_spmm_transposed": ("gemm_spmm", {"A": "A", "B": "B", "C": "C"}, True),
    "spmm_spmm": ("spmm_spmm", {"A": "A", "B": "B", "C": "C"}, False),
    "spmm_gemm": ("spmm_gemm", {"A": "A", "B": "B", "C": "C"}, False),
}


def _recognised(function, arguments):
    fused = fuse(function)
    return recognise(fused._compile(tuple(arguments), {})[0].program)


@pytest.mark.parametrize("name", CASES)
def test_products_are_recognised_and_nothing_else(name):
    function, names = CASES[name]
    found = _recognised(function, operands(names, n=6, real=np.float32, seed=0))
    assert (found and (found.op, found.operands, found.transposed)) == PRODUCTS.get(name)


def other_names(rows, weights, features, graph, size):
    """GeMM-SpMM with swapped factors and loops, and a variable for the column."""
    hidden = np.zeros((rows, size))
    out = np.zeros((rows, size))
    for r in fprange(rows):
        for c in range(size):
            for k in range(weights.shape[0]):
                hidden[r, c] += weights[k, c] * features[r, k]
    for r in fprange(rows):
        for e in range(graph.p[r], graph.p[r + 1]):
            column = graph.i[e]
            for c in range(size):
                out[r, c] += hidden[column, c] * graph.x[e]
    return out


def scaled(A, B, C, n):
    """The same with an extra factor."""
    D1 = np.zeros((n, 3))
    D = np.zeros((n, 3))
    for i in fprange(n):
        for k in range(5):
            for c in range(3):
                D1[i, c] += 2.0 * B[i, k] * C[k, c]
    for j in fprange(n):
        for e in range(A.p[j], A.p[j + 1]):
            for c in range(3):
                D[j, c] += A.x[e] * D1[A.i[e], c]
    return D


def both_returned(A, B, C, n):
    """D1 is also a result, so it cannot stay in a buffer."""
    D1 = np.zeros((n, 3))
    D = np.zeros((n, 3))
    for i in fprange(n):
        for k in range(5):
            for c in range(3):
                D1[i, c] += B[i, k] * C[k, c]
    for j in fprange(n):
        for e in range(A.p[j], A.p[j + 1]):
            for c in range(3):
                D[j, c] += A.x[e] * D1[A.i[e], c]
    return D1, D


def integral(A, B, C, n):
    """With integers."""
    D1 = np.zeros((n, 3), np.int64)
    D = np.zeros((n, 3), np.int64)
    for i in fprange(n):
        for k in range(5):
            for c in range(3):
                D1[i, c] += B[i, k] * C[k, c]
    for j in fprange(n):
        for e in range(A.p[j], A.p[j + 1]):
            for c in range(3):
                D[j, c] += A.x[e] * D1[A.i[e], c]
    return D


def test_integer_products_are_not_recognised():
    A, B, C, n = operands(("A", "B", "C", "n"), n=6, real=np.float32, seed=0)
    A = A._replace(x=np.ones(A.i.size, np.int64))
    assert _recognised(integral, (A, B.astype(np.int64), C.astype(np.int64), n)) is None


def test_names_and_order_do_not_matter():
    A, B, C, n = operands(("A", "B", "C", "n"), n=6, real=np.float32, seed=0)
    found = _recognised(other_names, (n, C, B, A, 3))
    assert (found.op, found.operands) == ("gemm_spmm", {"A": "graph", "B": "features", "C": "weights"})


@pytest.mark.parametrize("function", [scaled, both_returned])
def test_near_products_are_not_recognised(function):
    assert _recognised(function, operands(("A", "B", "C", "n"), n=6, real=np.float32, seed=0)) is None


def test_mixed_types_are_not_recognised():
    A, B, C, n = operands(("A", "B", "C", "n"), n=6, real=np.float32, seed=0)
    assert _recognised(other_names, (n, C.astype(np.float64), B, A, 3)) is None
