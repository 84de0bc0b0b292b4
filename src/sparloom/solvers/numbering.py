"""In which order the unknowns of an iteration lie in memory."""

from dataclasses import dataclass

import numpy as np

from sparloom.fusion import Reordered, bandwidth_order
from sparloom.sparse import SparseMatrix

__all__ = ["NUMBERINGS", "Numbering"]

NUMBERINGS = ("natural", "bandwidth")


@dataclass(frozen=True)
class Numbering:
    """M with its rows and columns in an order.

    Args:
        name: one of `NUMBERINGS`.
        order: (n,) int32, the old number of each new row; None: as they are.
    """

    name: str
    matrix: SparseMatrix
    order: np.ndarray | None

    @classmethod
    def of(cls, name: str, matrix: SparseMatrix) -> "Numbering":
        """Number rows "natural", as they are, or "bandwidth", by reverse Cuthill-McKee."""
        if name == "natural":
            return cls(name, matrix, None)
        order = bandwidth_order(matrix.pattern)
        moved = Reordered.of(matrix.pattern, order)
        return cls(name, SparseMatrix(moved.pattern, moved.values(matrix.values), matrix.dtype), order)

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows of a dense array into the order."""
        return rows if self.order is None else rows[self.order]

    def given_back(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows of a dense array back."""
        if self.order is None:
            return rows
        back = np.empty_like(rows)
        back[self.order] = rows
        return back
