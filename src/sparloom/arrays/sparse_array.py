"""Sparse arrays of SciPy whose products with dense arrays run on the kernels of this package.

`SparseArray` is a `scipy.sparse.csr_array`, so solvers of SciPy, estimators of scikit-learn and scanpy take it.
Products with dense arrays, A X, X A and AT Y, run on all threads, on the kernel that is fastest here; all else is
SciPy's. `as_linear_operator` does the same for any sparse matrix and solvers that take operators.

"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from sparloom.arrays.transposed import TYPES, Rows, Transposition
from sparloom.measure import checked_threads
from sparloom.tuning.sparse import spmm


class _Products:
    """Products with dense arrays, of both classes below; those of other operands are SciPy's."""

    def __init__(
        self, arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, threads: int | None = None,
        **options: Any,
    ) -> None:
        self.threads = None if threads is None else checked_threads(threads)
        self._transposition = Transposition()
        self._known_version = 0
        super().__init__(arg1, shape=shape, dtype=dtype, copy=copy, **options)

    def dot(self, other: Any, *, threads: int | None = None, out: np.ndarray | None = None) -> Any:
        """Multiply: A X.

        Args:
            other: X (cols, width) or (cols,), or whatever SciPy multiplies with.
            threads: of this product (default: those of the array, else all processors that this process may use).
            out: (rows, width) of the common type, for the result (default: a new array).

        Raises:
            TypeError: `threads` or `out` is given, and X is no array that the kernels multiply with.
            ValueError: X or `out` does not fit.
        """
        if self._takes(other):
            return self._times(other, threads, out)
        if threads is not None or out is not None:
            raise TypeError(f"threads and out go with float32 and float64: A is {self.dtype} and X is {_kind(other)}; "
                            "convert them, or leave threads and out away")
        return super().dot(other)

    def __matmul__(self, other: Any) -> Any:
        return self._times(other) if self._takes(other) else super().__matmul__(other)

    def __rmatmul__(self, other: Any) -> Any:
        fits = self._takes(other) and other.shape[-1] == self.shape[0]
        return self.T._times(other.T).T if fits else super().__rmatmul__(other)

    def _takes(self, other: Any) -> bool:
        """Tell whether the kernels multiply with this: a dense array, and the common type is theirs."""
        return (type(other) is np.ndarray and self.ndim == 2 and other.ndim in (1, 2) and self.dtype in TYPES
                and np.result_type(self.dtype, other.dtype) in TYPES)

    def _times(self, other: np.ndarray, threads: int | None = None, out: np.ndarray | None = None) -> np.ndarray:
        if other.shape[0] != self.shape[1]:
            raise ValueError(f"X has {other.shape[0]} rows and A {self.shape[1]} columns: they must be as many")
        if out is not None and other.ndim == 1:
            raise ValueError("out goes with an X of two axes: pass X[:, None]")
        dtype = np.result_type(self.dtype, other.dtype)
        dense = np.require(other if other.ndim == 2 else other[:, None], dtype, ["A"])
        values = self.data.astype(dtype, copy=False)
        result = self._product(values, dense, self.threads if threads is None else threads, out)
        return result[:, 0] if other.ndim == 1 else result

    def _product(
        self, values: np.ndarray, dense: np.ndarray, threads: int | None, out: np.ndarray | None,
    ) -> np.ndarray:
        """Multiply; tell whether a method has changed the pattern since the last product that has ended."""
        version = self._transposition.version
        result = self._multiplied(values, dense, threads, out, changed=version != self._known_version)
        self._known_version = version
        return result

    def _transposed_as(self, kind: type[_Products], copy: bool) -> Any:
        made = kind((self.data, self.indices, self.indptr), shape=self.shape[::-1], copy=copy)
        made.threads = self.threads
        if not copy:  # the very arrays, by which products find what was prepared; SciPy makes views of them
            made.data, made.indices, made.indptr = self.data, self.indices, self.indptr
            made._transposition, made._known_version = self._transposition, self._known_version
        return made


def _changing(name: str) -> Any:
    """Make a method of SciPy also note that the pattern may have changed."""
    def method(self: _Products, *arguments: Any, **options: Any) -> Any:
        self._transposition.version += 1
        return getattr(super(_Products, self), name)(*arguments, **options)

    method.__name__ = name
    method.__doc__ = f"Call `{name}` of SciPy's class, which may change the pattern in place."
    return method


for _name in ("__setitem__", "eliminate_zeros", "resize", "setdiag", "sort_indices", "sum_duplicates"):
    setattr(_Products, _name, _changing(_name))


