"""Sparse operations as functions: calls go direct until a matrix recurs, which is then prepared.

Prepared matrices are cached by the identity of their index arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from sparloom.jit import IdentityCache
from sparloom.measure import checked_threads
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.sparse.cuda import CudaBackend
from sparloom.tuning.sparse.direct import Csr, DirectCalls, direct_calls
from sparloom.tuning.sparse.inputs import (
    NUMBERS,
    Origin,
    Parts,
    array_of,
    check_apart,
    cuda_matrix,
    cuda_parts,
    matrix_of,
    origin_of,
)
from sparloom.tuning.sparse.prepared import REDUCTIONS, Prepared, Reduce
from sparloom.tuning.sparse.settings import CsrPolicy, Settings

__all__ = ["csr_attention", "prepare", "sddmm", "spmm"]

AXES = 2  # of a matrix; SciPy has CSR arrays with one


def prepare(matrix: Any, **options: Any) -> Prepared:
    """Prepare a sparse matrix for many calls.

    Index arrays are copied and must not be changed in place afterwards; calls notice most changes. Values may be
    changed between calls if they are used in place: those of a CSR matrix of contiguous arrays with ascending columns
    in every row. Other matrices are copied.

    Args:
        matrix: as in `spmm`, a tuple with its shape.
        options: of `Prepared`.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    parts = cuda_parts(matrix, None)
    if parts is not None:
        return _prepare_on_gpu(parts, **options)
    return Prepared(*origin_of(matrix_of(matrix), matrix), **options)


def spmm(
    matrix: Any, dense: Any, *, reduce: Reduce = "sum", out: Any | None = None, changed: bool = False,
    threads: int | None = None,
) -> Any:
    """Multiply a sparse matrix by a dense one, with the kernel that is fastest for both on this machine.

    The first calls with index arrays check them and run the default kernel. Arrays that recur are prepared: calls for a
    width rotate through candidate kernels until the fastest is known; on a GPU, and for a matrix that is not CSR of
    NumPy arrays, the first call measures a few on sampled rows. The decision is stored for all processes of this user.
    Results of these calls may differ in their last bits. Matrices that recur are identified by their index arrays,
    which must not be changed in place between calls without `changed`; most such changes are noticed, those of a few
    elements within some calls. Values may be changed. `prepare` a large matrix that comes in new arrays each time.

    Args:
        matrix: A (rows, cols): SciPy matrix, (indptr, indices, values[, shape]) of NumPy arrays or others that speak
            DLPack; float32, float64, float16 or bfloat16 values, int32 or int64 indices. On a GPU: CSR matrix of CuPy,
            or such a tuple of arrays of any library, with ascending columns in every row and float32 or float16 values.
        dense: X (cols, width), on the device of A. If it has another type than A's values, both are converted to the
            type that NumPy promotes them to, in every call; on a GPU they must have one type.
        reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, 0 in rows
            without nonzeros.
        out: (rows, width) of the promoted type, for the result. Default: memory of a dead result, of which up to 1/32
            of the machine's memory is kept, or new memory.
        changed: index arrays may have been changed in place: compare them, and prepare changed ones again, also for
            other `threads`.
        threads: default: all processors that this process may use; ignored on a GPU.

    Returns:
        (rows, width) of the promoted type, an array of NumPy, or of CuPy for operands on a GPU. Sums of 16-bit numbers
        are float32 until they are rounded.

    Raises:
        TypeError, ValueError: an operand cannot be multiplied, index arrays were changed without `changed`, or `out`
            shares memory with an operand; names the operand and the remedy.
        Unsupported: operands are on a GPU and CuPy is not installed, or there are no kernels for the operation.
    """
    given = _Given.of(matrix, dense, threads, changed)
    if given.direct is not None and reduce in REDUCTIONS:
        result = given.direct.spmm(given.csr, dense, reduce=reduce, out=out)
        if result is not None:
            return result
    prepared, values = given.prepared(matrix, changed, out)
    return prepared.spmm(dense, reduce=reduce, values=values, out=out)


def sddmm(
    matrix: Any, left: Any, right: Any, *, changed: bool = False, threads: int | None = None,
) -> Any:
    """Sampled dense-dense product: A's values * (Q KT).

    Args:
        matrix, changed, threads: as in `spmm`.
        left, right: Q (rows, width), K (cols, width), of types as in `spmm`.

    Returns:
        (nnz,) of the promoted type, by row and ascending column: in the order of A's values if its columns ascend.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    given = _Given.of(matrix, right, threads, changed)
    if given.direct is not None:
        result = given.direct.sddmm(given.csr, left, right)
        if result is not None:
            return result
    prepared, values = given.prepared(matrix, changed)
    return prepared.sddmm(left, right, values=values)


def csr_attention(
    matrix: Any, queries: Any, keys: Any, values: Any, *, changed: bool = False, threads: int | None = None,
) -> Any:
    """Attention of each row to the columns of its nonzeros: softmax(Q KT / sqrt(d)) V, without storing scores.

    Args:
        matrix, changed, threads: as in `spmm`; A's values are not read.
        queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e), of types as in `spmm`;
            without the axis of heads there is one head.

    Returns:
        (rows, heads, e) of the promoted type, or (rows, e); 0 for rows without nonzeros.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    given = _Given.of(matrix, keys, threads, changed)
    if given.direct is not None:
        result = given.direct.attention(given.csr, queries, keys, values)
        if result is not None:
            return result
    prepared, _ = given.prepared(matrix, changed)
    dense = [prepared.backend.arrays.array(array, name) for array, name in ((queries, "Q"), (keys, "K"), (values, "V"))]
    if all(array.ndim == 2 for array in dense):
        return prepared.attention(*(array[:, None] for array in dense))[:, 0]
    return prepared.attention(*dense)


