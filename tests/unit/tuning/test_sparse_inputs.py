"""Errors about invalid matrices and arrays, and handling of unusual valid ones."""

import numpy as np
import pytest
import scipy.sparse

from sparloom.tuning.sparse import array_of, matrix_of


def matrix():
    """[[1, 0, 2], [0, 0, 0], [3, 4, 0]]"""
    arrays = np.array([1, 2, 3, 4], np.float32), np.array([0, 2, 0, 1], np.int32), np.array([0, 2, 2, 4], np.int32)
    return scipy.sparse.csr_array(arrays, shape=(3, 3))


def changed(made, **arrays):
    for name, array in arrays.items():
        setattr(made, name, array)
    return made


def parts(**arrays):
    a = matrix()
    given = {"indptr": a.indptr, "indices": a.indices, "values": a.data, "shape": a.shape, **arrays}
    return tuple(given.values())


@pytest.mark.parametrize(("given", "error", "message"), [
    (parts(indptr=np.array([0, 2**31 - 1, -2, 4], np.int32)), ValueError,
     "indptr of A must be 4 numbers that rise from 0 to 4, one more than rows"),
    (parts(indptr=np.zeros(0, np.int32)), ValueError, "indptr of A must be 4 numbers"),
    (parts(indices=np.array([0, 2, 0, 3], np.int32)), ValueError, "indices of A run from 0 to 3: columns are 0 to 2"),
    (parts(values=np.ones((4, 1), np.float32)), ValueError, "A has 4 x 1 values for 4 indices"),
    (parts(values=np.ones(3, np.float32)), ValueError, "A has 3 values for 4 indices: give one for each"),
    (parts(values=np.ones(4, int)), TypeError,
     r"values of A are int64: pass values.astype\(numpy.float32\) in the tuple"),
    (parts(values=np.ma.masked_greater(np.ones(4, np.float32), 0)), TypeError,
     r"values is a masked array: pass values.filled\(0\)"),
    (parts(shape=(3, 3, 1)), TypeError, r"shape of A is \(3, 3, 1\): give \(rows, columns\)"),
    (parts(shape=None), TypeError, "shape of A is None"),
    (parts(shape=(3, 2.5)), TypeError, r"shape of A is \(3, 2.5\)"),
    (parts(shape=(3, 2**31)), ValueError, r"shape of A is \(3, 2147483648\): rows and columns are between 0 and"),
    (parts(shape=(3, -3)), ValueError, r"shape of A is \(3, -3\)"),
    (scipy.sparse.coo_array(np.ones(3, np.float32)), ValueError, r"A has shape \(3,\): it must have two axes"),
])
def test_errors_name_the_fault(given, error, message):
    with pytest.raises(error, match=message):
        matrix_of(given)


@pytest.mark.parametrize(("given", "reason"), [
    (changed(matrix().tocsc(), indices=np.array([0, 9, 2, 0], np.int32)), ""),
    (changed(matrix().tocsc(), indptr=np.array([0, 9, 9, 4], np.int32)), ""),
    (changed(matrix().tocsc(), data=np.ones(3, np.float32)), "3 values for 4 indices|data"),
    (changed(matrix().tobsr((1, 1)), indices=np.array([0, 9, 2, 0], np.int32)), ""),
    (changed(matrix().tocoo(), coords=(np.array([0, 0, 2, 10**9]), np.array([0, 2, 0, 1]))), "1000000000 exceeds"),
    (changed(matrix().todia(), offsets=np.array([0], np.int32)), r"offsets of shape \(1,\) for data of shape \(4, 3\)"),
    (changed(matrix().tolil(), data=np.array([[1.0], [], [3.0, 4.0]], object)), "columns and values of different nu"),
])
def test_damaged_scipy_matrices_are_refused_before_scipy_reads_them(given, reason):
    with pytest.raises(ValueError, match=f"A, a SciPy matrix in format {given.format}, is damaged: .*{reason}"):
        matrix_of(given)


def test_a_wrong_flag_is_reported():
    a = matrix()
    a.has_canonical_format = True
    a.indices[:2] = [2, 0]
    with pytest.raises(ValueError, match=r"A\.has_canonical_format is True, but columns of A are not sorted"):
        matrix_of(a)
    a.has_canonical_format = False
    np.testing.assert_array_equal(matrix_of(a).to_scipy().toarray(), [[2, 0, 1], [0, 0, 0], [3, 4, 0]])


def test_nothing_of_the_users_is_changed():
    a = matrix()
    a.indices[:2] = [2, 0]
    before = a.indices.copy(), a.data.copy()
    matrix_of((a.indptr, a.indices, a.data, a.shape))
    np.testing.assert_array_equal(a.indices, before[0])
    np.testing.assert_array_equal(a.data, before[1])


def test_arrays_anywhere_in_memory_are_taken():
    room = np.zeros(17, np.uint8)
    values = np.ndarray(4, np.float32, buffer=room, offset=1)
    values[:] = [1, 2, 3, 4]
    found = matrix_of(parts(values=values))
    assert found.values.flags.aligned
    np.testing.assert_array_equal(found.values, [1, 2, 3, 4])


@pytest.mark.parametrize("error", [BufferError("far"), RuntimeError("no export"), TypeError("no"), AttributeError("x")])
def test_unreadable_arrays_are_refused_by_name(error):
    class Elsewhere:
        def __dlpack__(self, **options):
            raise error

        def __dlpack_device__(self):
            return 2, 0

    with pytest.raises(TypeError, match=rf"Q cannot be read by the processor \({error}\): move it there"):
        array_of(Elsewhere(), "Q")


def test_tensors_that_numpy_cannot_represent_are_refused_with_the_reason():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"X requires a gradient, which this call does not compute: pass X\.detach\(\)"):
        array_of(torch.ones(3, 2, requires_grad=True), "X")
    with pytest.raises(TypeError, match=r"X is bfloat16, which NumPy does not have: pass X\.float\(\)"):
        array_of(torch.ones(3, 2, dtype=torch.bfloat16), "X")
