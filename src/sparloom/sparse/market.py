"""MatrixMarket text to matrix and back, and edge lists to matrix.

fast_matrix_market parses the body of the former. It reads the beginning of "1e5.5", "1.5-2" and "1 1.5 3" without an
error, and reads past the end of a text whose last line has no line end. So every line is matched against the grammar
before the parser sees it; repeated entries, values that do not fit and numbers that vanish are found after it.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import fast_matrix_market
import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from sparloom.sparse.archive import check_extents, memory_for
from sparloom.sparse.pattern import INDEX_LIMIT, Pattern, SparseMatrix, unfit_value

FIELDS = ("real", "double", "integer", "unsigned-integer", "pattern")
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
MAX_BANNER, MAX_SIZE_LINE, MAX_PREAMBLE = 1024, 1024, 4 << 20  # bytes; the preamble is all comments
MAX_COUNT_DIGITS = 18
ENTRY_BYTES, POINTER_BYTES = 64, 16  # upper bounds of the memory that reading takes, per entry and per row
SHOWN = 40  # characters of a token in a message
PIECE = 1 << 18  # bytes that are handed to the parser at a time

INTEGER, UNSIGNED, REAL = rb"[+-]?+\d++", rb"\+?+\d++", rb"[+-]?+(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?+\d++)?"
VALUES = {"real": REAL, "integer": INTEGER, "unsigned-integer": UNSIGNED}
COMMENT = re.compile(rb"^[ \t]*+[#%][^\n]*+", re.MULTILINE)  # of an edge list
CONTROL = re.compile(rb"[^\t\r -\xff]")
HEADER = "%%MatrixMarket matrix coordinate real general"
OTHER_FORMATS = (  # first lines of other text files, and what to do
    (rb"(?i:%*[ \t]*matrixmarket)", "the header has five words, of which the first two are '%%MatrixMarket matrix'"),
    (rb"[#%]|\d+[ \t]+\d+(?:[ \t]+[-+.\deE]+)?[ \t\r]*$", "if it is an edge list, pass format='edges' to read_matrix"),
    (rb"c(?:[ \t]|\r?$)|p[ \t]+[a-z]|[ae][ \t]+\d", "if it is a graph of DIMACS, write source, target and weight of "
     "each edge in a line, counted from 0, and pass format='edges' to read_matrix"),
    (rb"[\w.+\"-]++(?: *+[,;] *+[\w.+\"-]*+)++\r?$", "if it is a CSV file, write row, column and value in each line, "
     "counted from 0, with blanks between them, and pass format='edges' to read_matrix"),
)
BLANK_LINE = re.compile(rb"\n[ \t\r]*+$", re.MULTILINE)
END = re.compile(rb"[ \t\r\n]*+\Z")
PLUS = re.compile(rb"(?<![eE])\+")
TINY = re.compile(rb"[eE]-0*+(?:[3-9]\d\d|[1-9]\d{3,})|(?<!0)0{20,}+[1-9]")  # in all numbers that may be below 5e-324
_Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows and columns, counted from 0, and values
SPACES = bytes.maketrans(b"\t\r", b"  ")


@dataclass(frozen=True)
class _Header:
    """Content of the lines above the body: it starts at offset `body`, after `line` lines.

    Args:
        first: index of the first row and column: 1, or 0 of an edge list.
    """

    layout: str
    field: str
    symmetry: str
    rows: int
    cols: int
    count: int
    body: int
    line: int
    first: int = 1

    @property
    def tokens(self) -> int:
        """Numbers per line of the body."""
        return 1 if self.layout == "array" else 2 if self.field == "pattern" else 3


def parse_market(text: bytes, source: str, limit_bytes: int, dtype: DTypeLike | None = None) -> SparseMatrix:
    """Read a real matrix from MatrixMarket text; symmetric ones are expanded to both triangles.

    Entries that are stored as zero stay in the pattern of a coordinate file; an array file gives its nonzeros.

    Args:
        source: file, or file and member; error messages start with it.
        limit_bytes: maximum of the row or column pointers: a short file can claim two billion rows.
        dtype: of the values, as in `read_matrix`.

    Raises:
        ValueError: the text breaks the format, is incomplete, repeats a position, or holds something other than finite
            real numbers that fit `dtype`; the message names `source` and the line.
        MemoryError: says how much was needed.
    """
    if b"\n" not in text:
        text = text.replace(b"\r", b"\n")  # lines may end in carriage returns alone
    header = _read_header(text, source)
    check_extents((header.rows, header.cols), limit_bytes, f"{source}: line {header.line}")
    end = _valid_lines(header.layout, header.field).match(text, header.body).end()
    if end < len(text):
        raise _line_fault(text, header, source, end)
    lines = text.count(b"\n", header.body) + 1
    if lines < header.count or header.count == 0:
        _check_count(text, header, source)
    needed = ENTRY_BYTES * header.count + POINTER_BYTES * header.rows
    with memory_for(f"{source}: {header.rows} x {header.cols} with {header.count} entries need about {needed} bytes"):
        return _matrix(text, header, source, dtype)


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
            edges and no `shape`; the message names `source` and the line.
        MemoryError: says how much was needed.
    """
    if b"\n" not in text:
        text = text.replace(b"\r", b"\n")
    lines = text.count(b"\n") + 1
    with memory_for(f"{source}: {lines} lines need about {ENTRY_BYTES * lines} bytes"):
        return _edges(b"\n" + COMMENT.sub(b"", text), source, limit_bytes, shape=shape, dtype=dtype)


