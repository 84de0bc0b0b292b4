"""Sparse operations as functions.

A call is computed by the native core (kernels/native) if its operands can be read as they are. Otherwise they are
converted here, or what is wrong with them is said; a matrix on a GPU is prepared there. Matrices that were tuned in
this process are found by the identity of their index arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from sparloom.jit import IdentityCache
from sparloom.platforms.cpu_kernels import load_kernels, native_core, set_threads
from sparloom.sparse import SparseMatrix
from sparloom.tuning.sparse.cpu import promoted
from sparloom.tuning.sparse.cuda import CudaBackend
from sparloom.tuning.sparse.inputs import (
    Origin,
    Parts,
    array_of,
    check_apart,
    cuda_matrix,
    cuda_parts,
    dense_of,
    matrix_of,
    origin_of,
)
from sparloom.tuning.sparse.prepared import REDUCTIONS, Prepared, Reduce
from sparloom.tuning.sparse.tuner import CsrPlan

AXES = 2  # of a matrix; SciPy has CSR arrays with one
FLAT_AXES = 2  # of operands of attention with one head
DENSE_OPERANDS: Mapping[str, Mapping[str, str]] = {
    "spmm": {"B": "cols"}, "spmm_max": {"B": "cols"}, "sddmm": {"B": "rows", "C": "cols"},
    "attention": {"Q": "rows", "K": "cols", "V": "cols"}}
"""Operation -> name of each dense operand -> what its rows belong to."""

_TUNED: IdentityCache[Prepared] = IdentityCache(16)  # entries have copies of index arrays
_TUNING: ContextVar[bool] = ContextVar("tuning", default=False)


def prepare(matrix: Any, *, tune: bool | None = None, **options: Any) -> Prepared:
    """Prepare a sparse matrix for many calls.

    What is known to be fastest for its pattern is chosen before the first call of an operation with a width: by a
    stored decision of `tune`, else by a model. Index arrays are copied and must not be changed in place afterwards;
    calls notice most changes. Values may be changed between calls if they are used in place: those of a CSR matrix of
    contiguous arrays with ascending columns in every row. Other matrices are copied.

    Args:
        matrix: as in `spmm`, a tuple with its shape.
        tune: measure kernels and libraries before the first call, unless that was done and stored before.
        options: of `Prepared`.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    parts = cuda_parts(matrix, None)
    if parts is not None:
        return _prepare_on_gpu(parts, **options)
    return Prepared(*origin_of(matrix_of(matrix), matrix), tune=tune, **options)


def tune(matrix: Any, op: str = "spmm", width: int = 64, *, heads: int = 1, **options: Any) -> CsrPlan:
    """Measure which kernel or library computes an operation on a matrix fastest, and store the decision.

    As AutoSAGE does: an estimate makes a shortlist, which is measured on a sample of the rows; what wins must beat the
    best baseline clearly, and compute the same. The decision is used by `prepare`, in this and later processes, and by
    calls with the very index arrays in this process.

    Args:
        matrix: as in `prepare`.
        op: "spmm", "spmm_max", "sddmm" or "attention".
        width: columns of the dense operands; of a head, for attention.
        heads: of attention.
        options: of `Prepared`.

    Returns:
        the decision, with its measurements.

    Example:
        >>> import scipy.sparse, sparloom
        >>> A = scipy.sparse.random(1000, 1000, 0.01, format="csr", dtype="float32")
        >>> plan = sparloom.tune(A, "spmm", width=64)
        >>> print(plan.choice.name, plan.decision.reason)  # doctest: +SKIP
    """
    if op not in DENSE_OPERANDS:
        raise ValueError(f"op={op!r}: give one of {', '.join(DENSE_OPERANDS)}")
    prepared = _tuned_matrix(matrix, **options)
    rows, cols = prepared.matrix.pattern.shape
    dtype, draw = prepared.matrix.dtype, np.random.default_rng(0)
    extents = {"rows": rows, "cols": cols}
    trailing = (heads, width) if op == "attention" else (width,)
    dense = {name: prepared.backend.arrays.to_device(draw.random((extents[side], *trailing)).astype(dtype))
             for name, side in DENSE_OPERANDS[op].items()}
    return prepared.plan(op, **dense)


@contextmanager
def tuning() -> Iterator[None]:
    """Measure, as `tune` does, whatever calls in the block compute for the first time."""
    token = _TUNING.set(True)
    try:
        yield
    finally:
        _TUNING.reset(token)


