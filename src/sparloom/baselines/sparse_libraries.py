"""Bind sparse libraries that few programs have: SuiteSparse:GraphBLAS, sparse_dot_mkl and AOCL-Sparse.

All are wheels of the extra `peers`; AOCL-Sparse comes with aoclda. librsb has no wheel, and its Python package, pyrsb,
is built from source against an installed librsb, so it is not here. GraphBLAS and sparse_dot_mkl make their result in
each call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from sparloom.baselines.mkl import mkl_path, set_mkl_threads
from sparloom.errors import Unsupported
from sparloom.ops import Operands
from sparloom.sparse import Pattern, SparseMatrix

Call = Callable[[], Any]
"""Computes; NumPy makes an array of what it returns."""

NOT_TRANSPOSED, ROW_MAJOR, MANY_CALLS = 111, 0, 10_000  # aoclsparse_types.h
GRAPHBLAS_FLOATS = {np.dtype(np.float32): ("FP32", "float *"), np.dtype(np.float64): ("FP64", "double *")}
AOCL_FLOATS = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}


def graphblas_spmm(operands: Operands, threads: int) -> Call:
    """Bind GrB_mxm with the semiring of + and *; operands and result stay matrices of GraphBLAS.

    Raises:
        Unsupported: suitesparse-graphblas is not installed.
    """
    graph, dense = _graphblas(operands.matrix.dtype), operands.dense["B"]
    left, right = graph.sparse(operands.matrix), graph.full(dense)
    shape = (operands.matrix.pattern.rows, dense.shape[1])
    result = graph.empty(shape)

    def call() -> _Result:
        graph.set_threads(threads)
        graph.multiply(result, left, right)
        return _Result(lambda: scipy.sparse.coo_array(graph.tuples(result), shape=shape).toarray())

    return call


def graphblas_sddmm(operands: Operands, threads: int) -> Call:
    """Bind GrB_mxm with A as a structural mask: only products at A's nonzeros are computed; A's values must be 1.

    Raises:
        Unsupported: suitesparse-graphblas is not installed.
    """
    graph, pattern = _graphblas(operands.matrix.dtype), operands.matrix.pattern
    mask, left, right = graph.sparse(operands.matrix), *(graph.full(operands.dense[name]) for name in ("B", "C"))
    result = graph.empty(pattern.shape)

    def call() -> _Result:
        graph.set_threads(threads)
        graph.multiply(result, left, right, mask=mask)
        return _Result(lambda: scipy.sparse.coo_array(graph.tuples(result), shape=pattern.shape).tocsr().data)

    return call


class _Result:
    """Result of a call; NumPy makes an array of it.

    Args:
        extract: copies it out of the library.
    """

    def __init__(self, extract: Callable[[], np.ndarray]) -> None:
        self._extract = extract

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._extract()


class _GraphBlas:
    """SuiteSparse:GraphBLAS with matrices of one type.

    Args:
        dtype: float32 or float64.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype, (self._name, self._values) = dtype, GRAPHBLAS_FLOATS[dtype]
        try:
            import suitesparse_graphblas as package
        except ImportError as error:
            raise Unsupported("GraphBLAS is not installed: pip install suitesparse-graphblas") from error
        if not package.is_initialized():
            package.initialize()
        self.lib, self._ffi = package.lib, package.ffi

    def set_threads(self, threads: int) -> None:
        """Set the threads of all operations."""
        self._check(self.lib.GrB_Global_set_INT32(self.lib.GrB_GLOBAL, threads, self.lib.GxB_GLOBAL_NTHREADS))

    def multiply(self, result: Any, left: Any, right: Any, *, mask: Any | None = None) -> None:
        """Replace a result by left right; with a mask by left rightT at the nonzeros of the mask."""
        null, lib = self._ffi.NULL, self.lib
        self._check(lib.GrB_mxm(
            result[0], null if mask is None else mask[0], null, getattr(lib, f"GrB_PLUS_TIMES_SEMIRING_{self._name}"),
            left[0], right[0], null if mask is None else lib.GrB_DESC_RST1))
        self._check(lib.GrB_Matrix_wait(result[0], lib.GrB_MATERIALIZE))

    def empty(self, shape: tuple[int, int]) -> Any:
        """Make a matrix without values."""
        made = self._ffi.new("GrB_Matrix *")
        self._check(self.lib.GrB_Matrix_new(made, self._type, *shape))
        return self._ffi.gc(made, self.lib.GrB_Matrix_free)

    def sparse(self, matrix: SparseMatrix) -> Any:
        """Copy a sparse matrix."""
        pattern, made = matrix.pattern, self._ffi.new("GrB_Matrix *")
        indptr, indices = pattern.indptr.astype(np.uint64), pattern.indices.astype(np.uint64)
        self._check(getattr(self.lib, f"GrB_Matrix_import_{self._name}")(
            made, self._type, *pattern.shape, self._pointer("uint64_t *", indptr),
            self._pointer("uint64_t *", indices), self._pointer(self._values, matrix.values), indptr.size,
            indices.size, matrix.values.size, self.lib.GrB_CSR_FORMAT))
        return self._ffi.gc(made, self.lib.GrB_Matrix_free)

    def full(self, dense: np.ndarray) -> Any:
        """Copy a dense matrix: all values by rows, without indices."""
        rows, cols = dense.shape
        pattern = Pattern(dense.shape, np.arange(rows + 1) * cols, np.tile(np.arange(cols, dtype=np.int32), rows))
        made = self.sparse(SparseMatrix(pattern, dense.reshape(-1), self._dtype))
        self._check(self.lib.GrB_Matrix_set_INT32(made[0], self.lib.GxB_FULL, self.lib.GxB_SPARSITY_CONTROL))
        return made

    def tuples(self, matrix: Any) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Copy out the values, and their rows and columns."""
        count = self._ffi.new("uint64_t *")
        self._check(self.lib.GrB_Matrix_nvals(count, matrix[0]))
        rows, columns, values = np.empty(count[0], np.uint64), np.empty(count[0], np.uint64), np.empty(
            count[0], self._dtype)
        self._check(getattr(self.lib, f"GrB_Matrix_extractTuples_{self._name}")(
            self._pointer("uint64_t *", rows), self._pointer("uint64_t *", columns),
            self._pointer(self._values, values), count, matrix[0]))
        return values, (rows.astype(np.int64), columns.astype(np.int64))

    @property
    def _type(self) -> Any:
        return getattr(self.lib, f"GrB_{self._name}")

    def _pointer(self, kind: str, array: np.ndarray) -> Any:
        return self._ffi.cast(kind, array.ctypes.data)

    def _check(self, status: int) -> None:
        if status != self.lib.GrB_SUCCESS:
            raise RuntimeError(f"GraphBLAS fails with status {status}, see GraphBLAS.h")


_graphblas = cache(_GraphBlas)


def mkl_dot(operands: Operands, threads: int) -> Call:
    """Bind dot_product_mkl of sparse_dot_mkl, which hands the matrix to MKL in each call and makes the result.

    Raises:
        Unsupported: sparse_dot_mkl or MKL is not installed.
    """
    multiply, matrix, dense = _dot_product_mkl(), operands.matrix.to_scipy(), operands.dense["B"]

    def call() -> np.ndarray:
        set_mkl_threads(threads)
        return multiply(matrix, dense)

    return call


@cache
def _dot_product_mkl() -> Callable[..., np.ndarray]:
    set_mkl_threads(1)  # loads MKL on the OpenMP runtime of our kernels, before the package does
    os.environ.setdefault("MKL_RT", mkl_path())
    try:
        from sparse_dot_mkl import dot_product_mkl
    except ImportError as error:
        raise Unsupported(f"sparse_dot_mkl cannot be imported: {error}; pip install sparse_dot_mkl") from error
    return dot_product_mkl


def aocl_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Callable[[], None]:
    """Bind aoclsparse_?csrmm, after the library has optimised the matrix for many calls.

    Raises:
        Unsupported: aoclda is not installed, or AOCL-Sparse refuses the matrix.
    """
    library, runtime = _aocl()
    pattern, (letter, number) = matrix.pattern, AOCL_FLOATS[matrix.dtype]
    indptr, handle, described = pattern.indptr.astype(np.int32), ctypes.c_void_p(), ctypes.c_void_p()
    _check_aocl(library.aoclsparse_create_mat_descr(ctypes.byref(described)))
    _check_aocl(getattr(library, f"aoclsparse_create_{letter}csr")(
        ctypes.byref(handle), ctypes.c_int(0), *map(ctypes.c_int, (*pattern.shape, pattern.nnz)), _pointer(indptr),
        _pointer(pattern.indices), _pointer(matrix.values)))
    library.aoclsparse_set_mm_hint(handle, ctypes.c_int(NOT_TRANSPOSED), described, ctypes.c_int(MANY_CALLS))
    library.aoclsparse_optimize(handle)  # a status of "not implemented" leaves the matrix as it is
    multiply, width = getattr(library, f"aoclsparse_{letter}csrmm"), ctypes.c_int(dense.shape[1])
    arguments = (ctypes.c_int(NOT_TRANSPOSED), number(1), handle, described, ctypes.c_int(ROW_MAJOR), _pointer(dense),
                 width, width, number(0), _pointer(result), width)

    def run(kept: tuple[Any, ...] = (indptr, matrix, dense, result, _AoclHandle(library, handle, described))) -> None:
        runtime.omp_set_num_threads(ctypes.c_int(threads))
        _check_aocl(multiply(*arguments))

    return run


class _AoclHandle:
    """Owner of a matrix of AOCL-Sparse and its description."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p, described: ctypes.c_void_p) -> None:
        self.library, self.handle, self.described = library, handle, described

    def __del__(self) -> None:
        self.library.aoclsparse_destroy(ctypes.byref(self.handle))
        self.library.aoclsparse_destroy_mat_descr(self.described)


@cache
def _aocl() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Load AOCL-Sparse and its own OpenMP runtime, whose threads do not spin while others run."""
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # read when the runtime is loaded
    try:
        import aoclda._aoclda  # loads the libraries that AOCL-Sparse needs
    except ImportError as error:
        raise Unsupported("AOCL-Sparse is not installed: pip install aoclda") from error
    folder = Path(aoclda.__file__).parents[1] / "aoclda.libs"
    try:
        runtime, *others = (next(iter(sorted(folder.glob(f"{name}-*")))) for name in ("libomp", "libaoclsparse"))
        return ctypes.CDLL(str(others[0])), ctypes.CDLL(str(runtime))
    except (OSError, StopIteration, RuntimeError) as error:
        raise Unsupported(f"AOCL-Sparse of aoclda cannot be loaded: {error}") from error


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _check_aocl(status: int) -> None:
    if status:
        raise Unsupported(f"AOCL-Sparse fails with status {status}, see aoclsparse_types.h")
