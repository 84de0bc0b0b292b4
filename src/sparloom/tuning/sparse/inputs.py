"""Operands as users pass them: sparse matrices of several kinds, dense arrays of any library that speaks DLPack.

All arrays are checked before anything reads through them: SciPy accesses memory out of bounds if the arrays of a matrix
were changed by hand. `Origin` remembers the arrays a matrix came in: results must not be written to them, and index
arrays must not change.

On a GPU, values and dense operands are used in place (DLPack or `__cuda_array_interface__`). Indices are copied to the
processor once, as decisions need them, and stay in place if they have the types that kernels read.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.lib.array_utils import byte_bounds

from sparloom.jit import ChangeDetector
from sparloom.platforms import DeviceMatrix, DevicePattern, Gpu, on_cuda
from sparloom.platforms.cpu_kernels import ELEMENTS as NUMBERS
from sparloom.platforms.cuda import BITS, ELEMENTS, HubThresholds, as_float32
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix

HALF_BYTES = 2
MAX_EXTENT = 2**31 - 1  # rows, and columns
GPU_MEMORY = (2, 13)  # kDLCUDA and kDLCUDAManaged of DLPack
Parts = tuple[Any, Any, Any, Any]


def matrix_of(given: Any, *, columns: int | None = None) -> SparseMatrix:
    """Convert a sparse matrix.

    Args:
        given: SparseMatrix, Pattern (ones), SciPy matrix of any format, or (indptr, indices, values[, shape]).
            Unsorted columns are sorted in a copy, and duplicates are summed.
        columns: of the matrix, if a tuple has no shape.

    Raises:
        TypeError: it is something else, or its values are of a type that no kernel reads.
        ValueError: the arrays are no matrix; names the fault.
    """
    if isinstance(given, Pattern):
        return SparseMatrix(given, np.ones(given.nnz, np.float32))
    if isinstance(given, SparseMatrix):
        _check_float(given.dtype)
        return given
    if isinstance(given, tuple):
        rows = _of_tuple(given, columns)
    elif scipy.sparse.issparse(given):
        rows = _of_scipy(given)
    else:
        raise TypeError(f"A is {type(given).__name__}: give a SciPy matrix or (indptr, indices, values, shape)")
    if not rows.has_canonical_format:
        rows = _canonical(rows)
    return SparseMatrix(Pattern(rows.shape, rows.indptr, rows.indices), rows.data, rows.data.dtype)


def _canonical(rows: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Sort columns and sum duplicates in a copy, those of 16-bit numbers in float32: SciPy does not know these."""
    values = rows.data
    short = values.itemsize == HALF_BYTES
    parts = as_float32(values) if short else values.copy(), rows.indices.copy(), rows.indptr.copy()
    made = scipy.sparse.csr_array(parts, shape=rows.shape)
    made.sum_duplicates()
    if short:
        made.data = rounded(made.data, values.dtype)
    return made


