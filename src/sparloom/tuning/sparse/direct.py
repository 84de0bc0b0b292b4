"""Direct calls: a kernel runs on index arrays as the user passes them, which nothing has prepared or raced.

Preparing a pattern takes longer than many products. So a pattern that has not been seen before is checked and computed
by one C function (kernels/cpu/direct.cpp), by the default configuration. All that is kept of it are a checksum and the
work of its calls, in `Sightings`: it is worth preparing once it has cost about as much as preparing it does. Results
never depend on these.

A direct call that cannot compute returns None, and the caller goes the way of prepared matrices, which converts what
can be converted, and names what is wrong.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from time import perf_counter as clock
from typing import Any, NamedTuple

import numpy as np

from sparloom.jit import RESULT_POOL, NativeCall, address
from sparloom.measure import Caches
from sparloom.ops import CsrAttention, Operands
from sparloom.platforms import SPARSE_FAMILIES, Family
from sparloom.platforms.cpu_kernels import GRAIN, BoundRows, Pieces, Rows, kernel_library
from sparloom.tuning.sparse.backend import OPS
from sparloom.tuning.sparse.classes import Alternative, ClassStore, PatternClass, alternatives
from sparloom.tuning.sparse.cpu import LONG_ROWS, CpuBackend
from sparloom.tuning.sparse.cpu_arrays import DTYPE_NAMES, promoted
from sparloom.tuning.sparse.fallback import kernels_available
from sparloom.tuning.sparse.inputs import MAX_EXTENT, NUMBERS, dense_of
from sparloom.tuning.sparse.settings import Settings

__all__ = ["Csr", "DirectCalls", "direct_calls"]

PIECES = 8  # of each thread, as in kernels/cpu/direct.cpp
FLAT = 2  # axes of operands of attention without one for heads
INDICES = (np.dtype(np.int32), np.dtype(np.int64))
HALF_BYTES = 2  # of numbers whose sums kernels divide for a mean
MAX_KINDS = 256  # of calls that are kept ready, and classes of patterns that are remembered
LEARNED_ELEMENTS = GRAIN // 4  # of dense rows; all kernels are alike for less
CALL_WORK = 30_000  # multiply-adds in the time that a call takes beside its kernel
PREPARE_WORK = 8_000_000  # multiply-adds in the time that preparing a pattern takes
NEVER = 0, -1, False  # of arrays that were not seen
ARGUMENTS = struct.Struct("=5Q3q5iI")
"""The struct Direct of kernels/cpu/direct.cpp."""
CHECKSUM, CHECKSUM_OFFSET = struct.Struct("=I"), ARGUMENTS.size - 4


class Csr(NamedTuple):
    """Arrays of a CSR matrix as they are given, which nothing has checked.

    Args:
        shape: (rows, columns).
        canonical: the columns must ascend in every row for any operation, as the matrix says that they do.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]
    canonical: bool = False


