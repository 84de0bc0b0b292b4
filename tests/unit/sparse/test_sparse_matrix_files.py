"""Matrix files: names and formats, and matrices in NumPy archives, whole and damaged."""

import hashlib
import io
import random
import zipfile

import numpy as np
import pytest
import scipy.sparse

from sparloom.sparse import MATRIX_ENDINGS, Pattern, SparseMatrix, read_matrix, write_matrix

DENSE = np.array([[1, 0, 2], [0, 0, 3]], dtype=np.float32)
MATRIX = SparseMatrix(Pattern((3, 4), np.array([0, 2, 2, 3]), np.array([0, 3, 1])), np.array([0.1, -2e-38, 3e38]))


def save(tmp_path, **arrays):
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    return path


def plain(**changes):
    arrays = {"shape": [2, 3], "indptr": [0, 2, 3], "indices": [0, 2, 2], "values": [1.0, 2.0, 3.0]} | changes
    return {name: np.asarray(value) for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize("ending", MATRIX_ENDINGS)
@pytest.mark.parametrize("shape", [None, (0, 0), (0, 3), (3, 0), (1, 1)])
def test_round_trip_is_exact(tmp_path, ending, shape):
    matrix = MATRIX
    if shape:
        matrix = SparseMatrix(Pattern(shape, np.zeros(shape[0] + 1, np.int64), np.zeros(0, np.int32)), np.zeros(0))
    path = tmp_path / "new" / f"m{ending}"
    write_matrix(path, matrix)
    assert read_matrix(str(path)) == matrix
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [ending for ending in MATRIX_ENDINGS if ending != ".npz"])
def test_equal_matrices_give_equal_bytes(tmp_path, ending):
    sums = set()
    for folder in ("a", "b"):
        write_matrix(tmp_path / folder / f"m{ending}", MATRIX)
        sums.add(hashlib.sha256((tmp_path / folder / f"m{ending}").read_bytes()).hexdigest())
    assert len(sums) == 1


@pytest.mark.parametrize("name", ["m.txt", "m", "m.mat", "mtx"])
def test_unknown_ending(tmp_path, name):
    with pytest.raises(ValueError, match=r"not a matrix file: its name must end in \.tar\.gz, \.tgz, \.mtx\.gz"):
        read_matrix(tmp_path / name)
    with pytest.raises(ValueError, match="not a matrix file"):
        write_matrix(tmp_path / name, MATRIX)


