"""MatrixMarket text to matrix: the body is parsed by fast_matrix_market, every rule of the format is checked here."""

import io
import re
from dataclasses import dataclass

import fast_matrix_market
import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from sparloom.sparse.archive import check_extents, memory_for
from sparloom.sparse.market_text import (
    BLANKS,
    MarketStream,
    count_tokens,
    entry_line,
    line_begin,
    lines_of,
    odd_line,
    vanishing_line,
    words_of,
)
from sparloom.sparse.pattern import INDEX_LIMIT, Pattern, SparseMatrix, unfit_value

__all__ = ["market_text", "parse_market"]

FIELDS = ("real", "double", "integer", "unsigned-integer", "pattern")
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
LONGEST_BANNER, LONGEST_SIZE_LINE, LONGEST_PREAMBLE = 1024, 1024, 4 << 20  # bytes; the preamble is all comments
LONGEST_COUNT = 18  # digits
ENTRY_BYTES, POINTER_BYTES = 64, 16  # wanted at the most while a matrix is read, per entry and per row
SHOWN = 40  # characters of a token in a message
END = re.compile(rb"[ \t\r\n]*+\Z")
INTEGER = re.compile(rb"[+-]?\d+")
UNSIGNED = re.compile(rb"[+]?\d+")
REAL = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class _Header:
    """What the lines above the body say; `body` is the offset where the entries start, `line` the lines before it."""

    layout: str
    field: str
    symmetry: str
    rows: int
    cols: int
    count: int
    body: int
    line: int

    @property
    def tokens(self) -> int:
        """Numbers per line of the body."""
        return 1 if self.layout == "array" else 2 if self.field == "pattern" else 3


def parse_market(text: bytes, place: str, limit_bytes: int, dtype: DTypeLike | None = None) -> SparseMatrix:
    """Read a real matrix from MatrixMarket text, symmetric ones expanded to both triangles.

    Entries that are stored as zero stay in the pattern of a coordinate file; an array file gives its nonzeros.

    Args:
        place: file, or file and member, that error messages start with.
        limit_bytes: what the row or column pointers may take: a short file can claim two billion rows.
        dtype: of the values, as of `read_matrix`.

    Raises:
        ValueError: the text breaks the format, is incomplete, or holds something other than finite real numbers that
            `dtype` has, each position once; the message names `place` and the line.
        MemoryError: says how much was wanted.
    """
    if b"\n" not in text:
        text = text.replace(b"\r", b"\n")  # lines may end in carriage returns alone
    header = _read_header(text, place)
    check_extents((header.rows, header.cols), limit_bytes, f"{place}: line {header.line}")
    tokens, wrong = count_tokens(text, header.body, real=header.field == "real")
    if wrong is not None:
        raise _token_fault(text, header, place, wrong)
    if tokens != header.count * header.tokens:
        raise _fault(text, header, place, tokens=tokens)
    wanted = ENTRY_BYTES * header.count + POINTER_BYTES * header.rows
    with memory_for(f"{place}: {header.rows} x {header.cols} with {header.count} entries need about {wanted} bytes"):
        return _matrix(text, header, place, dtype)


def market_text(matrix: SparseMatrix) -> bytes:
    """Write a matrix as coordinate, real, general; the digits bring every number back exactly, as float64 too."""
    pattern = matrix.pattern
    sink = io.BytesIO()
    entries = (matrix.astype(np.float64).values, (pattern.row_ids(), pattern.indices))
    fast_matrix_market.write_coo(sink, entries, pattern.shape, parallelism=1)
    return sink.getvalue()


def _matrix(text: bytes, header: _Header, place: str, dtype: DTypeLike | None) -> SparseMatrix:
    if header.count == 0:
        rows = cols = np.zeros(0, dtype=np.int32)
        values = np.zeros(0)
    else:
        rows, cols, values = _parse(text, header, place, dtype)
    rows, cols, values = _expand(rows, cols, values, header)
    coo = scipy.sparse.coo_array((values, (rows, cols)), shape=(header.rows, header.cols))
    csr = scipy.sparse.csr_array(coo)  # would add up repeated entries; _entry_fault refused them
    csr.sort_indices()
    return SparseMatrix.of_doubles(Pattern(csr.shape, csr.indptr, csr.indices), csr.data, dtype)


