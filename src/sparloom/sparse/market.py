"""MatrixMarket text to matrix and back, and edge lists to matrix.

SciPy reads the body of MatrixMarket text. It also reads the beginning of "1e5.5", "1.5-2" and "1 1.5 3" without an
error, fills missing entries of symmetric arrays with zeros, and reads past the end of a text that ends in a blank. So
every line is matched against the grammar first, and the last one gets a line end.
"""

import io
import re

import numpy as np
import scipy.io
import scipy.sparse
from numpy.typing import DTypeLike

from sparloom.sparse.archive import check_size
from sparloom.sparse.pattern import INDEX_LIMIT, Pattern, SparseMatrix, unfit_value

BANNER = re.compile(rb"%%matrixmarket[ \t]++matrix[ \t]++", re.IGNORECASE)
HEADER = "%%MatrixMarket matrix coordinate real general"
SHOWN = 60  # characters of a line in a message
POINTER_BYTES = 8  # int64

# All repetitions are possessive, so the time is linear in the text.
INDEX, INTEGER, REAL = rb"\d++", rb"[+-]?+\d++", rb"[+-]?+(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?+\d++)?"
BLANKS = rb"[ \t\r]++"
VALUES = {"real": (REAL, "a finite number"), "double": (REAL, "a finite number"), "integer": (INTEGER, "an integer"),
          "unsigned-integer": (INTEGER, "an unsigned integer")}  # of a field: its grammar and its name
SIGNED = ("real", "double", "integer")
TOP = re.compile(rb"(?:[ \t\r]*+(?:%[^\n]*+)?+\n)*+[^\n]*+\n?+")  # comments, blank lines and the size line
COMMENT = re.compile(rb"^[ \t]*+[#%][^\n]*+", re.MULTILINE)  # of an edge list


def parse_market(text: bytes, source: str, limit_bytes: int, dtype: DTypeLike | None = None) -> SparseMatrix:
    """Read a real matrix from MatrixMarket text; symmetric ones are expanded to both triangles.

    Entries that are stored as zero stay in the pattern of a coordinate file; an array file gives its nonzeros.

    Args:
        source: file, or file and member; error messages start with it.
        limit_bytes: maximum of the row or column pointers: a short file can claim two billion rows.
        dtype: of the values, as in `read_matrix`.

    Raises:
        ValueError: the text breaks the format, is incomplete, repeats a position, or holds something other than finite
            real numbers that fit `dtype`; the message names `source` and the line or position.
    """
    text = _with_line_ends(text)
    banner = BANNER.match(text)
    if banner is None:
        line = text.partition(b"\n")[0][:SHOWN].decode("ascii", "replace")
        raise ValueError(f"{source}: line 1: {line!r} is no MatrixMarket header such as {HEADER!r}: pass "
                         "format='edges' for an edge list, convert other formats, or check where the file came from")
    text = b"%%MatrixMarket matrix " + text[banner.end():]
    try:
        rows, cols, count, layout, field, symmetry = scipy.io.mminfo(io.BytesIO(text))
        _check_header((rows, cols), layout, field, symmetry)
        body = TOP.match(text).end()
        check_size(POINTER_BYTES * (max(rows, cols) + 1), limit_bytes, f"{rows} x {cols} need")
        _check_lines(text, body, layout, field)
        _check_count(text, body, (rows, cols), count=count, layout=layout, symmetry=symmetry)
        for blank in (b" ", b"\t", b"\n"):
            text = text.replace(blank + b"+", blank + b" ")  # a sign that SciPy does not know
        # SciPy divides by the extents of an array
        read = scipy.io.mmread(io.BytesIO(text)) if rows and cols else (rows, cols)
        entries = scipy.sparse.coo_array(read)
        if symmetry == "skew-symmetric" and (entries.row == entries.col).any():
            raise ValueError("an entry on the diagonal of a skew-symmetric matrix")
        return assembled(entries, dtype, first=1)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{source}: {str(error)[:1].lower()}{str(error)[1:]}") from error