def rounded(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round float32 numbers to the nearest ones of a 16-bit type, ties to even; NaN stays NaN."""
    if dtype != BFLOAT16:
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    from sparloom.ir import rounded as bfloat16_bits  # the compiler's intermediate representation takes long to import

    return bfloat16_bits(array).view(BFLOAT16)


def dense_of(given: Any, name: str, *, rows: int, axes: int) -> np.ndarray:
    """Convert a dense operand to a contiguous row-major array, a copy if necessary.

    Args:
        given: array of NumPy, or of another library that speaks DLPack, in the memory of the processor.
        rows, axes: that it must have.

    Raises:
        TypeError: no kernel reads its type, or it is on another device.
        ValueError: it has another shape.
    """
    array = _checked_extents(number_array(array_of(given, name), name), name, rows, axes)
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=["C", "A"])


def _checked_extents(array: Any, name: str, rows: int, axes: int) -> Any:
    if array.ndim != axes or array.shape[0] != rows:
        wanted = {2: f"({rows}, width)", 3: f"({rows}, heads, width)"}[axes]
        raise ValueError(f"{name} has shape {array.shape}: it must be {wanted}")
    return array


def number_array(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array if kernels read its type.

    Raises:
        TypeError: they do not; names the array, its type and the remedy.
    """
    if array.dtype not in NUMBERS:
        verb = "are" if name == "values" else "is"
        raise TypeError(f"{name} {verb} {array.dtype}: {_remedy(array.dtype, f'{name}.astype(numpy.float32)')}")
    return array


def array_of(given: Any, name: str) -> np.ndarray:
    """Convert an array of any type and shape.

    Raises:
        TypeError: it is no array, masked, or on another device.
    """
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: pass {name}.filled(0), or another fill value")
    if isinstance(given, np.ndarray):
        array = np.asarray(given)
        return array.view(BFLOAT16) if array.dtype.kind == "V" and array.dtype.name == "bfloat16" else array
    if getattr(given, "requires_grad", False):
        raise TypeError(f"{name} requires a gradient, which this call does not compute: pass {name}.detach(), or call "
                        "the function of this name in sparloom.nn")
    if str(getattr(given, "dtype", "")).endswith("bfloat16"):
        raise TypeError(f"{name} is bfloat16, which NumPy does not have: pass {name}.float(), or call the function of "
                        "this name in sparloom.nn for tensors")
    if hasattr(given, "__dlpack__"):
        try:
            resolve_neg = getattr(given, "resolve_neg", None)  # of z.conj().imag, whose sign torch does not export
            array = np.from_dlpack(given if resolve_neg is None else resolve_neg())
            if int(given.__dlpack_device__()[0]) in GPU_MEMORY:
                raise TypeError("it is on a GPU")  # CuPy gives a copy
            return array
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise TypeError(f"{name} cannot be read by the processor ({error}): move it there, or all operands to "
                            "where it is") from error
    raise TypeError(f"{name} is {type(given).__name__}: give a NumPy array, or one that speaks DLPack")


def _of_tuple(given: tuple[Any, ...], columns: int | None) -> scipy.sparse.csr_array:
    if len(given) not in (3, 4):
        raise TypeError(f"A is a tuple of {len(given)}: give (indptr, indices, values) or (indptr, indices, values, "
                        "shape)")
    if len(given) == 3 and columns is None:
        raise ValueError("(indptr, indices, values) does not say how many columns A has: add the shape")
    indptr = array_of(given[0], "indptr")
    shape = given[3] if len(given) == 4 else (max(0, indptr.size - 1), columns)
    return _csr(indptr, *given[1:3], shape=shape_of(shape), conversion="values.astype(numpy.float32) in the tuple")


def _of_scipy(given: Any) -> scipy.sparse.csr_array:
    if len(given.shape) != 2:
        raise ValueError(f"A has shape {given.shape}: it must have two axes")
    if given.format == "csr":
        rows = _csr(given.indptr, given.indices, given.data, shape=shape_of(given.shape))
        if given.has_canonical_format and not rows.has_canonical_format:
            raise ValueError("A.has_canonical_format is True, but columns of A are not sorted or there twice: set it "
                             "to False")
        return rows
    _check_float(given.dtype)
    try:
        _check_format(given)
        made = given.tocsr()
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"A, a SciPy matrix in format {given.format}, is damaged: {error}: make it anew") from error
    return _csr(made.indptr, made.indices, made.data, shape=shape_of(made.shape))


def _csr(
    indptr: Any, indices: Any, values: Any, *, shape: tuple[int, int], conversion: str = "A.astype(numpy.float32)",
) -> scipy.sparse.csr_array:
    """Check arrays, and make a matrix of them without assumptions about their order."""
    indptr, indices, values = (np.require(array_of(part, name), requirements=["C", "A"]) for part, name in (
        (indptr, "indptr"), (indices, "indices"), (values, "values")))
    _check_compressed(indptr, indices, shape, values=values.shape)
    _check_float(values.dtype, conversion)
    return scipy.sparse.csr_array((values, indices, indptr), shape=shape)


def shape_of(given: Any) -> tuple[int, int]:
    """Convert (rows, columns).

    Raises:
        TypeError: it is no such pair.
        ValueError: an extent is too large, or below 0.
    """
    try:
        rows, cols = (operator.index(extent) for extent in given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"shape of A is {given!r}: give (rows, columns)") from error
    if not (0 <= rows <= MAX_EXTENT and 0 <= cols <= MAX_EXTENT):
        raise ValueError(f"shape of A is {(rows, cols)}: rows and columns are between 0 and {MAX_EXTENT}")
    return rows, cols


def _check_float(dtype: np.dtype, conversion: str = "A.astype(numpy.float32)") -> None:
    if dtype not in NUMBERS:
        raise TypeError(f"values of A are {dtype}: {_remedy(dtype, conversion)}")


def _remedy(dtype: np.dtype, conversion: str) -> str:
    """Name the remedy for numbers of a type that operations do not accept, such as integers."""
    return ("complex numbers are not computed with: give the real and the imaginary part, one after the other, as "
            "float32" if dtype.kind == "c" else f"pass {conversion}")