def _read_header(text: bytes, place: str) -> _Header:
    banner = text[:LONGEST_BANNER].partition(b"\n")[0]
    words = [word.decode("ascii", "replace").lower() for word in words_of(banner)]
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        raise ValueError(
            f"{place}: line 1: no MatrixMarket header; it reads '%%MatrixMarket matrix coordinate real general'")
    layout, field, symmetry = words[2:]
    if layout not in ("coordinate", "array"):
        raise ValueError(f"{place}: line 1: layout {layout!r} is neither 'coordinate' nor 'array'")
    if field == "complex":
        raise ValueError(f"{place}: line 1: complex values; only real matrices are supported: save its real part")
    if field not in FIELDS:
        raise ValueError(f"{place}: line 1: field {field!r} is none of {', '.join(FIELDS)}")
    if symmetry not in SYMMETRIES:
        raise ValueError(f"{place}: line 1: symmetry {symmetry!r} is none of {', '.join(SYMMETRIES)}")
    if field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"):
        other = layout if layout == "array" else symmetry
        raise ValueError(f"{place}: line 1: 'pattern' cannot be {other!r}: its entries have no values")
    size, body, line = _size_line(text, place)
    expected = 2 if layout == "array" else 3
    words_of_size = words_of(size)
    if len(words_of_size) != expected or not all(word.isdigit() for word in words_of_size):
        shown = size[:60].decode("ascii", "replace")
        names = "rows, columns" if layout == "array" else "rows, columns, entries"
        raise ValueError(f"{place}: line {line}: {shown!r} is no size line; it holds {expected} counts: {names}")
    rows, cols, *counts = (_count(word, f"{place}: line {line}") for word in words_of_size)
    if max(rows, cols) > INDEX_LIMIT:
        raise ValueError(f"{place}: line {line}: {rows} x {cols} exceeds the limit of {INDEX_LIMIT} rows or columns")
    if symmetry != "general" and rows != cols:
        raise ValueError(f"{place}: line {line}: {rows} x {cols} is not square, yet line 1 says {symmetry!r}")
    count = _array_count(rows, cols, symmetry) if layout == "array" else counts[0]
    return _Header(layout, "real" if field == "double" else field, symmetry, rows, cols, count, body, line)


def _size_line(text: bytes, place: str) -> tuple[bytes, int, int]:
    """Find the first line that is neither empty nor a comment; also the end and the number of it."""
    start, line = 0, 0
    for content in lines_of(text, 0):
        line, start = line + 1, start + len(content) + 1
        content = content.strip(BLANKS)
        if len(content) > LONGEST_SIZE_LINE and not content.startswith(b"%"):
            raise ValueError(f"{place}: line {line}: {len(content)} characters where the size line must stand")
        if content and not content.startswith(b"%"):
            return content, min(start, len(text)), line
        if start > LONGEST_PREAMBLE:
            raise ValueError(f"{place}: line {line}: {LONGEST_PREAMBLE} bytes of comments, and no size line among them")
    raise ValueError(f"{place}: line {line}: the file ends before its size line: truncated")


def _count(digits: bytes, place: str) -> int:
    if len(digits.lstrip(b"0")) > LONGEST_COUNT:
        raise ValueError(f"{place}: {_shown(digits)} is too large: no file holds so much")
    return int(digits.lstrip(b"0") or b"0")


def _array_count(rows: int, cols: int, symmetry: str) -> int:
    if symmetry == "general":
        return rows * cols
    return rows * (rows - 1) // 2 if symmetry == "skew-symmetric" else rows * (rows + 1) // 2


