"""Storage of the sparse operand: four levels io, ii, jo, ji, each dense or compressed, in loop order."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.jit import aligned, check_memory, compile_cpp
from sparloom.sparse import SparseMatrix

LEVELS = ("io", "ii", "jo", "ji")
"""Levels of a stored matrix, outer before inner."""
FILL_LIMIT = 20
"""Stored values per nonzero above which a format is refused, as in WACO."""
PADDING = 8
"""Coordinates beyond the last one that kernels may read, to prefetch."""
POSITION_LIMIT = 2**31 - 1
WHOLE = 31  # log2 of a tile that holds every column

KEYS = ("row_keys", "row_sources", "col_keys", "col_sources")
WORK = ("work_keys0", "work_sources0", "work_keys1", "work_sources1")


@dataclass(frozen=True)
class Layout:
    """Storage format of a matrix of one shape.

    i = io * 2**row_shift + ii, j = jo * 2**col_shift + ji. A dense level of extent e stores the position
    parent * e + coordinate; a compressed level stores `pos` (children of each parent) and `crd` (their coordinates).

    Args:
        order: the four levels, outer to inner.
        compressed: for each level in `order`.
        extents: coordinates of each level in `order`.
    """

    order: tuple[str, ...]
    compressed: tuple[bool, ...]
    extents: tuple[int, ...]
    row_shift: int
    col_shift: int

    @classmethod
    def of(
        cls, shape: tuple[int, int], *, rows_tile: int, cols_tile: int | str, order: Sequence[str], formats: str
    ) -> "Layout":
        """Lay out a matrix of `shape`; `formats` has one letter per level of LEVELS, U dense or C compressed.

        A single tile of columns is stored as if the level jo did not exist (dense, extent 1).
        """
        rows, cols = shape
        single = cols_tile == "all" or int(cols_tile) >= cols
        row_shift, col_shift = _log2(rows_tile, "rows_tile"), WHOLE if single else _log2(int(cols_tile), "cols_tile")
        extents = {
            "io": (rows - 1 >> row_shift) + 1,
            "ii": 1 << row_shift,
            "jo": 1 if single else (cols - 1 >> col_shift) + 1,
            "ji": cols if single else 1 << col_shift,
        }
        compressed = dict(zip(LEVELS, (letter == "C" for letter in formats), strict=True))
        compressed["jo"] &= not single
        return cls(
            order=tuple(order),
            compressed=tuple(compressed[level] for level in order),
            extents=tuple(extents[level] for level in order),
            row_shift=row_shift,
            col_shift=col_shift,
        )

    def extent(self, level: str) -> int:
        """Count the coordinates of a level."""
        return self.extents[self.order.index(level)]


@dataclass(frozen=True)
class Packed:
    """A packed matrix.

    Args:
        arrays: `<level>_pos` and `<level>_crd` int32 of each compressed level, and `values` float32; each `crd` is
            followed by PADDING zeros.
        where: CSR index -> position in `values`, int32; None unless requested.
    """

    arrays: dict[str, np.ndarray]
    where: np.ndarray | None


class Packer:
    """Packs one matrix into any layout in O(nnz); the work that layouts share is done once.

    Args:
        matrix: below 2**31 nonzeros.
    """

    def __init__(self, matrix: SparseMatrix) -> None:
        if matrix.pattern.nnz > POSITION_LIMIT:
            raise Unsupported(f"{matrix.pattern.nnz} nonzeros exceed {POSITION_LIMIT}, the range of the CPU platform's "
                              "offsets: split the matrix by rows")
        self.matrix = matrix

    def count(self, layout: Layout) -> tuple[int, ...]:
        """Count the positions of every storage level without packing.

        Raises:
            IllegalSchedule: more than FILL_LIMIT values per nonzero would be stored, or more than FILL_LIMIT positions
                of another level per nonzero, row and column.
            MemoryError: there is too little memory to count.
        """
        pattern = self.matrix.pattern
        inner = min(FILL_LIMIT * (pattern.nnz + pattern.rows + pattern.cols), POSITION_LIMIT)
        limits = np.array([inner] * 3 + [min(FILL_LIMIT * pattern.nnz, POSITION_LIMIT)], dtype=np.int64)
        positions = np.zeros(4, dtype=np.int64)
        stopped = self._library.sparloom_pack_count(
            _i64(pattern.cols), _i64(pattern.nnz), _address(self._shared["row_keys"]), layout.row_shift,
            layout.col_shift, *(_address(part) for part in (*_describe(layout), limits, positions)))
        check_memory(stopped == -2, f"count what stores {self.matrix}", 4 * pattern.cols)
        if stopped >= 0:
            what = "values" if stopped == 3 else f"positions of level {layout.order[stopped]}"
            raise IllegalSchedule(
                f"fill: {int(positions[stopped])} {what} for {pattern.nnz} nonzeros exceed {int(limits[stopped])} "
                f"({FILL_LIMIT} times): compress level {_culprit(layout, stopped)} or take smaller tiles")
        return tuple(int(count) for count in positions)

    def pack(self, layout: Layout, *, locate: bool) -> Packed:
        """Pack into freshly allocated arrays; `locate` also maps CSR indices to positions.

        Raises:
            IllegalSchedule, MemoryError: as `count`.
        """
        positions, nnz = self.count(layout), self.matrix.pattern.nnz
        parents = (1, *positions[:3])
        pos: list[np.ndarray | None] = [None] * 4
        crd: list[np.ndarray | None] = [None] * 4
        for level in range(4):
            if layout.compressed[level]:
                pos[level] = aligned((parents[level] + 1,), np.int32, zero=True)
                crd[level] = aligned((positions[level] + PADDING,), np.int32)
                crd[level][positions[level] :] = 0
        values = aligned((positions[3],), np.float32, zero=positions[3] != nnz)
        where = np.empty(nnz, dtype=np.int32) if locate else None
        shared, order, extents = self._shared, *_describe(layout)[::2]
        status = self._library.sparloom_pack(
            _i64(nnz), _address(self.matrix.values), *(_address(shared[name]) for name in KEYS), layout.row_shift,
            layout.col_shift, _address(order), _address(_describe(layout)[1]), _address(extents),
            _address(np.array(positions, dtype=np.int64)), *(_address(shared[name]) for name in WORK),
            _addresses(pos), _addresses(crd), _address(values), _address(where))
        check_memory(status, f"sort {self.matrix}", 4 * max(layout.extents))
        arrays = {"values": values}
        for level, name in enumerate(layout.order):
            if pos[level] is not None:
                arrays[f"{name}_pos"], arrays[f"{name}_crd"] = pos[level], crd[level]
        return Packed(arrays, where)

    @cached_property
    def _library(self) -> ctypes.CDLL:
        return compile_cpp(["cpu/pack.cpp"])

    @cached_property
    def _shared(self) -> dict[str, np.ndarray]:
        """Nonzeros in row order and in column order, and workspace to sort them."""
        pattern = self.matrix.pattern
        arrays = {name: np.empty(pattern.nnz, np.int64 if "keys" in name else np.int32) for name in (*KEYS, *WORK)}
        status = self._library.sparloom_pack_prepare(
            _i64(pattern.rows), _i64(pattern.cols), _address(pattern.indptr), _address(pattern.indices),
            *(_address(arrays[name]) for name in KEYS))
        check_memory(status, f"sort {self.matrix} by columns", 4 * pattern.cols)
        return arrays


def _log2(tile: int, name: str) -> int:
    if tile < 1 or tile & (tile - 1):
        raise IllegalSchedule(f"{name} {tile} is not a power of two: tiles are cut by shifting")
    return tile.bit_length() - 1


def _describe(layout: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.array([LEVELS.index(level) for level in layout.order], dtype=np.int32)
    return order, np.array(layout.compressed, dtype=np.int32), np.array(layout.extents, dtype=np.int64)


def _culprit(layout: Layout, stopped: int) -> str:
    """Name the innermost dense level up to the one that overflowed, or that one if all are compressed."""
    dense = [name for name, packed in zip(layout.order[: stopped + 1], layout.compressed, strict=False) if not packed]
    return dense[-1] if dense else layout.order[stopped]


def _i64(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _address(array: np.ndarray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def _addresses(arrays: Sequence[np.ndarray | None]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(None if array is None else array.ctypes.data for array in arrays))
