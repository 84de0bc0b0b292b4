"""Matrix files: MatrixMarket text, SuiteSparse archives, and NumPy archives, any of which may be damaged or malicious.

A NumPy archive (.npz) holds a matrix in the layout of scipy.sparse.save_npz, or as indptr, indices, shape and values.
"""

import gzip
import io
import lzma
import math
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from sparloom.files import atomic_path
from sparloom.sparse.archive import LIMIT_BYTES, check_extents, check_size, memory_for, read_text
from sparloom.sparse.market import market_text, other_format, parse_edges, parse_market
from sparloom.sparse.pattern import INDEX_LIMIT, Pattern, SparseMatrix, unfit_value

MATRIX_ENDINGS = (".tar.gz", ".tgz", ".mtx.gz", ".mtx", ".npz")
"""Endings of the files that `read_matrix` accepts."""
BANNER, GZIP, ZIP = b"%%matrixmarket", b"\x1f\x8b", b"PK\x03\x04"  # first bytes of files
SNIFFED_BYTES = 64  # that identify the kind of a file
OTHER_KINDS = (  # first bytes of files that hold no matrix, what they are, and what to do
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
KEYS = ("shape", "format", "indptr", "indices", "row", "col", "data", "values")
MAX_MEMBERS = 1000
MAX_REASON = 120  # characters
ZIP_END_BYTES = 22  # of the record at the end of a zip file, before its comment
# Exceptions of zipfile and its decompressors, and of NumPy's reader of headers, for invalid bytes
BROKEN_ARCHIVE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, RuntimeError, OSError,
    OverflowError, ValueError,
)
BROKEN_HEADER = (
    ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError, RecursionError, OverflowError, MemoryError,
)


def read_matrix(
    path: Path | str, *, format: str | None = None, shape: tuple[int, int] | None = None,
    limit_bytes: int = LIMIT_BYTES, dtype: DTypeLike | None = None,
) -> SparseMatrix:
    """Read a real matrix from .mtx, .mtx.gz, a SuiteSparse .tar.gz or .npz; unpacked files may keep their names.

    With `format="edges"`, read an edge list under any name, possibly gzipped, as SNAP publishes them: a line has the
    source, the target and possibly the weight of an edge, with blanks or tabs between them; lines that begin with # or
    % are comments. Edge (i, j), counted from 0, is entry (i, j), 1 without a weight; it is not mirrored, and a second
    one at the same position is an error.

    No digit of the file is lost: numbers that float32 rounds are kept in `SparseMatrix.exact`, from which `astype`
    restores them.

    Args:
        format: "edges", or None for the formats that a file tells by itself.
        shape: of the matrix of an edge list (default: square, as large as its greatest index needs).
        limit_bytes: maximum size after unpacking.
        dtype: of the values: numpy.float32, numpy.float64, or None for float32 unless that makes a number 0, then
            float64. A number that is not finite in the type is an error; with an explicit type, so is one that becomes
            0.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file, or it is a folder.
        ValueError: unknown ending or format, a `shape` that is none or of a file that holds its own, or a file that is
            damaged, too large or not a valid matrix; the message names the file and the line or member.
        MemoryError: says what for.
    """
    path = Path(path)
    if format not in (None, "edges"):
        raise ValueError(f"format={format!r}: pass 'edges' for an edge list, or leave it away")
    if shape is not None:
        _check_shape(shape, format)
    ending = _ending(path) if format is None else ""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder, not a file: name the matrix file in it")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as file:
        begin = file.read(SNIFFED_BYTES)
    is_text = begin.lower().startswith(BANNER)
    if ending == ".npz" and not is_text and not begin.startswith(GZIP):
        _check_kind(begin, path)
        return read_arrays(path, limit_bytes, dtype)
    if begin.startswith(ZIP):
        raise ValueError(f"{path}: a zip archive, whatever its name says: unpack it, or name it .npz if NumPy wrote it")
    if not begin.startswith(GZIP):
        check_size(path.stat().st_size, limit_bytes, f"{path}: holds")
    text, member = read_text(path, limit_bytes, path.name.removesuffix(ending))
    source = str(path) if member is None else f"{path}: member {member}"
    _check_kind(text[:SNIFFED_BYTES], source)
    is_market = text[: len(BANNER)].lower() == BANNER
    if format == "edges":
        if is_market:
            raise ValueError(f"{source}: a MatrixMarket file, no edge list: leave format away")
        return parse_edges(text, source, limit_bytes, shape=shape, dtype=dtype)
    if ending != ".mtx" and member is None and not is_market and other_format(text) is None:
        expected = "gzip file" if ending == ".mtx.gz" else "archive"
        if text and not begin.startswith(GZIP):
            raise ValueError(f"{path}: damaged or truncated {expected}, or something else under this name: it begins "
                             f"with {text[:20]!r}; check where it came from")
        raise ValueError(f"{path}: damaged or truncated {expected} (it holds {text[:20]!r}): fetch it again")
    return parse_market(text, source, limit_bytes, dtype)


