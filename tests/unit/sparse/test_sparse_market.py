"""MatrixMarket: every rule of the format, with the line in the message."""

import numpy as np
import pytest

from sparloom.sparse import read_matrix, write_matrix

GENERAL = "%%MatrixMarket matrix coordinate real general"


def read(tmp_path, text):
    path = tmp_path / "m.mtx"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_matrix(path)


def dense(tmp_path, text):
    return read(tmp_path, text).to_scipy().toarray().tolist()


def test_general_real_matrix_in_any_order(tmp_path):
    text = f"{GENERAL}\n% a comment\n\n2 3 3\n2 3 -1.5e+1\n1 1 .5\n2 1 +2\n"
    assert dense(tmp_path, text) == [[0.5, 0, 0], [2, 0, -15]]


def test_stored_zeros_stay_in_the_pattern(tmp_path):
    assert read(tmp_path, f"{GENERAL}\n2 2 2\n1 1 0\n2 2 1\n").pattern.nnz == 2


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", " \t\n"])
def test_line_endings_and_empty_lines_do_not_matter(tmp_path, ending):
    lines = [GENERAL, "2 2 2", "1 2 3", "2 1 4"]
    assert dense(tmp_path, ending.join(lines) + ending) == [[0, 3], [4, 0]]


def test_the_last_line_needs_no_line_end(tmp_path):
    assert dense(tmp_path, f"{GENERAL}\n1 1 1\n1 1 7") == [[7]]


def test_pattern_has_ones(tmp_path):
    assert dense(tmp_path, "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n2 1\n") == [[0, 0], [1, 0]]


def test_integer_values(tmp_path):
    text = "%%MatrixMarket MATRIX Coordinate Integer General\n1 2 2\n1 1 -3\n1 2 16777217\n"
    assert dense(tmp_path, text) == [[-3, 16777216]]


def test_double_is_a_synonym_of_real(tmp_path):
    assert dense(tmp_path, f"{GENERAL.replace('real', 'double')}\n1 1 1\n1 1 0.5\n") == [[0.5]]


@pytest.mark.parametrize(
    ("symmetry", "expected"),
    [
        ("symmetric", [[1, 2, 0], [2, 0, 3], [0, 3, 0]]),
        ("hermitian", [[1, 2, 0], [2, 0, 3], [0, 3, 0]]),
    ],
)
def test_lower_triangle_is_mirrored(tmp_path, symmetry, expected):
    text = f"{GENERAL.replace('general', symmetry)}\n3 3 3\n1 1 1\n2 1 2\n3 2 3\n"
    assert dense(tmp_path, text) == expected


def test_skew_symmetric_mirror_changes_the_sign(tmp_path):
    assert dense(tmp_path, f"{GENERAL.replace('general', 'skew-symmetric')}\n2 2 1\n2 1 5\n") == [[0, -5], [5, 0]]


def test_array_is_column_major_and_gives_its_nonzeros(tmp_path):
    matrix = read(tmp_path, "%%MatrixMarket matrix array real general\n2 2\n1\n0\n3\n4\n")
    assert matrix.to_scipy().toarray().tolist() == [[1, 3], [0, 4]]
    assert matrix.pattern.nnz == 3


@pytest.mark.parametrize(
    ("symmetry", "body", "expected"),
    [
        ("symmetric", "1\n2\n3\n", [[1, 2], [2, 3]]),
        ("skew-symmetric", "2\n", [[0, -2], [2, 0]]),
    ],
)
def test_symmetric_array_is_mirrored_once(tmp_path, symmetry, body, expected):
    assert dense(tmp_path, f"%%MatrixMarket matrix array real {symmetry}\n2 2\n{body}") == expected


