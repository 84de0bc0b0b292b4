"""Reading and writing by the ending of the name."""

import hashlib

import numpy as np
import pytest

from sparloom.sparse import MATRIX_ENDINGS, Pattern, SparseMatrix, read_matrix, write_matrix

MATRIX = SparseMatrix(Pattern((3, 4), np.array([0, 2, 2, 3]), np.array([0, 3, 1])), np.array([0.1, -2e-38, 3e38]))


@pytest.mark.parametrize("ending", MATRIX_ENDINGS)
@pytest.mark.parametrize("shape", [None, (0, 0), (0, 3), (3, 0), (1, 1)])
def test_round_trip_is_exact(tmp_path, ending, shape):
    matrix = MATRIX
    if shape:
        matrix = SparseMatrix(Pattern(shape, np.zeros(shape[0] + 1, np.int64), np.zeros(0, np.int32)), np.zeros(0))
    path = tmp_path / "new" / f"m{ending}"
    write_matrix(path, matrix)
    assert read_matrix(path) == matrix
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [ending for ending in MATRIX_ENDINGS if ending != ".npz"])
def test_equal_matrices_give_equal_bytes(tmp_path, ending):
    sums = set()
    for folder in ("a", "b"):
        write_matrix(tmp_path / folder / f"m{ending}", MATRIX)
        sums.add(hashlib.sha256((tmp_path / folder / f"m{ending}").read_bytes()).hexdigest())
    assert len(sums) == 1


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.mtx: no such file"):
        read_matrix(tmp_path / "gone.mtx")


@pytest.mark.parametrize("name", ["m.txt", "m", "m.mat", "mtx"])
def test_unknown_ending(tmp_path, name):
    with pytest.raises(ValueError, match=r"not a matrix file: its name must end in \.tar\.gz, \.tgz, \.mtx\.gz"):
        read_matrix(tmp_path / name)
    with pytest.raises(ValueError, match="not a matrix file"):
        write_matrix(tmp_path / name, MATRIX)


def test_limit_counts_plain_files_too(tmp_path):
    write_matrix(tmp_path / "m.mtx", MATRIX)
    with pytest.raises(ValueError, match=r"m\.mtx: holds \d+ bytes, more than 50: raise limit_bytes"):
        read_matrix(tmp_path / "m.mtx", limit_bytes=50)


def test_paths_may_be_strings(tmp_path):
    write_matrix(str(tmp_path / "m.mtx"), MATRIX)
    assert read_matrix(str(tmp_path / "m.mtx")) == MATRIX
