"""MatrixMarket text and edge lists: what is read, and what is refused with its line or position."""

import gzip
import itertools
import re

import numpy as np
import pytest

from sparloom.sparse import read_matrix, write_matrix

GENERAL = "%%MatrixMarket matrix coordinate real general"
SNAP = "# Directed graph\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\r\n1\t2\n\n2\t0"
WORDS = ["".join(letters) for length in range(1, 6) for letters in itertools.product("1.eE+-", repeat=length)]


def read(tmp_path, text, **options):
    path = tmp_path / ("graph.txt" if options.get("format") == "edges" else "m.mtx")
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_matrix(path, **options)


def dense(tmp_path, text, **options):
    return read(tmp_path, text, **options).to_scipy().toarray().tolist()


def banner(field="real", symmetry="general", layout="coordinate"):
    return f"%%MatrixMarket matrix {layout} {field} {symmetry}"


def number(word):
    """Convert as Python does; None if it does not."""
    try:
        return float(word)
    except ValueError:
        return None


@pytest.mark.parametrize(("text", "expected"), [
    (f"{GENERAL}\n% a comment\n\n2 3 3\n2 3 -1.5e+1\n1 1 .5\n2 1 +2\n", [[0.5, 0, 0], [2, 0, -15]]),
    (f"{banner('pattern')}\n2 2 1\n2 1\n", [[0, 0], [1, 0]]),
    ("%%MatrixMarket MATRIX Coordinate Integer General\n1 2 2\n1 1 -3\n1 2 16777217\n", [[-3, 16777216]]),
    (f"{banner('double')}\n1 1 1\n1 1 0.5\n", [[0.5]]),
    ("%%matrixmarket\tmatrix  Coordinate DOUBLE General \n1 1 1\n1 1 2\n", [[2]]),
    (f"{banner('unsigned-integer')}\n1 1 1\n1 1 18446744073709551615\n", [[2.0**64]]),
    *[(f"{banner(symmetry=symmetry)}\n3 3 3\n1 1 1\n2 1 2\n3 2 3\n", [[1, 2, 0], [2, 0, 3], [0, 3, 0]])
      for symmetry in ("symmetric", "hermitian")],
    (f"{banner(symmetry='skew-symmetric')}\n2 2 1\n2 1 5\n", [[0, -5], [5, 0]]),
    (f"{banner(layout='array')}\n2 2\n1\n0\n3\n+4e0\n", [[1, 3], [0, 4]]),
    (f"{banner(symmetry='symmetric', layout='array')}\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
    (f"{banner(symmetry='skew-symmetric', layout='array')}\n2 2\n2\n", [[0, -2], [2, 0]]),
    (f"{banner(layout='array')}\n2 0\n", [[], []]),
    *[(f"{GENERAL}\n{size}\n", np.zeros([int(word) for word in size.split()[:2]]).tolist())
      for size in ("0 0 0", "0 4 0", "4 0 0", "3 3 0")],
    (f"{GENERAL}\r% c\r2 2 2\r1 1 1\r2 2 2\r", [[1, 0], [0, 2]]),
    (f"{GENERAL}\n2 2 1\n{'0' * 5000}2 1 {'0' * 5000}.5\n", [[0, 0], [0.5, 0]]),
])
def test_valid_texts_are_read(tmp_path, text, expected):
    assert dense(tmp_path, text) == expected


def test_stored_zeros_stay_in_the_pattern_of_coordinates_only(tmp_path):
    assert read(tmp_path, f"{GENERAL}\n2 2 2\n1 1 0\n2 2 1\n").pattern.nnz == 2
    assert read(tmp_path, f"{banner(layout='array')}\n2 1\n0\n1\n").pattern.nnz == 1


@pytest.mark.parametrize("end", ["", " ", "\t", "\r", " \t\r ", "\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize(("header", "size", "lines", "values"), [
    (banner(), "2 2 2", ("1 1 1.5", "2 2 2.5"), [1.5, 2.5]), (banner("integer"), "2 2 2", ("1 1 7", "2 2 -7"), [7, -7]),
    (banner("pattern"), "2 2 2", ("1 1", "2 2"), [1, 1]), (banner(layout="array"), "2 1", ("1", "-2e0"), [1, -2]),
    (banner(symmetry="symmetric"), "2 2 1", ("2 1 3.",), [3, 3]),
])
def test_lines_may_end_in_anything_and_the_last_in_nothing(tmp_path, end, header, size, lines, values):
    for between in ("\n", "\r\n", " \n", *(["\r"] if "\n" not in end else [])):
        assert read(tmp_path, between.join([header, size, *lines]) + end).values.tolist() == values


def test_exactly_the_numbers_of_python_are_values(tmp_path):
    expected = [number(word) for word in WORDS]
    for word, value in [*zip(WORDS, expected, strict=True)][::13]:
        text = f"{GENERAL}\n1 1 1\n1 1 {word}\n"
        if value is None:
            with pytest.raises(ValueError, match=rf"line 3: '1 1 {re.escape(word)}' is not row, column"):
                read(tmp_path, text)
        else:
            assert read(tmp_path, text, dtype=np.float64).values.tolist() == [value]
    valid = [(word, value) for word, value in zip(WORDS, expected, strict=True) if value is not None]
    lines = "".join(f"{place} 1 {word}\n" for place, (word, _) in enumerate(valid, start=1))
    column = read(tmp_path, f"{GENERAL}\n{len(valid)} 1 {len(valid)}\n{lines}", dtype=np.float64)
    assert column.values.tolist() == [value for _, value in valid]


@pytest.mark.parametrize("line", [
    "2 2 1_0", "2 2 nan", "2 2 -Infinity", "2 2 0x10", "2 2 1D5", "2 2 1f", "2 2 1e5.5", "2 2 1ee5", "2 2 2.5e-",
    "2 2 1-2", "2 2 1,5", "2 2 \u00b2", "2 2 1 1", "2 2", "2", "2 b 2", "2.5 2 2", "2 1e0 2", "-1 2 2", "% comment",
    "2 2\x0b1", "2 2\x0c1", "2\x002 1",
])
def test_a_line_that_is_no_entry_is_refused(tmp_path, line):
    shown = line.encode()[:60].decode("ascii", "replace")
    for text in (f"{GENERAL}\n% c\n\n3 3 3\n1 1 1\n{line}\n3 3 3\n", f"{GENERAL}\n% c\n\n3 3 2\n1 1 1\n{line}"):
        with pytest.raises(ValueError, match=r"m\.mtx: line 6: .* is not row, column, a finite number") as caught:
            read(tmp_path, text)
        assert repr(shown) in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ("", "line 1: '' is no MatrixMarket header such as '%%MatrixMarket matrix coordinate real general': pass format="),
    *[(line, f"line 1: {shown} is no MatrixMarket header") for line, shown in (
        ("# Nodes: 3\n0\t1\n", "'# Nodes: 3'"), ("<html>404", "'<html>404'"), (b"PK\3\4rest", r"'PK.*rest'"),
        ("%%MatrixMarket graph coordinate real general\n", "'%%MatrixMarket graph .*'"))],
    (f"{banner(layout='sparse')}\n1 1 1\n", "line 1: Invalid MatrixMarket header element: sparse"),
    (f"{banner('quaternion')}\n1 1 1\n", "line 1: Invalid MatrixMarket header element: quaternion"),
    (f"{banner('complex')}\n1 1 1\n1 1 1 0\n", "line 1: complex values; only real matrices are supported"),
    (f"{banner('pattern', 'skew-symmetric')}\n2 2 1\n2 1\n", "line 1: 'pattern' entries cannot make a coordinate"),
    (f"{banner('unsigned-integer', 'skew-symmetric')}\n2 2 1\n2 1 1\n", "line 1: 'unsigned-integer' entries cannot"),
    (f"{banner('pattern', layout='array')}\n1 1\n", "line 1: 'pattern' entries cannot make a array"),
    (GENERAL, "Premature EOF"), (f"{GENERAL}\n3 3\n", "integer value"), (f"{GENERAL}\n3 -3 1\n", "can't be negative"),
    (f"{GENERAL}\n3 3 1.0\n", "header dimension line"), (f"{GENERAL}\n{'1' * 5000} 1 1\n1 1 1\n", "out of range"),
    (f"{GENERAL}\n2147483648 1 0\n", "2147483648 x 1 exceeds the limit of 2147483647 rows or columns"),
    (f"{GENERAL}\n2000000000 1 1\n1 1 1\n", "2000000000 x 1 need 16000000008 bytes, more than 4294967296"),
    (f"{banner(symmetry='symmetric')}\n2 3 0\n", "2 x 3 is not square, yet line 1 says 'symmetric'"),
    (f"{GENERAL}\n1000 1000 999999999999\n1 1 1\n", "999999999999 entries are promised, at most 2 were found: trunc"),
    (f"{GENERAL}\n3 3 2\n1 1 1\n\n", "truncated file. Expected another 1 lines"),
    (f"{GENERAL}\n3 3 1\n1 1 1\n1 2 4\n", "line 4: Too many lines"),
    (f"{GENERAL}\n3 3 1\n1 4 2\n", "line 3: Column index out of bounds"),
    (f"{GENERAL}\n3 3 1\n0 1 1\n", "line 3: Row index out of bounds"),
    (f"{GENERAL}\n1 1 1\n{'1' * 5000} 1 1\n", "line 3: Integer out of range"),
    (f"{GENERAL}\n3 3 2\n1 2 1\n1 2 3\n", r"position \(1, 2\) or its mirror image occurs a second time"),
    (f"{banner(symmetry='symmetric')}\n3 3 2\n2 1 1\n1 2 1\n", r"position \(1, 2\) or its mirror|position \(2, 1\) or"),
    (f"{banner(symmetry='skew-symmetric')}\n3 3 1\n2 2 1\n", "an entry on the diagonal of a skew-symmetric matrix"),
    (f"{GENERAL}\n3 3 1\n2 2 1e400\n", r"value inf at \(2, 2\) is not finite in float32"),
    (f"{GENERAL}\n3 3 1\n2 3 1e39\n", r"value 1e\+39 at \(2, 3\) is not finite .* read it with dtype=numpy\.float64"),
    (f"{banner('integer')}\n2 2 1\n1 1 1.5\n", "line 3: '1 1 1.5' is not row, column, an integer"),
    (f"{banner('integer')}\n1 1 1\n1 1 9223372036854775808\n", "line 3: Integer out of range"),
    (f"{banner('unsigned-integer')}\n1 1 1\n1 1 -2\n", "line 3: Invalid integer value"),
    (f"{banner('pattern')}\n2 2 1\n1 1 1\n", "line 3: '1 1 1' is not row, column$"),
    *[(f"{banner(symmetry=symmetry, layout='array')}\n2 2\n{body}", "entries are promised|is not a finite number")
      for symmetry in ("general", "symmetric") for body in ("1\n2\n", "1\n2\n3\n4\n5\n", "1\n2\nnan\n", "1 2\n3\n")],
])
def test_what_breaks_the_format_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'm.mtx'}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_truncation_at_any_byte_is_detected(tmp_path):
    whole = f"{GENERAL}\n% c\n3 3 3\n1 1 10\n2 2 20\n3 3 30\n"
    for length in range(len(whole) - 2):  # the last digit and the last line end are part of no promise
        with pytest.raises(ValueError, match=r"m\.mtx: "):
            read(tmp_path, whole[:length])