def other_format(text: bytes) -> str | None:
    """Say what to do with text of another format, by its first line; None if the format is not clear."""
    line = text[:MAX_BANNER].partition(b"\n")[0]
    return next((remedy for start, remedy in OTHER_FORMATS if re.match(start, line)), None)


def market_text(matrix: SparseMatrix) -> bytes:
    """Write a matrix as coordinate, real, general, with enough digits that every float64 is read back exactly."""
    pattern = matrix.pattern
    sink = io.BytesIO()
    entries = (matrix.astype(np.float64).values, (pattern.row_ids(), pattern.indices))
    fast_matrix_market.write_coo(sink, entries, pattern.shape, parallelism=1)
    return sink.getvalue()


def _edges(
    text: bytes, source: str, limit_bytes: int, *, shape: tuple[int, int] | None, dtype: DTypeLike | None,
) -> SparseMatrix:
    """Read an edge list of blank lines and edges behind a first line end."""
    edge = re.search(rb"[^ \t\r\n][^\n]*", text)
    columns = 2 if edge is None else len(_words(edge[0]))
    if edge is None and shape is None:
        raise ValueError(f"{source}: no edges: truncated, or pass the shape of the matrix")
    if columns not in (2, 3):
        line = text.count(b"\n", 0, edge.start())
        raise ValueError(f"{source}: line {line}: {_shown(edge[0])} is no edge: an edge list has source, target and "
                         "possibly a weight in a line, with blanks or tabs between them")
    header = _Header("coordinate", "pattern" if columns == 2 else "real", "general",
                     *(shape or (INDEX_LIMIT, INDEX_LIMIT)), count=0, body=1, line=0, first=0)
    end = _valid_lines(header.layout, header.field).match(text, 1).end()
    if end < len(text):
        raise _line_fault(text, header, source, end)
    numbers = np.zeros((0, columns)) if edge is None else np.fromstring(text, sep=" ").reshape(-1, columns)
    for indices, extent in zip(numbers.T[:2], (header.rows, header.cols), strict=True):
        outside = (indices < 0) | (indices >= extent)
        if outside.any():
            line = _entry_line(text, header, int(np.argmax(outside)))
            raise _line_fault(text, header, source, _line_start(text, 1, line - 1))
    rows, cols = numbers.T[:2].astype(np.int32)
    shape = shape or (1 + int(max(rows.max(), cols.max())),) * 2
    check_extents(shape, limit_bytes, source)
    entries = rows, cols, numbers[:, 2].copy() if columns == 3 else np.ones(len(numbers))
    _check_entries(text, header, source, entries, dtype)
    return _assembled(entries, shape, dtype)


