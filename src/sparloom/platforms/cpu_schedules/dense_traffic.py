"""Bytes of the dense operands that a tiled schedule fetches from beyond a cache, by the rows that its loops visit.

Every nonzero (i, j) visits row j of one dense operand (B of SpMM, C of SDDMM) and row i of the other (D of SpMM, which
is read and written, B of SDDMM). An iteration of the outermost loops, a scope, visits some distinct rows of both. The
model:

    whatever fits into the cache as a whole stays there from one call to the next, and nothing is fetched
    a scope whose distinct rows fit fetches each of them once
    a scope whose rows do not fit fetches what the scopes inside it do
    with the loop over tiles of dense columns outside, rows are as short as such a tile

Conflicts, and rows that stay from one scope to the next, are left out.

Source: Lam, Rothberg and Wolf 1991, The Cache Performance and Optimizations of Blocked Algorithms, for the reuse within
tiles. Departure: distinct rows are counted in the pattern, as a sparse tile visits few of its columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparloom.platforms.cpu_schedules.lowering import Program
from sparloom.platforms.cpu_schedules.storage import LEVELS, Layout
from sparloom.sparse import Pattern

VALUE_BYTES, INDEX_BYTES = 4, 4
MOVES = {"spmm": 2, "sddmm": 1}
"""How often a row of the operand by rows is moved where it is fetched: D is also written."""
WHOLE = 62  # shift after which all rows or columns have number 0


class _Scopes(NamedTuple):
    """Scopes of one depth: their keys, ascending, and the distinct columns and rows that each visits."""

    key: np.ndarray
    columns: np.ndarray
    rows: np.ndarray


class DenseTraffic:
    """Counts what schedules fetch for one pattern; what they share is counted once."""

    def __init__(self, pattern: Pattern) -> None:
        self._row, self._column = pattern.row_ids().astype(np.int64), pattern.indices.astype(np.int64)
        self._rows, self._cols = pattern.shape
        self._kept: dict[tuple[int, int], _Scopes] = {}
        self._visits: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
        self.matrix_bytes = pattern.nnz * (VALUE_BYTES + INDEX_BYTES)

    def whole_bytes(self, width: int) -> int:
        """Count the bytes of the matrix and of the dense rows that it visits."""
        whole = self._scopes((WHOLE, WHOLE))
        return VALUE_BYTES * width * int(whole.columns.sum() + whole.rows.sum()) + self.matrix_bytes

    def fetched_bytes(self, program: Program, layout: Layout, *, whole_capacity: float, capacity: float) -> float:
        """Count the bytes that one execution fetches, apart from those of the matrix itself.

        Args:
            whole_capacity: bytes into which the whole problem must fit to stay there.
            capacity: bytes into which the rows of a scope must fit.
        """
        if self.whole_bytes(program.width) <= whole_capacity:
            return 0.0
        loops = [loop for loop in program.order if loop in LEVELS]
        ko = program.order.index("ko") if "ko" in program.order else len(program.order)
        fetched = None
        for depth in range(len(loops) - 1, -1, -1):
            shifts = _shifts(loops[:depth], layout)
            scopes = self._scopes(shifts)
            columns = program.dense_tile if ko < program.order.index(loops[depth]) else program.width
            once = VALUE_BYTES * program.width * (scopes.columns + MOVES[program.op] * scopes.rows)
            fits = (scopes.columns + scopes.rows) * columns * VALUE_BYTES <= capacity
            fetched = once if fetched is None else np.where(fits, once, fetched)
            if depth:
                outer = _shifts(loops[:depth - 1], layout)
                parent = np.searchsorted(self._scopes(outer).key, self._coarsened(scopes.key, shifts, outer))
                fetched = np.bincount(parent, weights=fetched)
        return 0.0 if fetched is None else float(fetched.sum())

    def _scopes(self, shifts: tuple[int, int]) -> _Scopes:
        """Count the scopes of tiles of 2**shift rows and columns."""
        if shifts not in self._kept:
            tile, column = self._distinct("row", shifts[0])
            key, columns = _runs(self._key(tile, column >> shifts[1], shifts))
            tile, row = self._distinct("column", shifts[1])
            down = (max(1, self._rows) - 1 >> shifts[0]) + 1
            turned, rows = _runs(tile * down + (row >> shifts[0]))
            tile, row = np.divmod(turned, down)
            order = np.argsort(self._key(row, tile, shifts), kind="stable")
            self._kept[shifts] = _Scopes(key, columns, rows[order])
        return self._kept[shifts]

    def _distinct(self, tiled: str, shift: int) -> tuple[np.ndarray, np.ndarray]:
        """List the distinct pairs of a tile of rows and a column in it, or of a tile of columns and a row."""
        if (tiled, shift) not in self._visits:
            along, across, size = ((self._row, self._column, self._cols) if tiled == "row" else
                                   (self._column, self._row, self._rows))
            distinct, _ = _runs(np.sort((along >> shift) * max(1, size) + across))
            self._visits[tiled, shift] = np.divmod(distinct, max(1, size))
        return self._visits[tiled, shift]

    def _key(self, row: np.ndarray, column: np.ndarray, shifts: tuple[int, int]) -> np.ndarray:
        return row * self._across(shifts) + column

    def _coarsened(self, key: np.ndarray, shifts: tuple[int, int], outer: tuple[int, int]) -> np.ndarray:
        """Compute the key of the scope around each scope."""
        row, column = np.divmod(key, self._across(shifts))
        return self._key(row >> min(WHOLE, outer[0] - shifts[0]), column >> min(WHOLE, outer[1] - shifts[1]), outer)

    def _across(self, shifts: tuple[int, int]) -> int:
        """Count the tiles of columns."""
        return (max(1, self._cols) - 1 >> shifts[1]) + 1


def _runs(ascending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the distinct numbers, and how often each occurs."""
    first = np.flatnonzero(np.diff(ascending, prepend=-1))
    return ascending[first], np.diff(first, append=len(ascending))


def _shifts(outer: Sequence[str], layout: Layout) -> tuple[int, int]:
    """Return the logarithms of the rows and columns that one iteration of the loops `outer` covers."""
    rows = 0 if "ii" in outer else layout.row_shift if "io" in outer else WHOLE
    columns = 0 if "ji" in outer else layout.col_shift if "jo" in outer else WHOLE
    return rows, columns