def spmm(
    matrix: Any, dense: Any, *, reduce: Reduce = "sum", out: Any | None = None, changed: bool = False,
    threads: int | None = None,
) -> Any:
    """Multiply a sparse matrix by a dense one.

    The kernel is chosen at once, from the sizes of the operands, so the same call always gives the same bits; on a GPU
    the first call for a matrix and a width measures a few kernels on sampled rows. `prepare` a matrix, or `tune` it,
    for kernels that suit its pattern. Index arrays are checked in every call until they come again; then they are
    identified by their memory, and must not be changed in place between calls without `changed`. Most such changes are
    noticed, those of a few elements within some calls. Values may be changed.

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
        changed: index arrays may have been changed in place: check them again, also for other `threads`.
        threads: default: all processors that this process may use; ignored on a GPU.

    Returns:
        (rows, width) of the promoted type, an array of NumPy, or of CuPy for operands on a GPU. Sums of 16-bit numbers
        are float32 until they are rounded.

    Raises:
        TypeError, ValueError: an operand cannot be multiplied, index arrays were changed without `changed`, or `out`
            shares memory with an operand; names the operand and the remedy.
        Unsupported: operands are on a GPU and CuPy is not installed, or there are no kernels for the operation.
    """
    tuned = _tuned(matrix, dense, threads, changed)
    if tuned is not None:
        return tuned.prepared.spmm(dense, reduce=reduce, values=tuned.values, out=out)
    core = native_core()
    if core is not None:
        result = core.spmm(matrix, dense, reduce, out, threads, None, False, False)
        if result is None and load_kernels("spmm_max" if reduce == "max" else "spmm", getattr(dense, "dtype", None)):
            result = core.spmm(matrix, dense, reduce, out, threads, None, False, False)  # the first call
        if result is not None:
            return result
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
    return _converted(matrix, {"X": dense}, "spmm_max" if reduce == "max" else "spmm", threads, changed, out=out,
                      reduce=reduce)


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
    tuned = _tuned(matrix, right, threads, changed)
    if tuned is not None:
        return tuned.prepared.sddmm(left, right, values=tuned.values)
    core = native_core()
    if core is not None:
        result = core.sddmm(matrix, left, right, None, threads, None, False)
        if result is not None:
            return result
    return _converted(matrix, {"Q": left, "K": right}, "sddmm", threads, changed)


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
    tuned = _tuned(matrix, keys, threads, changed)
    core = native_core() if tuned is None else None
    if core is not None:
        result = core.attention(matrix, queries, keys, values, None, threads, False)
        if result is not None:
            return result
    dense = {"Q": queries, "K": keys, "V": values}
    if tuned is not None:
        return _attended(tuned.prepared, dense)
    return _converted(matrix, dense, "attention", threads, changed)


def _attended(prepared: Prepared, dense: Mapping[str, Any]) -> Any:
    """Compute attention by a prepared matrix; operands without the axis of heads get one."""
    arrays = [prepared.backend.arrays.array(array, name) for name, array in dense.items()]
    if all(array.ndim == FLAT_AXES for array in arrays):
        return prepared.attention(*(array[:, None] for array in arrays))[:, 0]
    return prepared.attention(*arrays)


class _Tuned(NamedTuple):
    """A prepared matrix that was measured, or will be, and the values of this call in the order of its pattern."""

    prepared: Prepared
    values: Any | None


def _forget(matrix: Any) -> None:
    """Let the core check the index arrays of a matrix again."""
    core = native_core()
    if core is not None:
        core.forget(matrix)


def _tuned(matrix: Any, dense: Any, threads: int | None, changed: bool) -> _Tuned | None:
    """Look up a matrix that was tuned in this process, or that is to be tuned now; None for any other."""
    if changed:
        _forget(matrix)
    measures = _TUNING.get()
    if not measures and not _TUNED:
        return None
    columns = dense.shape[0] if getattr(dense, "ndim", 0) else None
    if cuda_parts(matrix, columns) is not None:
        return None
    arrays = _index_arrays(matrix, columns)
    if arrays is None:
        return _Tuned(prepare(matrix, tune=True, threads=threads), None) if measures else None
    indptr, indices, values, shape = arrays
    if changed:
        pattern = matrix_of(arrays).pattern
        _TUNED.invalidate((indptr, indices), lambda each: each.fits(pattern))
    prepared = _TUNED.find((indptr, indices), (shape, threads))
    if prepared is None and measures:
        prepared = _tuned_matrix(arrays, threads=threads)
    return None if prepared is None else _Tuned(prepared, values)


