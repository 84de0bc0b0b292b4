"""The sparse operand on a device, with what the ways of sharing its rows need."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.platforms.cuda.gpu import Gpu
from sparloom.sparse import Pattern

__all__ = ["ALL_ROWS", "DevicePattern", "Hubs", "PatternPlace"]

ALL_ROWS = np.int64(2**62)  # more nonzeros than any row has: no row is a hub
LEAST_HUB = 128  # nonzeros: fewer do not fill a block


@dataclass(frozen=True)
class Hubs:
    """Rows that a block works on alone.

    Args:
        degree: rows with at least so many nonzeros.
        rows: (count,) int32 on the device.
    """

    degree: np.int64
    rows: Any
    count: int


@dataclass(frozen=True)
class DevicePattern:
    """A pattern and its arrays on a device: indptr (rows + 1,) int64, indices (nnz,) int32."""

    pattern: Pattern
    indptr: Any
    indices: Any

    def hubs(self, gpu: Gpu, balance: str) -> Hubs:
        """Take the rows beyond a quantile of the lengths of all rows that are not empty, such as "q95".

        Source: AutoSAGE's hub threshold. Departure: rows of less than 128 nonzeros are never hubs.
        """
        lengths = self.pattern.row_lengths()
        filled = lengths[lengths > 0]
        quantile = np.quantile(filled, int(balance[1:]) / 100) if filled.size else 0
        degree = np.int64(max(LEAST_HUB, np.ceil(quantile)))
        rows = np.flatnonzero(lengths >= degree).astype(np.int32)
        return Hubs(degree, gpu.upload(rows), rows.size)


class PatternPlace:
    """Keeps the pattern seen last on the device, as configurations of one matrix share it."""

    def __init__(self) -> None:
        self._latest: tuple[Gpu, DevicePattern] | None = None

    def on(self, gpu: Gpu, pattern: Pattern) -> DevicePattern:
        """Copy the arrays of a pattern, unless they are there."""
        if self._latest is None or self._latest[0] is not gpu or self._latest[1].pattern is not pattern:
            self._latest = gpu, DevicePattern(pattern, gpu.upload(pattern.indptr), gpu.upload(pattern.indices))
        return self._latest[1]