def test_names_and_formats_are_refused(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("0 1\n")
    with pytest.raises(ValueError, match=r"must end in .*; pass format='edges' to read_matrix for an edge list"):
        read_matrix(path)
    with pytest.raises(ValueError, match="format='csv': pass 'edges' for an edge list, or leave it away"):
        read_matrix(path, format="csv")
    with pytest.raises(ValueError, match=r"shape=\(3, 3\) goes with format='edges'"):
        read_matrix(path, shape=(3, 3))
    for wrong in ((2,), (2, -1), (2, 0.5), 3, (2, 2**31)):
        with pytest.raises(ValueError, match=r"shape=.*: expected a tuple of two integers from 0 to 2147483647"):
            read_matrix(path, format="edges", shape=wrong)
    (tmp_path / "m.mtx").mkdir()
    for ending in (".mtx", ".npz"):
        with pytest.raises(IsADirectoryError if ending == ".mtx" else FileNotFoundError, match=f"m{ending}"):
            read_matrix(tmp_path / f"m{ending}")


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("compressed", [True, False])
def test_files_are_exchanged_with_scipy(tmp_path, layout, compressed):
    path = tmp_path / "m.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(DENSE).asformat(layout), compressed=compressed)
    assert read_matrix(path).to_scipy().toarray().tolist() == DENSE.tolist()
    write_matrix(path, SparseMatrix(Pattern.from_scipy(scipy.sparse.csr_array(DENSE)), np.array([1, 2, 3])))
    assert scipy.sparse.load_npz(path).toarray().tolist() == DENSE.tolist()


def test_plain_arrays_are_read(tmp_path):
    assert read_matrix(save(tmp_path, **plain())).to_scipy().toarray().tolist() == DENSE.tolist()
    unsorted = plain(indices=[2, 0, 2], values=[2.0, 1.0, 3.0])
    assert read_matrix(save(tmp_path, **unsorted)).to_scipy().toarray().tolist() == DENSE.tolist()
    assert read_matrix(save(tmp_path, **plain(values=None))).values.tolist() == [1, 1, 1]
    for kind in (np.int8, np.uint64, np.bool_, np.float16, np.longdouble):
        assert read_matrix(save(tmp_path, **plain(values=np.array([1, 0, 1], kind)))).values.tolist() == [1, 0, 1]


@pytest.mark.parametrize(("changes", "message"), [
    ({"shape": None}, "member 'shape' is missing or no list of integers: a csr matrix needs shape, indptr, indices"),
    ({"indptr": None}, "member 'indptr' is missing"), ({"indptr": [0.0, 2.0, 3.0]}, "'indptr' is missing or no list"),
    ({"format": b"dia"}, "member 'format' is 'dia': save the matrix as csr, csc or coo"),
    ({"format": 3}, "member 'format' is 3"),
    ({"shape": [2, 3, 4]}, r"member 'shape' is \(2, 3, 4\): it must be two integers from 0 to"),
    ({"shape": [-1, 3]}, r"member 'shape' is \(-1, 3\)"), ({"shape": [2, 1 << 40]}, "'shape' is .*: it must be two"),
    ({"shape": [2, 2**31 - 1]}, "2 x 2147483647 need 17179869184 bytes, more than 4294967296"),
    ({"shape": [2, 2]}, "m.npz: .*ind"), ({"shape": [3, 3]}, "m.npz: .*index pointer|m.npz: .*ind"),
    ({"indptr": [0, 4, 3]}, "m.npz: .*ind"), ({"indptr": [1, 2, 3]}, "m.npz: .*index pointer"),
    ({"indptr": [0, 1, 2]}, "member 'indptr' must end in 3"), ({"indices": [-1, 2, 2]}, "m.npz: .*ind"),
    ({"indices": [2, 2, 2]}, r"position \(0, 2\) or its mirror image occurs a second time"),
    ({"values": [1.0, 2.0]}, r"values are float64 of shape \(2,\): give 3 real numbers"),
    ({"values": [1.0, 2.0, 1j]}, "values are complex128"),
    ({"values": [1.0, np.nan, 3]}, r"value nan at \(0, 2\) is not finite in float32"),
    ({"values": [1.0, 1e39, 3]}, r"value 1e\+39 at \(0, 2\) is not finite in float32"),
    ({"values": np.array([{}, [], 1], dtype=object)}, "m.npz: damaged .*Object arrays cannot be loaded"),
    ({"format": b"coo", "row": [0], "col": [0, 1], "values": [1.0, 1.0]}, "m.npz: "),
])
def test_inconsistent_arrays_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        read_matrix(save(tmp_path, **plain(**changes)))


def test_sizes_that_a_file_claims_are_limited(tmp_path):
    path = tmp_path / "m.npz"
    np.savez_compressed(path, **plain(values=np.zeros(1_000_000)))
    with pytest.raises(ValueError, match=r"m\.npz: unpacks to \d+ bytes, more than 1000000"):
        read_matrix(path, limit_bytes=1_000_000)
    save(tmp_path, **plain(values=None))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("values.npy", header.getvalue() + b"12345678")
    with pytest.raises(ValueError, match=r"m\.npz: damaged or truncated \.npz file"):
        read_matrix(path)


def test_every_digit_is_kept(tmp_path):
    matrix = read_matrix(save(tmp_path, **plain(values=[0.1, 2.0, -1e-40])))
    assert matrix.values.dtype == np.float32
    assert matrix.astype(np.float64).values.tolist() == [0.1, 2.0, -1e-40]
    write_matrix(tmp_path / "copy.npz", matrix)
    assert read_matrix(tmp_path / "copy.npz").astype(np.float64) == matrix.astype(np.float64)
    assert read_matrix(tmp_path / "m.npz", dtype=np.float32).exact is None
    assert read_matrix(save(tmp_path, **plain(values=[1e-50, 2.0, 3.0]))).values.tolist() == [1e-50, 2.0, 3.0]


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
