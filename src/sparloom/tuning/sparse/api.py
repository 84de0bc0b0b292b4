"""Sparse operations as functions: what a matrix needs is found again by its index arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sparloom.fusion import IdentityCache
from sparloom.measure import checked_threads
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.sparse.cuda import CudaBackend
from sparloom.tuning.sparse.inputs import (
    Origin,
    Parts,
    array_of,
    check_apart,
    cuda_matrix,
    cuda_parts,
    matrix_of,
    origin_of,
)
from sparloom.tuning.sparse.prepared import Prepared, Reduce
from sparloom.tuning.sparse.settings import CsrPolicy, Settings

__all__ = ["csr_attention", "prepare", "sddmm", "spmm"]


def prepare(matrix: Any, **options: Any) -> Prepared:
    """Make a sparse matrix ready for many calls.

    Index arrays must not be changed in place afterwards; they are copied, and calls notice most changes. Values may be,
    between calls, where they are used as they are: those of a CSR matrix of contiguous arrays whose columns rise in
    every row. What is prepared of others is a copy.

    Args:
        matrix: as in `spmm`, a tuple with its shape.
        options: of `Prepared`.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    placed = cuda_parts(matrix, None)
    if placed is not None:
        return _prepared_there(placed, **options)
    return Prepared(*origin_of(matrix_of(matrix), matrix), **options)


def spmm(
    matrix: Any, dense: Any, *, reduce: Reduce = "sum", out: Any | None = None, changed: bool = False,
    threads: int | None = None,
) -> Any:
    """Multiply a sparse matrix by a dense one, with the kernel that is fastest for both on this machine.

    The first calls for a matrix and a width are computed by one kernel after the other, until it is known which is the
    fastest (on a GPU, and for a matrix that is not CSR of NumPy arrays, the first call measures a few on some rows);
    that is kept for all processes of this user. Sums of such calls may differ in their last bits. Matrices are known by
    the identity of their index arrays, which must not be changed in place between calls without `changed`; most such
    changes are noticed, those of a few elements within some calls. Values may be changed. `prepare` what comes in new
    arrays each time.

    Args:
        matrix: A (rows, cols): SciPy matrix, (indptr, indices, values[, shape]) of NumPy arrays or others that speak
            DLPack; float32 values, int32 or int64 indices. On a GPU: CSR matrix of CuPy, or such a tuple of arrays of
            any library, columns rising in every row; values may be float16 there.
        dense: X (cols, width), likewise, of the type of A's values and where A is.
        reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, 0 in rows
            without nonzeros.
        out: (rows, width) of that type, where the result goes; unless given an array in memory that no result uses any
            more, of which 1/32 of the machine's is kept, or else in new memory.
        changed: index arrays may have been changed in place: they are read, and what differs is prepared anew, also for
            other `threads`.
        threads: all processors that this process may use unless given; for operands in their memory.

    Returns:
        (rows, width) of that type, a NumPy array, or for operands on a GPU one of CuPy there. Sums are float32.

    Raises:
        TypeError, ValueError: an operand is none that can be multiplied, index arrays were changed without `changed`,
            or `out` lies in the memory of an operand; names it and the remedy.
        Unsupported: operands are on a GPU and CuPy is missing, or there are no kernels for the operation there.
    """
    prepared, values = _known(matrix, dense, threads, changed, out)
    return prepared.spmm(dense, reduce=reduce, values=values, out=out)


def sddmm(
    matrix: Any, left: Any, right: Any, *, changed: bool = False, threads: int | None = None,
) -> Any:
    """Multiply dense matrices where a sparse one has nonzeros: A's values * (Q KT).

    Args:
        matrix, changed, threads: as in `spmm`.
        left, right: Q (rows, width), K (cols, width), of the type of A's values.

    Returns:
        (nnz,) of that type, row after row with rising columns: in the order of A's values if its columns rise.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    prepared, values = _known(matrix, right, threads, changed)
    return prepared.sddmm(left, right, values=values)


def csr_attention(
    matrix: Any, queries: Any, keys: Any, values: Any, *, changed: bool = False, threads: int | None = None,
) -> Any:
    """Let each row attend to the columns where it has nonzeros: softmax(Q KT / sqrt(d)) V, no score is ever stored.

    Args:
        matrix, changed, threads: as in `spmm`; A's values are not read.
        queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e), float32, or on a GPU all of
            them float16; without heads, one.

    Returns:
        (rows, heads, e) of that type, or (rows, e); 0 for rows without nonzeros.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    prepared, _ = _known(matrix, keys, threads, changed)
    given = [prepared.where.array(array, name) for array, name in ((queries, "Q"), (keys, "K"), (values, "V"))]
    if all(array.ndim == 2 for array in given):
        return prepared.attention(*(array[:, None] for array in given))[:, 0]
    return prepared.attention(*given)


