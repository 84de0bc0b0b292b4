"""SpMM-GeMM in one pass over the rows, with products and sums of the same rows on the side."""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sparloom.fusion.executor import CsrArguments, CsrRows, check_overlap
from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.measure import cache_bytes_per_core, checked_threads
from sparloom.sparse import Pattern, SparseMatrix

DENSE = ("y", "g", "c", "bias", "d", "left", "right", "s", "summed", "sums")
WRITTEN = ("d", "s", "sums")
SUFFIX = {"float32": "f32", "float64": "f64"}
SLICES_PER_THREAD = 8
PARTIAL_BYTES = 4 << 20  # limit for the partial S of all slices
PIECE_BYTES = 1 << 16  # of G: a few times the L1 cache
ROW_WORK = 4  # cost of starting a row, in nonzeros
DENSE_SHARE = 8  # dense multiplications that cost as much as one nonzero
PREFETCH_BYTES = 4096  # of a row of Y
STREAM_SHARE = 0.25  # of the caches of all threads; larger results are stored past them
TOGETHER_SHARE = 0.2  # of rows that repeat the previous row's first and last column, above which comparing all pays off


@dataclass(frozen=True)
class RowSteps:
    """The steps of a pass over n rows. Steps without arguments are skipped.

        G = A Y                 (n, width)
        D = G C + bias          (n, out)
        S = L^T R               (left columns, right columns)
        sums = sum of rows      (columns)

    The results d, s and sums are overwritten.

    Args:
        matrix, y: A and Y (cols, width); without them, `g` is an input.
        g: G, read without A, else overwritten; without it, G is not stored.
        c: (width, out), or (out, width) with `c_transposed`.
        left: L (default: G).
        summed: array whose rows are summed into `sums`.
    """

    matrix: SparseMatrix | None = None
    y: np.ndarray | None = None
    g: np.ndarray | None = None
    c: np.ndarray | None = None
    c_transposed: bool = False
    bias: np.ndarray | None = None
    d: np.ndarray | None = None
    left: np.ndarray | None = None
    right: np.ndarray | None = None
    s: np.ndarray | None = None
    summed: np.ndarray | None = None
    sums: np.ndarray | None = None

    @property
    def width(self) -> int:
        """Number of columns of G; 0 without one."""
        source = self.g if self.y is None else self.y
        return 0 if source is None else source.shape[1]

    def apart(self) -> "tuple[RowSteps, ...]":
        """Split into equivalent steps of one product each; G must be stored."""
        left = self.g if self.left is None else self.left
        parts = (
            RowSteps(self.matrix, self.y, g=self.g),
            RowSteps(g=self.g, c=self.c, c_transposed=self.c_transposed, bias=self.bias, d=self.d),
            RowSteps(left=left, right=self.right, s=self.s),
            RowSteps(summed=self.summed, sums=self.sums),
        )
        wanted = (self.matrix, self.d, self.s, self.sums)
        return tuple(part for part, result in zip(parts, wanted, strict=True) if result is not None)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the dense arrays that are present, by name."""
        return {name: array for name in DENSE if (array := getattr(self, name)) is not None}


class RowPass:
    """Executes steps over the rows of matrices on one pattern.

    Rows are split into slices of about equal work, and S is summed slice by slice, so results are reproducible for a
    number of threads.

    Args:
        pattern: of A.
        prefetch_bytes: how much of a row of Y to prefetch.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.2.4: the dependence of SpMM-GeMM is known
    before the pattern is. Departure: no inspector, and sums of the same rows are computed in the same pass.
    """

    def __init__(self, pattern: Pattern, *, threads: int, prefetch_bytes: int = PREFETCH_BYTES) -> None:
        self.pattern, self.threads, self.prefetch_bytes = pattern, checked_threads(threads), prefetch_bytes
        self._together = _repeats(pattern) >= TOGETHER_SHARE

    def __call__(self, steps: RowSteps) -> None:
        """Run the steps; results are overwritten."""
        self.bind(steps)()

    def bind(self, steps: RowSteps) -> NativeCall:
        """Bind the kernel to arrays; each call overwrites the results.

        The addresses in its `arguments`, named as in RowSteps and `a.values`, may be replaced by those of other arrays
        of the same shapes and type, which the caller keeps alive.

        Raises:
            ValueError: an array does not match the others in shape or type, or is not contiguous.
        """
        dtype, width = _checked(steps, self.pattern), steps.width
        out = 0 if steps.d is None else steps.d.shape[1]
        left, right = (0, 0) if steps.s is None else steps.s.shape
        summed = 0 if steps.summed is None else steps.summed.shape[1]
        slices = self._slice_bounds(steps, out + left * right // max(1, width), left * right * dtype.itemsize)
        count, kept = slices.size - 1, [*steps.arrays().values(), slices]
        arguments = _RowPass(
            a=CsrArguments() if steps.matrix is None else CsrRows.of(steps.matrix).arguments(kept),
            **{name: array.ctypes.data for name, array in steps.arrays().items()}, slices=slices.ctypes.data,
            count=count, piece=_piece_rows(max(1, width, out, left, right), dtype.itemsize), width=width, out=out,
            left_columns=left, right_columns=right, summed_columns=summed, ahead=self.prefetch_bytes,
            threads=self.threads, c_transposed=steps.c_transposed, together=self._together,
            stream_g=self._streams(steps.g), stream_d=self._streams(steps.d))
        sizes = {"partials": count * left * right, "partial_sums": count * summed,
                 "packed": _function("packed", SUFFIX[dtype.name])(ctypes.c_int64(width), ctypes.c_int64(out)),
                 "buffers": self.threads * _function("buffer", SUFFIX[dtype.name])(ctypes.byref(arguments))}
        for name, size in sizes.items():
            kept.append(aligned((size,), dtype.type))
            setattr(arguments, name, kept[-1].ctypes.data)
        return NativeCall(getattr(_library(), f"sparloom_row_pass_{SUFFIX[dtype.name]}"), arguments, kept=kept)

    def _streams(self, result: np.ndarray | None) -> bool:
        """Tell whether a result is too large to stay in cache until it is read; it is stored past the caches."""
        return result is not None and result.nbytes > STREAM_SHARE * self.threads * cache_bytes_per_core()

    def _slice_bounds(self, steps: RowSteps, dense: int, partial_bytes: int) -> np.ndarray:
        """Return the bounds of slices of about equal work."""
        most = max(self.threads, min(SLICES_PER_THREAD * self.threads, PARTIAL_BYTES // max(1, partial_bytes)))
        rows = self.pattern.rows
        nonzeros = 0 if steps.matrix is None else self.pattern.indptr
        work = (ROW_WORK + dense // DENSE_SHARE) * np.arange(rows + 1) + nonzeros
        return np.searchsorted(work, np.linspace(0, work[-1], min(most, max(1, rows)) + 1)).astype(np.int64)


class _RowPass(ctypes.Structure):
    """The struct RowPass of kernels/cpu/row_pass.hpp."""

    _fields_ = (
        ("a", CsrArguments),
        *((name, ctypes.c_void_p) for name in (
            "y", "g", "c", "bias", "d", "packed", "left", "right", "s", "partials", "summed", "sums", "partial_sums",
            "buffers", "slices")),
        *((name, ctypes.c_int64) for name in (
            "count", "piece", "width", "out", "left_columns", "right_columns", "summed_columns", "ahead")),
        *((name, ctypes.c_int32) for name in ("threads", "c_transposed", "together", "stream_g", "stream_d")),
    )


def _piece_rows(widest: int, itemsize: int) -> int:
    """Return the rows of a piece of a slice, for the widest array of a pass."""
    return min(max(16, PIECE_BYTES // (widest * itemsize)), 512)


def _checked(steps: RowSteps, pattern: Pattern) -> np.dtype:
    """Check the arguments of the steps; return the type of all arrays."""
    arrays = steps.arrays()
    if not arrays or (steps.matrix is None) != (steps.y is None):
        raise ValueError("A and Y come together, and there must be something to compute")
    if steps.matrix is not None and steps.matrix.pattern is not pattern:
        raise ValueError(f"a matrix on {steps.matrix.pattern} for a pass over {pattern}: make a pass for its pattern")
    dtype = next(iter(arrays.values())).dtype if steps.matrix is None else steps.matrix.dtype
    for name, shape in _shapes(steps, arrays, pattern).items():
        address(arrays[name], dtype.type, written=name in WRITTEN or (name == "g" and steps.matrix is not None))
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has shape {arrays[name].shape}, not {shape}")
    _check_overlap(steps, arrays)
    return dtype


def _check_overlap(steps: RowSteps, arrays: dict[str, np.ndarray]) -> None:
    """Reject results that overlap each other or an input."""
    written = [name for name in arrays if name in WRITTEN or (name == "g" and steps.matrix is not None)]
    read = {name: array for name, array in arrays.items() if name not in written}
    if steps.matrix is not None:
        pattern = steps.matrix.pattern
        read |= {"values of A": steps.matrix.values, "indptr of A": pattern.indptr, "indices of A": pattern.indices}
    for number, name in enumerate(written):
        others = (*read.items(), *((each, arrays[each]) for each in written[:number]))
        check_overlap(f"{name} overlaps", arrays[name], others)


def _shapes(steps: RowSteps, arrays: dict[str, np.ndarray], pattern: Pattern) -> dict[str, tuple[int, ...]]:
    """Return the required shape of each array that is present; refuse one without another that it needs."""
    for together in (("c", "d"), ("right", "s"), ("summed", "sums")):
        if len(arrays.keys() & set(together)) == 1:
            raise ValueError(f"{' and '.join(together)}: give both or neither")
    for name, needed in (("bias", "d"), ("left", "s")):
        if name in arrays and needed not in arrays:
            raise ValueError(f"{name} without {needed}: it would not be used")
    if steps.width == 0 and ("d" in arrays or ("s" in arrays and "left" not in arrays)):
        raise ValueError("nothing gives G: give A and Y, or g")
    columns = {name: array.shape[-1] for name, array in arrays.items()}
    left = columns.get("left", steps.width)
    out = columns.get("d", 0)
    shapes = {
        "y": (pattern.cols, steps.width), "g": (pattern.rows, steps.width), "d": (pattern.rows, out),
        "c": (out, steps.width) if steps.c_transposed else (steps.width, out), "bias": (out,),
        "left": (pattern.rows, left), "right": (pattern.rows, columns.get("right", 0)),
        "s": (left, columns.get("right", 0)), "summed": (pattern.rows, columns.get("summed", 0)),
        "sums": (columns.get("summed", 0),),
    }
    return {name: shapes[name] for name in arrays}


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/row_pass.cpp"])


@cache
def _function(name: str, suffix: str) -> Any:
    function = getattr(_library(), f"sparloom_row_pass_{name}_{suffix}")
    function.restype = ctypes.c_int64
    return function


def _repeats(pattern: Pattern) -> float:
    """Return the share of rows that seem to have the columns of the previous row."""
    if pattern.rows < 2 or pattern.nnz == 0:
        return 0.0
    lengths = pattern.row_lengths()
    same = (lengths[1:] == lengths[:-1]) & (lengths[1:] > 0)
    rows = np.nonzero(same)[0] + 1
    heads = pattern.indices[pattern.indptr[rows]] == pattern.indices[pattern.indptr[rows - 1]]
    tails = pattern.indices[pattern.indptr[rows + 1] - 1] == pattern.indices[pattern.indptr[rows] - 1]
    return float((heads & tails).sum() / pattern.rows)