def _read_header(text: bytes, source: str) -> _Header:
    banner = text[:MAX_BANNER].partition(b"\n")[0]
    words = [word.decode("ascii", "replace").lower() for word in _words(banner)]
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        kind = "an empty file" if not text else "binary data" if CONTROL.search(banner) else "an unknown format"
        raise ValueError(f"{source}: line 1: no MatrixMarket header, such as {HEADER!r}, but "
                         f"{banner[:60].decode('ascii', 'replace')!r}: "
                         f"{other_format(banner) or f'{kind}: check where it came from'}")
    layout, field, symmetry = words[2:]
    if layout not in ("coordinate", "array"):
        raise ValueError(f"{source}: line 1: layout {layout!r} is neither 'coordinate' nor 'array'")
    if field == "complex":
        raise ValueError(f"{source}: line 1: complex values; only real matrices are supported: save its real part")
    if field not in FIELDS:
        raise ValueError(f"{source}: line 1: field {field!r} is none of {', '.join(FIELDS)}")
    if symmetry not in SYMMETRIES:
        raise ValueError(f"{source}: line 1: symmetry {symmetry!r} is none of {', '.join(SYMMETRIES)}")
    if field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"):
        other = layout if layout == "array" else symmetry
        raise ValueError(f"{source}: line 1: 'pattern' cannot be {other!r}: its entries have no values")
    size, body, line = _size_line(text, source)
    expected = 2 if layout == "array" else 3
    counts = _words(size)
    if len(counts) != expected or not all(word.isdigit() for word in counts):
        shown = size[:60].decode("ascii", "replace")
        names = "rows, columns" if layout == "array" else "rows, columns, entries"
        raise ValueError(f"{source}: line {line}: {shown!r} is no size line; it holds {expected} counts: {names}")
    for word in counts:
        if len(word.lstrip(b"0")) > MAX_COUNT_DIGITS:
            raise ValueError(f"{source}: line {line}: {_shown(word)} is too large: no file holds so much")
    rows, cols, *entries = (int(word.lstrip(b"0") or b"0") for word in counts)
    if max(rows, cols) > INDEX_LIMIT:
        raise ValueError(f"{source}: line {line}: {rows} x {cols} exceeds the limit of {INDEX_LIMIT} rows or columns")
    if symmetry != "general" and rows != cols:
        raise ValueError(f"{source}: line {line}: {rows} x {cols} is not square, yet line 1 says {symmetry!r}")
    count = entries[0] if entries else _array_count(rows, cols, symmetry)
    return _Header(layout, "real" if field == "double" else field, symmetry, rows, cols, count, body, line)


def _size_line(text: bytes, source: str) -> tuple[bytes, int, int]:
    """Find the first line that is neither empty nor a comment; return it, the offset of its end, and its number."""
    start, line = 0, 0
    while start < len(text):
        end = _line_end(text, start)
        content, start, line = text[start:end].strip(b" \t\r"), end + 1, line + 1
        if len(content) > MAX_SIZE_LINE and not content.startswith(b"%"):
            raise ValueError(f"{source}: line {line}: {len(content)} characters where the size line must stand")
        if content and not content.startswith(b"%"):
            return content, min(start, len(text)), line
        if start > MAX_PREAMBLE:
            raise ValueError(f"{source}: line {line}: {MAX_PREAMBLE} bytes of comments, and no size line among them")
    raise ValueError(f"{source}: line {line}: the file ends before its size line: truncated")


