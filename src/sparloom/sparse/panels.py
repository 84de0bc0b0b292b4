"""Cutting a pattern into row panels and tiles, down to counts: how many nonzeros, how many distinct columns."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
from jaxtyping import Integer

from sparloom.sparse.pattern import Pattern

__all__ = ["Panels", "Tiles"]


@dataclass(frozen=True)
class Tiles:
    """The tiles that hold a nonzero, row panel by row panel, each from left to right.

    Args:
        panel, phase: number of the row panel and of the column panel.
        counts: nonzeros.
        distinct: distinct columns.
    """

    panel: Integer[np.ndarray, " tiles"]
    phase: Integer[np.ndarray, " tiles"]
    counts: Integer[np.ndarray, " tiles"]
    distinct: Integer[np.ndarray, " tiles"]

    @property
    def met(self) -> float:
        """Distinct columns of its tile, of the mean nonzero."""
        return float((self.counts * self.distinct).sum() / max(1, self.counts.sum()))


@dataclass(frozen=True)
class Panels:
    """Neighbouring rows of a pattern joined to panels.

    Args:
        counts: (panels, columns), how many nonzeros of a panel lie in a column; columns sorted.
    """

    counts: scipy.sparse.csr_array

    @classmethod
    def of(cls, pattern: Pattern, rows: int) -> "Panels":
        """Join that many neighbouring rows."""
        ones = np.ones(pattern.nnz, np.int64)
        return cls(scipy.sparse.csr_array((ones, pattern.indices, pattern.indptr), shape=pattern.shape)).joined(rows)

    def joined(self, panels: int) -> "Panels":
        """Join that many neighbouring panels."""
        old = self.counts
        starts = np.append(old.indptr[:-1:panels], old.nnz)
        made = scipy.sparse.csr_array((old.data.copy(), old.indices.copy(), starts),
                                      shape=(len(starts) - 1, old.shape[1]))
        made.has_sorted_indices = made.has_canonical_format = False  # columns repeat and go back at every old panel
        made.sum_duplicates()
        return Panels(made)

    def tiles(self, columns: int) -> Tiles:
        """Cut every panel at multiples of `columns`."""
        counts = self.counts
        panel = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        phase = counts.indices.astype(np.int64) // columns
        first = np.ones(counts.nnz, bool)
        first[1:] = (panel[1:] != panel[:-1]) | (phase[1:] != phase[:-1])
        begin = np.flatnonzero(first)
        nonzeros = np.add.reduceat(counts.data, begin) if begin.size else np.zeros(0, np.int64)
        return Tiles(panel[begin], phase[begin], nonzeros, np.diff(np.append(begin, counts.nnz)))