def _token_fault(text: bytes, header: _Header, place: str, wrong: int) -> ValueError:
    """Say what is no number, at `wrong` or up to a piece behind it."""
    begin = text.rfind(b"\n", header.body, wrong) + 1 or header.body
    first = header.line + 1 + text.count(b"\n", header.body, begin)
    for line, content in enumerate(lines_of(text, begin), start=first):
        words = words_of(content)
        if words and (complaint := _complaint(words, header)):
            return ValueError(f"{place}: line {line}: {complaint}")
    raise AssertionError(f"{place}: there is nothing wrong from byte {wrong} on")


def _fault(text: bytes, header: _Header, place: str, *, tokens: int, reason: str = "") -> ValueError:
    """Say what is wrong with a body of so many numbers.

    Args:
        reason: what the parser says, with "Line N" where it counts the two lines of its own header.
    """
    real = header.field == "real"
    odd = odd_line(text, header.body, real=real, tokens=header.tokens)
    entries, remainder = divmod(tokens, header.tokens)
    if odd is None and not remainder and entries < header.count:
        return ValueError(f"{place}: the file ends after {entries} of the {header.count} entries that line "
                          f"{header.line} promises: truncated")
    if odd is None and entries > header.count:
        line = header.line + 1 + entry_line(text, header.body, real=real, entry=header.count)
        return ValueError(f"{place}: line {line}: more entries than the {header.count} of line {header.line}")
    named = re.search(r"Line (\d+)", reason)
    before = odd if odd is not None else int(named[1]) - 3 if named else None
    if before is not None:
        begin = line_begin(text, header.body, before)
        content = next(lines_of(text, begin))
        words = words_of(content)
        complaint = _complaint(words, header)
        if complaint:
            cut = ": truncated" if len(words) < header.tokens and END.match(text, begin + len(content)) else ""
            return ValueError(f"{place}: line {header.line + 1 + before}: {complaint}{cut}")
    return ValueError(f"{place}: the entries cannot be read ({reason})")


def _complaint(words: list[bytes], header: _Header) -> str | None:
    limits = (("row", header.rows), ("column", header.cols)) if header.layout == "coordinate" else ()
    for word, (axis, limit) in zip(words, limits, strict=False):
        if not INTEGER.fullmatch(word):
            return f"{_shown(word)} is not an index"
        if not 1 <= _integer(word) <= limit:
            return f"{axis} {_shown(word, quoted=False)} is outside 1 to {limit}"
    for word in words[len(limits) : header.tokens]:
        if header.field == "real" and not REAL.fullmatch(word):
            return f"{_shown(word)} is not a finite number"
        if header.field == "integer" and not (INTEGER.fullmatch(word) and -(2**63) <= _integer(word) < 2**63):
            return f"{_shown(word)} is not an integer of 64 bits"
        if header.field == "unsigned-integer" and not (UNSIGNED.fullmatch(word) and _integer(word) < 2**64):
            return f"{_shown(word)} is not an unsigned integer of 64 bits"
    if len(words) != header.tokens:
        return f"{len(words)} numbers where a {header.field} {header.layout} file has {header.tokens}"
    return None


def _integer(word: bytes) -> int:
    """Convert digits with a sign; those of more than 20 digits are all the same: larger than any limit here."""
    digits = word.lstrip(b"+-").lstrip(b"0") or b"0"
    size = int(digits) if len(digits) <= 20 else 10**20
    return -size if word.startswith(b"-") else size


def _shown(word: bytes, *, quoted: bool = True) -> str:
    shown = word[:SHOWN].decode("ascii", "replace")
    shown = repr(shown) if quoted else shown.lstrip("+")
    return shown if len(word) <= SHOWN else f"{shown} and so on, {len(word)} characters,"


