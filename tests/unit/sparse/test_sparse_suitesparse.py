"""The collection: catalogue, roles, choice, files from a folder and over HTTP."""

import csv
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from broken_mirror import BrokenMirror

from sparloom import files
from sparloom.sparse import (
    ROW_BINS,
    Pattern,
    RetryPolicy,
    SparseMatrix,
    SuiteSparseCorpus,
    row_bin,
    statistics,
    suitesparse,
    write_matrix,
)

QUICK = RetryPolicy(attempts=2, timeout_seconds=5.0, pause_seconds=0.001)
FIELDS = ("group", "name", "family", "rows", "cols", "nnz", "symmetric", "kind", "sha256")
SIZES = {"HB/one": 3, "HB/two": 5, "AG-Monien/3elt": 4, "New+/x_1.5": 6}


def matrix(extent):
    return SparseMatrix(Pattern.from_coo(np.arange(extent), np.arange(extent), (extent, extent)), np.arange(extent))


@pytest.fixture
def folder(tmp_path):
    """Make a small mirror."""
    home = tmp_path / "mirror"
    rows = []
    for name, extent in SIZES.items():
        write_matrix(home / f"{name}.tar.gz", matrix(extent))
        group, _, short = name.partition("/")
        digest = files.sha256(home / f"{name}.tar.gz")
        rows.append((group, short, short, extent, extent, extent, 1, "toy", digest))
    with (home / "index.csv").open("w", newline="") as file:
        csv.writer(file).writerows([FIELDS, *rows])
    return home


@pytest.fixture
def server(folder):
    mirror = BrokenMirror()
    mirror.add_folder(folder)
    with mirror.running():
        yield mirror


def whole(mirror, cache, patience=None):
    return SuiteSparseCorpus(mirror, cache, patience, count=None, role=None, seed=0)


def change_index(folder, old, new):
    path = folder / "index.csv"
    path.write_text(path.read_text().replace(old, new))


def test_entries_are_sorted_and_complete(folder):
    entries = whole(str(folder), "cache").entries()
    assert [entry.name for entry in entries] == sorted(SIZES)
    first = entries[0]
    assert (first.family, first.rows, first.cols, first.nnz) == ("3elt", 4, 4, 4)
    assert (first.symmetric, first.kind, first.row_bin) == (True, "toy", "<8192")


def test_a_folder_is_read_in_place(folder, tmp_path):
    corpus = whole(str(folder), str(tmp_path / "cache"))
    assert corpus.load("HB/two") == matrix(5)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("mirror", [None, ""])
def test_a_missing_mirror_names_the_remedy(mirror):
    with pytest.raises(ValueError, match=r"no mirror of real matrices: set SPARLOOM_MIRROR, or paths\.mirror=\.\.\."):
        whole(mirror, "cache").entries()


def test_a_folder_without_catalogue_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"index\.csv: no such file: a mirror holds index\.csv beside"):
        whole(str(tmp_path), "cache").entries()


def test_an_unknown_name_suggests_the_nearest(folder):
    with pytest.raises(KeyError, match="no matrix 'HB/tow' in the corpus of 4; nearest: HB/two"):
        whole(str(folder), "cache").load("HB/tow")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sha256", "md5", r"index\.csv: line 1: no column 'sha256': a catalogue has group, name"),
        ("HB,one", "..,one", r"index\.csv: line 2: group '\.\.' is not a plain file name: refused"),
        ("HB,two", "HB,../../two", r"line 3: name '\.\./\.\./two' is not a plain file name"),
        ("HB,two", "HB,/two", "line 3: name '/two' is not a plain file name"),
        ("HB,two", "HB,one", "line 3: HB/one occurs a second time"),
        ("two,5,", "two,many,", "line 3: rows 'many' is not a count"),
        ("two,5,", "two,²,", "line 3: rows '²' is not a count"),
        ("1,toy,", "1,toy,0", "line 2: sha256 '0[0-9a-f]{64}' is no checksum: damaged or truncated; remove the file"),
    ],
)
def test_a_bad_catalogue_is_refused_with_its_line(folder, old, new, message):
    change_index(folder, old, new)
    with pytest.raises(ValueError, match=message):
        whole(str(folder), "cache").entries()


def test_damage_in_a_folder_is_refused_and_nothing_removed(folder):
    path = folder / "HB" / "two.tar.gz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"two\.tar\.gz: checksum [0-9a-f]{64}, the catalogue says .*is damaged"):
        whole(str(folder), "cache").load("HB/two")
    assert path.exists()
    path.unlink()
    with pytest.raises(FileNotFoundError, match="though the catalogue lists it: the mirror is incomplete"):
        whole(str(folder), "cache").load("HB/two")


def test_files_are_downloaded_once(server, tmp_path):
    address, cache = f"{server.address}/", str(tmp_path / "cache")
    assert whole(address, cache, QUICK).load("HB/two") == matrix(5)
    corpus = whole(address, cache, QUICK)
    assert corpus.load("HB/two") == matrix(5)
    assert corpus.load("New+/x_1.5") == matrix(6)
    assert server.requests == ["/index.csv", "/HB/two.tar.gz", "/New+/x_1.5.tar.gz"]


