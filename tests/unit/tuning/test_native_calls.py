"""Calls that the native core computes: patterns that it sees for the first time, that it knows, and prepared ones."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
import torch
from csr_operands import close, dense, matrix

import sparloom
import sparloom.nn
from sparloom.ops import SDDMM, CsrAttention, SpMM, SpmmMax
from sparloom.platforms.cpu_kernels import native_core
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix
from sparloom.tuning.sparse import CpuBackend, Prepared

ROWS, COLS = 300, 200

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def core():
    return native_core() or pytest.skip("the native core is not built")


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
def test_every_operation_on_every_form_is_right(core, a, threads):
    rows, cols = a.shape
    x, q = dense(cols, 40), dense(rows, 40)
    q3, k3, v3 = dense(rows, 2, 8), dense(cols, 2, 8), dense(cols, 2, 5)
    before = core.counts()
    for form in forms(a):
        for _ in range(4):  # fresh, then known
            close(SpMM(), a, {"B": x}, sparloom.spmm(form, x, threads=threads))
        close(SpmmMax(), a, {"B": x}, sparloom.spmm(form, x, threads=threads, reduce="max"))
        mean = sparloom.spmm(form, x, threads=threads, reduce="mean")
        np.testing.assert_allclose(mean, a @ x / np.maximum(1, np.diff(a.indptr))[:, None], rtol=1e-4, atol=1e-5)
        close(SDDMM(), a, {"B": q, "C": x}, sparloom.sddmm(form, q, x, threads=threads))
        close(CsrAttention(2), a, {"Q": q3, "K": k3, "V": v3},
              sparloom.csr_attention(form, q3, k3, v3, threads=threads))
    after = core.counts()
    assert after["fresh"] > before["fresh"]
    assert after["known"] > before["known"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_way_of_a_call_gives_the_same_bits(dtype, threads):
    """Fresh, known and prepared calls of the core, and calls through Python."""
    a, x = matrix(800, COLS), dense(COLS, 24).astype(dtype)
    indptr, indices, values = a.indptr, a.indices, a.data.astype(dtype)
    given = indptr, indices, values, a.shape
    ready = sparloom.prepare(given, threads=threads)
    python = Prepared(ready.matrix, where=CpuBackend(threads))
    for reduce in ("sum", "mean", "max"):
        results = [sparloom.spmm(given, x, reduce=reduce, threads=threads) for _ in range(5)]
        results += [each.spmm(x, reduce=reduce) for each in (ready, ready, python, python)]
        assert all(np.array_equal(each, results[0]) for each in results), reduce
    q = dense(800, 24).astype(dtype)
    results = [sparloom.sddmm(given, q, x, threads=threads), *(each.sddmm(q, x) for each in (ready, ready, python))]
    assert all(np.array_equal(each, results[0]) for each in results)
    heads = q.reshape(800, 3, 8), x.reshape(COLS, 3, 8), x.reshape(COLS, 3, 8)
    results = [sparloom.csr_attention(given, *heads, threads=threads),
               *(each.attention(*heads) for each in (ready, ready, python))]
    assert all(np.array_equal(each, results[0]) for each in results)
    for (most, at), (others, places) in [(ready.spmm_max(x), python.spmm_max(x)) for _ in range(2)]:
        assert np.array_equal(most, others)
        assert np.array_equal(at, places)


def test_a_prepared_matrix_runs_in_the_core(core):
    a, x, out = matrix(), dense(COLS, 16), np.empty((ROWS, 16), np.float32)
    ready = sparloom.prepare(a)
    ready.spmm(x)
    before = core.counts()["prepared"]
    other = np.ones_like(a.data)
    assert ready.spmm(x, out=out) is out
    close(SpMM(), a, {"B": x}, out)
    changed = ready.spmm(x, values=other)
    close(SpMM(), scipy.sparse.csr_array((other, a.indices, a.indptr), shape=a.shape), {"B": x}, changed)
    assert core.counts()["prepared"] == before + 2


def test_a_known_pattern_dies_with_its_arrays(core):
    a, x = matrix(), dense(COLS, 4)
    before = core.counts()["patterns"]
    for _ in range(4):
        sparloom.spmm(a, x)
    assert core.counts()["patterns"] == before + 1
    del a
    assert core.counts()["patterns"] == before


def test_results_reuse_the_memory_of_dead_ones_only():
    a, x = matrix(), dense(COLS, 64)
    kept = [sparloom.spmm(a, x) for _ in range(3)]
    copies = [each.copy() for each in kept]
    view = sparloom.spmm(a, x)[3:]
    expected = view.copy()
    for seed in range(20):
        sparloom.spmm(matrix(seed=seed), 2 * x)
    assert all(np.array_equal(*pair) for pair in zip(kept, copies, strict=True))
    assert np.array_equal(view, expected)


def test_a_call_within_a_call_is_right(core):
    """A finaliser that the interpreter runs while the core allocates calls the core again."""
    a, x = matrix(800, COLS), dense(COLS, 16)
    expected, inner = sparloom.spmm(a, x), []

    class Calls:
        def __init__(self):
            self.self = self  # the collector of cycles calls the finaliser

        def __del__(self):
            inner.append(sparloom.spmm(a, x))

    for _ in range(200):
        Calls()
        assert np.array_equal(sparloom.spmm(a, x), expected)
    gc.collect()
    assert len(inner) == 200
    assert all(np.array_equal(each, expected) for each in inner)


def test_tensors_on_the_processor_are_read_in_place():
    a, x = matrix(), dense(COLS, 8)
    parts = tuple(torch.from_numpy(each) for each in (a.indptr, a.indices, a.data))
    for _ in range(4):
        close(SpMM(), a, {"B": x}, sparloom.spmm((*parts, a.shape), torch.from_numpy(x)))
    with pytest.raises(TypeError, match="requires a gradient"):
        sparloom.spmm((*parts, a.shape), torch.from_numpy(x).requires_grad_())
    halves = *parts[:2], parts[2].bfloat16(), a.shape
    for dtype in (np.float32, BFLOAT16):  # also once the core has kernels for these numbers
        sparloom.spmm((a.indptr, a.indices, a.data.astype(np.float32), a.shape), x)
        if dtype == BFLOAT16:
            sparloom.spmm((a.indptr, a.indices, np.zeros(a.nnz, BFLOAT16), a.shape), np.zeros(x.shape, BFLOAT16))
        with pytest.raises(TypeError, match="is bfloat16, which NumPy does not have"):
            sparloom.spmm(halves, torch.from_numpy(x).bfloat16())


@pytest.fixture
def tensor_core(core):
    """The core after `sparloom.nn` was used: it reads tensors itself."""
    return core if core.use_tensors(torch.Tensor, torch.nn.Parameter) else pytest.skip("torch exchanges no tensors")


def test_a_negated_tensor_has_its_sign(tensor_core):
    a, x = matrix(), dense(COLS, 8)
    z = torch.complex(torch.from_numpy(x), torch.from_numpy(-x)).conj().imag  # strided
    ready = sparloom.prepare(a)
    for negated in (z, torch.from_numpy(-x)._neg_view()):
        for _ in range(2):  # the first calls load and choose kernels
            close(SpMM(), a, {"B": x}, sparloom.spmm(a, negated))
            close(SpMM(), a, {"B": x}, ready.spmm(negated))
            close(SpMM(), a, {"B": x}, ready.spmm(x, values=torch.from_numpy(-a.data)._neg_view()))


def test_gradients_and_results_in_tensors_are_refused(tensor_core):
    a, x = matrix(), dense(COLS, 8)
    ready, wanted = sparloom.prepare(a), torch.from_numpy(a.data.copy()).requires_grad_()
    for _ in range(2):
        with pytest.raises(TypeError, match="values requires a gradient"):
            ready.spmm(x, values=wanted)
        with pytest.raises(ValueError, match="out is Tensor: it must be an array"):
            sparloom.spmm(a, x, out=torch.zeros(ROWS, 8))
        ready.spmm(x)


def test_arrays_among_tensors_are_refused(tensor_core):
    a, x = matrix(), torch.from_numpy(dense(COLS, 8))
    sparloom.spmm(a, x)  # loads kernels
    parts = tuple(map(torch.from_numpy, (a.indptr, a.indices, a.data)))
    for given, name in ((a, "A"), ((a.indptr, *parts[1:]), "crow_indices of A"), ((*parts[:2], a.data), "values of A"),
                        ((*parts[:2], None), "values of A")):
        with pytest.raises(TypeError, match=f"{name} is .*: expected a"):
            sparloom.nn.spmm(given, x)


def test_a_result_larger_than_all_memory_is_refused(tensor_core):
    """An operand without rows takes no memory, however wide it is."""
    a = np.zeros(17, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), (16, 0)
    tensors = *map(torch.from_numpy, a[:3]), a[3]
    with pytest.raises(MemoryError):
        sparloom.spmm(a, np.empty((0, 2**58), np.float32))
    with pytest.raises(MemoryError):
        tensor_core.spmm(tensors, torch.empty(0, 2**58), "sum", None, None, None, True, False)


@pytest.mark.parametrize("options", [{}, {"changed": 1}, {"threads": np.int64(1)}], ids=["true", "one", "threads"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("pointers", [np.int32, np.int64])
def test_changed_arrays_are_checked_again_however_the_call_goes(options, order, pointers):
    a, x = matrix(), dense(COLS, 8)
    given = a.indptr.astype(pointers), a.indices, a.data, a.shape
    for _ in range(4):
        sparloom.spmm(given, x)
    a.indices[a.indptr[:-1][np.diff(a.indptr) > 0]] = 0  # the columns of a row still ascend
    for call in ({"changed": True, **options}, {}):
        expected = scipy.sparse.csr_array((a.data, a.indices, a.indptr), shape=a.shape)
        close(SpMM(), expected, {"B": x}, sparloom.spmm(given, np.asarray(x, order=order), **call))
    close(SpMM(), expected, {"B": x}, sparloom.spmm(given, x))


def test_a_negative_extent_is_refused():
    a, x = matrix(), dense(COLS, 8)
    sparloom.spmm(a, x)
    with pytest.raises(ValueError, match="rows and columns are between 0 and"):
        sparloom.spmm((a.indptr, a.indices, a.data, (-1, COLS)), x)


def test_a_known_pattern_never_counts_for_other_columns():
    a, x = matrix(), dense(COLS, 8)
    for _ in range(4):
        sparloom.spmm((a.indptr, a.indices, a.data), x)
    with pytest.raises(ValueError, match="indices of A run from"):
        sparloom.spmm((a.indptr, a.indices, a.data), x[: COLS // 2])


def test_unsorted_and_double_columns_are_summed_without_preparing(core):
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


@pytest.mark.parametrize("pointers", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [np.int32, np.int64])
def test_wrong_arrays_are_left_to_the_messages_of_prepared_matrices(pointers, columns):
    a, x = matrix(), dense(COLS, 8)
    limits = np.iinfo(pointers)
    out = np.zeros((ROWS, 8), np.float32)
    for place, wrong in ((1, -1), (0, 1), (0, -1), (-1, a.nnz + 1), (5, limits.max), (5, limits.min), (-2, a.nnz + 1)):
        indptr = a.indptr.astype(pointers)
        indptr[place] = wrong
        with pytest.raises(ValueError, match="indptr of A must be 301 numbers that rise"):
            sparloom.spmm((indptr, a.indices.astype(columns), a.data, a.shape), x, out=out)
    limits = np.iinfo(columns)
    for place in (0, 1, a.nnz // 2, a.nnz - 1):
        for wrong in (-1, COLS, limits.max, limits.min, *([2**32, 2**32 + 1] if columns is np.int64 else [])):
            indices = a.indices.astype(columns)
            indices[place] = wrong
            with pytest.raises(ValueError, match="indices of A run from"):
                sparloom.spmm((a.indptr.astype(pointers), indices, a.data, a.shape), x, out=out)
    assert not out.any()


def test_python_threads_may_call_at_once():
    x = dense(COLS, 16)
    given = [matrix(seed=seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for a, found in zip(given, pool.map(lambda a: sparloom.spmm(a, x, threads=2), given), strict=True):
            close(SpMM(), a, {"B": x}, found)


def test_a_one_dimensional_array_is_refused():
    with pytest.raises(ValueError, match="two axes"):
        sparloom.spmm(scipy.sparse.csr_array(np.ones(5, np.float32)), np.ones((5, 2), np.float32))