def _array_count(rows: int, cols: int, symmetry: str) -> int:
    if symmetry == "general":
        return rows * cols
    return rows * (rows - 1) // 2 if symmetry == "skew-symmetric" else rows * (rows + 1) // 2


@cache
def _valid_lines(layout: str, field: str) -> re.Pattern[bytes]:
    """Make the expression that matches blank lines and entries up to the first line that is neither.

    All repetitions are possessive, so the time is linear in the text.
    """
    tokens = [INTEGER, INTEGER] if layout == "coordinate" else []
    tokens += [VALUES[field]] if field != "pattern" else []
    entry = rb"[ \t\r]++".join(tokens) + rb"[ \t\r]*+"
    return re.compile(rb"(?:[ \t\r]*+(?:" + entry + rb")?+(?:\n|\Z))*+")


def _line_fault(text: bytes, header: _Header, source: str, start: int) -> ValueError:
    """Say what is wrong with the line that starts at an offset of the text."""
    line = header.line + 1 + text.count(b"\n", header.body, start)
    end = _line_end(text, start)
    words = _words(text[start:end])
    cut = ": truncated" if len(words) < header.tokens and END.match(text, end) else ""
    complaint = _complaint(words, header)
    assert complaint is not None, f"{source}: line {line} breaks no rule"
    return ValueError(f"{source}: line {line}: {complaint}{cut}")


def _complaint(words: list[bytes], header: _Header) -> str | None:
    limits = (("row", header.rows), ("column", header.cols)) if header.layout == "coordinate" else ()
    for word, (axis, limit) in zip(words, limits, strict=False):
        if not re.fullmatch(INTEGER, word):
            return f"{_shown(word)} is not an index"
        if not header.first <= _integer(word) < header.first + limit:
            return f"{axis} {_shown(word, quoted=False)} is outside {header.first} to {header.first + limit - 1}"
    for word in words[len(limits) : header.tokens]:
        if header.field == "real" and not re.fullmatch(REAL, word):
            return f"{_shown(word)} is not a finite number"
        if header.field == "integer" and not (re.fullmatch(INTEGER, word) and -(2**63) <= _integer(word) < 2**63):
            return f"{_shown(word)} is not an integer of 64 bits"
        if header.field == "unsigned-integer" and not (re.fullmatch(UNSIGNED, word) and _integer(word) < 2**64):
            return f"{_shown(word)} is not an unsigned integer of 64 bits"
    if len(words) != header.tokens:
        other = "the first edge" if header.first == 0 else f"a {header.field} {header.layout} file"
        return f"{len(words)} numbers where {other} has {header.tokens}"
    return None


def _check_count(text: bytes, header: _Header, source: str) -> None:
    """Raise ValueError unless there are as many entries as the header promises."""
    lines = text.count(b"\n", header.body - 1)
    entries = lines - sum(1 for _ in BLANK_LINE.finditer(text, header.body - 1))
    if entries < header.count:
        raise ValueError(f"{source}: the file ends after {entries} of the {header.count} entries that line "
                         f"{header.line} promises: truncated")
    if entries > header.count:
        line = _entry_line(text, header, header.count)
        raise ValueError(f"{source}: line {line}: more entries than the {header.count} of line {header.line}")


def _entry_line(text: bytes, header: _Header, entry: int) -> int:
    """Find the number of the line that holds an entry, counted from 0: blank lines are legal, so they are counted."""
    line, passed, start = entry, 0, header.body
    for blank in BLANK_LINE.finditer(text, header.body - 1):
        passed += text.count(b"\n", start, blank.start() + 1)
        start = blank.start() + 1
        if passed > line:
            break
        line += 1
    return header.line + 1 + line


