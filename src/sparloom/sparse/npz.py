"""NumPy archives (.npz) from anywhere: a file may be damaged, or made to harm."""

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparloom.sparse.limits import check_size, memory_for

__all__ = ["read_members"]

MOST_MEMBERS = 1000
LONGEST_REASON = 120  # characters
END_BYTES = 22  # of the record at the end of a zip file, before its comment
# What zipfile and its unpackers, and what NumPy's reader of headers raise for bytes that are no archive, no header
BROKEN_ARCHIVE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, RuntimeError, OSError,
    OverflowError, ValueError,
)
BROKEN_HEADER = (
    ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError, RecursionError, OverflowError, MemoryError,
)


def read_members(path: Path, names: Collection[str], limit_bytes: int) -> dict[str, np.ndarray]:
    """Read those members of an archive that are named and there. Nothing is unpickled.

    Raises:
        ValueError: damaged, more than `limit_bytes`, a member that is no array; the message names file and member.
        MemoryError: names them, too.
    """
    arrays = {}
    with path.open("rb") as file:
        with _damage_of(path):
            archive = zipfile.ZipFile(file)
            _check_count(archive, file)
        with archive:
            if len(archive.infolist()) > MOST_MEMBERS:
                raise ValueError(f"{path}: {len(archive.infolist())} members: at most {MOST_MEMBERS} are read")
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            total = sum(info.file_size for info in members.values())
            check_size(total, limit_bytes, f"{path}: unpacks to")
            for name, info in members.items():
                with memory_for(f"the {info.file_size} bytes of member {name!r} of {path}"):
                    # Others are opened, too: a name that was damaged in the directory differs from that of the member.
                    with _damage_of(path), archive.open(info) as member:
                        content = member.read(info.file_size) if name in names else None  # no more than it claims
                    if content is not None:
                        arrays[name] = _array(content, path, name)
    return arrays


def _check_count(archive: zipfile.ZipFile, file: BinaryIO) -> None:
    """Compare the members with their number at the end of the file: a damaged entry may swallow the next."""
    file.seek(-END_BYTES - len(archive.comment), io.SEEK_END)
    signature, count = struct.unpack("<4s6xH10x", file.read(END_BYTES))
    if signature != b"PK\5\6" or count not in (len(archive.infolist()), 0xFFFF):
        raise zipfile.BadZipFile(f"{len(archive.infolist())} of {count} members are listed")


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN_ARCHIVE as error:
        raise ValueError(f"{path}: damaged or truncated .npz file ({_reason(error)}): write it again") from error


def _array(content: bytes, path: Path, name: str) -> np.ndarray:
    """Read one .npy member; its header may claim any size, so it is compared with the bytes that are there."""
    file = io.BytesIO(content)
    try:
        shape, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are not loaded")
        if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError(f"{len(content) - file.tell()} bytes for shape {shape} of {dtype}")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path}: member {name!r} is no valid array: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Shorten what readers say: it may quote kilobytes of the file."""
    text = str(error).partition("\n")[0]
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..."


def _header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(file)
        return shape, dtype
    except BROKEN_HEADER as error:
        raise ValueError(f"its header cannot be read ({error})") from error
