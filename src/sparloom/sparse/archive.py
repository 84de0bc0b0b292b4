"""Packed files, read in memory under limits: nothing is extracted, and the sizes that a file claims are checked first.

Archives are not read by tarfile, which parses headers of any length by expressions of quadratic time, follows chains of
them by recursion, and lists members without end.
"""

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

LIMIT_BYTES = 4 << 30
POINTER_BYTES = 8  # int64
GZIP = b"\x1f\x8b"
PACKED_PIECE, PIECE = 1 << 14, 1 << 18  # bytes that are read, and unpacked, at a time
MAX_GZIP_MEMBERS = 1 << 18  # of one file, each with a header of its own
MAX_BUFFERED_BYTES = 512 << 20  # buffered while it is not known whether the whole is within the limit
BLOCK = 512  # bytes of a tar header; contents are padded to a multiple
MAX_TAR_HEADERS = 10_000
MAX_EXTRA_BYTES = 1 << 20  # of a header that extends the next one: long names, pax records
SHOWN_NAME = 100  # characters of a name in a message
MAX_NAME_BYTES = 4096  # as on Linux
OCTAL_DIGITS = frozenset(b"01234567")


def check_size(size_bytes: int, limit_bytes: int, claim: str) -> None:
    """Raise ValueError for more than `limit_bytes`; `claim` begins the message and ends in a verb."""
    if size_bytes > limit_bytes:
        raise ValueError(
            f"{claim} {size_bytes} bytes, more than {limit_bytes}: raise limit_bytes if the file is trusted")


def check_extents(shape: tuple[int, int], limit_bytes: int, source: str) -> None:
    """Raise ValueError for a shape whose row or column pointers alone take more than `limit_bytes`."""
    for extent, axis in zip(shape, ("rows", "columns"), strict=True):
        check_size(POINTER_BYTES * (extent + 1), limit_bytes, f"{source}: {extent} {axis} need")


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Say in a `MemoryError` what the memory was needed for."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"not enough memory for {what}") from error


class _Damaged(Exception):
    """Raised for bytes that are no valid gzip file or archive."""


@dataclass(frozen=True)
class _Member:
    """Member of an archive; `kind` is the type flag of its header."""

    name: str
    size: int
    kind: bytes
    target: str
    sparse: bool


def read_text(path: Path, limit_bytes: int, stem: str) -> tuple[bytes, str | None]:
    """Read a text file or, from an archive, member STEM/STEM.mtx or the only .mtx member; both may be gzipped.

    The kind of the file is recognised by its bytes, since browsers unpack downloads and keep the name. The whole file
    is read, so that damage behind the matrix is found too.

    Returns:
        The text, and the name of the member or None.

    Raises:
        ValueError: the file is damaged, unpacks to more than `limit_bytes`, or has a member that points outside the
            archive, a matrix that is not a regular file, or no single matrix to choose.
        MemoryError: says what for.
    """
    with path.open("rb") as file:
        stream = _Stream(file, limit_bytes, str(path))
        what = "gzip file" if stream.packed else "file"
        try:
            if not _is_header(stream.peek(BLOCK)):
                return _whole(stream) if stream.packed else _content(file, path), None
            what = "archive"
            return _matrix(stream, path, PurePosixPath(stem, f"{stem}.mtx"))
        except (_Damaged, zlib.error) as error:
            raise ValueError(f"{path}: damaged or truncated {what} ({error}): fetch it again") from error