@pytest.mark.parametrize("size", ["0 0 0", "0 4 0", "4 0 0", "3 3 0"])
def test_matrices_without_entries(tmp_path, size):
    rows, cols, _ = map(int, size.split())
    assert read(tmp_path, f"{GENERAL}\n{size}\n").pattern.shape == (rows, cols)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no MatrixMarket header, such as '.*', but '': an empty file: check where it came from"),
        ("hello world\n", "but 'hello world': an unknown format: check where it came from"),
        ("\n0 1\n", "but '': an unknown format"),
        (b"\x80\x04K\x01.", "binary data: check where it came from"),
        ("%%MatrixMarket vector coordinate real general\n",
         "but '%%MatrixMarket vector coordinate real general': the header has five words, of which the first"),
        ("%MatrixMarket matrix coordinate real general\n", "the first two are '%%MatrixMarket matrix'"),
        ("%%MatrixMarket matrix coordinate real\n", "matrix coordinate real': the header has five words"),
        ("# Nodes: 3 Edges: 2\n0\t1\n", "but '# Nodes: 3 Edges: 2': if it is an edge list, pass format='edges'"),
        ("% sym unweighted\n1 2\n", "but '% sym unweighted': if it is an edge list, pass format='edges'"),
        ("0\t1\n1\t2\n", r"but '0\\t1': if it is an edge list, pass format='edges' to read_matrix"),
        ("0 1 2.5e-3\r\n", r"but '0 1 2.5e-3\\r': if it is an edge list"),
        ("c a graph\np sp 3 2\n", "but 'c a graph': if it is a graph of DIMACS, write source, target"),
        ("p sp 3 2\n", "but 'p sp 3 2': if it is a graph of DIMACS"),
        ("0,1,2.5\n", "but '0,1,2.5': if it is a CSV file, write row, column and value in each line"),
        ("0, 1, 2.5\n", "but '0, 1, 2.5': if it is a CSV file"),
        ("source;target\r\n0;1\n", "if it is a CSV file"),
        ("%%MatrixMarket matrix sparse real general\n", "line 1: layout 'sparse' is neither"),
        ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n", "line 1: complex values"),
        ("%%MatrixMarket matrix coordinate quaternion general\n", "line 1: field 'quaternion' is none of real,"),
        ("%%MatrixMarket matrix coordinate real lower\n", "line 1: symmetry 'lower' is none of general,"),
        ("%%MatrixMarket matrix coordinate pattern skew-symmetric\n2 2 1\n2 1\n", "'pattern' cannot be 'skew-symm"),
        ("%%MatrixMarket matrix array pattern general\n1 1\n", "'pattern' cannot be 'array'"),
        (GENERAL, "line 1: the file ends before its size line: truncated"),
        (f"{GENERAL}\n% comment\n", "line 2: the file ends before its size line: truncated"),
        (f"{GENERAL}\n% c\n3 3\n", "line 3: '3 3' is no size line; it holds 3 counts: rows, columns, entries"),
        (f"{GENERAL}\n3 -3 1\n", "line 2: '3 -3 1' is no size line"),
        (f"{GENERAL}\n3 3 1.0\n", "line 2: '3 3 1.0' is no size line"),
        ("%%MatrixMarket matrix array real general\n3 3 1\n", "it holds 2 counts: rows, columns"),
        (f"{GENERAL}\n2147483648 1 0\n", "line 2: 2147483648 x 1 exceeds the limit of 2147483647"),
        (f"{GENERAL.replace('general', 'symmetric')}\n2 3 0\n", "line 2: 2 x 3 is not square"),
    ],
)
def test_a_bad_header_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "m.mtx") in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 1 1\n2 2 2\n", "the file ends after 2 of the 3 entries that line 3 promises: truncated"),
        ("1 1 1\n2 2 2\n3 3 ", "line 6: 2 numbers where a real coordinate file has 3: truncated"),
        ("1 1 1\n2 2 2\n3 3 3\n1 2 4\n", "line 7: more entries than the 3 of line 3"),
        ("1 1\n2 2\n3 3\n", "line 4: 2 numbers where a real coordinate file has 3"),
        ("1 1 1 1\n2 2 2\n3 3\n", "line 4: 4 numbers where a real coordinate file has 3"),
        ("1 1 1\n4 2 2\n3 3 3\n", "line 5: row 4 is outside 1 to 3"),
        ("1 1 1\n2 2 2\n3 4 3\n", "line 6: column 4 is outside 1 to 3"),
        ("0 1 1\n2 2 2\n3 3 3\n", "line 4: row 0 is outside 1 to 3"),
        ("-1 1 1\n2 2 2\n3 3 3\n", "line 4: row -1 is outside 1 to 3"),
        ("1 1 1\n\n2 2 2\n1 1 3\n", r"line 7: position \(1, 1\) occurs a second time"),
        ("1 1 1\n2 2 nan\n3 3 3\n", "line 5: 'nan' is not a finite number"),
        ("1 1 1\n2 2 2\n3 3 -inf\n", "line 6: '-inf' is not a finite number"),
        ("1 1 1\n2 2 1e400\n3 3 3\n", r"line 5: value inf at \(2, 2\) is not finite in float32"),
        ("1 1 1\n2 2 1e39\n3 3 3\n", r"line 5: value 1e\+39 at \(2, 2\) is not finite in float32: scale or repair"),
        ("1 1 1\n2 2 1D5\n3 3 3\n", "line 5: '1D5' is not a finite number"),
        ("1 1 1\n2 2 x\n3 3 3\n", "line 5: 'x' is not a finite number"),
        ("1 1 1\n2 b 2\n3 3 3\n", "line 5: 'b' is not an index"),
        ("1 1 1\n% late comment\n2 2 2\n3 3 3\n", "line 5: '%' is not an index"),
        ("1 1 1\n2.5 2 2\n3 3 3\n", "line 5: '2.5' is not an index"),
        ("1 1 1\n99999999999999999999 2 2\n3 3 3\n", "line 5: row 99999999999999999999 is outside 1 to 3"),
        ("1 1 1\n2 2 1.2.3\n3 3 3\n", "line 5: '1.2.3' is not a finite number"),
        ("1 1 1\n2 2 1-2\n3 3 3\n", "line 5: '1-2' is not a finite number"),
        ("1 1 1\n2 2 1e5+1\n3 3 3\n", r"line 5: '1e5\+1' is not a finite number"),
        ("1 1 1\n2 2 1,5\n3 3 3\n", "line 5: '1,5' is not a finite number"),
    ],
)
def test_a_bad_body_is_refused_with_its_line(tmp_path, body, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, f"{GENERAL}\n% three entries\n3 3 3\n{body}")
    assert str(caught.value).startswith(str(tmp_path / "m.mtx"))


