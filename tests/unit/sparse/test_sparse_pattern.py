"""Pattern and SparseMatrix: invariants, conversions, smallest inputs."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix

EXAMPLE = Pattern((3, 4), np.array([0, 2, 2, 4]), np.array([0, 3, 1, 2]))


def test_arrays_are_stored_in_fixed_types():
    pattern = Pattern((1, 4), np.array([0, 2], dtype=np.uint8), np.array([1, 3], dtype=np.int16))
    assert pattern.indptr.dtype == np.int64
    assert pattern.indices.dtype == np.int32
    assert (pattern.rows, pattern.cols, pattern.nnz) == (1, 4, 2)


def test_arrays_are_stored_contiguous_and_aligned():
    room = np.zeros(33, np.uint8)
    indptr, indices = np.ndarray(2, np.int64, room, offset=1), np.ndarray(2, np.int32, room, offset=17)
    values = np.ndarray(2, np.float32, room, offset=25)
    indptr[:], indices[:], values[:] = [0, 2], [0, 1], [5, 6]
    matrix = SparseMatrix(Pattern((1, 2), indptr, indices), values)
    for array in (matrix.pattern.indptr, matrix.pattern.indices, matrix.values):
        assert array.flags.aligned
    np.testing.assert_array_equal(matrix.to_scipy().toarray(), [[5, 6]])


def test_row_lengths_and_ids_count_empty_rows():
    assert EXAMPLE.row_lengths().tolist() == [2, 0, 2]
    assert EXAMPLE.row_ids().tolist() == [0, 0, 2, 2]
    assert EXAMPLE.row_ids().dtype == np.int32


@pytest.mark.parametrize(
    ("shape", "indptr", "indices", "message"),
    [
        ((-1, 2), [0], [], "-1 rows: a pattern has between 0 and 2147483647"),
        ((1, 2**31), [0, 0], [], "2147483648 columns: a pattern has"),
        ((2, 2), [0, 1], [0], r"indptr is int64 of shape \(2,\): 2 rows need 3 integers"),
        ((1, 2), [0.0, 1.0], [0], r"indptr is float64 of shape \(2,\)"),
        ((1, 2), [1, 1], [0], "indptr runs from 1 to 1: it must run from 0 to 1"),
        ((1, 2), [0, 2], [0], "indptr runs from 0 to 2: it must run from 0 to 1"),
        ((3, 2), [0, 2, 1, 2], [0, 1], "indptr falls after row 1"),
        ((1, 2), [0, 1], [2], "column 2 in row 0 is outside 0 to 1"),
        ((2, 2), [0, 0, 1], [-1], "column -1 in row 1 is outside 0 to 1"),
        ((2, 3), [0, 1, 3], [2, 1, 1], "column 1 follows column 1 in row 1: columns must increase strictly"),
        ((2, 3), [0, 2, 3], [2, 0, 1], "column 0 follows column 2 in row 0: .* use Pattern.from_coo"),
        ((1, 2), [0, 1], [[0]], r"indices is int64 of shape \(1, 1\)"),
        ((1, 2), [0, 1], [0.5], "indices is float64"),
    ],
)
def test_a_broken_invariant_is_named(shape, indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        Pattern(shape, np.array(indptr), np.array(indices))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_patterns_without_nonzeros_work(shape):
    pattern = Pattern(shape, np.zeros(shape[0] + 1, np.int64), np.zeros(0, np.int32))
    assert pattern.nnz == 0
    assert pattern.transpose().shape == shape[::-1]
    assert pattern.to_scipy().shape == shape
    assert Pattern.from_scipy(pattern.to_scipy()) == pattern
    assert Pattern.from_coo(np.zeros(0, int), np.zeros(0, int), shape) == pattern


def test_from_coo_sorts_and_counts_repeated_entries_once():
    rows, cols = np.array([2, 0, 2, 0, 2]), np.array([1, 3, 1, 0, 2])
    assert Pattern.from_coo(rows, cols, (3, 4)) == EXAMPLE


def test_from_coo_names_an_entry_out_of_bounds():
    with pytest.raises(ValueError, match="column 4 of entry 1 is outside 0 to 3"):
        Pattern.from_coo(np.array([0, 1]), np.array([0, 4]), (3, 4))
    with pytest.raises(ValueError, match="row -1 of entry 0 is outside 0 to 2"):
        Pattern.from_coo(np.array([-1, 1]), np.array([0, 1]), (3, 4))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil", "bsr"])
def test_from_scipy_accepts_every_layout(layout):
    assert Pattern.from_scipy(EXAMPLE.to_scipy().asformat(layout)) == EXAMPLE


def test_digest_is_frozen_and_depends_on_shape_and_content():
    assert EXAMPLE.digest() == "3846b0c7bd0b81221a1f3eaf03add7647f26fc970c5296d16f2cd8d86fd2cf0c"
    wider = Pattern((3, 5), EXAMPLE.indptr, EXAMPLE.indices)
    moved = Pattern((3, 4), EXAMPLE.indptr, np.array([0, 3, 1, 3]))
    lower = Pattern((3, 4), np.array([0, 1, 2, 4]), np.array([0, 3, 1, 2]))
    assert len({pattern.digest() for pattern in (EXAMPLE, wider, moved, lower)}) == 4


def test_equal_patterns_are_equal_and_have_equal_hashes():
    same = Pattern((3, 4), EXAMPLE.indptr.copy(), EXAMPLE.indices.copy())
    assert same == EXAMPLE
    assert len({same, EXAMPLE}) == 1
    assert same != Pattern((3, 5), EXAMPLE.indptr, EXAMPLE.indices)
    assert same != "pattern"


def test_values_need_one_real_number_per_nonzero():
    assert SparseMatrix(EXAMPLE, np.arange(4)).values.dtype == np.float32
    with pytest.raises(ValueError, match=r"values of shape \(3,\) for 4 nonzeros"):
        SparseMatrix(EXAMPLE, np.zeros(3))
    with pytest.raises(ValueError, match="complex values"):
        SparseMatrix(EXAMPLE, np.zeros(4, dtype=complex))


def test_values_are_float32_or_float64_on_request():
    fine = SparseMatrix(EXAMPLE, np.full(4, 0.1), np.float64)
    assert fine.values.dtype == fine.dtype == np.float64
    assert fine.astype(np.float64) is fine
    assert fine.astype(np.float32) == SparseMatrix(EXAMPLE, np.full(4, 0.1)) != fine
    with pytest.raises(ValueError, match=r"values of type .*: a matrix holds float32, float64, float16 or BFLOAT16"):
        SparseMatrix(EXAMPLE, np.zeros(4), np.longdouble)


def test_values_may_have_16_bits():
    half = SparseMatrix(EXAMPLE, np.full(4, 0.1), np.float16)
    assert half.values.dtype == half.dtype == np.float16
    assert half.with_values(np.ones(4, np.float16)).dtype == np.float16
    assert SparseMatrix(EXAMPLE, np.full(4, 0.1), np.float64).astype(np.float16) == half
    with pytest.raises(ValueError, match=r"value 70000.0 of nonzero 0 is beyond float16"):
        SparseMatrix(EXAMPLE, np.full(4, 7e4), np.float16)
    bits = np.full(4, 0x3F80, np.uint16).view(BFLOAT16)
    assert SparseMatrix(EXAMPLE, bits, BFLOAT16).values is bits
    with pytest.raises(ValueError, match="values of type uint16: give bfloat16 numbers as a view of type BFLOAT16"):
        SparseMatrix(EXAMPLE, bits.view(np.uint16), BFLOAT16)


def test_rounded_numbers_are_restored():
    fine = SparseMatrix(EXAMPLE, np.array([0.1, 1e-50, 3.0, 16777217.0]), np.float64)
    narrow = fine.astype(np.float32)
    assert narrow.values.dtype == np.float32
    assert narrow.astype(np.float32) is narrow
    assert narrow.astype(np.float64) == fine
    for copied in (copy.deepcopy(narrow), pickle.loads(pickle.dumps(narrow))):
        assert copied.astype(np.float64) == fine
    assert SparseMatrix(EXAMPLE, np.ones(4), np.float64).astype(np.float32).exact is None
    assert narrow.with_values(np.ones(4)).exact is None


def test_values_beyond_float32_are_refused():
    with pytest.raises(ValueError, match=r"value 1e\+39 of nonzero 2 is beyond float32: give dtype=numpy\.float64"):
        SparseMatrix(EXAMPLE, np.array([1, 2, 1e39, 4]))
    assert np.isinf(SparseMatrix(EXAMPLE, np.array([1, 2, np.inf, 4])).values).sum() == 1


@pytest.mark.parametrize("values", [["1", "2", "3", "4"], [1, 2, 3, None], [b"1"] * 4, [{}] * 4])
def test_values_that_are_not_numbers_are_refused(values):
    with pytest.raises(ValueError, match=r"values of type .*: give real numbers"):
        SparseMatrix(EXAMPLE, np.array(values))


def test_import_loads_no_learning_library():
    code = "import sys, sparloom.sparse; print(sorted({'torch', 'pandas', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
