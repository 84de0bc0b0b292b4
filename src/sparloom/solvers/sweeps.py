"""Two steps of x -> M x + g at a time, for as many columns as are still wanted."""

from typing import Any

import numpy as np

from sparloom.fusion import Executor
from sparloom.jit import NativeCall, aligned
from sparloom.ops import Operands
from sparloom.sparse import SparseMatrix

__all__ = ["Sweeps"]


class Sweeps:
    """The iterates of x -> M x + g, two at a time from x = 0, and how far the first of both goes.

    Three arrays of the shape of g are allocated here and none later: they change places.

    Args:
        executor: of SpMM-SpMM with addends, scheduled for M.
        matrix: M (n, n).
        constant: g (n, columns), of the type of M; copied.
    """

    def __init__(self, executor: Executor, matrix: SparseMatrix, constant: np.ndarray) -> None:
        self._executor = executor
        self._matrix = matrix
        self._columns = constant.shape[1]
        self._now, self._next, self._constant = (aligned((constant.size,), matrix.dtype.type) for _ in range(3))
        self._shaped(self._constant)[...] = constant
        self._bind()
        self.restart()

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold: the iterates, without calls bound to these arrays."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_calls", "_changes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    @property
    def now(self) -> np.ndarray:
        """The iterate (n, columns) from which the last `advance` went; not to be changed."""
        return self._shaped(self._now)

    @property
    def reached(self) -> np.ndarray:
        """The iterate (n, columns) at which it arrived; not to be changed."""
        return self._shaped(self._next)

    def restart(self) -> None:
        """Begin again at 0, with the columns that are left."""
        self._now.fill(0)
        self._next.fill(0)

    def advance(self) -> np.ndarray:
        """Make two steps from where the last call arrived, at first from 0.

        Returns:
            (columns,) float64, ‖M x + g − x‖₂ of every column of x = `now`.
        """
        self._now, self._next = self._next, self._now
        self._calls.reverse()
        self._calls[0]()
        return np.sqrt(self._changes.sum(axis=0, dtype=np.float64))

    def keep(self, columns: np.ndarray) -> None:
        """Go on with these columns only, in this order, from where `advance` arrived."""
        wide = self._shaped(self._next), self._shaped(self._constant)
        self._columns = columns.size
        for source, free in zip(wide, (self._now, self._next), strict=True):
            np.take(source, columns, axis=1, out=self._shaped(free), mode="clip")
        self._now, self._next, self._constant = self._constant, self._now, self._next
        self._bind()

    def _shaped(self, room: np.ndarray) -> np.ndarray:
        return room[: self._matrix.pattern.rows * self._columns].reshape(-1, self._columns)

    def _bind(self) -> None:
        self._changes = np.zeros((self._executor.schedule.tiles[0], self._columns), self._matrix.dtype)
        self._calls = [self._bound(self._now, self._next), self._bound(self._next, self._now)]

    def _bound(self, start: np.ndarray, end: np.ndarray) -> NativeCall:
        constant = self._shaped(self._constant)
        dense = {"C": self._shaped(start), "F": constant, "G": constant}
        operands = Operands(self._matrix, dense, right=self._matrix)
        return self._executor.bind(operands, self._shaped(end), changes=self._changes)
