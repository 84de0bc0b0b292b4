"""A folder as a corpus: names, families, damage; and several corpora as one."""

import numpy as np
import pytest

from sparloom.sparse import (
    FolderCorpus,
    JoinedCorpus,
    Pattern,
    SparseMatrix,
    SyntheticCorpus,
    family_role,
    write_matrix,
)


def matrix(extent):
    return SparseMatrix(Pattern.from_coo(np.arange(extent), np.arange(extent), (extent, extent + 1)), np.ones(extent))


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "mine"
    write_matrix(home / "a.mtx", matrix(2))
    write_matrix(home / "b.npz", matrix(3))
    write_matrix(home / "wing" / "coarse.tar.gz", matrix(4))
    write_matrix(home / "wing" / "fine.mtx.gz", matrix(5))
    (home / "notes.txt").write_text("no matrix")
    return home


def test_files_in_sub_folders_are_listed(folder):
    entries = FolderCorpus(str(folder)).entries()
    assert [entry.name for entry in entries] == ["mine/a", "mine/b", "wing/coarse", "wing/fine"]
    assert [(entry.rows, entry.cols, entry.nnz) for entry in entries] == [(n, n + 1, n) for n in (2, 3, 4, 5)]


def test_a_sub_folder_is_one_family(folder):
    corpus = FolderCorpus(folder)
    assert [entry.family for entry in corpus.entries()] == ["a", "b", "wing", "wing"]
    assert corpus.split()["wing/coarse"] == corpus.split()["wing/fine"] == family_role("wing")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(NotADirectoryError, match=r"gone: no such folder: give one that holds \.tar\.gz"):
        FolderCorpus(tmp_path / "gone").entries()


def test_two_files_with_the_same_name_are_refused(folder):
    write_matrix(folder / "a.npz", matrix(2))
    with pytest.raises(ValueError, match=r"a\.npz and .*a\.mtx are both named mine/a: rename one"):
        FolderCorpus(folder).entries()


def test_a_damaged_file_is_named(folder):
    (folder / "bad.mtx").write_text("hello")
    with pytest.raises(ValueError, match=r"bad\.mtx: line 1: 'hello' is no MatrixMarket header"):
        FolderCorpus(folder).entries()


def test_values_are_float32_and_exact_ones_are_kept(folder):
    text = "%%MatrixMarket matrix coordinate real general\n1 2 2\n1 1 1e-50\n1 2 0.1\n"
    (folder / "a.mtx").write_text(text)
    loaded = FolderCorpus(str(folder)).load("mine/a")
    assert loaded.values.tolist() == [0, np.float32(0.1)]
    assert loaded.astype(np.float64).values.tolist() == [1e-50, 0.1]


def test_joined_corpora_have_the_matrices_of_all(folder):
    generated = SyntheticCorpus([200], 1, 0, ["nearest", "uniform"])
    joined = JoinedCorpus([FolderCorpus(str(folder)), generated])
    names = [entry.name for entry in joined.entries()]
    assert names == ["mine/a", "mine/b", "wing/coarse", "wing/fine", *(entry.name for entry in generated.entries())]
    assert joined.split() == FolderCorpus(str(folder)).split() | generated.split()
    assert joined.load("mine/b").pattern.shape == (3, 4)
    assert joined.load(names[-1]).pattern.nnz == generated.load(names[-1]).pattern.nnz


def test_joined_corpora_keep_one_role():
    generated = SyntheticCorpus([200], 1, 0, ["nearest", "uniform"])
    (entry,) = JoinedCorpus([generated], role="test").entries()
    assert entry.family == "nearest"
    with pytest.raises(KeyError, match="no matrix 'uniform/n200_v0_s0'"):
        JoinedCorpus([generated], role="test").load("uniform/n200_v0_s0")
    with pytest.raises(ValueError, match="role 'tset' is not one of"):
        JoinedCorpus([generated], role="tset").entries()