class Sightings:
    """Guesses which index arrays come again: those of an identity and a content that calls have had before.

    Args:
        capacity: of index arrays that are remembered.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._seen: dict[tuple[int, int], tuple[int, int, bool]] = {}  # identity -> work, checksum, if it came again

    def recur(self, matrix: Csr) -> bool:
        """Tell whether so much was computed with these arrays, in more than one call, that they are worth preparing."""
        work, _, again = self._seen.get((id(matrix.indptr), id(matrix.indices)), NEVER)
        return again and work >= PREPARE_WORK

    def add(self, matrix: Csr, work: int, checksum: int) -> None:
        """Count a call, overhead included; arrays with other content than in the last call count as new."""
        key = id(matrix.indptr), id(matrix.indices)
        before, known, _ = self._seen.get(key, NEVER)
        if len(self._seen) >= self._capacity:
            self._seen.clear()
        again = checksum == known
        self._seen[key] = work + CALL_WORK + (before if again else 0), checksum, again


class DirectCalls:
    """Runs operations on CSR arrays of NumPy, checked in C, by the default configuration.

    Python threads may share it: each call has its own struct of arguments.

    Args:
        threads: of calls with enough work for them; others have one.
    """

    def __init__(self, threads: int | None) -> None:
        settings = Settings.from_environment()  # refuses wrong variables, as preparing a matrix does
        self._backend = CpuBackend(threads)
        caches = Caches.here(self._backend.threads)
        self._limits = caches.distant_bytes, caches.overflow_bytes
        self._sightings = Sightings()
        self._ready: defaultdict[tuple[Any, ...], list[_Call]] = defaultdict(list)  # calls that nobody is making
        self._arms: dict[tuple[Any, ...], list[Alternative]] = {}
        self._classes: dict[tuple[Any, ...], PatternClass] = {}
        self._store = ClassStore(settings.plans, self._backend.signature(), self._backend.sources)

    def recur(self, matrix: Csr) -> bool:
        """Tell whether so many calls were made with this matrix that it is worth preparing."""
        return self._sightings.recur(matrix)

    def spmm(
        self, matrix: Csr, dense: Any, *, reduce: str = "sum", out: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Multiply: A X, as `Prepared.spmm`; None if this cannot."""
        rows, cols = matrix.shape
        given = _dense(dense, "X", cols, 2)
        if given is None:
            return None
        op = "spmm_max" if reduce == "max" else "spmm"
        return self._run(op, matrix, {"B": given}, (rows, given.shape[1]), out, mean=reduce == "mean",
                         ascending=matrix.canonical or reduce != "sum")

    def sddmm(
        self, matrix: Csr, left: Any, right: Any, *, out: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Sampled dense-dense product: values of A * (Q KT), as `Prepared.sddmm`; None if this cannot."""
        rows, cols = matrix.shape
        first, second = _dense(left, "Q", rows, 2), _dense(right, "K", cols, 2)
        if first is None or second is None or first.shape[1] != second.shape[1]:
            return None
        return self._run("sddmm", matrix, {"B": first, "C": second}, (matrix.indices.size,), out)

    def attention(self, matrix: Csr, queries: Any, keys: Any, values: Any) -> np.ndarray | None:
        """Attention of each row to the columns of its nonzeros, as `csr_attention`; None if this cannot."""
        rows, cols = matrix.shape
        axes = getattr(queries, "ndim", 0)
        given = {name: _dense(array, name, count, 3 if axes != FLAT else axes) for name, array, count in (
            ("Q", queries, rows), ("K", keys, cols), ("V", values, cols))}
        if any(array is None for array in given.values()):
            return None
        if axes == FLAT:
            given = {name: array[:, None] for name, array in given.items()}
        heads, width = given["Q"].shape[1:]
        if given["K"].shape[1:] != (heads, width) or given["V"].shape[1] != heads or width == 0:
            return None
        result = self._run("attention", matrix, given, (rows, *given["V"].shape[1:]), None)
        return result[:, 0] if axes == FLAT and result is not None else result

    def _run(
        self, op: str, matrix: Csr, dense: dict[str, np.ndarray], shape: tuple[int, ...], out: np.ndarray | None,
        *, mean: bool = False, ascending: bool = True,
    ) -> np.ndarray | None:
        indptr, indices, values, (rows, cols), _ = matrix
        nnz = indices.size
        if not (_is_vector(indptr, INDICES) and _is_vector(indices, INDICES) and indptr.size == rows + 1
                and cols <= MAX_EXTENT and _is_vector(values, NUMBERS) and values.size == nnz):
            return None
        given, dtype = dense.values(), next(iter(dense.values())).dtype
        inputs = (indptr, indices, values, *given)
        if any([array.dtype is not dtype for array in (given if op == "attention" else inputs[2:])]):
            if op == "attention":
                given = promoted(*given)
            else:
                values, *given = promoted(values, *given)
            dense = dict(zip(dense, given, strict=True))
            dtype = given[0].dtype
        if mean and dtype.itemsize == HALF_BYTES:
            op, mean = "spmm_mean", False
        if 0 in shape[1:] or (out is not None and not _fits(out, shape, dtype, inputs)):
            return None
        widths = tuple([array.shape[1:] for array in dense.values()])
        width = sum([math.prod(each) for each in widths])
        elements = (nnz + rows) * width
        threads = self._backend.threads if elements >= GRAIN else 1
        # all that the default configuration depends on, see CpuBackend.default_config
        dense_bytes, (distant, overflow) = dtype.itemsize * math.prod(widths[0]) * (rows + cols), self._limits
        kind = op, widths, threads, dense_bytes > distant, dense_bytes > overflow, nnz >= LONG_ROWS * rows, dtype
        operands = _Operands(_Matrix(_Pattern(rows, cols, nnz), values), dense)
        alike = self._class_of(kind, operands) if elements >= LEARNED_ELEMENTS else None
        arm = 0 if alike is None else alike.next()
        try:
            call = self._taken(kind, arm)
            if call is None:
                if not kernels_available(op, DTYPE_NAMES[dtype]):
                    return None
                call = self._make(kind, arm, operands)
            result = call.family.result(operands) if out is None else out
            start = clock()
            checksum = call(operands, matrix, result, ascending=ascending, mean=mean)
            seconds = clock() - start
        except ValueError:  # an array is not contiguous
            return None
        self._ready[kind, arm].append(call)
        if checksum is None:
            return None
        if alike is not None and alike.learning:
            alike.record(arm, seconds / elements)
        self._sightings.add(matrix, nnz * width, checksum)
        return result

    def _class_of(self, kind: tuple[Any, ...], operands: _Operands) -> PatternClass:
        """Look up the class of patterns whose rows and nonzeros are within a factor of two."""
        rows, _, nnz = operands.matrix.pattern
        key = kind, rows.bit_length(), nnz.bit_length()
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= MAX_KINDS:
                self._classes.clear()
            op, widths, threads, *_, dtype = kind
            other = {} if dtype == np.float32 else {"dtype": DTYPE_NAMES[dtype]}  # keys of float32 do not name it
            name = {"op": op, "widths": [list(each) for each in widths], "default_threads": threads,
                    "distant": kind[3:5], "rows": 1 << rows.bit_length(), "nonzeros": 1 << nnz.bit_length(),
                    **other}
            found = self._classes[key] = PatternClass(name, self._arms_of(kind, operands), self._store)
        return found

    def _arms_of(self, kind: tuple[Any, ...], operands: _Operands) -> list[Alternative]:
        """List the default configuration and what may be faster for calls of a kind."""
        found = self._arms.get(kind)
        if found is None:
            op, _, threads, *_ = kind
            known = CsrAttention(operands.dense["Q"].shape[1]) if op == "attention" else OPS[op]
            config = self._backend.default_config(known, Operands(operands.matrix, operands.dense))
            others = {1, self._backend.threads} - {threads}
            found = self._arms[kind] = alternatives(op, config, threads, others=sorted(others))
        return found

    def _taken(self, kind: tuple[Any, ...], arm: int) -> _Call | None:
        """Take a call of this kind that nobody is making, if there is one."""
        try:
            return self._ready[kind, arm].pop()
        except (KeyError, IndexError):
            return None

    def _make(self, kind: tuple[Any, ...], arm: int, operands: _Operands) -> _Call:
        if len(self._ready) >= MAX_KINDS:
            self._ready.clear()
            self._arms.clear()
        config, threads = self._arms_of(kind, operands)[arm]
        full = Operands(operands.matrix, operands.dense)
        family = SPARSE_FAMILIES[kind[0]](threads, full.width, RESULT_POOL.empty, _OpenRows(threads))
        return _Call(family, family.bind(full, config, family.result(full)), threads)


@cache
def direct_calls(threads: int | None) -> DirectCalls:
    """Return the calls with so many threads (default: all processors that this process may use)."""
    return DirectCalls(threads)


class _Call:
    """A bound kernel whose rows are filled in by C, and what C needs for that; one Python thread at a time."""

    def __init__(self, family: Family, native: NativeCall, threads: int) -> None:
        self.family, self._native, self._threads = family, native, threads
        self._function = kernel_library("direct").sparloom_direct
        self._function.restype, self._function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
        self._run = ctypes.cast(native.run, ctypes.c_void_p).value
        self._rows = ctypes.addressof(native.arguments)
        self._arguments = ctypes.create_string_buffer(ARGUMENTS.size)
        self._given = ctypes.byref(self._arguments)
        native.release()

    def __call__(
        self, operands: Operands, matrix: Csr, result: np.ndarray, *, ascending: bool, mean: bool,
    ) -> int | None:
        """Compute and return a checksum; None if the arrays are no matrix for the kernel: nothing was written."""
        indptr, indices, (rows, cols) = matrix.indptr, matrix.indices, matrix.shape
        places = _numbers(rows.bit_length())  # lives until C returns, whatever other threads do to the cache
        self.family.rebind(self._native, operands, result)
        ARGUMENTS.pack_into(
            self._arguments, 0, address(indptr, indptr.dtype.type), address(indices, indices.dtype.type),
            address(places, np.int32), self._run, self._rows, rows, cols, indices.size, indptr.itemsize,
            indices.itemsize, ascending, operands.matrix.values.itemsize if mean else 0, self._threads, 0)
        fault = self._function(self._given)
        self._native.release()
        return CHECKSUM.unpack_from(self._arguments, CHECKSUM_OFFSET)[0] if fault == 0 else None


class _OpenRows:
    """Leaves the rows of a call to C, but makes its kernel allocate a workspace for rows that are cut."""

    def __init__(self, threads: int) -> None:
        self._pieces = PIECES * threads if threads > 1 else 1

    def bind(
        self, pattern: Any, *, order: str, balance: str, threads: int, together: bool = False,
    ) -> BoundRows:
        none = np.zeros(self._pieces + 1, np.int64)
        return BoundRows(Rows(), Pieces(none, none, cut=self._pieces > 1, dynamic=False), kept=())


class _Pattern(NamedTuple):
    """The sizes of a pattern."""

    rows: int
    cols: int
    nnz: int


class _Matrix(NamedTuple):
    pattern: _Pattern
    values: np.ndarray


class _Operands(NamedTuple):
    """What kernels read of `Operands`, which takes longer to make."""

    matrix: _Matrix
    dense: Mapping[str, np.ndarray]


@cache
def _numbers(bits: int) -> np.ndarray:
    """Return 0, 1, 2, .. with so many bits."""
    return np.arange(1 << bits, dtype=np.int32)


def _is_vector(array: Any, dtypes: Collection[np.dtype]) -> bool:
    """Tell whether this is a NumPy array of one axis and one of these types."""
    return type(array) is np.ndarray and array.ndim == 1 and array.dtype in dtypes


def _dense(given: Any, name: str, rows: int, axes: int) -> np.ndarray | None:
    """Convert a dense operand, as `dense_of` does; None if it cannot be."""
    try:
        return dense_of(given, name, rows=rows, axes=axes)
    except (TypeError, ValueError):
        return None


def _fits(out: Any, shape: tuple[int, ...], dtype: np.dtype, operands: tuple[np.ndarray, ...]) -> bool:
    """Tell whether a result can be written to `out`: an array of its own of this shape and type."""
    return (type(out) is np.ndarray and out.shape == shape and out.dtype == dtype and out.flags.carray
            and not any(np.may_share_memory(out, each) for each in operands))