def _parse(
    text: bytes, header: _Header, source: str, dtype: DTypeLike | None,
) -> _Entries:
    """Read rows and columns, counted from 0, and float64 values of the stored entries."""
    coordinate = header.layout == "coordinate"
    # an array is read as one column: the parser does not miss entries of symmetric ones
    sizes = (header.rows, header.cols, header.count) if coordinate else (header.count, 1)
    banner = f"%%MatrixMarket matrix {header.layout} {header.field} general\n{' '.join(map(str, sizes))}\n"
    stream = _Stream(banner.encode("ascii"), text, header.body)
    try:
        if coordinate:
            (read, (rows, cols)), _ = fast_matrix_market.read_coo(stream, parallelism=1)
        else:
            read = fast_matrix_market.read_array(stream, parallelism=1).ravel()
    except (ValueError, OverflowError) as error:
        _check_count(text, header, source)
        named = re.search(r"Line (\d+)", str(error))  # the parser counts the two lines of its own header
        if named is None:
            raise ValueError(f"{source}: the entries cannot be read ({error})") from error
        raise _line_fault(text, header, source, _line_start(text, header.body, int(named[1]) - 3)) from error
    values = read.astype(np.float64, copy=False)
    if not coordinate:
        rows, cols = _array_positions(header)
    _check_entries(text, header, source, (rows, cols, values), dtype)
    if coordinate:
        return rows, cols, values
    stored = np.flatnonzero(values)
    return rows[stored], cols[stored], values[stored]


def _check_entries(text: bytes, header: _Header, source: str, entries: _Entries, dtype: DTypeLike | None) -> None:
    """Raise ValueError if a value does not fit, or an entry is repeated."""
    rows, cols, values = entries
    if header.field == "real" and not values.all() and (vanishing := _vanishing(text, header)) is not None:
        line, word = vanishing
        raise ValueError(f"{source}: line {line}: {_shown(word)} is too small for float64")
    unfit = unfit_value(values, dtype)
    if unfit is not None:
        entry, complaint = unfit
        fault = entry, f"value {float(values[entry])!r} at {_position(rows, cols, entry, header)} {complaint}"
    else:
        fault = _entry_fault(rows, cols, header) if header.layout == "coordinate" else None
    if fault is not None:
        raise ValueError(f"{source}: line {_entry_line(text, header, fault[0])}: {fault[1]}")


class _Stream:
    """Source that fast_matrix_market reads: a header, then entries in the spelling that it knows.

    Signs "+" in front of numbers, tabs and carriage returns become blanks, and the last line gets an end.
    """

    def __init__(self, header: bytes, text: bytes, start: int) -> None:
        self._pieces = self._spelled(header, text, start)

    def read(self, _: int) -> bytes:
        """Return the next piece, of any size; nothing at the end."""
        return next(self._pieces, b"")

    @staticmethod
    def _spelled(header: bytes, text: bytes, start: int) -> Iterator[bytes]:
        yield header
        while start < len(text):
            end = text.find(b"\n", start + PIECE) + 1 or len(text)
            piece = text[start:end]
            if b"+" in piece:
                piece = PLUS.sub(b" ", piece)
            if b"\t" in piece or b"\r" in piece:
                piece = piece.translate(SPACES)
            yield piece
            start = end
        yield b"\n"


def _line_end(text: bytes, start: int) -> int:
    end = text.find(b"\n", start)
    return len(text) if end < 0 else end


def _line_start(text: bytes, start: int, lines: int) -> int:
    """Find the offset that lies so many lines after `start`."""
    while (passed := text.count(b"\n", start, start + PIECE)) < lines:
        start, lines = start + PIECE, lines - passed
    for _ in range(lines):
        start = text.index(b"\n", start) + 1
    return start


def _vanishing(text: bytes, header: _Header) -> tuple[int, bytes] | None:
    """Find a number other than 0 that is too small for float64; return its line and the number."""
    for match in TINY.finditer(text, header.body):
        start = text.rfind(b"\n", header.body, match.start()) + 1 or header.body
        word = _words(text[start : _line_end(text, match.start())])[-1]
        if word.lower().partition(b"e")[0].strip(b"+-0.") and float(word) == 0:
            return header.line + 1 + text.count(b"\n", header.body, start), word
    return None