class SparseArray(_Products, scipy.sparse.csr_array):
    """A `scipy.sparse.csr_array` that multiplies dense arrays with the kernels of this package where they are faster.

    Operands of float32 and float64 are multiplied in their common type; those of other types by SciPy. What is computed
    from it, such as A[rows], A * 2 and abs(A), is of this class, and A.T a `TransposedSparseArray`. Values may be
    changed in place between products, and the pattern by methods. Index arrays that are changed in place otherwise are
    noticed as by `sparloom.spmm`.

    Args:
        arg1, shape, dtype, copy, options: of `scipy.sparse.csr_array`; a CSR array shares its memory.
        threads: of every product (default: all processors that this process may use); A.T has the same, but nothing
            else that is computed from A.

    Raises:
        TypeError, ValueError: as by `scipy.sparse.csr_array`; or `threads` is too large or no number.
    """

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return AT, which shares the memory of A unless `copy`."""
        plain = axes is None and self.ndim == 2
        return self._transposed_as(TransposedSparseArray, copy) if plain else super().transpose(axes, copy)

    def _multiplied(
        self, values: np.ndarray, dense: np.ndarray, threads: int | None, out: np.ndarray | None, *, changed: bool,
    ) -> np.ndarray:
        return spmm((self.indptr, self.indices, values, self.shape), dense, threads=threads, out=out, changed=changed)


# scikit-learn refuses targets of a class named SparseArray, which it takes for one of pandas: it gets the name of the
# base class. Pickles, `repr` and documentation read `__qualname__`, which stays.
SparseArray.__name__ = scipy.sparse.csr_array.__name__


class TransposedSparseArray(_Products, scipy.sparse.csc_array):
    """The transposed matrix of a `SparseArray`, on the same arrays: a `scipy.sparse.csc_array`.

    Args:
        arg1, shape, dtype, copy, threads, options: as of `SparseArray`; a CSC array shares its memory.

    Raises:
        TypeError, ValueError: as by `SparseArray`.
    """

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return the matrix that this is the transposed one of, which shares its memory unless `copy`."""
        plain = axes is None and self.ndim == 2
        return self._transposed_as(SparseArray, copy) if plain else super().transpose(axes, copy)

    def _multiplied(
        self, values: np.ndarray, dense: np.ndarray, threads: int | None, out: np.ndarray | None, *, changed: bool,
    ) -> np.ndarray:
        rows = Rows(self.indptr, self.indices, values, self.shape[0])
        return self._transposition.product(rows, dense, checked_threads(threads), out, changed=changed)


def as_linear_operator(matrix: Any, *, center: Any = None, threads: int | None = None) -> LinearOperator:
    """Make a linear operator of a sparse matrix, for the solvers of SciPy and others that take operators.

    Args:
        matrix: A (rows, cols), a SciPy matrix of any format, or what `SparseArray` takes; a CSR array of float32 or
            float64 shares its memory, numbers of other real types become float64.
        center: (cols,), subtracted from every row without making A dense: the operator is A - 1 centerT. With the means
            of the columns, a truncated decomposition of it is a principal component analysis.
        threads: of every product (default: all processors that this process may use).

    Returns:
        Operator of the type of A with matvec, matmat, rmatvec and rmatmat.

    Raises:
        TypeError: A is complex, or no matrix of numbers.
        ValueError: A does not have two axes, or `center` does not have one number for each column.
    """
    return _SparseOperator(matrix, center, threads)


class _SparseOperator(LinearOperator):
    """The operator that `as_linear_operator` makes."""

    def __init__(self, matrix: Any, center: Any, threads: int | None) -> None:
        if getattr(matrix, "ndim", 2) != 2:
            raise ValueError(f"A has shape {matrix.shape}: it must have two axes")
        kind = TransposedSparseArray if getattr(matrix, "format", "") == "csc" else SparseArray
        made = kind(matrix, threads=threads)
        if made.dtype.kind not in "biuf":
            raise TypeError(f"values of A are {made.dtype}: give real numbers; of complex ones, the real and the "
                            "imaginary part one after the other")
        self._array = made if made.dtype in TYPES else made.astype(np.float64)
        self._array.threads = made.threads
        self._center = None if center is None else np.asarray(center, self._array.dtype).reshape(-1)
        if self._center is not None and self._center.size != made.shape[1]:
            raise ValueError(f"center has {self._center.size} numbers, and A {made.shape[1]} columns: give as many")
        super().__init__(self._array.dtype, made.shape)

    def _matmat(self, dense: np.ndarray) -> np.ndarray:
        product = self._array @ np.asarray(dense)
        return product if self._center is None else product - self._center @ dense

    def _rmatmat(self, dense: np.ndarray) -> np.ndarray:
        product = self._array.T @ np.asarray(dense)
        if self._center is None:
            return product
        return product - np.multiply.outer(self._center, np.asarray(dense).sum(axis=0))

    def _matvec(self, vector: np.ndarray) -> np.ndarray:
        return self._matmat(vector)

    def _rmatvec(self, vector: np.ndarray) -> np.ndarray:
        return self._rmatmat(vector)


def _kind(other: Any) -> str:
    return str(other.dtype) if isinstance(other, np.ndarray) else type(other).__name__