def test_every_digit_of_the_file_is_kept(tmp_path):
    matrix = read(tmp_path, f"{GENERAL}\n1 3 3\n1 1 0.1\n1 2 16777217\n1 3 1e-40\n")
    assert (matrix.dtype, matrix.values.dtype) == (np.float32, np.float32)
    assert matrix.astype(np.float64).values.tolist() == [0.1, 16777217, 1e-40]
    write_matrix(tmp_path / "copy.mtx", matrix)
    assert read_matrix(tmp_path / "copy.mtx").astype(np.float64) == matrix.astype(np.float64)
    assert read(tmp_path, f"{GENERAL}\n1 2 2\n1 1 0.5\n1 2 -3e5\n").exact is None


@pytest.mark.parametrize("text", [f"{GENERAL}\n1 2 2\n1 1 1e-50\n1 2 3", f"{banner(layout='array')}\n1 2\n1e-50\n3\n"])
def test_a_number_that_float32_would_make_0_makes_the_matrix_float64(tmp_path, text):
    assert read(tmp_path, text).values.tolist() == [1e-50, 3]
    with pytest.raises(ValueError, match=r"value 1e-50 at \(1, 1\) becomes 0 in float32: read it with dtype="):
        read_matrix(tmp_path / "m.mtx", dtype=np.float32)