def write_matrix(path: Path | str, matrix: SparseMatrix) -> None:
    """Write a matrix in the format of the ending, atomically; equal matrices give equal bytes."""
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


def read_members(path: Path, names: Collection[str], limit_bytes: int) -> dict[str, np.ndarray]:
    """Read members of a NumPy archive without unpickling; errors name file and member."""
    arrays = {}
    with path.open("rb") as file:
        with _damage_of(path):
            archive = zipfile.ZipFile(file)
            _check_count(archive, file)
        with archive:
            if len(archive.infolist()) > MAX_MEMBERS:
                raise ValueError(f"{path}: {len(archive.infolist())} members: at most {MAX_MEMBERS} are read")
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            total = sum(info.file_size for info in members.values())
            check_size(total, limit_bytes, f"{path}: unpacks to")
            for name, info in members.items():
                with memory_for(f"the {info.file_size} bytes of member {name!r} of {path}"):
                    # Others are opened too: a name that is damaged in the directory differs from that of the member.
                    with _damage_of(path), archive.open(info) as member:
                        content = member.read(info.file_size) if name in names else None  # no more than it claims
                    if content is not None:
                        arrays[name] = _array(content, path, name)
    return arrays


def _check_count(archive: zipfile.ZipFile, file: BinaryIO) -> None:
    """Compare the number of members with that at the end of the file: a damaged entry may swallow the next."""
    file.seek(-ZIP_END_BYTES - len(archive.comment), io.SEEK_END)
    signature, count = struct.unpack("<4s6xH10x", file.read(ZIP_END_BYTES))
    if signature != b"PK\5\6" or count not in (len(archive.infolist()), 0xFFFF):
        raise zipfile.BadZipFile(f"{len(archive.infolist())} of {count} members are listed")


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN_ARCHIVE as error:
        raise ValueError(f"{path}: damaged or truncated .npz file ({_reason(error)}): write it again") from error


def _array(content: bytes, path: Path, name: str) -> np.ndarray:
    """Read one .npy member; its header may claim any size, so that is compared with the bytes of the member."""
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
    """Shorten the message of a reader, which may quote kilobytes of the file."""
    text = str(error).partition("\n")[0]
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]} ..."


def _header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(file)
        return shape, dtype
    except BROKEN_HEADER as error:
        raise ValueError(f"its header cannot be read ({error})") from error


