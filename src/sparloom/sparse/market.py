"""MatrixMarket text to matrix: the body is parsed by fast_matrix_market, every rule of the format is checked here."""

import io
import re
from dataclasses import dataclass

import fast_matrix_market
import numpy as np
import scipy.sparse

from sparloom.sparse.limits import check_extents
from sparloom.sparse.pattern import INDEX_LIMIT, Pattern, SparseMatrix

__all__ = ["market_text", "parse_market"]

FIELDS = ("real", "double", "integer", "unsigned-integer", "pattern")
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
NUMBER_BYTES = b"0123456789+-.eE \t\r\n"
INTEGER_BYTES = b"0123456789+- \t\r\n"
TWO_POINTS = re.compile(rb"[.][0-9]*[.]")
INTEGER = re.compile(rb"[+-]?\d+")
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


def parse_market(text: bytes, place: str, limit_bytes: int) -> SparseMatrix:
    """Read a real matrix from MatrixMarket text, symmetric ones expanded to both triangles.

    Entries that are stored as zero stay in the pattern of a coordinate file; an array file gives its nonzeros.

    Args:
        place: file, or file and member, that error messages start with.
        limit_bytes: what the row or column pointers may take: a short file can claim two billion rows.

    Raises:
        ValueError: the text breaks the format, is incomplete, or holds something other than finite real numbers, each
            position once; the message names `place` and the line.
    """
    header = _read_header(text, place)
    check_extents((header.rows, header.cols), limit_bytes, f"{place}: line {header.line}")
    _check_body(text, header, place)
    if header.count == 0:
        rows = cols = np.zeros(0, dtype=np.int32)
        values = np.zeros(0)
    elif header.layout == "array":
        rows, cols, values = _parse_array(text, header, place)
    else:
        rows, cols, values = _parse_coordinate(text, header, place)
    rows, cols, values = _expand(rows, cols, values, header)
    coo = scipy.sparse.coo_array((values.astype(np.float32), (rows, cols)), shape=(header.rows, header.cols))
    csr = scipy.sparse.csr_array(coo)  # adds up repeated entries; _check_entries refused them
    csr.sort_indices()
    return SparseMatrix(Pattern(csr.shape, csr.indptr, csr.indices), csr.data)


def market_text(matrix: SparseMatrix) -> bytes:
    """Write a matrix as coordinate, real, general; the digits bring every float32 back exactly."""
    pattern = matrix.pattern
    sink = io.BytesIO()
    entries = (matrix.values, (pattern.row_ids(), pattern.indices))
    fast_matrix_market.write_coo(sink, entries, pattern.shape, parallelism=1)
    return sink.getvalue()


def _read_header(text: bytes, place: str) -> _Header:
    end = text.find(b"\n")
    words = text[: end if end >= 0 else len(text)][:1024].decode("ascii", "replace").lower().split()
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
    words_of_size = size.split()
    if len(words_of_size) != expected or not all(word.isdigit() for word in words_of_size):
        shown = size[:60].decode("ascii", "replace")
        names = "rows, columns" if layout == "array" else "rows, columns, entries"
        raise ValueError(f"{place}: line {line}: {shown!r} is no size line; it holds {expected} counts: {names}")
    rows, cols = int(words_of_size[0]), int(words_of_size[1])
    if max(rows, cols) > INDEX_LIMIT:
        raise ValueError(f"{place}: line {line}: {rows} x {cols} exceeds the limit of {INDEX_LIMIT} rows or columns")
    if symmetry != "general" and rows != cols:
        raise ValueError(f"{place}: line {line}: {rows} x {cols} is not square, yet line 1 says {symmetry!r}")
    count = _array_count(rows, cols, symmetry) if layout == "array" else int(words_of_size[2])
    return _Header(layout, "real" if field == "double" else field, symmetry, rows, cols, count, body, line)


def _size_line(text: bytes, place: str) -> tuple[bytes, int, int]:
    """Find the first line that is neither empty nor a comment; also its end and number."""
    start, line = 0, 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        content = text[start:end].strip()
        line, start = line + 1, end + 1
        if content and not content.startswith(b"%"):
            return content, min(start, len(text)), line
    raise ValueError(f"{place}: line {line}: the file ends before its size line: truncated")


def _array_count(rows: int, cols: int, symmetry: str) -> int:
    if symmetry == "general":
        return rows * cols
    return rows * (rows - 1) // 2 if symmetry == "skew-symmetric" else rows * (rows + 1) // 2


def _check_body(text: bytes, header: _Header, place: str) -> None:
    """Compare what the header promises with what is there, before anything is allocated for it."""
    body = text[header.body :]
    allowed = NUMBER_BYTES if header.field == "real" else INTEGER_BYTES
    expected = header.count * header.tokens
    if body.translate(None, allowed) or _count_tokens(body) != expected or _is_garbled(body):
        raise _fault(body, header, place)


def _is_garbled(body: bytes) -> bool:
    """Find numbers such as 1.2.3 and 1-2, of which the reader takes the beginning."""
    for sign in (b"-", b"+"):
        signs = body.count(sign)
        if signs:
            fitting = sum(body.count(before + sign) for before in (b" ", b"\t", b"\n", b"e", b"E"))
            if signs != fitting + body.startswith(sign):
                return True
    return TWO_POINTS.search(body) is not None