@dataclass(frozen=True)
class _Entry:
    """What was made for index arrays.

    Args:
        in_order: columns are sorted and there once, so values are in the order of the pattern.
    """

    prepared: Prepared
    in_order: bool

    def fits(self, pattern: Pattern, *, in_order: bool) -> bool:
        """Tell whether it was made for index arrays like these; reads all of them."""
        fits = self.in_order == in_order and self.prepared.fits(pattern)
        return fits and (in_order or not self.prepared.origin.changed())


_KNOWN: IdentityCache[_Entry] = IdentityCache(16)  # entries have copies of index arrays


def _known(
    matrix: Any, dense: Any, threads: int | None, changed: bool, out: Any | None = None,
) -> tuple[Prepared, Any]:
    """Find what was made for the index arrays of a matrix, and its values in the order of the pattern."""
    threads = None if threads is None else checked_threads(threads)
    columns = dense.shape[0] if getattr(dense, "ndim", 0) else None
    parts = _parts(matrix, columns)
    if parts is None:
        placed = cuda_parts(matrix, columns)
        if placed is not None:
            return _known_there(placed, changed), placed[2]
        made = matrix_of(matrix, columns=columns)
        at_once = Settings.from_environment().policy(CsrPolicy(), made.pattern)  # there is no next call to learn from
        made, origin = origin_of(made, matrix)
        return Prepared(made, origin, threads=threads, policy=at_once), made.values
    indptr, indices, values, shape = parts

    def make() -> _Entry:
        made, origin = origin_of(matrix_of(matrix, columns=columns), matrix)
        return _Entry(Prepared(made, origin, threads=threads), np.array_equal(made.pattern.indices, indices))

    if changed:
        pattern = matrix_of(matrix, columns=columns).pattern
        in_order = np.array_equal(pattern.indices, indices)
        _KNOWN.review((indptr, indices), lambda entry: entry.fits(pattern, in_order=in_order))
    entry = _KNOWN.find({"indptr": indptr, "indices": indices, "shape": shape, "threads": threads}, make)
    if not entry.in_order or values.dtype != np.float32:
        check_apart(out, matrix)  # these values may be others than those that were prepared
        values = matrix_of(matrix, columns=columns).values
    return entry.prepared, array_of(values, "values")


def _known_there(parts: Parts, changed: bool) -> Prepared:
    """Find what was made for index arrays on a GPU."""
    where = CudaBackend.here()
    arrays = parts[:2]
    if changed:
        pattern = cuda_matrix(where.gpu, parts).pattern
        _KNOWN.review(arrays, lambda entry: entry.fits(pattern, in_order=True))
    return _KNOWN.find({"shape": tuple(parts[3]), "where": where}, lambda: _Entry(_prepared_there(parts), True),
                       arrays).prepared


def _prepared_there(parts: Parts, **options: Any) -> Prepared:
    where = options.pop("where", None) or CudaBackend.here()
    return Prepared(cuda_matrix(where.gpu, parts), Origin(parts[:3]), where=where, **options)


def _parts(matrix: Any, columns: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]] | None:
    """Take index arrays, values and shape as they are given; None where there are none to be known by."""
    if isinstance(matrix, SparseMatrix):
        return matrix.pattern.indptr, matrix.pattern.indices, matrix.values, matrix.pattern.shape
    if scipy.sparse.issparse(matrix) and matrix.format == "csr":
        return matrix.indptr, matrix.indices, matrix.data, matrix.shape
    if isinstance(matrix, tuple) and len(matrix) in (3, 4) and all(isinstance(part, np.ndarray) for part in matrix[:3]):
        shape = matrix[3] if len(matrix) == 4 else (matrix[0].size - 1, columns)
        if isinstance(shape, tuple) and all(isinstance(extent, int) for extent in shape):
            return *matrix[:3], shape
    return None