def read_arrays(path: Path, limit_bytes: int, dtype: DTypeLike | None = None) -> SparseMatrix:
    """Read a matrix from a NumPy archive; without `data` or `values` every value is one. Nothing is unpickled.

    Args:
        dtype: of the values, as in `read_matrix`.

    Raises:
        ValueError: damaged, more than `limit_bytes`, arrays missing or inconsistent, values not finite, or a position
            repeated; the message names file and member.
    """
    arrays = read_members(path, KEYS, limit_bytes)
    layout = _text(arrays["format"], path) if "format" in arrays else "csr"
    needed = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}.get(layout)
    if needed is None:
        raise ValueError(f"{path}: member 'format' is {layout!r}: save the matrix as csr, csc or coo")
    missing = [name for name in ("shape", *needed) if name not in arrays]
    if missing:
        raise ValueError(
            f"{path}: member {missing[0]!r} is missing: a {layout} matrix needs {', '.join(needed)}, shape")
    shape = _shape(arrays["shape"], path)
    check_extents(shape, limit_bytes, f"{path}: member 'shape'")
    values = arrays.get("data", arrays.get("values"))
    try:
        return _build(arrays, layout, shape, values=values, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_arrays(path: Path, matrix: SparseMatrix) -> None:
    """Write shape, indptr, indices and values, uncompressed, in a layout that SciPy's load_npz reads too."""
    pattern = matrix.pattern
    with path.open("wb") as file:
        np.savez(
            file, format=np.array(b"csr"), shape=np.array(pattern.shape), indptr=pattern.indptr,
            indices=pattern.indices, data=matrix.values if matrix.exact is None else matrix.exact)


def _text(value: np.ndarray, path: Path) -> str:
    if value.shape != () or value.dtype.kind not in "SU":
        raise ValueError(f"{path}: member 'format' is {value.dtype} of shape {value.shape}: it must be a word")
    word = value.item()
    return word.decode("ascii", "replace") if isinstance(word, bytes) else word


def _shape(value: np.ndarray, path: Path) -> tuple[int, int]:
    if value.shape != (2,) or value.dtype.kind not in "iu":
        raise ValueError(f"{path}: member 'shape' is {value.dtype} of shape {value.shape}: it must be two integers")
    return int(value[0]), int(value[1])


def _build(
    arrays: dict[str, np.ndarray], layout: str, shape: tuple[int, int], *, values: np.ndarray | None,
    dtype: DTypeLike | None,
) -> SparseMatrix:
    rows, cols, nnz = _coordinates(arrays, layout, shape)
    values = np.ones(nnz, dtype=np.float32) if values is None else values
    if values.shape != (nnz,) or values.dtype.kind not in "fiub":
        raise ValueError(f"values are {values.dtype} of shape {values.shape}: give {nnz} real numbers")
    values = values.astype(np.float64, copy=False)
    unfit = unfit_value(values, dtype)
    if unfit is not None:
        entry, complaint = unfit
        raise ValueError(f"value {float(values[entry])!r} of entry {entry} {complaint}")
    order = np.lexsort((cols, rows))
    rows, cols = rows[order], cols[order]
    twice = (rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1])
    if twice.any():
        entry = int(np.argmax(twice))
        raise ValueError(f"position ({int(rows[entry])}, {int(cols[entry])}), counted from 0, occurs a second time")
    return SparseMatrix.of_doubles(Pattern.from_coo(rows, cols, shape), values[order], dtype)


def _coordinates(
    arrays: dict[str, np.ndarray], layout: str, shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, int]:
    names = ("row", "col") if layout == "coo" else ("indptr", "indices")
    first, second = (arrays[name] for name in names)
    for name, array in zip(names, (first, second), strict=True):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"member {name!r} is {array.dtype} of shape {array.shape}: it must be a list of integers")
    if layout == "coo":
        if first.size != second.size:
            raise ValueError(f"{first.size} rows and {second.size} columns: give one of each per entry")
        return first, second, first.size
    extent = shape[0] if layout == "csr" else shape[1]
    lengths = np.diff(first.astype(np.int64))
    if first.size != extent + 1 or first[0] != 0 or first[-1] != second.size or (lengths < 0).any():
        raise ValueError(f"member 'indptr' must rise from 0 to {second.size} in {extent + 1} steps")
    major = np.repeat(np.arange(extent), lengths)
    return (major, second, second.size) if layout == "csr" else (second, major, second.size)


def _ending(path: Path) -> str:
    for ending in MATRIX_ENDINGS:
        if path.name.endswith(ending):
            return ending
    raise ValueError(f"{path}: not a matrix file: its name must end in {', '.join(MATRIX_ENDINGS)}; pass "
                     "format='edges' to read_matrix for an edge list")


def _check_shape(shape: tuple[int, int], format: str | None) -> None:
    if format is None:
        raise ValueError(f"shape={shape!r} goes with format='edges': other files hold their shape")
    if not (isinstance(shape, tuple) and len(shape) == 2
            and all(isinstance(extent, Integral) and 0 <= extent <= INDEX_LIMIT for extent in shape)):
        raise ValueError(f"shape={shape!r}: expected a tuple of two integers from 0 to {INDEX_LIMIT}")


def _check_kind(begin: bytes, source: Path | str) -> None:
    """Raise ValueError if the first bytes are those of another kind of file, whatever its name says."""
    shown = begin.lstrip() if begin.lstrip().startswith(b"<") else begin
    kind = next((kind for start, kind in OTHER_KINDS if shown.startswith(start)), None)
    if kind is not None:
        line = shown.partition(b"\n")[0].decode("ascii", "replace")
        raise ValueError(f"{source}: not a matrix but {kind} (line 1: {line!r})")


def _tar(text: bytes, stem: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo(f"{stem}/{stem}.mtx")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return sink.getvalue()