def _tuned_matrix(matrix: Any, **options: Any) -> Prepared:
    """Prepare a matrix for measurements; later calls with its index arrays find it, if its columns are in order."""
    prepared = prepare(matrix, tune=True, **options)
    arrays = _index_arrays(matrix, None)
    if arrays is not None and np.array_equal(prepared.matrix.pattern.indices, arrays[1]):
        _TUNED.get(arrays[:2], (arrays[3], options.get("threads")), lambda: prepared)
    return prepared


def _index_arrays(matrix: Any, columns: int | None) -> Parts | None:
    """Return index arrays, values and shape of a CSR matrix of NumPy arrays; None for any other."""
    if isinstance(matrix, SparseMatrix):
        return matrix.pattern.indptr, matrix.pattern.indices, matrix.values, matrix.pattern.shape
    if scipy.sparse.issparse(matrix) and matrix.format == "csr" and len(matrix.shape) == AXES:
        return matrix.indptr, matrix.indices, matrix.data, matrix.shape
    if isinstance(matrix, tuple) and len(matrix) in (3, 4) and all(type(part) is np.ndarray for part in matrix[:3]):
        return *matrix[:3], tuple(matrix[3]) if len(matrix) == 4 else (matrix[0].size - 1, columns)
    return None


def _converted(
    matrix: Any, dense: Mapping[str, Any], op: str, threads: int | None, changed: bool, *, out: Any | None = None,
    **options: Any,
) -> Any:
    """Compute with operands that the core cannot read as they are, or say what is wrong with them.

    Args:
        dense: by their names in messages; the last one has a row for each column of A.
        options: of the method of `Prepared`.
    """
    last = [*dense.values()][-1]
    columns = last.shape[0] if getattr(last, "ndim", 0) else None
    placed = cuda_parts(matrix, columns)
    if placed is None:
        made = matrix_of(matrix, columns=columns)
        if changed:
            _forget(made)  # it may share the index arrays of a class that the core does not know
        check_apart(out, matrix)
        result = _by_core(made, dense, op, threads, out, **options) if set_threads(threads) else None
        if result is not None:
            return result
        prepared = Prepared(*origin_of(made, matrix), threads=threads)
    else:
        prepared = _prepared_on_gpu(placed, changed)
        options = {**options, "values": placed[2]}
    if op == "attention":
        return _attended(prepared, dense)
    method = prepared.spmm if op == "spmm_max" else getattr(prepared, op)
    return method(*dense.values(), out=out, **options)


def _by_core(
    matrix: SparseMatrix, dense: Mapping[str, Any], op: str, threads: int | None, out: Any | None,
    reduce: Reduce = "sum",
) -> np.ndarray | None:
    """Convert dense operands, load the kernels, and call the core; None: it cannot, and `Prepared` says why."""
    rows, cols = matrix.pattern.shape
    try:
        arrays = [array_of(array, name) for name, array in dense.items()]
        axes = 2 if op != "attention" or all(array.ndim == FLAT_AXES for array in arrays) else 3
        arrays = [dense_of(array, name, rows=rows if name == "Q" else cols, axes=axes)
                  for name, array in zip(dense, arrays, strict=True)]
    except (TypeError, ValueError):
        return None
    if op == "attention":
        values, arrays = matrix.values, promoted(*arrays)
    else:
        values, *arrays = promoted(matrix.values, *arrays)
    if not load_kernels(op, arrays[0].dtype):
        return None
    core, parts = native_core(), (matrix.pattern.indptr, matrix.pattern.indices, values, (rows, cols))
    if op == "attention":
        return core.attention(parts, *arrays, out, threads, False)
    if op == "sddmm":
        return core.sddmm(parts, *arrays, out, threads, None, False)
    return core.spmm(parts, *arrays, reduce, out, threads, None, False, False)


def _prepared_on_gpu(parts: Parts, changed: bool) -> Prepared:
    """Look up or prepare a matrix on a GPU."""
    backend = CudaBackend.here()
    arrays = parts[:2]
    if changed:
        pattern = cuda_matrix(backend.gpu, parts).pattern
        _TUNED.invalidate(arrays, lambda prepared: prepared.fits(pattern))
    return _TUNED.get(arrays, (tuple(parts[3]), backend), lambda: _prepare_on_gpu(parts))


def _prepare_on_gpu(parts: Parts, **options: Any) -> Prepared:
    backend = options.pop("where", None) or CudaBackend.here()
    return Prepared(cuda_matrix(backend.gpu, parts), Origin(parts[:3]), where=backend, **options)