def _array_positions(header: _Header) -> tuple[np.ndarray, np.ndarray]:
    """List rows and columns of the entries of an array file, column by column; of symmetric ones the lower part."""
    starts = np.zeros(header.cols, np.int32)
    if header.symmetry != "general":
        starts = np.arange(header.cols, dtype=np.int32) + (header.symmetry == "skew-symmetric")
    lengths = header.rows - starts
    cols = np.repeat(np.arange(header.cols, dtype=np.int32), lengths)
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    rows = (np.arange(header.count) - before[cols] + starts[cols]).astype(np.int32)
    return rows, cols


def _entry_fault(rows: np.ndarray, cols: np.ndarray, header: _Header) -> tuple[int, str] | None:
    """Find an entry on a diagonal that must be empty, or the second of two entries at one position.

    Positions that symmetry makes one are the same.
    """
    if header.symmetry == "skew-symmetric" and (rows == cols).any():
        entry = int(np.argmax(rows == cols))
        return entry, f"diagonal entry {_position(rows, cols, entry, header)} in a skew-symmetric matrix"
    high, low = (rows, cols) if header.symmetry == "general" else (np.maximum(rows, cols), np.minimum(rows, cols))
    for major, minor, extent in ((low, high, header.rows), (high, low, header.cols)):
        keys = major.astype(np.int64) * extent + minor
        if (keys[1:] > keys[:-1]).all():  # most files are column-major or row-major, so they need not be sorted
            return None
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1])
    if repeats.size == 0:
        return None
    entry = int(order[repeats + 1].min())
    mirrored = " or its mirror image" if header.symmetry != "general" else ""
    return entry, f"position {_position(rows, cols, entry, header)}{mirrored} occurs a second time"


def _position(rows: np.ndarray, cols: np.ndarray, entry: int, header: _Header) -> str:
    return f"({int(rows[entry]) + header.first}, {int(cols[entry]) + header.first})"


def _matrix(text: bytes, header: _Header, source: str, dtype: DTypeLike | None) -> SparseMatrix:
    if header.count == 0:
        rows = cols = np.zeros(0, dtype=np.int32)
        values = np.zeros(0)
    else:
        rows, cols, values = _parse(text, header, source, dtype)
    if header.symmetry != "general":
        off = rows != cols
        sign = -1 if header.symmetry == "skew-symmetric" else 1
        rows, cols = np.concatenate((rows, cols[off])), np.concatenate((cols, rows[off]))
        values = np.concatenate((values, sign * values[off]))
    return _assembled((rows, cols, values), (header.rows, header.cols), dtype)


def _assembled(entries: _Entries, shape: tuple[int, int], dtype: DTypeLike | None) -> SparseMatrix:
    rows, cols, values = entries
    coo = scipy.sparse.coo_array((values, (rows, cols)), shape=shape)
    csr = scipy.sparse.csr_array(coo)  # would add up repeated entries, which _entry_fault refused
    csr.sort_indices()
    return SparseMatrix.of_doubles(Pattern(csr.shape, csr.indptr, csr.indices), csr.data, dtype)


def _integer(word: bytes) -> int:
    """Convert digits with a sign; more than 20 digits give 10**20, which is larger than any limit here."""
    digits = word.lstrip(b"+-").lstrip(b"0") or b"0"
    size = int(digits) if len(digits) <= 20 else 10**20
    return -size if word.startswith(b"-") else size


def _words(line: bytes) -> list[bytes]:
    """Split a line at blanks, tabs and carriage returns, and at nothing else."""
    return [word for word in line.translate(SPACES).split(b" ") if word]


def _shown(word: bytes, *, quoted: bool = True) -> str:
    shown = word[:SHOWN].decode("ascii", "replace")
    shown = repr(shown) if quoted else shown.lstrip("+")
    return shown if len(word) <= SHOWN else f"{shown} and so on, {len(word)} characters,"