@pytest.mark.parametrize("value", ["1.5", "1e5", "99999999999999999999"])
def test_integer_file_with_another_number_is_refused(tmp_path, value):
    text = f"%%MatrixMarket matrix coordinate integer general\n2 2 2\n1 1 1\n2 2 {value}\n"
    with pytest.raises(ValueError, match=f"line 4: '{value}' is not an integer of 64 bits"):
        read(tmp_path, text)


def test_pattern_file_with_values_is_refused(tmp_path):
    text = "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1 1\n2 2 1\n"
    with pytest.raises(ValueError, match=r"line 3: 3 numbers where a pattern coordinate file has 2"):
        read(tmp_path, text)


def test_entries_in_both_triangles_of_a_symmetric_file_are_duplicates(tmp_path):
    text = f"{GENERAL.replace('general', 'symmetric')}\n3 3 3\n2 1 1\n3 3 1\n1 2 1\n"
    with pytest.raises(ValueError, match=r"line 5: position \(1, 2\) or its mirror image occurs a second time"):
        read(tmp_path, text)


def test_diagonal_of_a_skew_symmetric_file_is_refused(tmp_path):
    text = f"{GENERAL.replace('general', 'skew-symmetric')}\n3 3 2\n2 1 1\n2 2 1\n"
    with pytest.raises(ValueError, match=r"line 4: diagonal entry \(2, 2\) in a skew-symmetric matrix"):
        read(tmp_path, text)