def _parse(
    text: bytes, header: _Header, place: str, dtype: DTypeLike | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read rows, columns, counted from 0, and float64 values of the stored entries."""
    coordinate = header.layout == "coordinate"
    # an array is read as one column: the parser does not miss entries of symmetric ones
    sizes = (header.rows, header.cols, header.count) if coordinate else (header.count, 1)
    banner = f"%%MatrixMarket matrix {header.layout} {header.field} general\n{' '.join(map(str, sizes))}\n"
    source = MarketStream(banner.encode("ascii"), text, header.body)
    try:
        if coordinate:
            (read, (rows, cols)), _ = fast_matrix_market.read_coo(source, parallelism=1)
        else:
            read = fast_matrix_market.read_array(source, parallelism=1).ravel()
    except (ValueError, OverflowError) as error:
        raise _fault(text, header, place, tokens=header.count * header.tokens, reason=str(error)) from error
    values = read.astype(np.float64, copy=False)
    if header.field == "real" and not values.all() and (vanishing := vanishing_line(text, header.body)):
        before, word = vanishing
        raise ValueError(f"{place}: line {header.line + 1 + before}: {_shown(word)} is too small for float64")
    if not coordinate:
        rows, cols = _array_positions(header)
    fault = _value_fault(values, rows, cols, dtype=dtype) or (_entry_fault(rows, cols, header) if coordinate else None)
    if fault is not None:
        before = entry_line(text, header.body, real=header.field == "real", entry=fault[0])
        raise ValueError(f"{place}: line {header.line + 1 + before}: {fault[1]}")
    if coordinate:
        return rows, cols, values
    stored = np.flatnonzero(values)
    return rows[stored], cols[stored], values[stored]


def _array_positions(header: _Header) -> tuple[np.ndarray, np.ndarray]:
    """List rows and columns of the entries of an array file, column after column; of symmetric ones the lower part."""
    starts = np.zeros(header.cols, np.int32)
    if header.symmetry != "general":
        starts = np.arange(header.cols, dtype=np.int32) + (header.symmetry == "skew-symmetric")
    lengths = header.rows - starts
    cols = np.repeat(np.arange(header.cols, dtype=np.int32), lengths)
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    rows = (np.arange(header.count) - before[cols] + starts[cols]).astype(np.int32)
    return rows, cols


def _value_fault(
    values: np.ndarray, rows: np.ndarray, cols: np.ndarray, *, dtype: DTypeLike | None,
) -> tuple[int, str] | None:
    unfit = unfit_value(values, dtype)
    if unfit is None:
        return None
    entry, complaint = unfit
    at = f"({int(rows[entry]) + 1}, {int(cols[entry]) + 1})"
    return entry, f"value {float(values[entry])!r} at {at} {complaint}"


def _entry_fault(rows: np.ndarray, cols: np.ndarray, header: _Header) -> tuple[int, str] | None:
    """Return entry and complaint of what the parser lets pass."""
    if header.symmetry == "skew-symmetric" and (rows == cols).any():
        entry = int(np.argmax(rows == cols))
        return entry, f"diagonal entry ({int(rows[entry]) + 1}, {int(cols[entry]) + 1}) in a skew-symmetric matrix"
    return _duplicate(rows, cols, header)


def _duplicate(rows: np.ndarray, cols: np.ndarray, header: _Header) -> tuple[int, str] | None:
    """Find the second of two entries at one position, or at two positions that symmetry makes one."""
    high, low = (rows, cols) if header.symmetry == "general" else (np.maximum(rows, cols), np.minimum(rows, cols))
    keys = low.astype(np.int64) * header.rows + high  # files are mostly column-major: then the keys rise
    if (keys[1:] > keys[:-1]).all():
        return None
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1])
    if repeats.size == 0:
        return None
    entry = int(order[repeats + 1].min())
    mirrored = " or its mirror image" if header.symmetry != "general" else ""
    return entry, f"position ({int(rows[entry]) + 1}, {int(cols[entry]) + 1}){mirrored} occurs a second time"


def _expand(
    rows: np.ndarray, cols: np.ndarray, values: np.ndarray, header: _Header,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if header.symmetry == "general":
        return rows, cols, values
    off = rows != cols
    sign = -1 if header.symmetry == "skew-symmetric" else 1
    mirrored = (np.concatenate((rows, cols[off])), np.concatenate((cols, rows[off])))
    return *mirrored, np.concatenate((values, sign * values[off]))
