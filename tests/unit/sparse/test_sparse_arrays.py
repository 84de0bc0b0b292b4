"""Matrices in .npz files: both layouts, and files that lie."""

import io
import zipfile

import numpy as np
import pytest
import scipy.sparse

from sparloom.sparse import Pattern, SparseMatrix, read_matrix, write_matrix

DENSE = np.array([[1, 0, 2], [0, 0, 3]], dtype=np.float32)


def save(tmp_path, **arrays):
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    return path


def plain(**changes):
    arrays = {"shape": [2, 3], "indptr": [0, 2, 3], "indices": [0, 2, 2], "values": [1.0, 2.0, 3.0]} | changes
    return {name: np.asarray(value) for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("compressed", [True, False])
def test_files_of_scipy_are_read(tmp_path, layout, compressed):
    path = tmp_path / "m.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(DENSE).asformat(layout), compressed=compressed)
    assert read_matrix(path).to_scipy().toarray().tolist() == DENSE.tolist()


def test_scipy_reads_what_is_written(tmp_path):
    matrix = SparseMatrix(Pattern.from_scipy(scipy.sparse.csr_array(DENSE)), np.array([1, 2, 3]))
    write_matrix(tmp_path / "m.npz", matrix)
    assert scipy.sparse.load_npz(tmp_path / "m.npz").toarray().tolist() == DENSE.tolist()


def test_plain_arrays_are_read(tmp_path):
    assert read_matrix(save(tmp_path, **plain())).to_scipy().toarray().tolist() == DENSE.tolist()


def test_values_default_to_one(tmp_path):
    assert read_matrix(save(tmp_path, **plain(values=None))).values.tolist() == [1, 1, 1]


def test_unsorted_columns_are_sorted_with_their_values(tmp_path):
    path = save(tmp_path, **plain(indices=[2, 0, 2], values=[2.0, 1.0, 3.0]))
    assert read_matrix(path).to_scipy().toarray().tolist() == DENSE.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": None}, "member 'shape' is missing: a csr matrix needs indptr, indices, shape"),
        ({"indptr": None}, "member 'indptr' is missing"),
        ({"format": b"dia"}, "member 'format' is 'dia': save the matrix as csr, csc or coo"),
        ({"format": 3}, "member 'format' is int64"),
        ({"shape": [2, 3, 4]}, r"member 'shape' is int64 of shape \(3,\): it must be two integers"),
        ({"shape": [-1, 3]}, "indptr' must rise from 0 to 3 in 0 steps"),
        ({"shape": [2, 2]}, "column 2 of entry 1 is outside 0 to 1"),
        ({"shape": [2, 1 << 40]}, "member 'shape': 1099511627776 columns need"),
        ({"indptr": [0, 2]}, "member 'indptr' must rise from 0 to 3 in 3 steps"),
        ({"indptr": [0, 4, 3]}, "member 'indptr' must rise"),
        ({"indptr": [0.0, 2.0, 3.0]}, "member 'indptr' is float64"),
        ({"indices": [0, -1, 2]}, "column -1 of entry 0 is outside 0 to 2"),
        ({"indices": [2, 2, 2]}, r"position \(0, 2\), counted from 0, occurs a second time"),
        ({"values": [1.0, 2.0]}, r"values are float64 of shape \(2,\): give 3 real numbers"),
        ({"values": [1.0, np.nan, 3.0]}, "value nan of entry 1 is not finite in float32"),
        ({"values": [1.0, 1e39, 3.0]}, r"value 1e\+39 of entry 1 is not finite in float32"),
        ({"values": [1j, 2, 3]}, "values are complex128"),
        ({"values": ["a", "b", "c"]}, "values are <U1"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_matrix(save(tmp_path, **plain(**changes)))
    assert str(tmp_path / "m.npz") in str(caught.value)


def test_coordinates_of_unequal_length_are_refused(tmp_path):
    path = save(tmp_path, format=np.array(b"coo"), shape=np.array([2, 2]), row=np.array([0]), col=np.array([0, 1]))
    with pytest.raises(ValueError, match="1 rows and 2 columns: give one of each per entry"):
        read_matrix(path)


def test_python_objects_are_never_loaded(tmp_path):
    path = save(tmp_path, **plain(values=np.array([{}, [], 1], dtype=object)))
    with pytest.raises(ValueError, match="member 'values' is no valid array: it holds Python objects"):
        read_matrix(path)


def test_a_header_that_claims_more_than_there_is_allocates_nothing(tmp_path):
    path = save(tmp_path, **plain(values=None))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("values.npy", header.getvalue() + b"12345678")
    with pytest.raises(ValueError, match=r"member 'values' is no valid array: 8 bytes for shape \(1125899906842624,\)"):
        read_matrix(path)


def test_a_bomb_stops_at_the_limit(tmp_path):
    path = tmp_path / "m.npz"
    np.savez_compressed(path, **plain(values=np.zeros(1_000_000)))
    with pytest.raises(ValueError, match=r"m\.npz: unpacks to \d+ bytes, more than 1000000"):
        read_matrix(path, limit_bytes=1_000_000)


def test_cuts_and_flipped_bytes_are_noticed(tmp_path):
    path = save(tmp_path, **plain())
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"m\.npz: damaged or truncated \.npz file"):
            read_matrix(path)
    damaged = bytearray(whole)
    damaged[whole.index(b"indices.npy") + 165] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"m\.npz: "):
        read_matrix(path)