@dataclass(frozen=True)
class _Entry:
    """Prepared matrix of index arrays.

    Args:
        in_order: columns are sorted and unique, so values are in the order of the pattern; and changes of the index
            arrays are noticed. Otherwise every call compares their content.
    """

    prepared: Prepared
    in_order: bool

    def fits(self, pattern: Pattern, *, in_order: bool) -> bool:
        """Tell whether it was made for index arrays with this content; reads all of them."""
        fits = self.in_order == in_order and self.prepared.fits(pattern)
        return fits and (in_order or not self.prepared.origin.changed())


_PREPARED: IdentityCache[_Entry] = IdentityCache(16)  # entries have copies of index arrays


class _Given(NamedTuple):
    """A sparse operand of a call, and what is known of it.

    Args:
        columns: of A, if it does not say so itself.
        csr: its arrays; None if there are no index arrays to identify A by.
        entry: of these index arrays.
        direct: computes the call without preparing A; None: A is prepared, or to be prepared.
    """

    columns: int | None
    threads: int | None
    csr: Csr | None = None
    entry: _Entry | None = None
    direct: DirectCalls | None = None

    @classmethod
    def of(cls, matrix: Any, dense: Any, threads: int | None, changed: bool) -> _Given:
        """Look up the operand."""
        threads = None if threads is None else checked_threads(threads)
        columns = dense.shape[0] if getattr(dense, "ndim", 0) else None
        csr = _csr_of(matrix, columns)
        if csr is None:
            return cls(columns, threads)
        entry = _PREPARED.find(csr[:2], (csr.shape, threads))
        if entry is not None or changed or len(csr.shape) != AXES:
            return cls(columns, threads, csr, entry)
        direct = direct_calls(threads)
        return cls(columns, threads, csr, None, None if direct.recur(csr) else direct)

    def prepared(self, matrix: Any, changed: bool, out: Any | None = None) -> tuple[Prepared, Any]:
        """Look up or prepare the matrix; also return its values in the order of the pattern."""
        columns, threads = self.columns, self.threads
        if self.csr is None:
            placed = cuda_parts(matrix, columns)
            if placed is not None:
                return _prepared_on_gpu(placed, changed), placed[2]
            made = matrix_of(matrix, columns=columns)
            policy = Settings.from_environment().policy(CsrPolicy(), made.pattern)  # not online: no call follows
            made, origin = origin_of(made, matrix)
            return Prepared(made, origin, threads=threads, policy=policy), made.values
        indptr, indices, values, shape, _ = self.csr

        entry = self.entry
        if changed:
            pattern = matrix_of(matrix, columns=columns).pattern
            in_order = np.array_equal(pattern.indices, indices)
            _PREPARED.invalidate((indptr, indices), lambda each: each.fits(pattern, in_order=in_order))
            entry = None
        details = shape, threads
        if entry is None:
            entry = _PREPARED.get((indptr, indices), details, lambda: self._entry(matrix))
        if not entry.in_order or values.dtype not in NUMBERS:
            check_apart(out, matrix)  # these values may differ from those that were prepared
            made = matrix_of(matrix, columns=columns)
            if not entry.prepared.fits(made.pattern):
                _PREPARED.invalidate((indptr, indices), lambda each: each is not entry)
                entry = _PREPARED.get((indptr, indices), details, lambda: self._entry(matrix))
            values = made.values
        return entry.prepared, array_of(values, "values")

    def _entry(self, matrix: Any) -> _Entry:
        """Prepare the matrix."""
        indptr, indices = self.csr[:2]
        made = matrix_of(matrix, columns=self.columns)
        if isinstance(matrix, SparseMatrix):  # was checked when it was made, and may have been changed since
            Pattern(made.pattern.shape, indptr, indices)
        made, origin = origin_of(made, matrix)
        watched = all(array.flags.c_contiguous and array.flags.aligned for array in (indptr, indices))
        return _Entry(Prepared(made, origin, threads=self.threads),
                      watched and np.array_equal(made.pattern.indices, indices))


def _prepared_on_gpu(parts: Parts, changed: bool) -> Prepared:
    """Look up or prepare a matrix on a GPU."""
    backend = CudaBackend.here()
    arrays = parts[:2]
    if changed:
        pattern = cuda_matrix(backend.gpu, parts).pattern
        _PREPARED.invalidate(arrays, lambda entry: entry.fits(pattern, in_order=True))
    return _PREPARED.get(arrays, (tuple(parts[3]), backend), lambda: _Entry(_prepare_on_gpu(parts), True)).prepared


def _prepare_on_gpu(parts: Parts, **options: Any) -> Prepared:
    backend = options.pop("where", None) or CudaBackend.here()
    return Prepared(cuda_matrix(backend.gpu, parts), Origin(parts[:3]), where=backend, **options)


def _csr_of(matrix: Any, columns: int | None) -> Csr | None:
    """Return index arrays, values and shape as given; None if there are no index arrays to identify A by."""
    if isinstance(matrix, SparseMatrix):
        return Csr(matrix.pattern.indptr, matrix.pattern.indices, matrix.values, matrix.pattern.shape)
    if scipy.sparse.issparse(matrix) and matrix.format == "csr":
        canonical = matrix.__dict__.get("_has_canonical_format", False)  # the property would compute it
        return Csr(matrix.indptr, matrix.indices, matrix.data, matrix.shape, canonical)
    if isinstance(matrix, tuple) and len(matrix) in (3, 4) and all(isinstance(part, np.ndarray) for part in matrix[:3]):
        shape = matrix[3] if len(matrix) == 4 else (matrix[0].size - 1, columns)
        if isinstance(shape, tuple) and all(isinstance(extent, int) for extent in shape):
            return Csr(*matrix[:3], shape)
    return None
