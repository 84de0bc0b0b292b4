"""Recognised products of any pattern and extents equal what the generated bodies compute."""

import numpy as np
import pytest
from fused_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.fusion import Budget, Csr, fuse

pytestmark = pytest.mark.cc

BUDGET = Budget(threads=2, cache_bytes=1 << 11, ct_size=6)
PRODUCTS = ("gemm_spmm", "gemm_spmm_transposed", "spmm_spmm", "spmm_gemm")
FUSED = {bodies: {name: fuse(CASES[name][0], budget=BUDGET, bodies=bodies) for name in PRODUCTS}
         for bodies in ("recognised", "generated")}


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("name", PRODUCTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_both_bodies_give_the_same_result(name, real, data):
    pattern = data.draw(patterns(24, square=True))
    n, inner, width = pattern.rows, data.draw(st.integers(0, 40)), data.draw(st.integers(0, 70))
    other = pattern.transpose()
    rng = np.random.default_rng(n)
    made = {"A": _csr(pattern, real, rng), "S": _csr(other, real, rng), "B": _dense((n, inner), real, rng),
            "C": _dense((inner, width), real, rng), "CT": _dense((width, inner), real, rng),
            "X": _dense((n, width), real, rng), "n": n, "bCol": inner, "cCol": width}
    arguments = [made[each] for each in CASES[name][1]]
    terms = max(1, pattern.row_lengths().max(initial=0)) * max(1, inner, other.row_lengths().max(initial=0))
    for way in ("__call__", "unfused"):
        by_hand, generated = (getattr(FUSED[bodies][name], way)(*arguments) for bodies in ("recognised", "generated"))
        assert by_hand.dtype == generated.dtype == real
        np.testing.assert_allclose(by_hand, generated, rtol=0, atol=2 * terms**1.5 * np.finfo(real).eps)


def _dense(shape, real, rng):
    return rng.uniform(-1, 1, shape).astype(real)


def _csr(pattern, real, rng):
    return Csr(pattern.indptr, pattern.indices, _dense((pattern.nnz,), real, rng), pattern.shape)