def parse_edges(
    text: bytes, source: str, limit_bytes: int, *, shape: tuple[int, int] | None = None,
    dtype: DTypeLike | None = None,
) -> SparseMatrix:
    """Read an edge list: a line has the source, the target and possibly the weight of an edge.

    Args:
        source, limit_bytes, dtype: as of `parse_market`.
        shape: of the matrix; None: square, with as many rows as the greatest index and one more.

    Raises:
        ValueError: a line is no edge, an edge is repeated or outside `shape`, a weight does not fit, or there are no
            edges and no `shape`; the message names `source` and the line or position.
    """
    if BANNER.match(text):
        raise ValueError(f"{source}: a MatrixMarket file, no edge list: leave format away")
    text = COMMENT.sub(b"", _with_line_ends(text))
    edge = re.search(rb"[^ \t\r\n][^\n]*", text)
    if edge is None and shape is None:
        raise ValueError(f"{source}: no edges: truncated, or pass the shape of the matrix")
    field = "pattern" if edge is None or len(edge[0].split()) == 2 else "real"
    try:
        _check_lines(text, 0, "coordinate", field)
        columns = 2 if field == "pattern" else 3
        numbers = np.zeros((0, columns)) if edge is None else np.fromstring(text, sep=" ").reshape(-1, columns)
        greatest = numbers[:, :2].max(axis=0, initial=-1)
        limits = shape or (INDEX_LIMIT, INDEX_LIMIT)
        if (greatest >= limits).any():
            raise ValueError(f"index {greatest.max():.0f} is outside of shape {limits}, counted from 0")
        rows, cols = numbers[:, :2].T.astype(np.int32)
        shape = shape or (1 + int(greatest.max()),) * 2
        check_size(POINTER_BYTES * (max(shape) + 1), limit_bytes, f"{shape[0]} x {shape[1]} need")
        values = numbers[:, 2].copy() if columns == 3 else np.ones(len(numbers))
        return assembled(scipy.sparse.coo_array((values, (rows, cols)), shape=shape), dtype, first=0)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def market_text(matrix: SparseMatrix) -> bytes:
    """Write a matrix as coordinate, real, general, with enough digits that every float64 is read back exactly."""
    sink = io.BytesIO()
    scipy.io.mmwrite(sink, matrix.astype(np.float64).to_scipy().tocoo(), field="real", symmetry="general")
    return sink.getvalue()


def assembled(entries: scipy.sparse.sparray, dtype: DTypeLike | None, *, first: int) -> SparseMatrix:
    """Make a matrix of entries in any order.

    Args:
        dtype: of the values, as in `read_matrix`.
        first: index of the first row and column in messages.

    Raises:
        ValueError: a value does not fit, or two entries have one position.
    """
    csr = entries.astype(np.float64).tocsr()
    if not csr.has_canonical_format:
        csr.sum_duplicates()
    if csr.nnz < entries.nnz:
        rows, cols = entries.tocoo().coords
        order = np.lexsort((cols, rows))
        second = order[1:][(np.diff(rows[order]) == 0) & (np.diff(cols[order]) == 0)][0]
        raise ValueError(f"position ({rows[second] + first}, {cols[second] + first}) or its mirror image occurs a "
                         "second time")
    unfit = unfit_value(csr.data, dtype)
    if unfit is not None:
        entry, complaint = unfit
        row, col = int(np.searchsorted(csr.indptr, entry, "right")) - 1 + first, int(csr.indices[entry]) + first
        raise ValueError(f"value {float(csr.data[entry])!r} at ({row}, {col}) {complaint}")
    return SparseMatrix.of_doubles(Pattern(csr.shape, csr.indptr, csr.indices), csr.data, dtype)


def _with_line_ends(text: bytes) -> bytes:
    """End the last line, and all lines of a text that has only carriage returns."""
    return (text if b"\n" in text else text.replace(b"\r", b"\n")) + b"\n"


def _check_header(shape: tuple[int, int], layout: str, field: str, symmetry: str) -> None:
    if field == "complex":
        raise ValueError("line 1: complex values; only real matrices are supported: save its real part")
    if (field == "pattern" and layout == "array") or (field not in SIGNED and symmetry == "skew-symmetric"):
        raise ValueError(f"line 1: {field!r} entries cannot make a {layout} matrix that is {symmetry}")
    if max(shape) > INDEX_LIMIT:
        raise ValueError(f"{shape[0]} x {shape[1]} exceeds the limit of {INDEX_LIMIT} rows or columns")
    if symmetry != "general" and shape[0] != shape[1]:
        raise ValueError(f"{shape[0]} x {shape[1]} is not square, yet line 1 says {symmetry!r}")


def _check_lines(text: bytes, start: int, layout: str, field: str) -> None:
    """Raise ValueError unless every line from an offset of the text on is blank or an entry."""
    tokens = [(INDEX, "row"), (INDEX, "column")] if layout == "coordinate" else []
    tokens += [VALUES[field]] if field in VALUES else []
    entry = BLANKS.join(grammar for grammar, _ in tokens) + rb"[ \t\r]*+"
    end = re.compile(rb"(?:[ \t\r]*+(?:" + entry + rb")?+\n)*+").match(text, start).end()
    if end < len(text):
        number, line = text.count(b"\n", 0, end) + 1, text[end:].partition(b"\n")[0]
        shown, wanted = line[:SHOWN].decode("ascii", "replace"), ", ".join(name for _, name in tokens)
        raise ValueError(f"line {number}: {shown!r} is not {wanted}")


def _check_count(
    text: bytes, body: int, shape: tuple[int, int], *, count: int, layout: str, symmetry: str,
) -> None:
    """Raise ValueError for a text that promises more entries than it has lines, before memory is allocated for them.

    SciPy counts the entries of coordinate text exactly, but not those of a symmetric array.
    """
    if layout == "coordinate":
        found = min(text.count(b"\n", body), count)
    else:
        found = len(text[body:].split())
        rows, cols = shape
        count = {"general": rows * cols, "skew-symmetric": rows * (rows - 1) // 2}.get(symmetry, rows * (rows + 1) // 2)
    if found != count:
        raise ValueError(f"{count} entries are promised, at most {found} were found: truncated or damaged")
