"""Sparse operations on float64, float16 and bfloat16 arrays against the float64 oracle, promotion, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sparloom
from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM, SpmmMax, SpmmMean, assert_close
from sparloom.platforms.cuda import as_float32
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CsrPolicy

pytestmark = pytest.mark.cc

ROWS, COLS = 60, 50
F64, F32, F16 = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16)
DTYPES = [F64, F16, BFLOAT16]
EPS = {F64: 2.0**-52, F32: 2.0**-23, F16: 2.0**-10, BFLOAT16: 2.0**-7}
REDUCTIONS = {"sum": SpMM(), "mean": SpmmMean(), "max": SpmmMax()}


def cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to a type."""
    if dtype != BFLOAT16:
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(BFLOAT16)


def wide(array: np.ndarray) -> np.ndarray:
    """Convert numbers of any of the types to float64, exactly."""
    return as_float32(array).astype(np.float64)


def dense(*shape: int, dtype: np.dtype, seed: int = 0) -> np.ndarray:
    return cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def pattern() -> Pattern:
    """Make a pattern with a full row, and with rows without nonzeros at the begin, inside and at the end."""
    full = scipy.sparse.random_array((ROWS, COLS), density=0.15, format="lil", rng=np.random.default_rng(1))
    full[7, :] = 1
    for row in (0, 20, 21, ROWS - 1):
        full[row, :] = 0
    return Pattern.from_scipy(full.tocsr())


PATTERN = pattern()


def parts(values: np.ndarray, index: type[np.generic] = np.int32) -> tuple[np.ndarray, ...]:
    """Pass a matrix in new index arrays."""
    return PATTERN.indptr.astype(index), PATTERN.indices.astype(index), values, PATTERN.shape


def exact(values: np.ndarray, arrays: dict[str, np.ndarray]) -> Operands:
    return Operands(SparseMatrix(PATTERN, wide(values), F64), {name: wide(array) for name, array in arrays.items()})


def check(found: np.ndarray, op: Op, values: np.ndarray, dtype: np.dtype, **arrays: np.ndarray) -> None:
    """Compare a result with the oracle of the operands as they are."""
    operands = exact(values, arrays)
    assert found.dtype == dtype
    assert_close(as_float32(found), op.oracle(operands), terms=op.terms(PATTERN, operands.width),
                 scale=op.scale(operands), eps=EPS[dtype])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_and_attention_are_right(dtype, threads):
    values = dense(PATTERN.nnz, dtype=dtype, seed=3)
    for width, index in ((1, np.int32), (3, np.int64), (16, np.int32), (17, np.int64), (256, np.int32)):
        x, q = dense(COLS, width, dtype=dtype), dense(ROWS, width, dtype=dtype, seed=1)
        queries, keys = dense(ROWS, 2, width, dtype=dtype), dense(COLS, 2, width, dtype=dtype, seed=4)
        a = parts(values, index)
        ready = sparloom.prepare(a, threads=threads, cache=PlanCache(None))
        for call in (lambda *args, a=a, **options: sparloom.spmm(a, *args, threads=threads, **options), ready.spmm):
            for reduce, op in REDUCTIONS.items():
                check(call(x, reduce=reduce), op, values, dtype, B=x)
        for found in (sparloom.sddmm(a, q, x, threads=threads), ready.sddmm(q, x)):
            check(found, SDDMM(), values, dtype, B=q, C=x)
        for found in (sparloom.csr_attention(a, queries, keys, keys, threads=threads),
                      ready.attention(queries, keys, keys)):
            check(found, CsrAttention(2), values, dtype, Q=queries, K=keys, V=keys)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_is_right(dtype, tmp_path):
    values, x, q = (dense(*shape, dtype=dtype, seed=5) for shape in ((PATTERN.nnz,), (COLS, 40), (ROWS, 40)))
    ready = sparloom.prepare(parts(values), threads=2, cache=PlanCache(tmp_path))
    cases = {"spmm": (SpMM(), {"B": x}), "spmm_max": (SpmmMax(), {"B": x}), "sddmm": (SDDMM(), {"B": q, "C": x}),
             "attention": (CsrAttention(), {"Q": q[:, None], "K": x[:, None], "V": x[:, None]})}
    if dtype.itemsize == 2:
        cases["spmm_mean"] = SpmmMean(), {"B": x}
    for op, arrays in cases.values():
        family, operands = ready.backend.kernels(op, 40), Operands(SparseMatrix(PATTERN, values, dtype), arrays)
        result = family.result(operands)
        for config in family.space():
            result.view(np.uint8).fill(0xFF)  # NaN
            family.bind(operands, config, result)()
            check(result, op, values, dtype, **arrays)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_argmax_is_that_of_exact_products(dtype):
    values, x = dense(PATTERN.nnz, dtype=dtype, seed=6), dense(COLS, 20, dtype=dtype)
    for threads in (1, 3):
        largest, argmax = sparloom.prepare(parts(values), threads=threads, cache=PlanCache(None)).spmm_max(x)
        check(largest, SpmmMax(), values, dtype, B=x)
        for row in range(ROWS):
            begin, end = PATTERN.indptr[row : row + 2]
            if begin == end:
                assert (argmax[row] == -1).all()
            else:
                products = wide(values)[begin:end, None] * wide(x)[PATTERN.indices[begin:end]]
                np.testing.assert_array_equal(argmax[row], begin + products.argmax(axis=0))


