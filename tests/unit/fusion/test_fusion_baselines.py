"""Fused baselines and BLAS tiles against the float64 oracles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.errors import Unsupported
from sparloom.fusion import atomic_tiling, fused_gemv, overlapped_tiling
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm, assert_close
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

PAIRS = [GemmSpmm(), GemmSpmm(inner=33, c_transposed=True), SpmmSpmm()]
pairs = pytest.mark.parametrize("op", PAIRS, ids=lambda op: f"{op.name}_{getattr(op, 'inner', None)}")
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
tilings = pytest.mark.parametrize("tiling", [atomic_tiling, overlapped_tiling])
WIDTHS = [*range(1, 41), 64, 100, 128, 200]


def hub(rows: int = 300) -> Pattern:
    """A tridiagonal matrix with one full row and one full column, so that all tiles share rows."""
    dense = np.abs(np.subtract(*np.indices((rows, rows)))) < 2
    dense[7], dense[:, 150] = True, True
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)


def operands_of(op, pattern: Pattern, width: int) -> Operands:
    values = np.random.default_rng(1).uniform(-1, 1, pattern.nnz)
    return op.operands(SparseMatrix(pattern, values, op.dtype), width, seed=0)


def check(op, operands: Operands, width: int, bind) -> None:
    pattern = operands.matrix.pattern
    result = np.full((pattern.rows, width), np.nan, dtype=op.dtype)
    call = bind(operands, result)
    for _ in range(2):
        call()
        assert_close(result, op.oracle(operands), terms=op.terms(pattern, width), scale=op.scale(operands))


@pytest.mark.slow
@pairs
@dtypes
@tilings
@pytest.mark.parametrize("threads", [1, 3])
def test_tilings_are_correct_where_tiles_share_rows(op, dtype, tiling, threads):
    op = replace(op, dtype=dtype)
    for width in (5, 64):
        operands = operands_of(op, hub(), width)
        check(op, operands, width, lambda *given: tiling(op, *given, threads=threads, tiles=7))


@pairs
@tilings
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_tilings_are_correct_for_any_pattern(op, tiling, data):
    pattern, width = data.draw(patterns(max_rows=30, square=True)), data.draw(st.sampled_from(WIDTHS))
    threads, tiles = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    check(op, operands_of(op, pattern, width), width, lambda *given: tiling(op, *given, threads=threads, tiles=tiles))


@dtypes
@pytest.mark.parametrize("kind", ["listing", "gemv", "blas_gemv"])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), pattern=patterns(max_rows=30), width=st.sampled_from(WIDTHS))
def test_fused_gemv_is_correct_for_any_pattern(dtype, kind, data, pattern, width):
    op, threads = GemmSpmm(inner=data.draw(st.integers(1, 40)), dtype=dtype), data.draw(st.integers(1, 3))
    check(op, operands_of(op, pattern, width), width, lambda *given: fused_gemv(op, *given, threads=threads, kind=kind))


def test_overlapped_tiling_supports_addends_and_atomic_tiling_rejects_them():
    op = SpmmSpmm(addends=True)
    operands = operands_of(op, hub(), 24)
    check(op, operands, 24, lambda *given: overlapped_tiling(op, *given, threads=2, tiles=7))
    with pytest.raises(Unsupported, match="several tiles would add them"):
        atomic_tiling(op, operands, np.empty((300, 24), np.float32), threads=2, tiles=7)


def test_baselines_reject_unsupported_operations():
    pattern = hub(8 * 40)
    operands = operands_of(SpmmGemm(), pattern, 8)
    result = np.empty((320, 8), np.float32)
    for tiling in (atomic_tiling, overlapped_tiling):
        with pytest.raises(Unsupported, match="use Executor"):
            tiling(SpmmGemm(), operands, result, threads=1, tiles=2)
    transposed = GemmSpmm(c_transposed=True)
    with pytest.raises(Unsupported, match="it is for gemm_spmm with C as it is"):
        fused_gemv(transposed, operands_of(transposed, pattern, 8), result, threads=1, kind="gemv")
