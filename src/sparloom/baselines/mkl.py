"""Bind MKL's GEMM and its inspector-executor for sparse matrices through ctypes, with nothing in between."""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.sparse import SparseMatrix

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112  # CBLAS
NOT_TRANSPOSED, GENERAL = 10, 20  # mkl_spblas.h
MANY_CALLS = 10_000
Call = Callable[[], None]


def mkl_gemm(left: np.ndarray, right: np.ndarray, result: np.ndarray, *, threads: int) -> Call:
    """Bind result = left right for C-contiguous float32 arrays; `right` may be the transpose of such an array.

    Raises:
        Unsupported: MKL is not installed.
    """
    gemm = set_mkl_threads(threads).cblas_sgemm
    gemm.restype = None
    (rows, inner), width = left.shape, right.shape[1]
    transposed = not right.flags.c_contiguous
    lead = inner if transposed else width
    arguments = (ctypes.c_int(ROW_MAJOR), ctypes.c_int(PLAIN), ctypes.c_int(TRANSPOSED if transposed else PLAIN),
                 *map(ctypes.c_int, (rows, width, inner)), ctypes.c_float(1), _pointer(left), ctypes.c_int(inner),
                 _pointer(right), ctypes.c_int(lead), ctypes.c_float(0), _pointer(result), ctypes.c_int(width))

    def run(kept: Sequence[np.ndarray] = (left, right, result)) -> None:
        gemm(*arguments)

    return run


def mkl_gemm_batch(
    lefts: Sequence[np.ndarray], rights: Sequence[np.ndarray], results: Sequence[np.ndarray], *, threads: int,
) -> Call:
    """Bind results = lefts rights for C-contiguous float32 arrays of any sizes, by one call: a group for each product.

    Raises:
        Unsupported: MKL is not installed.
    """
    gemm, count = set_mkl_threads(threads).cblas_sgemm_batch, len(lefts)
    gemm.restype = None
    extents = [(*left.shape, right.shape[1]) for left, right in zip(lefts, rights, strict=True)]
    rows, inners, widths = ((ctypes.c_int * count)(*each) for each in zip(*extents, strict=True))
    plain, ones = (ctypes.c_int * count)(*[PLAIN] * count), (ctypes.c_int * count)(*[1] * count)
    scale, zero = (ctypes.c_float * count)(*[1] * count), (ctypes.c_float * count)()
    left, right, result = ((ctypes.c_void_p * count)(*[array.ctypes.data for array in arrays])
                           for arrays in (lefts, rights, results))
    arguments = (ctypes.c_int(ROW_MAJOR), plain, plain, rows, widths, inners, scale, left, inners, right, widths, zero,
                 result, widths, ctypes.c_int(count), ones)

    def run(kept: Sequence[Sequence[np.ndarray]] = (lefts, rights, results)) -> None:
        gemm(*arguments)

    return run


def mkl_spmm(
    matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int, add: bool = False,
) -> Call:
    """Bind result = matrix dense, all of one type, after MKL has inspected the matrix for many calls.

    Args:
        add: add to the result instead of overwriting it.

    Raises:
        Unsupported: MKL is not installed, or refuses the matrix.
    """
    library, handle, width = set_mkl_threads(threads), ctypes.c_void_p(), ctypes.c_int(dense.shape[1])
    pattern = matrix.pattern
    indptr = pattern.indptr.astype(np.int32)
    kept = (indptr, pattern.indices, matrix.values, dense, result)
    letter, number = ("d", ctypes.c_double) if matrix.dtype == np.float64 else ("s", ctypes.c_float)
    _check(getattr(library, f"mkl_sparse_{letter}_create_csr")(
        ctypes.byref(handle), ctypes.c_int(0), ctypes.c_int(pattern.rows), ctypes.c_int(pattern.cols),
        _pointer(indptr), _pointer(indptr[1:]), _pointer(pattern.indices), _pointer(matrix.values)))
    described = _Description(GENERAL, 0, 0)
    _check(library.mkl_sparse_set_mm_hint(handle, ctypes.c_int(NOT_TRANSPOSED), described, ctypes.c_int(ROW_MAJOR),
                                          width, ctypes.c_int(MANY_CALLS)))
    _check(library.mkl_sparse_optimize(handle))
    multiply = getattr(library, f"mkl_sparse_{letter}_mm")
    arguments = (ctypes.c_int(NOT_TRANSPOSED), number(1), handle, described, ctypes.c_int(ROW_MAJOR),
                 _pointer(dense), width, width, number(int(add)), _pointer(result), width)

    def run(kept: Sequence[Any] = (*kept, _Handle(library, handle))) -> None:
        multiply(*arguments)

    return run


class _Description(ctypes.Structure):
    """The struct matrix_descr of mkl_spblas.h."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("type", "mode", "diag"))


class _Handle:
    """Owner of MKL's copy of a matrix."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self.library, self.handle = library, handle

    def __del__(self) -> None:
        self.library.mkl_sparse_destroy(self.handle)


def set_mkl_threads(threads: int) -> ctypes.CDLL:
    """Set the threads of MKL, and return the library.

    Raises:
        Unsupported: MKL is not installed.
    """
    library = _library()
    library.MKL_Set_Num_Threads(ctypes.c_int(threads))
    return library


@cache
def _library() -> ctypes.CDLL:
    """Load MKL's single dynamic library, on the OpenMP runtime that our kernels and torch use."""
    os.environ.setdefault("MKL_THREADING_LAYER", "GNU")
    try:
        return ctypes.CDLL(mkl_path())
    except OSError as error:
        raise Unsupported("MKL is not installed: pip install mkl, or set MKL_RT to the path of libmkl_rt") from error


def mkl_path() -> str:
    """Return the path of MKL's library, or its name if it is not where pip installs it."""
    found = sorted(Path(sys.prefix).glob("lib/libmkl_rt.so*"))
    return os.environ.get("MKL_RT") or (str(found[-1]) if found else "libmkl_rt.so")


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _check(status: int) -> None:
    if status:
        raise Unsupported(f"MKL refuses the sparse matrix with status {status}, see mkl_spblas.h")