def test_the_value_type_can_be_chosen(tmp_path):
    text = f"{GENERAL}\n1 2 2\n1 1 0.1\n1 2 1e39\n"
    assert read(tmp_path, text, dtype=np.float64).values.tolist() == [0.1, 1e39]
    text = text.replace("1e39", "3")
    assert read(tmp_path, text, dtype="float32").exact is None
    assert read(tmp_path, text, dtype=np.float16).values.tolist() == [float(np.float16(0.1)), 3.0]
    with pytest.raises(ValueError, match="int32"):
        read(tmp_path, text, dtype=np.int32)


@pytest.mark.parametrize("text", [
    SNAP, SNAP.replace("#", "%"), SNAP.replace("\t", "  "), SNAP.replace("\r", "").replace("\n", "\r"),
    "2 0\n1 2\n0 1\n", " 0 1 \n1 2\n  # a comment\n2 0 "])
@pytest.mark.parametrize("name", ["graph.txt", "graph.txt.gz", "graph.npz", "graph"])
def test_edges_are_read_under_any_name(tmp_path, text, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    matrix = read_matrix(path, format="edges")
    assert matrix.to_scipy().toarray().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_weights_and_shapes_of_edges(tmp_path):
    matrix = read(tmp_path, "0 1 0.1\n1 0 -2e3\n0 0 0\n", format="edges")
    np.testing.assert_array_equal(matrix.astype(np.float64).to_scipy().toarray(), [[0, 0.1], [-2000, 0]])
    assert matrix.pattern.nnz == 3
    assert read(tmp_path, "0 1\n", format="edges", shape=(2, 5)).pattern.shape == (2, 5)
    assert read(tmp_path, "# none\n", format="edges", shape=(2, 0)).pattern.shape == (2, 0)


@pytest.mark.parametrize(("text", "shape", "message"), [
    ("# only comments\n", None, "no edges: truncated, or pass the shape of the matrix"),
    ("# c\n0,1\n", None, "line 2: '0,1' is not row, column, a finite number"),
    ("0 1 2 3\n", None, "line 1: '0 1 2 3' is not row"), ("0 1.0\n", None, "line 1: '0 1.0' is not row, column"),
    ("0 1\n\n1 2 3\n", None, "line 3: '1 2 3' is not row, column"), ("0 1 1\n1 2\n", None, "line 2: '1 2' is not row"),
    ("0 1\n-1 2\n", None, "line 2: '-1 2' is not row"), ("0 1 nan\n", None, "line 1: '0 1 nan' is not row"),
    ("0 1\n1 99999999999999999999\n", None, r"index 1\d{20} is outside of shape \(2147483647, 2147483647\)"),
    ("0 0\n2 0\n", (2, 5), r"index 2 is outside of shape \(2, 5\), counted from 0"),
    ("0 0\n0 1\n", (2, 1), r"index 1 is outside of shape \(2, 1\)"),
    ("0 1 1e60\n", None, r"value 1e\+60 at \(0, 1\) is not finite in float32"),
    ("# c\n0 1\n1 0\n\n0 1\n", None, r"position \(0, 1\) or its mirror image occurs a second time"),
    ("0 900000000\n", None, "900000001 x 900000001 need 7200000016 bytes, more than 4294967296"),
    (f"{banner('pattern')}\n1 1 1\n1 1\n", None, "a MatrixMarket file, no edge list: leave format away"),
])
def test_what_is_no_edge_list_is_refused(tmp_path, text, shape, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text, format="edges", shape=shape)
    assert str(caught.value).startswith(str(tmp_path / "graph.txt"))
