"""Sparsity patterns and sparse matrices in CSR."""

import hashlib
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from jaxtyping import Float64, Int32, Int64, Integer
from numpy.typing import DTypeLike

INDEX_LIMIT = 2**31 - 1  # rows and columns are int32
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""Type of arrays that hold the bits of bfloat16 numbers, which NumPy lacks: a view of uint16, or of ml_dtypes' type."""
VALUE_TYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Positions of the nonzeros of a matrix: CSR with strictly increasing columns in every row.

    Arrays of any integer type are accepted and stored as contiguous, aligned int64 (`indptr`) and int32 (`indices`).

    Args:
        shape: rows and columns, each below 2**31.
        indptr: (rows + 1,), row r holds the nonzeros from indptr[r] up to indptr[r + 1].
        indices: (nnz,), column of every nonzero.

    Raises:
        ValueError: names the first broken invariant and the row where it breaks.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray

    def __post_init__(self) -> None:
        rows, cols = (int(extent) for extent in self.shape)
        for extent, axis in ((rows, "rows"), (cols, "columns")):
            if not 0 <= extent <= INDEX_LIMIT:
                raise ValueError(f"{extent} {axis}: a pattern has between 0 and {INDEX_LIMIT}")
        indptr, indices = np.asarray(self.indptr), np.asarray(self.indices)
        _check_pointers(indptr, rows, indices.size)
        _check_columns(indices, indptr, cols)
        object.__setattr__(self, "shape", (rows, cols))
        object.__setattr__(self, "indptr", np.require(indptr, np.int64, ["C", "A"]))
        object.__setattr__(self, "indices", np.require(indices, np.int32, ["C", "A"]))

    @classmethod
    def from_coo(
        cls, rows: Integer[np.ndarray, " nnz"], cols: Integer[np.ndarray, " nnz"], shape: tuple[int, int],
    ) -> "Pattern":
        """Build a pattern from coordinates in any order, all within `shape`; repeated ones count once."""
        rows, cols = np.asarray(rows), np.asarray(cols)
        for values, limit, axis in ((rows, shape[0], "row"), (cols, shape[1], "column")):
            outside = (values < 0) | (values >= limit)
            if outside.any():
                entry = int(np.argmax(outside))
                raise ValueError(f"{axis} {int(values[entry])} of entry {entry} is outside 0 to {limit - 1}")
        ones = np.ones(rows.size, dtype=np.int8)
        return cls.from_scipy(scipy.sparse.coo_array((ones, (rows, cols)), shape=shape))

    @classmethod
    def identity(cls, rows: int) -> "Pattern":
        """Make the pattern of an identity matrix."""
        return cls((rows, rows), np.arange(rows + 1), np.arange(rows))

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.sparray | scipy.sparse.spmatrix) -> "Pattern":
        """Make the pattern of the stored entries of a SciPy matrix of any format, zeros included."""
        coo = scipy.sparse.coo_array(matrix)
        ones = np.ones(coo.nnz, dtype=bool)  # bool: adding up repeated entries cannot overflow
        csr = scipy.sparse.csr_array((ones, coo.coords), shape=coo.shape)
        csr.sort_indices()
        return cls(csr.shape, csr.indptr, csr.indices)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def cols(self) -> int:
        """Number of columns."""
        return self.shape[1]

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.indices.size

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Make a SciPy matrix with ones (float32) at the nonzeros; it shares `indices`."""
        return _csr(np.ones(self.nnz, dtype=np.float32), self)

    def transpose(self) -> "Pattern":
        """Make the pattern of the transposed matrix."""
        csc = _csr(np.ones(self.nnz, dtype=np.int8), self).tocsc()
        return Pattern((self.cols, self.rows), csc.indptr, csc.indices)

    def row_lengths(self) -> Int64[np.ndarray, " rows"]:
        """Count the nonzeros of every row."""
        return np.diff(self.indptr)

    def row_ids(self) -> Int32[np.ndarray, " nnz"]:
        """List the row of every nonzero, in the order of `indices`."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), self.row_lengths())

    def nonzeros_of(self, rows: Integer[np.ndarray, " some"]) -> Int64[np.ndarray, " nonzeros"]:
        """List the positions in `indices` of all nonzeros of some rows, row by row."""
        lengths = self.row_lengths()[rows]
        ends = np.cumsum(lengths)
        return np.arange(lengths.sum()) + np.repeat(self.indptr[rows] - (ends - lengths), lengths)

    def digest(self) -> str:
        """Hash shape and content to 64 hexadecimal digits that are the same on every machine."""
        content = hashlib.sha256(np.array(self.shape, dtype="<i8").tobytes())
        content.update(np.ascontiguousarray(self.indptr, "<i8"))
        content.update(np.ascontiguousarray(self.indices, "<i4"))
        return content.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"Pattern({self.rows} x {self.cols}, {self.nnz} nonzeros)"


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """Pattern with a value for every nonzero, in the order of `pattern.indices`.

    Args:
        values: (nnz,) real numbers.
        dtype: float32, float64 or float16; values are rounded to it, and become 0 where they are too small for it.
            `BFLOAT16`: values have this type.
        exact: (nnz,) float64, the numbers of a file that float32 values were rounded from; None: only the values are
            known.

    Raises:
        ValueError: values of another shape or type, or a finite one that `dtype` cannot hold.
    """

    pattern: Pattern
    values: np.ndarray
    dtype: DTypeLike = np.float32
    exact: np.ndarray | None = None

    def __post_init__(self) -> None:
        values, dtype = np.asarray(self.values), np.dtype(self.dtype)
        if values.shape != (self.pattern.nnz,):
            raise ValueError(f"values of shape {values.shape} for {self.pattern.nnz} nonzeros: give one per nonzero")
        if values.dtype.kind == "c":
            raise ValueError("complex values: only real matrices are supported")
        if values.dtype.kind not in "fiub" and not values.dtype == dtype == BFLOAT16:
            raise ValueError(f"values of type {values.dtype}: give real numbers")
        if dtype not in VALUE_TYPES:
            raise ValueError(f"values of type {dtype}: a matrix holds float32, float64, float16 or BFLOAT16")
        if dtype == BFLOAT16 and values.dtype != BFLOAT16:
            raise ValueError(f"values of type {values.dtype}: give bfloat16 numbers as a view of type BFLOAT16")
        if values.dtype != dtype or not values.flags.c_contiguous or not values.flags.aligned:
            values = _rounded(values, dtype)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "values", values)
        if self.exact is not None:
            if dtype != np.float32 or self.exact.shape != values.shape or self.exact.dtype != np.float64:
                raise ValueError("exact: give a float64 for each float32 value, or None")
            object.__setattr__(self, "exact", np.require(self.exact, requirements=["C", "A"]))

    @classmethod
    def of_doubles(cls, pattern: Pattern, values: np.ndarray, dtype: DTypeLike | None) -> "SparseMatrix":
        """Make a matrix of float64 numbers that `unfit_value` accepts.

        Args:
            dtype: float32 or float64; None: float32 with the exact numbers, but float64 alone if float32 would make
                one of them 0.
        """
        if dtype is not None:
            return cls(pattern, values, dtype)
        narrow = values.astype(np.float32)
        if np.array_equal(narrow, values):
            return cls(pattern, narrow)
        if ((narrow == 0) & (values != 0)).any():
            return cls(pattern, values, np.float64)
        return cls(pattern, narrow, exact=values)

    def astype(self, dtype: DTypeLike) -> "SparseMatrix":
        """Convert the values; returns the same matrix if they have that type.

        Numbers that float32 rounds are kept in `exact`, from which a later conversion to float64 restores them.
        """
        if self.dtype == dtype:
            return self
        numbers = self.values if self.exact is None else self.exact
        converted = SparseMatrix(self.pattern, numbers, dtype)
        if converted.dtype != np.float32 or np.array_equal(converted.values, numbers):
            return converted
        return SparseMatrix(self.pattern, converted.values, exact=numbers)

    def with_values(self, values: np.ndarray) -> "SparseMatrix":
        """Make a matrix of the same pattern and type with other values."""
        return SparseMatrix(self.pattern, values, self.dtype)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Make a SciPy matrix; it shares the arrays."""
        return _csr(self.values, self.pattern)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseMatrix):
            return NotImplemented
        return self.pattern == other.pattern and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __repr__(self) -> str:
        return f"SparseMatrix({self.pattern.rows} x {self.pattern.cols}, {self.pattern.nnz} nonzeros)"


def unfit_value(values: Float64[np.ndarray, " nnz"], dtype: DTypeLike | None) -> tuple[int, str] | None:
    """Find the first number that a matrix cannot hold.

    Args:
        dtype: of the matrix, as in `SparseMatrix.of_doubles`.

    Returns:
        Its index, and what is wrong with it; None if all numbers fit.
    """
    target = np.dtype(np.float32 if dtype is None else dtype)
    with np.errstate(over="ignore"):
        narrow = values.astype(target, copy=False)
    finite = np.isfinite(narrow)
    if not finite.all():
        index = int(np.argmin(finite))
        remedy = ", or read it with dtype=numpy.float64" if np.isfinite(values[index]) else ""
        return index, f"is not finite in {target}: scale or repair the matrix{remedy}"
    if dtype is not None and narrow is not values:
        lost = (narrow == 0) & (values != 0)
        if lost.any():
            return int(np.argmax(lost)), f"becomes 0 in {target}: read it with dtype=numpy.float64"
    return None


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = np.require(values, dtype, ["C", "A"])
    if values.dtype != dtype and values.dtype.kind in "fiu":
        lost = np.isinf(rounded) & np.isfinite(values)
        if lost.any():
            index = int(np.argmax(lost))
            raise ValueError(f"value {float(values[index])!r} of nonzero {index} is beyond {dtype}: give "
                             "dtype=numpy.float64, or scale the matrix")
    return rounded


def _csr(values: np.ndarray, pattern: Pattern) -> scipy.sparse.csr_array:
    """Wrap the arrays; SciPy needs the same index type for both, so `indptr` is narrowed where that is exact."""
    indptr = pattern.indptr.astype(np.int32) if pattern.nnz <= INDEX_LIMIT else pattern.indptr
    matrix = scipy.sparse.csr_array((values, pattern.indices, indptr), shape=pattern.shape)
    matrix.has_canonical_format = True
    return matrix


def _check_pointers(indptr: np.ndarray, rows: int, nnz: int) -> None:
    if indptr.shape != (rows + 1,) or indptr.dtype.kind not in "iu":
        raise ValueError(f"indptr is {indptr.dtype} of shape {indptr.shape}: {rows} rows need {rows + 1} integers")
    if indptr[0] != 0 or indptr[-1] != nnz:
        raise ValueError(f"indptr runs from {int(indptr[0])} to {int(indptr[-1])}: it must run from 0 to {nnz} (nnz)")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        raise ValueError(f"indptr falls after row {int(np.argmax(falls))}: it must never decrease")


def _check_columns(indices: np.ndarray, indptr: np.ndarray, cols: int) -> None:
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
        raise ValueError(f"indices is {indices.dtype} of shape {indices.shape}: give one integer per nonzero")
    if indices.size == 0:
        return
    outside = (indices < 0) | (indices >= cols)
    if outside.any():
        index = int(np.argmax(outside))
        raise ValueError(f"column {int(indices[index])} in row {_row(indptr, index)} is outside 0 to {cols - 1}")
    steps = indices[1:] <= indices[:-1]
    starts = indptr[1:-1]
    steps[starts[(starts > 0) & (starts < indices.size)] - 1] = False
    if steps.any():
        index = int(np.argmax(steps)) + 1
        raise ValueError(
            f"column {int(indices[index])} follows column {int(indices[index - 1])} in row {_row(indptr, index)}: "
            f"columns must increase strictly; use Pattern.from_coo for unsorted entries")


def _row(indptr: np.ndarray, index: int) -> int:
    return int(np.searchsorted(indptr, index, side="right")) - 1