@pytest.mark.parametrize("size", ["1000 1000 999999999999", "200000000 200000000 40000000000000000"])
def test_a_header_that_promises_too_many_entries_allocates_nothing(tmp_path, size):
    with pytest.raises(ValueError, match=r"the file ends after 1 of the \d+ entries that line 2 promises: truncated"):
        read(tmp_path, f"{GENERAL}\n{size}\n1 1 1\n")


def test_row_pointers_beyond_the_limit_are_refused(tmp_path):
    path = tmp_path / "m.mtx"
    path.write_text(f"{GENERAL}\n2000000000 1 1\n1 1 1\n")
    with pytest.raises(ValueError, match="2000000000 rows need 16000000008 bytes, more than 4294967296"):
        read_matrix(path)


@pytest.mark.parametrize("body", ["1\n2\n3\n", "1\n2\n3\n4\n5\n", "1\n2\n3\nnan\n", "1 2\n3\n4\n"])
def test_bad_arrays_are_refused(tmp_path, body):
    with pytest.raises(ValueError, match=r"m\.mtx: .*(truncated|more entries|not a finite|2 numbers)"):
        read(tmp_path, f"%%MatrixMarket matrix array real general\n2 2\n{body}")


def test_array_may_begin_with_a_sign(tmp_path):
    assert dense(tmp_path, "%%MatrixMarket matrix array real general\n2 1\n-1\n+2e-1\n") == [[-1], [pytest.approx(0.2)]]


def test_array_value_beyond_float32_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"value 1e\+39 at \(2, 1\) is not finite in float32"):
        read(tmp_path, "%%MatrixMarket matrix array real general\n2 1\n1\n1e39\n")


def test_binary_garbage_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no MatrixMarket header"):
        read(tmp_path, bytes(range(256)) * 8)
    with pytest.raises(ValueError, match="line 3: "):
        read(tmp_path, GENERAL.encode() + b"\n2 2 2\n" + bytes(range(128, 160)))


def test_truncation_at_any_byte_is_detected(tmp_path):
    whole = f"{GENERAL}\n% c\n3 3 3\n1 1 10\n2 2 20\n3 3 30\n"
    for length in range(len(whole) - 2):  # the last digit and the last line end are part of no promise
        with pytest.raises(ValueError, match=r"m\.mtx: "):
            read(tmp_path, whole[:length])


def test_written_values_come_back_exactly(tmp_path):
    source = read(tmp_path, f"{GENERAL}\n2 3 3\n1 1 0.333333343\n2 3 1e-45\n1 2 3.4028235e38\n")
    write_matrix(tmp_path / "copy.mtx", source)
    assert read_matrix(tmp_path / "copy.mtx") == source
    assert np.isfinite(source.values).all()


@pytest.mark.parametrize("banner", [
    "%%matrixmarket matrix coordinate real general", "%%MATRIXMARKET MATRIX COORDINATE REAL GENERAL",
    "%%MatrixMarket\tmatrix  Coordinate DOUBLE General ", "%%MatrixMarket matrix coordinate unsigned-integer general",
])
def test_case_and_blanks_of_the_banner_do_not_matter(tmp_path, banner):
    assert dense(tmp_path, f"{banner}\n1 1 1\n1 1 2\n") == [[2]]