@pytest.mark.parametrize(("first", "second", "expected"), [
    (F32, F64, F64), (F64, F32, F64), (F16, F32, F32), (F16, F64, F64), (F16, BFLOAT16, F32), (BFLOAT16, F32, F32),
    (F64, BFLOAT16, F64)], ids=str)
def test_operands_are_promoted_as_numpy_does(first, second, expected):
    values, x, q = dense(PATTERN.nnz, dtype=first), dense(COLS, 5, dtype=second), dense(ROWS, 5, dtype=first, seed=2)
    ready = sparloom.prepare(parts(values), cache=PlanCache(None))
    for reduce, op in REDUCTIONS.items():
        check(sparloom.spmm(parts(values), x, reduce=reduce), op, values, expected, B=x)
        check(ready.spmm(x, reduce=reduce), op, values, expected, B=x)
        check(ready.spmm(x, values=cast(wide(values), second), reduce=reduce), op,
              cast(wide(values), second), second, B=x)
    check(ready.sddmm(q, x), SDDMM(), values, expected, B=q, C=x)
    check(sparloom.sddmm(parts(values), q, x), SDDMM(), values, expected, B=q, C=x)
    found = sparloom.csr_attention(parts(values), q, x, x)
    check(found[:, None], CsrAttention(), values, expected, Q=q[:, None], K=x[:, None], V=x[:, None])
    check(ready.spmm_max(x)[0], SpmmMax(), values, expected, B=x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_may_be_changed_in_place(dtype):
    values, x = dense(PATTERN.nnz, dtype=dtype), dense(COLS, 9, dtype=dtype)
    ready, a = sparloom.prepare(parts(values), cache=PlanCache(None)), parts(values)
    for seed in range(4):
        values[...] = dense(PATTERN.nnz, dtype=dtype, seed=seed)
        check(ready.spmm(x), SpMM(), values, dtype, B=x)
        check(ready.spmm(x, reduce="mean"), SpmmMean(), values, dtype, B=x)
        check(ready.spmm(x.astype(F64) if dtype == F16 else x), SpMM(), values, F64 if dtype == F16 else dtype, B=x)
        check(sparloom.spmm(a, x), SpMM(), values, dtype, B=x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_has_the_promoted_type(dtype):
    values, x = dense(PATTERN.nnz, dtype=dtype), dense(COLS, 4, dtype=dtype)
    out, a = np.empty((ROWS, 4), dtype), parts(values)
    for call in (sparloom.prepare(a, cache=PlanCache(None)).spmm, lambda *args, **options: sparloom.spmm(
            a, *args, **options)):
        assert call(x, out=out) is out
        check(out, SpMM(), values, dtype, B=x)
        with pytest.raises(ValueError, match=r"out cannot be written: an array of float32 with strides"):
            call(x, out=np.empty((ROWS, 4), np.float32))


@pytest.mark.parametrize(("dtype", "message"), [
    (np.complex64, "complex numbers are not computed with: give the real and the imaginary part"),
    (np.complex128, "complex numbers are not computed with"), (np.int64, r"pass \S+\.astype\(numpy\.float32\)"),
    (bool, r"pass \S+\.astype\(numpy\.float32\)"), (np.uint16, "pass"), (np.longdouble, "pass"), (">f8", "pass")])
def test_other_types_are_refused_by_name(dtype, message):
    values, x, q = (dense(*shape, dtype=F64).astype(dtype) for shape in ((PATTERN.nnz,), (COLS, 4), (ROWS, 4)))
    name, fine = np.dtype(dtype), dense(COLS, 4, dtype=F64)
    with pytest.raises(TypeError, match=f"values of A are {name}: {message}"):
        sparloom.spmm(parts(values), fine)
    for reduce in REDUCTIONS:
        with pytest.raises(TypeError, match=f"X is {name}: {message}"):
            sparloom.spmm(parts(wide(np.ones(PATTERN.nnz))), x, reduce=reduce)
    with pytest.raises(TypeError, match=f"Q is {name}: {message}"):
        sparloom.sddmm(parts(np.ones(PATTERN.nnz)), q, fine)
    with pytest.raises(TypeError, match=f"V is {name}: {message}"):
        sparloom.csr_attention(parts(np.ones(PATTERN.nnz)), dense(ROWS, 4, dtype=F64), fine, x)


@pytest.mark.parametrize("dtype", [F32, *DTYPES], ids=str)
def test_nan_and_infinity_stay(dtype):
    values, x = cast(np.ones(PATTERN.nnz), dtype), cast(np.ones((COLS, 18)), dtype)
    values[PATTERN.indptr[7]] = cast(np.array([np.nan]), dtype)[0]
    values[PATTERN.indptr[9]] = cast(np.array([np.inf]), dtype)[0]
    ready = sparloom.prepare(parts(values), threads=2, cache=PlanCache(None))
    for reduce in REDUCTIONS:
        found = wide(ready.spmm(x, reduce=reduce))
        assert np.isnan(found[7]).all()
        assert (found[9] == np.inf).all()
        assert np.isfinite(np.delete(found, [7, 9], axis=0)).all()


@pytest.mark.parametrize("dtype", [F16, BFLOAT16], ids=str)
def test_16_bit_numbers_are_rounded_once_to_the_nearest(dtype):
    """Rows of one nonzero multiply by 1: all numbers of the type come back, subnormal ones and NaN too."""
    everything = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, 32)
    one = cast(np.ones(everything.shape[0]), dtype)
    identity = np.arange(everything.shape[0] + 1), np.arange(everything.shape[0]), one, 2 * everything.shape[:1]
    with np.errstate(invalid="ignore"):
        before = wide(everything)
        np.testing.assert_array_equal(wide(sparloom.spmm(identity, everything)), before)
        narrow = np.ascontiguousarray(everything[:, :5])  # masked stores
        np.testing.assert_array_equal(wide(sparloom.spmm(identity, narrow)), wide(narrow))


def test_sums_of_16_bit_numbers_are_float32():
    """4,000 ones are 4,000 in float16, where additions one by one would stop at 2,048; their mean does not overflow."""
    count, x = 4000, np.ones((4000, 16), np.float16)
    a = np.array([0, count]), np.arange(count), np.ones(count, np.float16), (1, count)
    assert (sparloom.spmm(a, x) == count).all()
    assert (sparloom.prepare(a, threads=2, cache=PlanCache(None)).spmm(x) == count).all()
    large = 100 * x
    assert np.isinf(sparloom.spmm(a, large)).all()
    assert (sparloom.spmm(a, large, reduce="mean") == 100).all()
    assert (sparloom.prepare(a, threads=2, cache=PlanCache(None)).spmm(large, reduce="mean") == 100).all()


def test_float64_results_are_float64():
    """A difference that float32 cannot hold must survive every operation."""
    a = np.array([0, 1]), np.array([0]), np.ones(1), (1, 1)
    x, tiny = np.full((1, 3), 1 + 2.0**-40), 1 + 2.0**-40
    ready = sparloom.prepare(a, cache=PlanCache(None))
    for reduce in REDUCTIONS:
        assert (sparloom.spmm(a, x, reduce=reduce) == tiny).all()
        assert (ready.spmm(x, reduce=reduce) == tiny).all()
    assert ready.sddmm(x[:, :1], np.ones((1, 1)))[0] == tiny
    assert (ready.attention(x[:, None], x[:, None], x[:, None]) == tiny).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decisions_are_kept_for_each_type(dtype, tmp_path):
    policy = CsrPolicy()
    values, x = dense(PATTERN.nnz, dtype=dtype), dense(COLS, 64, dtype=dtype)
    ready = sparloom.prepare(parts(values), threads=1, cache=PlanCache(tmp_path), policy=policy)
    plan = ready.plan("spmm", B=x)
    assert sparloom.prepare(parts(values), threads=1, cache=PlanCache(tmp_path), policy=policy,
                            replay_only=True).plan("spmm", B=x).choice == plan.choice
    if dtype.itemsize == 2:
        assert not plan.choice.library
