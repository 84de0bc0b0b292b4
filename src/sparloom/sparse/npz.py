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

import numpy as np

from sparloom.sparse.limits import check_size, memory_for

__all__ = ["read_members"]

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
        with archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            total = sum(info.file_size for info in members.values())
            check_size(total, limit_bytes, f"{path}: unpacks to")
            for name, info in members.items():
                if name in names:
                    with memory_for(f"the {info.file_size} bytes of member {name!r} of {path}"):
                        with _damage_of(path), archive.open(info) as member:
                            content = member.read(info.file_size)  # no more than that is unpacked
                        arrays[name] = _array(content, path, name)
    return arrays


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN_ARCHIVE as error:
        raise ValueError(f"{path}: damaged or truncated .npz file ({error}): write it again") from error


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
        reason = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path}: member {name!r} is no valid array: {reason}") from error


def _header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(file)
        return shape, dtype
    except BROKEN_HEADER as error:
        raise ValueError(f"its header cannot be read ({error})") from error
