"""Compressed files read in memory: nothing is ever extracted, and what a file unpacks to is limited."""

import gzip
import io
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from sparloom.sparse.limits import check_size

__all__ = ["read_gzip", "read_tar"]

CHUNK = 1 << 20


def read_gzip(path: Path, limit_bytes: int) -> bytes:
    """Unpack a .gz file.

    Raises:
        ValueError: it is damaged, or unpacks to more than `limit_bytes`.
    """
    try:
        with gzip.open(path) as packed:
            return _Limited(packed, limit_bytes, str(path)).read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or truncated gzip file ({error}): fetch it again") from error


def read_tar(path: Path, limit_bytes: int) -> tuple[bytes, str]:
    """Read the matrix member NAME/NAME.mtx of NAME.tar.gz, or the only .mtx member; also its name.

    The whole archive is looked through, so that damage behind the member is found too.

    Raises:
        ValueError: it is damaged, unpacks to more than `limit_bytes`, has a member that points outside the archive,
            a matrix that is no regular file, or no single matrix to choose.
    """
    stem = path.name.removesuffix(".tar.gz").removesuffix(".tgz")
    wanted = PurePosixPath(stem, f"{stem}.mtx")
    texts: dict[str, bytes] = {}
    others: list[str] = []
    try:
        with gzip.open(path) as packed:
            stream = _Limited(packed, limit_bytes, str(path))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = _checked_name(member, path, limit_bytes)
                    if name.suffix != ".mtx" or not member.isfile():
                        continue
                    if name == wanted or not texts:
                        texts = {str(name): archive.extractfile(member).read()}
                    others.append(str(name))
            while stream.read(CHUNK):  # the checksum stands at the end
                pass
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{path}: damaged or truncated archive ({error}): fetch it again") from error
    if str(wanted) not in texts and len(others) != 1:
        held = f"has {len(others)} matrices ({', '.join(others[:4])})" if others else "has no .mtx member"
        raise ValueError(f"{path}: the archive {held}: it must hold {wanted}")
    return next(iter(texts.items()))[::-1]


class _Limited(io.RawIOBase):
    """A reader that fails when more than `limit_bytes` were read through it."""

    def __init__(self, source: gzip.GzipFile, limit_bytes: int, place: str) -> None:
        self.source, self.left, self.limit, self.place = source, limit_bytes, limit_bytes, place

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size is not None and size >= 0:
            data = self.source.read(min(size, self.left + 1))
            self._count(len(data))
            return data
        parts = []
        while data := self.read(CHUNK):
            parts.append(data)
        return b"".join(parts)

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ValueError(
                f"{self.place}: unpacks to more than {self.limit} bytes: raise limit_bytes if the file is trusted")


def _checked_name(member: tarfile.TarInfo, path: Path, limit_bytes: int) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise ValueError(f"{path}: member {member.name!r} points outside the archive: refused")
    if name.suffix == ".mtx" and (member.issym() or member.islnk()):
        raise ValueError(f"{path}: member {member.name!r} is a link to {member.linkname!r}: refused")
    if name.suffix == ".mtx" and not member.isdir() and (not member.isfile() or member.issparse()):
        raise ValueError(f"{path}: member {member.name!r} is no regular file: refused")
    check_size(member.size, limit_bytes, f"{path}: member {member.name!r} claims")
    return name