def _count_tokens(body: bytes) -> int:
    if not body:
        return 0
    inside = np.frombuffer(body, dtype=np.uint8) > 32
    return int(inside[0]) + int(np.count_nonzero(inside[1:] & ~inside[:-1]))


def _fault(body: bytes, header: _Header, place: str) -> ValueError:
    """Go through the lines of a body that is known to be wrong and say where."""
    seen = 0
    for line, content in enumerate(body.split(b"\n"), start=header.line + 1):
        words = content.split()
        if not words:
            continue
        complaint = _complaint(words, header, last=seen + 1 == header.count)
        if complaint:
            return ValueError(f"{place}: line {line}: {complaint}")
        seen += 1
        if seen > header.count:
            return ValueError(f"{place}: line {line}: more entries than the {header.count} of line {header.line}")
    return ValueError(
        f"{place}: the file ends after {seen} of the {header.count} entries that line {header.line} promises: "
        f"truncated")


def _complaint(words: list[bytes], header: _Header, *, last: bool) -> str | None:
    limits = (("row", header.rows), ("column", header.cols)) if header.layout == "coordinate" else ()
    for word, (axis, limit) in zip(words, limits, strict=False):
        if not INTEGER.fullmatch(word):
            return f"{_shown(word)} is not an index"
        if not 1 <= int(word) <= limit:
            return f"{axis} {int(word)} is outside 1 to {limit}"
    for word in words[len(limits) : header.tokens]:
        if header.field == "real" and not REAL.fullmatch(word):
            return f"{_shown(word)} is not a finite number"
        if header.field != "real" and not (INTEGER.fullmatch(word) and abs(int(word)) < 2**63):
            return f"{_shown(word)} is not an integer of 64 bits"
    if len(words) != header.tokens:
        wanted = f"a {header.field} {header.layout} file has {header.tokens}"
        return f"{len(words)} numbers where {wanted}{': truncated' if last else ''}"
    return None


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("ascii", "replace"))


def _parse_coordinate(
    text: bytes, header: _Header, place: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = io.BytesIO(_without_plus(text, header))
    try:
        (values, (rows, cols)), _ = fast_matrix_market.read_coo(source, parallelism=1, generalize_symmetry=False)
    except (ValueError, OverflowError) as error:
        raise _fault(text[header.body :], header, place) from error
    fault = _entry_fault(rows, cols, values, header)
    if fault is not None:
        entry, message = fault
        raise ValueError(f"{place}: line {_line_of(text, header, entry)}: {message}")
    return rows, cols, values


def _parse_array(text: bytes, header: _Header, place: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = io.BytesIO(_without_plus(text, header))
    try:
        dense = fast_matrix_market.read_array(source, parallelism=1)
    except (ValueError, OverflowError) as error:
        raise _fault(text[header.body :], header, place) from error
    rows, cols = np.nonzero(dense if header.symmetry == "general" else np.tril(dense))
    values = dense[rows, cols]
    fault = _value_fault(values, rows, cols)
    if fault is not None:
        raise ValueError(f"{place}: {fault[1]}")
    return rows.astype(np.int32), cols.astype(np.int32), values


def _without_plus(text: bytes, header: _Header) -> bytes:
    """Blank the signs of "+1.5", which the reader does not know; those of exponents stay."""
    if text.find(b"+", header.body) < 0:
        return text
    return text[: header.body] + re.sub(rb"(?<![eE])\+", b" ", text[header.body :])


def _entry_fault(rows: np.ndarray, cols: np.ndarray, values: np.ndarray, header: _Header) -> tuple[int, str] | None:
    """Return entry and complaint of what the reader lets pass."""
    if header.symmetry == "skew-symmetric" and (rows == cols).any():
        entry = int(np.argmax(rows == cols))
        return entry, f"diagonal entry ({int(rows[entry]) + 1}, {int(cols[entry]) + 1}) in a skew-symmetric matrix"
    return _value_fault(values, rows, cols) or _duplicate(rows, cols, header)


def _value_fault(values: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> tuple[int, str] | None:
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    if finite.all():
        return None
    entry = int(np.argmin(finite))
    at = f"({int(rows[entry]) + 1}, {int(cols[entry]) + 1})"
    return entry, f"value {float(values[entry])!r} at {at} is not finite in float32: scale or repair the matrix"


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


def _line_of(text: bytes, header: _Header, entry: int) -> int:
    """Number the line of an entry; empty lines are legal, so they are counted."""
    seen = -1
    for line, content in enumerate(text[header.body :].split(b"\n"), start=header.line + 1):
        seen += bool(content.strip())
        if seen == entry:
            return line
    raise AssertionError(f"entry {entry} is not in the text")


def _expand(
    rows: np.ndarray, cols: np.ndarray, values: np.ndarray, header: _Header,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if header.symmetry == "general":
        return rows, cols, values
    off = rows != cols
    sign = -1 if header.symmetry == "skew-symmetric" else 1
    mirrored = (np.concatenate((rows, cols[off])), np.concatenate((cols, rows[off])))
    return *mirrored, np.concatenate((values, sign * values[off]))