def _check_format(given: Any) -> None:
    """Refuse damaged matrices of formats other than CSR whose `tocsr` would not notice."""
    if given.format in ("csc", "bsr"):
        given.check_format(full_check=True)
        if len(given.indices) != len(given.data):
            raise ValueError(f"it has {len(given.data)} values for {len(given.indices)} indices")
    elif given.format == "coo":
        scipy.sparse.coo_array((given.data, given.coords), shape=given.shape)  # checks them
    elif given.format == "dia" and given.offsets.shape != given.data.shape[:1]:
        raise ValueError(f"it has offsets of shape {given.offsets.shape} for data of shape {given.data.shape}")
    elif given.format == "lil" and [*map(len, given.rows)] != [*map(len, given.data)]:
        raise ValueError("its rows have columns and values of different number")


def _check_compressed(
    indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int], *, values: tuple[int, ...],
) -> None:
    """Check pointers and indices of a matrix in CSR, and that `values`, a shape, is that of the indices."""
    for part, name in ((indptr, "indptr"), (indices, "indices")):
        if part.ndim != 1:
            raise ValueError(f"{name} of A has shape {part.shape}: it must have one axis")
        if part.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name} of A is {part.dtype}: it must be int32 or int64")
    count, limit = shape
    if indptr.size != count + 1 or indptr[0] != 0 or indptr[-1] != indices.size or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"indptr of A must be {count + 1} numbers that rise from 0 to {indices.size}, one more than "
                         "rows")
    if indices.size and not 0 <= indices.min() <= indices.max() < limit:
        raise ValueError(f"indices of A run from {indices.min()} to {indices.max()}: columns are 0 to {limit - 1}")
    if values != indices.shape:
        raise ValueError(f"A has {' x '.join(map(str, values))} values for {indices.size} indices: give one for each")


class Origin:
    """The arrays a prepared matrix came in, which it does not keep alive.

    Args:
        given: what the user passed; None: nothing that anyone else owns.
    """

    def __init__(self, given: Any = None) -> None:
        arrays = dict(_arrays(given))
        self._spans = {name: _span(array) for name, array in arrays.items() if isinstance(array, np.ndarray)}
        self.all_numpy = len(self._spans) == len(arrays)
        """Tell whether all of them are NumPy arrays."""
        self._references = {name: self._reference(name, array) for name, array in arrays.items()}
        indices = {name: array for name, array in arrays.items() if name in ("indptr", "indices")
                   and isinstance(array, np.ndarray)}
        self._watch = ChangeDetector(indices if _is_csr(given) else {})
        self.changed = self._watch.changed
        self.watch_address = self._watch.address
        """Address of what the native core asks for changes; 0: there is nothing to ask."""

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()

    def refuse(self, number: int) -> None:
        """Refuse to compute with an index array that was changed.

        Args:
            number: result of `changed`.

        Raises:
            ValueError: always; names the array and the remedy.
        """
        raise ValueError(f"{self._watch.name(number)} of A was changed in place since A was prepared: call once with "
                         "changed=True, or prepare A anew")

    def overlapping(self, begin: int, end: int) -> str:
        """Name the NumPy array of A that overlaps memory between two addresses; "" if none does."""
        for name in list(self._spans):  # an array may be freed meanwhile
            first, last = self._spans.get(name, (0, 0))
            if first < end and begin < last:
                return f"{name} of A"
        return ""

    def other_arrays(self) -> Iterator[tuple[str, Any]]:
        """List the arrays of other libraries that are still alive, with their names."""
        for name, reference in self._references.items():
            array = reference()
            if array is not None and name not in self._spans:
                yield f"{name} of A", array

    def _reference(self, name: str, array: Any) -> weakref.ref:
        return weakref.ref(array, lambda _: self._spans.pop(name, None))


def origin_of(matrix: SparseMatrix, given: Any) -> tuple[SparseMatrix, Origin]:
    """Copy index arrays that a matrix shares with the user: kernels never see changes of those."""
    pattern, arrays = matrix.pattern, [array_of(array, name) for name, array in _arrays(given)]
    own = {name: np.array(array) for name, array in (("indptr", pattern.indptr), ("indices", pattern.indices))
           if any(np.may_share_memory(array, each) for each in arrays)}
    if own:
        pattern = copy(pattern)  # without checking it again
        for name, array in own.items():
            object.__setattr__(pattern, name, array)
        matrix = replace(matrix, pattern=pattern)
    return matrix, Origin(given)