def test_a_wrong_checksum_over_http_is_refused(server, tmp_path):
    server.always["/HB/two.tar.gz"] = "rubbish"
    with pytest.raises(ValueError, match=r"two\.tar\.gz: checksum .* refused and removed; the mirror is damaged or"):
        whole(server.address, str(tmp_path / "cache"), QUICK).load("HB/two")
    assert not [path for path in (tmp_path / "cache").rglob("two.tar.gz*") if ".locks" not in path.parts]


def test_a_damaged_file_in_the_cache_is_downloaded_again(server, tmp_path, caplog):
    corpus = whole(server.address, str(tmp_path / "cache"), QUICK)
    path = corpus.fetch(["HB/two"])[0]
    path.write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        assert corpus.load("HB/two") == matrix(5)
    assert "damaged in the cache; downloading it again" in caplog.text


def test_known_families_keep_their_frozen_role_and_new_ones_get_one(folder):
    split = whole(str(folder), "cache").split()
    assert split["AG-Monien/3elt"] == "train"
    assert set(split.values()) <= {"train", "validation", "test"}
    assert split == whole(str(folder), "other").split()


def test_matrices_that_the_split_does_not_list_are_final(folder):
    parts = suitesparse._parts(whole(str(folder), "cache").entries())
    assert parts == {name: "development" if name == "AG-Monien/3elt" else "final" for name in SIZES}


def test_the_parts_are_frozen():
    listed = Counter((row["part"], row["role"]) for row in suitesparse._split_rows())
    assert listed == {
        ("development", "train"): 170, ("development", "validation"): 34, ("development", "test"): 152,
        ("final", "train"): 32, ("final", "validation"): 5, ("final", "test"): 40}


def test_a_part_is_kept_alone(folder):
    names = {part: [entry.name for entry in SuiteSparseCorpus(
        str(folder), "cache", count=None, role=None, seed=0, part=part).entries()] for part in ("development", "final")}
    assert names == {"development": ["AG-Monien/3elt"], "final": sorted(SIZES.keys() - {"AG-Monien/3elt"})}
    with pytest.raises(ValueError, match="part 'finale' is not one of development, final"):
        SuiteSparseCorpus(str(folder), "cache", count=None, role=None, seed=0, part="finale").entries()


def test_frozen_split_is_the_published_one(mirror):
    if mirror.startswith("http"):
        pytest.skip("the published split.csv is compared in a folder only")
    with (Path(mirror) / "split.csv").open() as file:
        published = {f"{row['group']}/{row['name']}": row["role"] for row in csv.DictReader(file)}
    assert whole(mirror, "cache").split() == published
    assert Counter(published.values()) == {"train": 202, "validation": 39, "test": 192}


def test_no_family_of_the_real_corpus_has_two_roles(mirror, tmp_path):
    corpus = whole(mirror, str(tmp_path))
    split = corpus.split()
    roles = {(entry.family, split[entry.name]) for entry in corpus.entries()}
    assert len(roles) == len({family for family, _ in roles})


def test_real_matrices_match_the_catalogue(mirror, tmp_path):
    corpus = whole(mirror, str(tmp_path))
    small = [entry for entry in corpus.entries() if entry.nnz < 20_000][::8]
    assert len(small) > 5
    for entry in small:
        pattern = corpus.load(entry.name).pattern
        assert (pattern.rows, pattern.cols, pattern.nnz) == (entry.rows, entry.cols, entry.nnz)
        assert entry.row_bin == row_bin(entry.rows)
        assert not entry.symmetric or statistics(pattern)["symmetry"] == 1


def test_a_choice_lists_only_its_matrices(folder):
    corpus = SuiteSparseCorpus(str(folder), "cache", count=2, role=None, seed=0)
    names = [entry.name for entry in corpus.entries()]
    assert len(names) == 2
    assert names == sorted(names)
    assert set(corpus.split()) == set(names)
    assert corpus.load(names[0]) == matrix(SIZES[names[0]])
    with pytest.raises(KeyError, match="in the corpus of 2"):
        corpus.load(next(name for name in SIZES if name not in names))


@pytest.mark.parametrize(("given", "message"), [
    ({"count": 5, "role": None}, "5 matrices requested, the corpus has 4: request at most that many"),
    ({"count": None, "role": "trian"}, "role 'trian' is not one of train, validation, test: corpus.role=null for all"),
])
def test_impossible_choices_are_refused(folder, given, message):
    with pytest.raises(ValueError, match=message):
        SuiteSparseCorpus(str(folder), "cache", **given, seed=0).entries()


def test_choice_of_real_matrices_covers_the_row_bins(mirror, tmp_path):
    corpus, other = (SuiteSparseCorpus(mirror, str(tmp_path), count=10, role="train", seed=seed) for seed in (0, 1))
    assert Counter(entry.row_bin for entry in corpus.entries()) == dict.fromkeys(ROW_BINS, 2)
    assert set(corpus.split().values()) == {"train"}
    assert corpus.entries() != other.entries()
