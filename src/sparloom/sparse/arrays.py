"""Matrices as NumPy archives (.npz): the layout of scipy.sparse.save_npz, or indptr, indices, shape and values."""

from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from sparloom.sparse.limits import check_extents
from sparloom.sparse.npz import read_members
from sparloom.sparse.pattern import Pattern, SparseMatrix, unfit_value

__all__ = ["read_arrays", "write_arrays"]

KEYS = ("shape", "format", "indptr", "indices", "row", "col", "data", "values")


def read_arrays(path: Path, limit_bytes: int, dtype: DTypeLike | None = None) -> SparseMatrix:
    """Read a matrix; without `data` or `values` every value is one. Nothing is unpickled.

    Args:
        dtype: of the values, as of `read_matrix`.

    Raises:
        ValueError: damaged, more than `limit_bytes`, arrays missing or inconsistent, values not finite, positions
            twice; the message names file and member.
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
    """Write shape, indptr, indices and values, uncompressed, to a file that SciPy's load_npz reads too."""
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
