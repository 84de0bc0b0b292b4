"""Packed text files, unpacked in memory up to a limit; nothing is extracted to disk.

A damaged gzip file is recognised by its CRC-32 and its length, a damaged archive by the gzip file around it. The sizes
are limited, the time is not: before Python 3.11.10, tarfile needs minutes for a header of digits (CVE-2024-6232).
"""

import gzip
import io
import tarfile
import zlib
from pathlib import Path, PurePosixPath

LIMIT_BYTES = 4 << 30
GZIP = b"\x1f\x8b"
PIECE = 1 << 20  # bytes that are unpacked at a time
MAX_MEMBERS = 10_000
BROKEN_GZIP = (gzip.BadGzipFile, zlib.error, EOFError)
BROKEN_TAR = (tarfile.TarError, ValueError, OverflowError, RecursionError)  # what tarfile raises for invalid headers


def check_size(size_bytes: int, limit_bytes: int, claim: str) -> None:
    """Raise ValueError for more than `limit_bytes`; `claim` begins the message and ends in a verb."""
    if size_bytes > limit_bytes:
        raise ValueError(
            f"{claim} {size_bytes} bytes, more than {limit_bytes}: raise limit_bytes if the file is trusted")


def read_text(path: Path, limit_bytes: int, stem: str) -> tuple[bytes, str | None]:
    """Read a text file or, from an archive, member STEM/STEM.mtx or the only .mtx member; both may be gzipped.

    The kind of the file is recognised by its bytes, since browsers unpack downloads and keep the name.

    Returns:
        The text, and the name of the member or None.

    Raises:
        ValueError: the file is damaged, unpacks to more than `limit_bytes`, or has a member that points outside the
            archive, a matrix that is not a regular file, or no single matrix to choose.
    """
    try:
        content = _unpacked(path, limit_bytes)
    except BROKEN_GZIP as error:
        raise ValueError(f"{path}: damaged or truncated gzip file ({error}): fetch it again") from error
    try:
        archive = tarfile.TarFile(fileobj=io.BytesIO(content))
    except BROKEN_TAR:
        return content, None
    with archive:
        try:
            member, name = _matrix(archive, PurePosixPath(stem, f"{stem}.mtx"))
            return archive.extractfile(member).read(), name
        except BROKEN_TAR as error:
            raise ValueError(f"{path}: refused archive ({error})") from error


def _unpacked(path: Path, limit_bytes: int) -> bytes:
    content = io.BytesIO()
    with path.open("rb") as file:
        is_packed = file.read(len(GZIP)) == GZIP
    with gzip.open(path) if is_packed else path.open("rb") as file:
        while piece := file.read(PIECE):
            content.write(piece)
            if content.tell() > limit_bytes:
                raise ValueError(
                    f"{path}: unpacks to more than {limit_bytes} bytes: raise limit_bytes if the file is trusted")
        return content.getvalue()


def _matrix(archive: tarfile.TarFile, wanted: PurePosixPath) -> tuple[tarfile.TarInfo, str]:
    """Choose the member that holds the matrix; names are checked although nothing is extracted."""
    matrices = {}
    for count, member in enumerate(archive):  # raises an error if a member ends behind the archive
        name = PurePosixPath(member.name)
        if count >= MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS} members")
        if name.is_absolute() or ".." in name.parts or "\\" in member.name:
            raise ValueError(f"member {member.name!r} points outside the archive")
        of_macos = name.name.startswith("._") or "__MACOSX" in name.parts  # attributes of another member
        if name.suffix == ".mtx" and not of_macos and not member.isdir():
            matrices[name] = member
    if wanted not in matrices and len(matrices) != 1:
        names = ", ".join(repr(str(name)) for name in list(matrices)[:4])
        raise ValueError(f"{len(matrices)} matrices [{names}]: it must hold {wanted}, or one .mtx file")
    name = wanted if wanted in matrices else next(iter(matrices))
    if not matrices[name].isreg() or matrices[name].issparse():
        raise ValueError(f"member {str(name)!r} is not a regular file")
    return matrices[name], str(name)
