"""Matrix files, by the ending of their name."""

import gzip
import io
import tarfile
from pathlib import Path

from numpy.typing import DTypeLike

from sparloom.files import atomic_path
from sparloom.sparse.archive import read_text
from sparloom.sparse.arrays import read_arrays, write_arrays
from sparloom.sparse.limits import LIMIT_BYTES, check_size
from sparloom.sparse.market import market_text, parse_market
from sparloom.sparse.pattern import SparseMatrix

__all__ = ["MATRIX_ENDINGS", "matrix_stem", "read_matrix", "write_matrix"]

MATRIX_ENDINGS = (".tar.gz", ".tgz", ".mtx.gz", ".mtx", ".npz")
BANNER, GZIP, ZIP = b"%%matrixmarket", b"\x1f\x8b", b"PK\x03\x04"  # how files begin
BEGIN = 64  # bytes that tell the kind of a file
OTHERS = (  # how files begin that are no matrix here, what they are, and what to do
    (b"\xfd7zXZ\0", "an xz file: unpack it"), (b"BZh", "a bzip2 file: unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file: unpack it"), (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (b"Rar!", "a RAR archive: unpack it"), (b"PK\x05\x06", "an empty zip archive"),
    (GZIP, "a gzip file within another: unpack it once"), (b"\x93NUMPY", "a dense NumPy array: save a sparse matrix"),
    (b"\x89HDF", "an HDF5 file: export it as MatrixMarket"), (b"MATLAB", "a MATLAB file: export it as MatrixMarket"),
    (b"PAR1", "a Parquet file: export it as MatrixMarket"), (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a pointer of Git LFS: get the file itself by git lfs pull"),
    (b"\xef\xbb\xbf", "text behind a byte order mark: save it without one"),
    (b"\xff\xfe", "text in UTF-16: save it as ASCII"), (b"\xfe\xff", "text in UTF-16: save it as ASCII"),
    (b"<", "a web page or XML: check the address that it was downloaded from"),
)


def read_matrix(
    path: Path | str, *, limit_bytes: int = LIMIT_BYTES, dtype: DTypeLike | None = None,
) -> SparseMatrix:
    """Read a real matrix from .mtx, .mtx.gz, a SuiteSparse .tar.gz or .npz; a file that was unpacked is read as it is.

    No digit of the file is lost: what float32 rounds is kept in `SparseMatrix.exact`, and `astype` gives it back.

    Args:
        limit_bytes: what the file may hold after unpacking.
        dtype: of the values: numpy.float32, numpy.float64, or None: float32 unless that makes a number 0, then float64.
            A number that is not finite in the type is an error, and if it is given, so is one that becomes 0.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file, or it is a folder.
        ValueError: another ending, or a file that is damaged, too large or not a valid matrix; the message names the
            file and the line or member.
        MemoryError: says for what.
    """
    path = Path(path)
    ending = _ending(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder, not a file: name the matrix file in it")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as file:
        begin = file.read(BEGIN)
    is_text = begin.lower().startswith(BANNER)
    if ending == ".npz" and not is_text and not begin.startswith(GZIP):
        _check_kind(begin, path)
        return read_arrays(path, limit_bytes, dtype)
    if begin.startswith(ZIP):
        raise ValueError(f"{path}: a zip archive, whatever its name says: unpack it, or name it .npz if NumPy wrote it")
    if not begin.startswith(GZIP):
        check_size(path.stat().st_size, limit_bytes, f"{path}: holds")
    text, member = read_text(path, limit_bytes, matrix_stem(path))
    place = str(path) if member is None else f"{path}: member {member}"
    _check_kind(text[:BEGIN], place)
    if ending != ".mtx" and member is None and text[: len(BANNER)].lower() != BANNER:
        expected = "gzip file" if ending == ".mtx.gz" else "archive"
        if text and not begin.startswith(GZIP):
            raise ValueError(f"{path}: damaged or truncated {expected}, or something else under this name: it begins "
                             f"with {text[:20]!r}; check where it came from")
        raise ValueError(f"{path}: damaged or truncated {expected} (it holds {text[:20]!r}): fetch it again")
    return parse_market(text, place, limit_bytes, dtype)


def write_matrix(path: Path | str, matrix: SparseMatrix) -> None:
    """Write a matrix in the format of the ending; equal matrices give equal bytes. A failure leaves no file."""
    path = Path(path)
    ending = _ending(path)
    with atomic_path(path) as partial:
        if ending == ".npz":
            write_arrays(partial, matrix)
        elif ending == ".mtx":
            partial.write_bytes(market_text(matrix))
        else:
            text = market_text(matrix)
            content = text if ending == ".mtx.gz" else _tar(text, matrix_stem(path))
            partial.write_bytes(gzip.compress(content, compresslevel=6, mtime=0))


def matrix_stem(path: Path) -> str:
    """Return the name of a matrix file without folder and ending."""
    return path.name.removesuffix(_ending(path))


def _ending(path: Path) -> str:
    for ending in MATRIX_ENDINGS:
        if path.name.endswith(ending):
            return ending
    raise ValueError(f"{path}: not a matrix file: its name must end in {', '.join(MATRIX_ENDINGS)}")


def _check_kind(begin: bytes, place: Path | str) -> None:
    """Refuse files of kinds that are told from their first bytes, whatever their names say."""
    shown = begin.lstrip() if begin.lstrip().startswith(b"<") else begin
    kind = next((kind for start, kind in OTHERS if shown.startswith(start)), None)
    if kind is not None:
        raise ValueError(f"{place}: no matrix but {kind}")


def _tar(text: bytes, stem: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo(f"{stem}/{stem}.mtx")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return sink.getvalue()
