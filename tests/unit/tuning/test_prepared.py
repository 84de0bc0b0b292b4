"""Results never overwrite operands, and in-place changes of index arrays are detected."""

import gc
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse
import torch
from csr_operands import dense, matrix

import sparloom
from sparloom.tuning import PlanCache

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]
SIDE = 16


def full() -> scipy.sparse.csr_array:
    """Make a matrix without zeros, each of whose arrays is as large as a result."""
    made = scipy.sparse.csr_array(np.arange(1, SIDE * SIDE + 1, dtype=np.float32).reshape(SIDE, SIDE))
    made.indices, made.indptr = made.indices.astype(np.int32), made.indptr.astype(np.int32)
    return made


def place(array: np.ndarray, *shape: int) -> np.ndarray:
    """View the memory of an array as one for a result, from its last bytes on where it is too small."""
    return array.view(np.uint8).reshape(-1)[: 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


def rows_in_any_order(a: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    order = np.arange(a.nnz).reshape(SIDE, SIDE)[:, ::-1].ravel()
    return scipy.sparse.csr_array((a.data[order], a.indices[order], a.indptr.copy()), shape=a.shape)


def coo(a: scipy.sparse.csr_array) -> scipy.sparse.coo_array:
    made = a.tocoo()
    return scipy.sparse.coo_array((made.data, tuple(each.astype(np.int32) for each in made.coords)), shape=a.shape)


KINDS = {
    "csr": full, "tuple": lambda: (full().indptr, full().indices, full().data, (SIDE, SIDE)),
    "wide": lambda: (full().indptr.astype(np.int64), full().indices.astype(np.int64), full().data, (SIDE, SIDE)),
    "unsorted": lambda: rows_in_any_order(full()), "coo": lambda: coo(full()), "csc": lambda: full().tocsc(),
}


def arrays_of(a) -> dict[str, np.ndarray]:
    if isinstance(a, tuple):
        return dict(zip(("indptr", "indices", "values"), a[:3], strict=True))
    if a.format == "coo":
        return {"row": a.coords[0], "col": a.coords[1], "data": a.data}
    return {"indptr": a.indptr, "indices": a.indices, "data": a.data}


@pytest.mark.parametrize("door", [sparloom.spmm, lambda a, x, out: sparloom.prepare(a).spmm(x, out=out)],
                         ids=["spmm", "prepare"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_result_overwrites_the_arrays_of_a(kind, door):
    for name in arrays_of(KINDS[kind]()):
        a = KINDS[kind]()
        array = arrays_of(a)[name]
        width = min(8, array.nbytes // 4 // SIDE)
        if width:
            before = {each: kept.copy() for each, kept in arrays_of(a).items()}
            with pytest.raises(ValueError, match="out lies in the memory of an operand"):
                door(a, dense(SIDE, width), out=place(array, SIDE, width))
            for each, kept in arrays_of(a).items():
                np.testing.assert_array_equal(kept, before[each])


def test_no_result_overwrites_arrays_that_a_prepared_matrix_reads():
    ready = sparloom.prepare(full())
    room = np.ones((3 * SIDE, 2 * SIDE), np.float32)
    gaps = room[:SIDE, ::2]  # read from a copy
    values, q, k, v = (np.ones(shape, np.float32) for shape in (SIDE * SIDE, (SIDE, 4), (SIDE, 4), (SIDE, 4)))
    heads = [each.reshape(SIDE, 1, 4) for each in (q, k, v)]
    for call, array, shape in [
            (lambda out: ready.spmm(gaps, out=out), room, (SIDE, SIDE)),
            (lambda out: ready.spmm(torch.from_numpy(room[:SIDE, :SIDE].copy()), values=values, out=out), values,
             (SIDE, SIDE)),
            (lambda out: ready.spmm(dense(SIDE, 8), values=torch.from_numpy(values), out=out), values, (SIDE, 8)),
            (lambda out: ready.sddmm(q, k, values=values, out=out), values, (SIDE * SIDE,)),
            *((lambda out: ready.attention(*heads, out=out), each, (SIDE, 1, 4)) for each in (q, k, v))]:
        with pytest.raises(ValueError, match=r"out lies in the memory of an operand, [XQKVv]"):
            call(place(array, *shape))


def test_memory_of_freed_arrays_may_be_used():
    room = np.zeros(4 * SIDE * SIDE, np.float32)
    a = full()
    indices = room[: SIDE * SIDE].view(np.int32)
    indices[:] = a.indices
    ready = sparloom.prepare((a.indptr, indices, a.data, a.shape))
    del indices
    gc.collect()
    out = room[: SIDE * 8].reshape(SIDE, 8)
    x = dense(SIDE, 8)
    np.testing.assert_allclose(ready.spmm(x, out=out), a @ x, rtol=1e-5)


def test_an_invalid_out_is_refused_before_anything_is_computed():
    ready, x = sparloom.prepare(full(), libraries={}), dense(SIDE, 8)
    ready.backend.kernels = None  # nothing can run
    for out in (np.zeros((SIDE, 8)), np.zeros((8, SIDE), np.float32).T, np.zeros((SIDE, 16), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match=r"out cannot be written: .* not a contiguous array of float32"):
            ready.spmm(x, out=out)
    frozen = np.zeros((SIDE, 8), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out cannot be written: the result is read-only"):
        ready.spmm(x, out=frozen)
    with pytest.raises(TypeError, match="out is a masked array"):
        ready.spmm(x, out=np.ma.masked_array(np.zeros((SIDE, 8), np.float32), mask=True))


CHANGES = {
    "columns": lambda a: np.subtract(a.shape[1] - 1, a.indices.copy()[::-1], out=a.indices),
    "one column": lambda a: a.indices.__setitem__(0, 1 - a.indices[0] % 2),
    "a column far away": lambda a: a.indices.__setitem__(a.nnz // 2, 2**31 - 1),
    "a column below 0": lambda a: a.indices.__setitem__(-1, -5),
    "rows": lambda a: a.indptr.__setitem__(slice(1, 40), a.indptr[1]),
    "the last row": lambda a: a.indptr.__setitem__(-1, 10**9),
}


@pytest.mark.parametrize("calls", [1, 60])
@pytest.mark.parametrize("change", CHANGES)
def test_index_arrays_changed_in_place_are_an_error_until_reported(change, calls):
    a, x = matrix(800, 600), dense(600, 4)
    a.indptr, a.indices = a.indptr.astype(np.int32), a.indices.astype(np.int32)
    ready = sparloom.prepare(a, cache=PlanCache(None))
    for _ in range(max(calls, 4)):  # the core keeps a copy from the third call on
        sparloom.spmm(a, x)
        ready.spmm(x)
    CHANGES[change](a)
    for call in (lambda: ready.spmm(x), lambda: sparloom.spmm(a, x), lambda: ready.spmm_max(x)):
        with suppress(ValueError):
            for _ in range(31):
                call()
        with pytest.raises(ValueError, match="was changed in place since A was prepared: call once with changed=True"):
            call()  # and again, whatever part of it is looked at now


def test_reported_changes_give_right_results():
    a, x = full(), dense(SIDE, 4)
    for _ in range(3):
        sparloom.spmm(a, x)
    a.data[:] = a.data[::-1].copy()
    np.testing.assert_allclose(sparloom.spmm(a, x), a @ x, rtol=1e-4)  # values may change
    shuffled = rows_in_any_order(full())
    for _ in range(4):
        sparloom.spmm(shuffled, x)
    shuffled.indices[:SIDE], shuffled.data[:SIDE] = shuffled.indices[:SIDE][::-1].copy(), shuffled.data[:SIDE][::-1]
    with pytest.raises(ValueError, match="indices of A was changed in place"):
        sparloom.spmm(shuffled, x)
    expected = scipy.sparse.csr_array((shuffled.data, shuffled.indices, shuffled.indptr), shape=a.shape) @ x
    for _ in range(3):
        np.testing.assert_allclose(sparloom.spmm(shuffled, x, changed=True), expected, rtol=1e-4)


@pytest.mark.parametrize("values", [
    np.ones(SIDE * SIDE, np.longdouble), np.ones(SIDE * SIDE, np.int32), np.ones(SIDE * SIDE, bool),
    np.ones(SIDE * SIDE, np.uint16), np.ones(SIDE * SIDE, np.complex64), np.array(["1"] * SIDE * SIDE),
    np.array([1] * SIDE * SIDE, object), np.ones(SIDE * SIDE, ">f4"), torch.ones(SIDE * SIDE, dtype=torch.int64),
], ids=lambda values: str(values.dtype))
def test_values_of_other_types_are_refused(values):
    ready, x = sparloom.prepare(full()), dense(SIDE, 4)
    for call in (lambda: ready.spmm(x, values=values), lambda: ready.sddmm(x, x, values=values),
                 lambda: ready.spmm(x, values=values, reduce="max"), lambda: ready.spmm_max(x, values=values)):
        with pytest.raises(TypeError, match=r"values are .*: (pass values.astype\(numpy.float32\)|complex numbers)"):
            call()