@pytest.mark.parametrize(("text", "message"), [
    (f"{GENERAL.replace('real', 'unsigned-integer')}\n1 1 1\n1 1 -2\n", "'-2' is not an unsigned integer of 64 bits"),
    (f"{GENERAL.replace('real', 'unsigned-integer')}\n1 1 1\n1 1 18446744073709551616\n", "is not an unsigned integer"),
    (f"{GENERAL.replace('real', 'integer')}\n1 1 1\n1 1 9223372036854775808\n", "is not an integer of 64 bits"),
    (f"{GENERAL}\n2 2 1\n1 1\x0b1\n", r"'1\\x0b1' is not an index"),
    (f"{GENERAL}\n2 2 1\n1 1\x0c1\n", r"'1\\x0c1' is not an index"),
    (f"{GENERAL}\n2 2 1\n1\x001 1\n", r"'1\\x001' is not an index"),
    (f"{GENERAL}\n1 1 1\n1 1 1 \x1a\n", "4 numbers where a real coordinate file has 3"),
    (f"{GENERAL}\n1 1 1\n{'1' * 5000} 1 1\n", "row 1{40} and so on, 5000 characters, is outside 1 to 1"),
    (f"{GENERAL}\n1 1 1\n1 1 {'1' * 5000}\n", "value inf at"),
    (f"{GENERAL.replace('real', 'pattern')}\n2 2 1\n1 1 1\n", "3 numbers where a pattern coordinate file has 2$"),
], ids=["negative", "65 bits", "64 bits", "vertical tab", "form feed", "zero byte", "end of DOS", "long index",
        "long value", "values in a pattern"])
def test_an_error_is_reported_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert f"{tmp_path / 'm.mtx'}: line 3: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["int", "integer64", "long-integer", "signed-integer", "float", "complex"])
def test_other_fields_are_refused(tmp_path, field):
    with pytest.raises(ValueError, match=r"m\.mtx: line 1: (field '.*' is none of real, double, integer,|complex)"):
        read(tmp_path, f"{GENERAL.replace('real', field)}\n1 1 1\n1 1 2\n")


@pytest.mark.parametrize(("text", "message"), [
    (f"{GENERAL}\n{'1' * 5000} 1 1\n1 1 1\n", "line 2: 5003 characters|line 2: 5004 characters"),
    (f"{GENERAL}\n{'1' * 500} 1 1\n1 1 1\n", "line 2: '1{40}' and so on, 500 characters, is too large"),
    (f"{GENERAL}\n1 1 {'9' * 30}\n1 1 1\n", "line 2: '9{30}' is too large: no file holds so much"),
    ("%%MatrixMarket matrix array real general\n99999999999 99999999999\n1\n", "exceeds the limit of 2147483647"),
    (f"{GENERAL}\n" + "%\n" * 2_200_000 + "1 1 1\n1 1 1\n", "4194304 bytes of comments, and no size line"),
    ("%%MatrixMarket" * 1000, "line 1: no MatrixMarket header"),
], ids=["long rows", "many digits", "entries", "array", "comments", "banner"])
def test_claims_of_a_header_are_limited(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "m.mtx") in str(caught.value)


def test_leading_zeros_are_ignored(tmp_path):
    zeros = "0" * 5000
    assert dense(tmp_path, f"{GENERAL}\n2 2 1\n{zeros}2 1 {zeros}.5\n") == [[0, 0], [0.5, 0]]


def test_lines_may_end_in_carriage_returns_alone(tmp_path):
    assert dense(tmp_path, f"{GENERAL}\r% c\r2 2 2\r1 1 1\r2 2 2\r") == [[1, 0], [0, 2]]


def test_every_digit_of_the_file_is_kept(tmp_path):
    matrix = read(tmp_path, f"{GENERAL}\n1 3 3\n1 1 0.1\n1 2 16777217\n1 3 1e-40\n")
    assert (matrix.dtype, matrix.values.dtype) == (np.float32, np.float32)
    assert matrix.astype(np.float64).values.tolist() == [0.1, 16777217, 1e-40]
    again = matrix.astype(np.float64).astype(np.float32)
    assert again == matrix
    assert again.astype(np.float64) == matrix.astype(np.float64)
    write_matrix(tmp_path / "copy.mtx", matrix)
    assert read_matrix(tmp_path / "copy.mtx").astype(np.float64) == matrix.astype(np.float64)


