"""Matrices in .npz files: both layouts, and inconsistent files."""

import io
import random
import struct
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
def test_scipy_files_are_read(tmp_path, layout, compressed):
    path = tmp_path / "m.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(DENSE).asformat(layout), compressed=compressed)
    assert read_matrix(path).to_scipy().toarray().tolist() == DENSE.tolist()


def test_scipy_reads_written_files(tmp_path):
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


def test_a_header_that_claims_too_much_allocates_nothing(tmp_path):
    path = save(tmp_path, **plain(values=None))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("values.npy", header.getvalue() + b"12345678")
    with pytest.raises(ValueError, match=r"member 'values' is no valid array: 8 bytes for shape \(1125899906842624,\)"):
        read_matrix(path)


def test_a_decompression_bomb_stops_at_the_limit(tmp_path):
    path = tmp_path / "m.npz"
    np.savez_compressed(path, **plain(values=np.zeros(1_000_000)))
    with pytest.raises(ValueError, match=r"m\.npz: unpacks to \d+ bytes, more than 1000000"):
        read_matrix(path, limit_bytes=1_000_000)


def test_truncation_and_flipped_bytes_are_detected(tmp_path):
    path = save(tmp_path, **plain())
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"m\.npz: damaged or truncated \.npz file"):
            read_matrix(path)
    damaged = bytearray(whole)
    damaged[whole.index(b"indices.npy") - 4] ^= 0x40  # the length of the name
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"m\.npz: damaged or truncated \.npz file") as caught:
        read_matrix(path)
    assert len(str(caught.value)) < 300 + len(str(path))  # zipfile quotes what it read
    damaged = bytearray(whole)
    damaged[whole.index(b"indices.npy") + 165] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"m\.npz: "):
        read_matrix(path)


def test_every_digit_is_kept(tmp_path):
    matrix = read_matrix(save(tmp_path, **plain(values=[0.1, 2.0, -1e-40])))
    assert matrix.values.dtype == np.float32
    assert matrix.astype(np.float64).values.tolist() == [0.1, 2.0, -1e-40]
    write_matrix(tmp_path / "copy.npz", matrix)
    assert read_matrix(tmp_path / "copy.npz").astype(np.float64) == matrix.astype(np.float64)
    assert read_matrix(tmp_path / "m.npz", dtype=np.float32).exact is None


def test_a_number_that_float32_would_make_0_makes_the_matrix_float64(tmp_path):
    path = save(tmp_path, **plain(values=[1e-50, 2.0, 3.0]))
    assert read_matrix(path).values.tolist() == [1e-50, 2.0, 3.0]
    with pytest.raises(ValueError, match="value 1e-50 of entry 0 becomes 0 in float32: read it with dtype=numpy"):
        read_matrix(path, dtype=np.float32)
    save(tmp_path, **plain(values=[1e39, 2.0, 3.0]))
    assert read_matrix(path, dtype=np.float64).values.tolist() == [1e39, 2.0, 3.0]


def test_whole_numbers_of_any_type_are_values(tmp_path):
    for kind in (np.int8, np.uint64, np.int64, np.bool_, np.float16, np.longdouble):
        matrix = read_matrix(save(tmp_path, **plain(values=np.array([1, 0, 1], kind))))
        assert matrix.values.tolist() == [1, 0, 1]
        assert matrix.exact is None


def with_header(tmp_path, text, data=bytes(24), version=(1, 0)):
    """Write an archive whose member `values` has this header."""
    path = save(tmp_path, **plain(values=None))
    text = text.encode("latin-1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("values.npy", b"\x93NUMPY" + bytes(version) + length + text + data)
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0), (9, 9)])
@pytest.mark.parametrize("header", [
    "", "(" * 4000, "[" * 4000 + "\n", "-" * 9000 + "1", "'''", "{[]: 1}", "{1: 2}", "None", "1 + 1j", "\0",
    "x" * 11_000,
    "{'descr': ('<f8',), 'fortran_order': False, 'shape': (3,)}\n",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}\n",
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,)}\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -3)}\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0, 3)}\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (3" + ", 1" * 99 + ")}\n",
    "{'descr': '<V0', 'fortran_order': False, 'shape': (1" + "0" * 25 + ",)}\n",
], ids=range(19))
def test_invalid_headers_give_one_line(tmp_path, header, version):
    data = b"" if "V0" in header or "4611" in header else bytes(24)
    with pytest.raises(ValueError, match=r"m\.npz: member 'values' is no valid array: .") as caught:
        read_matrix(with_header(tmp_path, header, data, version))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_member_is_read_up_to_its_claimed_size(tmp_path, monkeypatch):
    path, taken = tmp_path / "m.npz", []
    np.savez_compressed(path, **plain(values=np.zeros(100_000)))
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 500)  # the size in the directory
    path.write_bytes(content)
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda file, n=-1: taken.append(n) or read(file, n))
    with pytest.raises(ValueError, match=r"m\.npz: "):
        read_matrix(path)
    assert -1 not in taken


def test_damage_anywhere_gives_one_line_or_the_matrix(tmp_path):
    path, rng = tmp_path / "m.npz", random.Random(0)
    wholes = []
    for write in (np.savez, np.savez_compressed):
        write(path, **plain())
        wholes.append((path.read_bytes(), read_matrix(path)))
    for _ in range(600):
        whole, matrix = rng.choice(wholes)
        damaged = bytearray(whole)
        place = rng.randrange(len(whole))
        change = rng.choice(["bit", "zeros", "cut", "rubbish"])
        if change == "bit":
            damaged[place] ^= 1 << rng.randrange(8)
        elif change == "cut":
            del damaged[place:]
        else:
            damaged[place : place + 16] = bytes(16) if change == "zeros" else rng.randbytes(16)
        path.write_bytes(damaged)
        try:
            found = read_matrix(path)
        except ValueError as error:
            message = str(error)
        else:
            message = f"{path}: " if found == matrix else "read as another matrix"
        assert message.startswith(f"{path}: "), (change, place, message)
        assert "\n" not in message