class _Stream:
    """Bytes of a file, unpacked if it is gzipped; raises ValueError beyond `limit_bytes`."""

    def __init__(self, file: BinaryIO, limit_bytes: int, source: str) -> None:
        self.limit, self.source, self._file = limit_bytes, source, file
        self.packed = file.read(len(GZIP)) == GZIP
        self.rewind()

    def rewind(self) -> None:
        """Start again at the first byte."""
        self._file.seek(0)
        self._pieces = _unpacked(self._file) if self.packed else iter(partial(self._file.read, PIECE), b"")
        self._ahead, self._count = memoryview(b""), 0

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them; fewer at the end."""
        while len(self._ahead) < size and (piece := self._next()):
            self._ahead = memoryview(bytes(self._ahead) + piece)
        return bytes(self._ahead[:size])

    def read(self, size: int) -> bytes:
        """Consume and return the next bytes; fewer at the end."""
        sink = io.BytesIO()
        with memory_for(f"up to {size} bytes of {self.source}"):
            for piece in self._take(size):
                sink.write(piece)
            return sink.getvalue()

    def skip(self, size: int | None = None) -> int:
        """Consume the next bytes, or all; return how many there were."""
        return sum(map(len, self._take(self.limit + 1 if size is None else size)))

    def _take(self, size: int) -> Iterator[memoryview]:
        while size and (piece := self._ahead or memoryview(self._next())):
            self._ahead = piece[size:]
            size -= len(piece) - len(self._ahead)
            yield piece[: len(piece) - len(self._ahead)]

    def _next(self) -> bytes:
        piece = next(self._pieces, b"")
        self._count += len(piece)
        if self._count > self.limit:
            raise ValueError(
                f"{self.source}: unpacks to more than {self.limit} bytes: raise limit_bytes if the file is trusted")
        return piece


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """Unpack the members of a gzip file; zlib verifies their checksums."""
    data, members = file.read(PACKED_PIECE), 0
    while data:
        engine, members = zlib.decompressobj(wbits=31), members + 1
        if members > MAX_GZIP_MEMBERS:
            raise _Damaged(f"more than {MAX_GZIP_MEMBERS} gzip members")
        while not engine.eof:
            data = data or file.read(PACKED_PIECE)
            if not data:
                raise _Damaged("it ends within its data")
            if piece := engine.decompress(data, PIECE):
                yield piece
            data = engine.unconsumed_tail
        data = engine.unused_data.lstrip(b"\0")  # padding
        while not data and (more := file.read(PACKED_PIECE)):
            data = more.lstrip(b"\0")


def _content(file: BinaryIO, path: Path) -> bytes:
    file.seek(0)
    with memory_for(f"the {path.stat().st_size} bytes of {path}"):
        return file.read()


def _whole(stream: _Stream) -> bytes:
    """Read everything; a large file is read to its end without keeping it first, to see that it is within the limit."""
    text = stream.read(MAX_BUFFERED_BYTES)
    if not stream.peek(1):
        return text
    size = len(text)
    del text
    size += stream.skip()
    stream.rewind()
    return stream.read(size)


def _matrix(stream: _Stream, path: Path, wanted: PurePosixPath) -> tuple[bytes, str]:
    """Choose a member and read it; a large one only after the whole archive was checked."""
    chosen: tuple[bytes | None, str, int] | None = None
    others: list[str] = []
    for index, member in enumerate(_members(stream)):
        name, left = _checked_name(member, path, stream.limit), member.size
        attributes = name.name.startswith("._") or "__MACOSX" in name.parts  # macOS adds one for each file
        if name.suffix == ".mtx" and not attributes and _is_file(member):
            if name == wanted or chosen is None:
                content = stream.read(left) if left <= MAX_BUFFERED_BYTES else None
                if content is not None and len(content) < left:
                    raise _Damaged(f"it ends within member {_shown(str(name))}")
                chosen = content, str(name), index
                left = 0 if content is not None else left
            others.append(str(name))
        if stream.skip(left) < left:
            raise _Damaged(f"it ends within member {_shown(str(name))}")
        stream.skip(-member.size % BLOCK)
    stream.skip()  # the checksum is at the end
    if chosen is None or (chosen[1] != str(wanted) and len(others) != 1):
        names = ", ".join(map(_shown, others[:4]))
        held = f"has {len(others)} matrices ({names})" if others else "has no .mtx member"
        raise ValueError(f"{path}: the archive {held}: it must hold {wanted}")
    content, name, index = chosen
    return (_member_content(stream, index) if content is None else content), _shown(name)


def _member_content(stream: _Stream, index: int) -> bytes:
    """Read the content of a member, searching it from the beginning of the archive."""
    stream.rewind()
    for at, member in enumerate(_members(stream)):
        if at == index:
            return stream.read(member.size)
        stream.skip(member.size + -member.size % BLOCK)
    raise AssertionError(f"member {index} is gone")


def _members(stream: _Stream) -> Iterator[_Member]:
    """Yield the members; the caller consumes the content of each and its padding before it asks for the next."""
    shared: dict[str, bytes] = {}  # pax records of all further members
    own: dict[str, bytes] = {}  # records of the next member
    for _ in range(MAX_TAR_HEADERS):
        header = stream.read(BLOCK)
        if not header.strip(b"\0"):
            return
        if not _is_header(header):
            raise _Damaged("a header is invalid")
        kind, size = header[156:157], _number(header[124:136])
        if kind in b"xXgLK":
            content = _extra(stream, kind, size)
            if kind in b"LK":
                own["path" if kind == b"L" else "linkpath"] = content.partition(b"\0")[0]
            else:
                (shared if kind == b"g" else own).update(_records(content))
            continue
        yield _member(header, kind, size, {**shared, **own})
        own = {}
    raise _Damaged(f"more than {MAX_TAR_HEADERS} headers")


def _member(header: bytes, kind: bytes, size: int, fields: dict[str, bytes]) -> _Member:
    name, target = (field.partition(b"\0")[0] for field in (header[:100], header[157:257]))
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    name, target = fields.get("path", name), fields.get("linkpath", target)
    if max(len(name), len(target)) > MAX_NAME_BYTES:
        raise _Damaged(f"a name of {max(len(name), len(target))} bytes")
    if "size" in fields:
        if not (fields["size"].isdigit() and len(fields["size"]) < 20):
            raise _Damaged("a size that is not a number")
        size = int(fields["size"])
    if kind == b"\0" and name.endswith(b"/"):
        kind = b"5"  # a folder, as old archives write it
    sparse = kind == b"S" or any(key.startswith("GNU.sparse.") for key in fields)
    return _Member(name.decode("utf-8", "replace"), 0 if kind in b"123456" else size, kind,
                   target.decode("utf-8", "replace"), sparse)


def _extra(stream: _Stream, kind: bytes, size: int) -> bytes:
    if size > MAX_EXTRA_BYTES:
        what = "a name" if kind in b"LK" else "a pax header"
        raise _Damaged(f"{what} of {size} bytes, more than {MAX_EXTRA_BYTES}")
    content = stream.read(size + -size % BLOCK)[:size]
    if len(content) < size:
        raise _Damaged("it ends within a header")
    return content


def _records(content: bytes) -> dict[str, bytes]:
    """Split pax records "LENGTH KEY=VALUE\\n"; the length counts itself."""
    found, start = {}, 0
    while start < len(content) and content[start]:
        blank = content.find(b" ", start, start + 8)
        length = content[start:blank]
        end = start + int(length) if blank >= 0 and length.isdigit() else 0
        if not blank < end <= len(content) or content[end - 1 : end] != b"\n":
            raise _Damaged("an invalid pax header")
        key, _, value = content[blank + 1 : end - 1].partition(b"=")
        found[key.decode("utf-8", "replace")] = value
        start = end
    return found


def _is_header(block: bytes) -> bool:
    """Verify the checksum of a tar header, computed with blanks in its own place; some programs add signed bytes."""
    if len(block) != BLOCK or not OCTAL_DIGITS.issuperset(block[148:156].strip(b" \0")):
        return False
    rest = block[:148] + b" " * 8 + block[156:]
    total, high = sum(rest), sum(byte > 127 for byte in rest)
    return int(block[148:156].strip(b" \0") or b"0", 8) in (total, total - 256 * high)


def _number(field: bytes) -> int:
    """Read octal digits, or a binary number if the first byte marks it as one."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if not OCTAL_DIGITS.issuperset(digits):
        raise _Damaged("a size that is not a number")
    return int(digits or b"0", 8)


def _shown(name: str) -> str:
    """Escape and shorten a name for a message."""
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= SHOWN_NAME else f"{name[:SHOWN_NAME]} ..."


def _is_file(member: _Member) -> bool:
    return member.kind in (b"0", b"\0", b"7")


def _checked_name(member: _Member, path: Path, limit_bytes: int) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise ValueError(f"{path}: member {_shown(member.name)!r} points outside the archive: refused")
    if name.suffix == ".mtx" and member.kind in b"12":
        raise ValueError(f"{path}: member {_shown(member.name)!r} is a link to {_shown(member.target)!r}: refused")
    odd = name.suffix == ".mtx" and member.kind != b"5" and (member.sparse or not _is_file(member))
    if odd or member.kind == b"S":
        raise ValueError(f"{path}: member {_shown(member.name)!r} is not a regular file: refused")
    check_size(member.size, limit_bytes, f"{path}: member {_shown(member.name)!r} claims")
    return name
