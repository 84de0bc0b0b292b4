"""Matrix files: MatrixMarket text, SuiteSparse archives, and NumPy archives, any of which may be damaged or malicious.

A NumPy archive (.npz) holds a matrix in the layout of scipy.sparse.save_npz, or as indptr, indices, shape and values.
Damage is recognised by the checksums of gzip and zip files, and in plain text by the grammar and the promised counts.
"""

import gzip
import io
import struct
import tarfile
import zipfile
from numbers import Integral
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from sparloom.files import atomic_path
from sparloom.sparse.archive import LIMIT_BYTES, check_size, read_text
from sparloom.sparse.market import POINTER_BYTES, assembled, market_text, parse_edges, parse_market
from sparloom.sparse.pattern import INDEX_LIMIT, SparseMatrix

MATRIX_ENDINGS = (".tar.gz", ".tgz", ".mtx.gz", ".mtx", ".npz")
"""Endings of the files that `read_matrix` accepts."""
LAYOUTS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}
KEYS = ("shape", "format", "indptr", "indices", "row", "col", "data", "values")
ZIP_END_BYTES = 22  # of the record at the end of a zip file, before its comment


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
            damaged, too large or not a valid matrix; the message names the file and the line, position or member.
    """
    path = Path(path)
    if format not in (None, "edges"):
        raise ValueError(f"format={format!r}: pass 'edges' for an edge list, or leave it away")
    if shape is not None:
        _check_shape(shape, format)
    ending = _ending(path) if format is None else ""
    if ending == ".npz":
        return _read_arrays(path, limit_bytes, dtype)
    text, member = read_text(path, limit_bytes, path.name.removesuffix(ending))
    source = str(path) if member is None else f"{path}: member {member!r}"
    if format == "edges":
        return parse_edges(text, source, limit_bytes, shape=shape, dtype=dtype)
    return parse_market(text, source, limit_bytes, dtype)


def write_matrix(path: Path | str, matrix: SparseMatrix) -> None:
    """Write a matrix in the format of the ending, atomically; equal matrices give equal bytes."""
    path = Path(path)
    ending = _ending(path)
    with atomic_path(path) as partial:
        if ending == ".npz":
            _write_arrays(partial, matrix)
        elif ending == ".mtx":
            partial.write_bytes(market_text(matrix))
        else:
            text = market_text(matrix)
            content = text if ending == ".mtx.gz" else _tar(text, matrix_stem(path))
            partial.write_bytes(gzip.compress(content, compresslevel=6, mtime=0))


def matrix_stem(path: Path) -> str:
    """Return the name of a matrix file without folder and ending."""
    return path.name.removesuffix(_ending(path))


def _read_members(path: Path, limit_bytes: int) -> dict[str, np.ndarray]:
    """Read the arrays of a matrix from a NumPy archive; nothing is unpickled, and zipfile checks each CRC-32."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            file.seek(-ZIP_END_BYTES - len(archive.comment), io.SEEK_END)
            (count,) = struct.unpack("<10xH10x", file.read(ZIP_END_BYTES))
            if count not in (len(members), 0xFFFF):  # a damaged entry may swallow the next
                raise ValueError(f"{len(members)} of {count} members are listed")
            size = sum(info.file_size for info in members)
            if size <= limit_bytes:
                # All are read: a name that is damaged in the directory differs from that of the member.
                contents = {info.filename.removesuffix(".npy"): archive.read(info) for info in members}
                return {name: np.load(io.BytesIO(content), allow_pickle=False)
                        for name, content in contents.items() if name in KEYS}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, its decompressors and NumPy raise almost anything for invalid bytes
        reason = str(error).partition("\n")[0][:120]
        raise ValueError(f"{path}: damaged or truncated .npz file ({reason}): write it again") from error
    check_size(size, limit_bytes, f"{path}: unpacks to")


def _read_arrays(path: Path, limit_bytes: int, dtype: DTypeLike | None) -> SparseMatrix:
    """Read a matrix from a NumPy archive; without `data` or `values` every value is one."""
    arrays = _read_members(path, limit_bytes)
    layout = arrays.get("format", np.array("csr")).item()
    layout = layout.decode("ascii", "replace") if isinstance(layout, bytes) else layout
    if layout not in LAYOUTS:
        raise ValueError(f"{path}: member 'format' is {layout!r}: save the matrix as csr, csc or coo")
    needed = ("shape", *LAYOUTS[layout])
    for name in needed:
        if name not in arrays or arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
            raise ValueError(f"{path}: member {name!r} is missing or no list of integers: a {layout} matrix needs "
                             f"{', '.join(needed)}")
    shape = tuple(map(int, arrays["shape"]))
    if len(shape) != 2 or not all(0 <= extent <= INDEX_LIMIT for extent in shape):
        raise ValueError(f"{path}: member 'shape' is {shape}: it must be two integers from 0 to {INDEX_LIMIT}")
    try:
        check_size(POINTER_BYTES * (max(shape) + 1), limit_bytes, f"{shape[0]} x {shape[1]} need")
        return assembled(_entries(arrays, layout, shape), dtype, first=0)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _write_arrays(path: Path, matrix: SparseMatrix) -> None:
    """Write shape, indptr, indices and values, uncompressed, in a layout that SciPy's load_npz reads too."""
    pattern = matrix.pattern
    with path.open("wb") as file:
        np.savez(
            file, format=np.array(b"csr"), shape=np.array(pattern.shape), indptr=pattern.indptr,
            indices=pattern.indices, data=matrix.values if matrix.exact is None else matrix.exact)


def _entries(arrays: dict[str, np.ndarray], layout: str, shape: tuple[int, int]) -> scipy.sparse.sparray:
    """Make SciPy check the arrays."""
    first, second = (arrays[name] for name in LAYOUTS[layout])
    values = arrays.get("data", arrays.get("values", np.ones(second.size, np.float32)))
    if values.shape != second.shape or values.dtype.kind not in "fiub":
        raise ValueError(f"values are {values.dtype} of shape {values.shape}: give {second.size} real numbers")
    values = values.astype(np.float64)
    if layout == "coo":
        return scipy.sparse.coo_array((values, (first, second)), shape=shape)
    if first.size == 0 or first[-1] != second.size:  # SciPy drops what lies behind
        raise ValueError(f"member 'indptr' must end in {second.size}")
    made = (scipy.sparse.csr_array if layout == "csr" else scipy.sparse.csc_array)((values, second, first), shape=shape)
    made.check_format(full_check=True)
    return made


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


def _tar(text: bytes, stem: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo(f"{stem}/{stem}.mtx")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return sink.getvalue()