def _span(array: np.ndarray) -> tuple[int, int]:
    """First address, and the address after the last one."""
    return byte_bounds(array) if array.size else (0, 0)


def check_widths(first: Any, second: Any, name: str, other: str) -> None:
    """Refuse dense operands whose trailing dimensions differ; raises ValueError, with their names."""
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(f"{name} has shape {first.shape} and {other} {second.shape}: trailing dimensions must match")


def check_apart(out: Any, given: Any) -> None:
    """Refuse an array for a result that shares memory with a sparse matrix; None shares none.

    Raises:
        ValueError: it does; names the array of the matrix.
    """
    for name, array in _arrays(given) if isinstance(out, np.ndarray) else ():
        if np.may_share_memory(out, array_of(array, name)):
            raise ValueError(f"out lies in the memory of an operand, {name} of A: give another array")


def _is_csr(given: Any) -> bool:
    return isinstance(given, (tuple, SparseMatrix, Pattern)) or getattr(given, "format", "") == "csr"


def _arrays(given: Any) -> Iterator[tuple[str, Any]]:
    """List the arrays, with their names, of a sparse matrix of any kind that `matrix_of` accepts."""
    if isinstance(given, SparseMatrix):
        yield "values", given.values
        given = given.pattern
    if isinstance(given, tuple):
        yield from zip(("indptr", "indices", "values"), given[:3], strict=False)
    elif isinstance(given, Pattern):
        yield from (("indptr", given.indptr), ("indices", given.indices))
    elif scipy.sparse.issparse(given):
        for name, value in vars(given).items():
            parts = value if isinstance(value, tuple) else (value,)
            for number, part in enumerate(parts):
                if isinstance(part, np.ndarray) and part.dtype != object:
                    yield name if len(parts) == 1 else f"{name}[{number}]", part


def cuda_parts(given: Any, columns: int | None) -> Parts | None:
    """Return (indptr, indices, values, shape) of a matrix on a GPU; None for anything else.

    Args:
        given: a CSR matrix of CuPy, or (indptr, indices, values[, shape]) with arrays on a GPU.
        columns: of the matrix, if a tuple has no shape.
    """
    if isinstance(given, tuple):
        if len(given) not in (3, 4) or not any(map(on_cuda, given[:3])):
            return None
        return *given[:3], given[3] if len(given) == 4 else (given[0].shape[0] - 1, columns)
    if getattr(given, "format", None) == "csr" and on_cuda(getattr(given, "data", None)):
        return given.indptr, given.indices, given.data, given.shape
    return None


def cuda_matrix(gpu: Gpu, parts: Parts) -> DeviceMatrix:
    """Convert a matrix on a GPU.

    Raises:
        TypeError: an array is not on the device, or of another type.
        ValueError: the arrays are no matrix; names the fault.
    """
    *arrays, shape = parts
    if shape[1] is None:
        raise ValueError("(indptr, indices, values) does not say how many columns A has: add the shape")
    indptr, indices, values = (gpu.adopt(array, name) for array, name in zip(
        arrays, ("indptr", "indices", "values"), strict=True))
    for part, name in ((indptr, "indptr"), (indices, "indices")):
        if part.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name} of A is {part.dtype}: it must be int32 or int64")
    try:
        pattern = Pattern(shape_of(shape), gpu.download(indptr), gpu.download(indices))
    except ValueError as error:
        raise ValueError(f"A is no CSR matrix with columns that rise in every row: {error}; A.sum_duplicates() of "
                         "CuPy sorts them") from error
    placed = DevicePattern(
        pattern, indptr if indptr.dtype == np.int64 else gpu.upload(pattern.indptr),
        indices if indices.dtype == np.int32 else gpu.upload(pattern.indices), HubThresholds(pattern))
    return DeviceMatrix(gpu, placed, None).with_values(values)


def cuda_dense(gpu: Gpu, given: Any, name: str, *, rows: int, axes: int, bits: bool) -> Any:
    """Convert a dense operand on a GPU, as `dense_of` does on the processor.

    Args:
        bits: accept uint16, as the bits of bfloat16.
    """
    array = gpu.adopt(given, name)
    if array.dtype not in ELEMENTS or (array.dtype == BITS and not bits):
        raise TypeError(f"{name} is {array.dtype}: convert it to float32 or float16")
    return _checked_extents(array, name, rows, axes)
