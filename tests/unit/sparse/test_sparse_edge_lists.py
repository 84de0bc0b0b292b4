"""Edge lists: what is read, and every refusal with the line in the message."""

import gzip

import numpy as np
import pytest

from sparloom.sparse import read_matrix

SNAP = "# Directed graph\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\r\n1\t2\n\n2\t0"


def read(tmp_path, text, **options):
    path = tmp_path / "graph.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_matrix(path, format="edges", **options)


@pytest.mark.parametrize("text", [
    SNAP, SNAP.replace("#", "%"), SNAP.replace("\t", "  "), SNAP.replace("\r", "").replace("\n", "\r"),
    "2 0\n1 2\n0 1\n", " 0 +1 \n1 2\n  # a comment\n2 0\n"])
def test_edges_without_weights_are_ones(tmp_path, text):
    assert read(tmp_path, text).to_scipy().toarray().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_weights_keep_all_digits(tmp_path):
    matrix = read(tmp_path, "0 1 0.1\n1 0 -2e3\n0 0 0\n")
    np.testing.assert_array_equal(matrix.astype(np.float64).to_scipy().toarray(), [[0, 0.1], [-2000, 0]])
    assert matrix.pattern.nnz == 3
    assert read(tmp_path, "0 0 1e-60\n").dtype == np.float64


@pytest.mark.parametrize("name", ["graph.txt.gz", "graph.mtx", "graph.npz", "graph", "graph.edges"])
def test_the_name_does_not_matter(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(SNAP.encode()) if name.endswith("gz") else SNAP.encode())
    assert read_matrix(path, format="edges").pattern.shape == (3, 3)


def test_shapes(tmp_path):
    assert read(tmp_path, "0 1\n", shape=(2, 5)).pattern.shape == (2, 5)
    assert read(tmp_path, "# none\n", shape=(2, 0)).pattern.shape == (2, 0)
    for shape, edge, message in (
            ((2, 5), "2 0", "row 2 is outside 0 to 1"), ((2, 1), "0 1", "column 1 is outside 0 to 0")):
        with pytest.raises(ValueError, match=rf"graph\.txt: line 3: {message}"):
            read(tmp_path, f"# c\n0 0\n{edge}\n", shape=shape)
    for wrong in ((2,), (2, -1), (2, 0.5), 3, (2, 2**31)):
        with pytest.raises(ValueError, match=r"shape=.*: expected a tuple of two integers from 0 to 2147483647"):
            read(tmp_path, "0 0\n", shape=wrong)


@pytest.mark.parametrize(("text", "message"), [
    ("", "no edges: truncated, or pass the shape of the matrix"),
    ("# only comments\n", "no edges"),
    ("# c\n0,1\n", "line 2: '0,1' is no edge: an edge list has source, target and possibly a weight in a line"),
    ("5\n", "line 1: '5' is no edge"),
    ("0 1 2 3\n", "line 1: '0 1 2 3' is no edge"),
    ("source target\n0 1\n", "line 1: 'source' is not an index"),
    ("0 1\n\n1 2 3\n", "line 3: 3 numbers where the first edge has 2"),
    ("0 1 1\n1 2\n", "line 2: 2 numbers where the first edge has 3"),
    ("0 1\n# c\n1", "line 3: 1 numbers where the first edge has 2: truncated"),
    ("0 1\n-1 2\n", "line 2: row -1 is outside 0 to 2147483646"),
    ("0 1\n1 99999999999999999999\n", "line 2: column 99999999999999999999 is outside 0 to 2147483646"),
    ("0 1_000\n", "line 1: '1_000' is not an index"),
    ("0 1.0\n", "line 1: '1.0' is not an index"),
    ("0 \u0663\n", "line 1: '.*' is not an index"),
    ("0 1 \u0663\n", "line 1: '.*' is not a finite number"),
    ("0 1 1_000\n", "line 1: '1_000' is not a finite number"),
    ("0 1 nan\n", "line 1: 'nan' is not a finite number"),
    ("0 1 1e-400\n", "line 1: '1e-400' is too small for float64"),
    ("0 1 1e60\n", r"line 1: value 1e\+60 at \(0, 1\) is not finite in float32"),
    ("# c\n0 1\n1 0\n\n0 1\n", r"line 5: position \(0, 1\) occurs a second time"),
    ("0 900000000\n", "900000001 rows need 7200000016 bytes, more than 4294967296"),
    ("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n", "a MatrixMarket file, no edge list: leave"),
    ("<html>", "not a matrix but a web page"),
])
def test_what_is_no_edge_list_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "graph.txt"))


def test_formats_are_named(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(SNAP)
    with pytest.raises(ValueError, match=r"must end in .*; pass format='edges' to read_matrix for an edge list"):
        read_matrix(path)
    with pytest.raises(ValueError, match="format='csv': pass 'edges' for an edge list, or leave it away"):
        read_matrix(path, format="csv")
    with pytest.raises(ValueError, match=r"shape=\(3, 3\) goes with format='edges'"):
        read_matrix(path, shape=(3, 3))
    for name in ("graph.mtx.gz", "graph.tar.gz"):  # no damage, but another format
        (tmp_path / name).write_bytes(gzip.compress(SNAP.encode()))
        with pytest.raises(ValueError, match="but '# Directed graph': if it is an edge list, pass format='edges'"):
            read_matrix(tmp_path / name)