def test_values_that_float32_represents_are_stored_once(tmp_path):
    assert read(tmp_path, f"{GENERAL}\n1 2 2\n1 1 0.5\n1 2 -3e5\n").exact is None


@pytest.mark.parametrize("banner", [f"{GENERAL}\n1 2 2\n1 1 ", "%%MatrixMarket matrix array real general\n1 2\n"])
def test_a_number_that_float32_would_make_0_makes_the_matrix_float64(tmp_path, banner):
    text = f"{banner}1e-50\n{'1 2 ' if 'coordinate' in banner else ''}3\n"
    matrix = read(tmp_path, text)
    assert matrix.values.dtype == np.float64
    assert matrix.values.tolist() == [1e-50, 3]
    with pytest.raises(ValueError, match=r"line 3: value 1e-50 at \(1, 1\) becomes 0 in float32: read it with dtype="):
        read_matrix(tmp_path / "m.mtx", dtype=np.float32)


def test_the_value_type_can_be_chosen(tmp_path):
    text = f"{GENERAL}\n1 2 2\n1 1 0.1\n1 2 1e39\n"
    with pytest.raises(ValueError, match=r"not finite in float32: .*, or read it with dtype=numpy\.float64"):
        read(tmp_path, text)
    assert read_matrix(tmp_path / "m.mtx", dtype=np.float64).values.tolist() == [0.1, 1e39]
    read(tmp_path, text.replace("1e39", "3"))
    assert read_matrix(tmp_path / "m.mtx", dtype="float32").exact is None
    assert read_matrix(tmp_path / "m.mtx", dtype=np.float16).values.tolist() == [float(np.float16(0.1)), 3.0]
    with pytest.raises(ValueError, match="int32"):
        read_matrix(tmp_path / "m.mtx", dtype=np.int32)


@pytest.mark.parametrize("word", [
    "1e-400", "-1e-324", "2.5E-0500", "1e-99999999999", pytest.param(f"0.{'0' * 330}1", id="without exponent"),
    f".{'0' * 30}1e-299",
])
def test_a_number_that_float64_would_make_0_is_refused(tmp_path, word):
    for dtype in (None, np.float64):
        (tmp_path / "m.mtx").write_text(f"{GENERAL}\n2 2 2\n\n1 1 0.000e-999\n2 2 {word}\n")
        with pytest.raises(ValueError, match=r"line 5: '.*' (and so on, \d+ characters, )?is too small for float64"):
            read_matrix(tmp_path / "m.mtx", dtype=dtype)


@pytest.mark.parametrize(("symmetry", "line"), [("general", 7), ("symmetric", 6), ("skew-symmetric", 4)])
def test_an_error_in_an_array_is_reported_with_its_line(tmp_path, symmetry, line):
    count = {"general": 9, "symmetric": 6, "skew-symmetric": 3}[symmetry]
    values = ["1"] * count
    values[line - 3] = "1e39"
    text = f"%%MatrixMarket matrix array real {symmetry}\n3 3\n" + "\n".join(values)
    position = {"general": r"\(2, 2\)", "symmetric": r"\(2, 2\)", "skew-symmetric": r"\(3, 1\)"}[symmetry]
    with pytest.raises(ValueError, match=rf"line {line}: value 1e\+39 at {position}"):
        read(tmp_path, text)


def test_an_array_of_unsigned_integers_may_be_skew_symmetric(tmp_path):
    text = "%%MatrixMarket matrix array unsigned-integer skew-symmetric\n3 3\n1\n0\n18446744073709551615\n"
    assert dense(tmp_path, text) == [[0, -1, 0], [1, 0, -(2.0**64)], [0, 2.0**64, 0]]


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
def test_two_values_in_a_line_of_an_array_are_refused(tmp_path, symmetry):
    with pytest.raises(ValueError, match="line 3: 2 numbers where a real array file has 1"):
        read(tmp_path, f"%%MatrixMarket matrix array real {symmetry}\n3 3\n1 2\n" + "3\n" * 7)
