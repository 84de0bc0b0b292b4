"""NumPy archives (.npz) from anywhere: a file may be damaged, or made to harm."""

import io
import math
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from sparloom.sparse.limits import check_size

__all__ = ["read_members"]


def read_members(path: Path, names: Collection[str], limit_bytes: int) -> dict[str, np.ndarray]:
    """Read those members of an archive that are named and there. Nothing is unpickled.

    Raises:
        ValueError: damaged, more than `limit_bytes`, a member that is no array; the message names file and member.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            total = sum(info.file_size for info in members.values())
            check_size(total, limit_bytes, f"{path}: unpacks to")
            return {name: _array(archive.read(info), path, name) for name, info in members.items() if name in names}
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged or truncated .npz file ({error}): write it again") from error


def _array(content: bytes, path: Path, name: str) -> np.ndarray:
    """Read one .npy member; its header may claim any size, so it is compared with the bytes that are there."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are not loaded")
        if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError(f"{len(content) - file.tell()} bytes for shape {shape} of {dtype}")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: member {name!r} is no valid array: {error}") from error
