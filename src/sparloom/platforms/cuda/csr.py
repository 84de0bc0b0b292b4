"""The sparse operand on a device, with what the ways of sharing its rows need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparloom.platforms.cuda.elements import ELEMENTS
from sparloom.platforms.cuda.gpu import Gpu
from sparloom.sparse import Pattern

if TYPE_CHECKING:
    from sparloom.platforms.cuda.family import Placed

__all__ = ["ALL_ROWS", "DeviceMatrix", "DevicePattern", "HubDegrees", "Hubs", "PatternPlace"]

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


class HubDegrees:
    """Nonzeros from which on a row of a matrix is a hub, each threshold computed once.

    Args:
        pattern: of the whole matrix, also for samples of its rows.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._known: dict[str, np.int64] = {}

    def of(self, balance: str) -> np.int64:
        """Give a quantile of the lengths of all rows that are not empty, such as "q95".

        Source: AutoSAGE's hub threshold. Departure: rows of less than 128 nonzeros are never hubs.
        """
        if balance not in self._known:
            lengths = self._pattern.row_lengths()
            filled = lengths[lengths > 0]
            quantile = np.quantile(filled, int(balance[1:]) / 100) if filled.size else 0
            self._known[balance] = np.int64(max(LEAST_HUB, np.ceil(quantile)))
        return self._known[balance]


@dataclass(frozen=True)
class DevicePattern:
    """A pattern and its arrays on a device: indptr (rows + 1,) int64, indices (nnz,) int32.

    Args:
        degrees: from which on its rows are hubs.
    """

    pattern: Pattern
    indptr: Any
    indices: Any
    degrees: HubDegrees

    @classmethod
    def on(cls, gpu: Gpu, pattern: Pattern, degrees: HubDegrees | None = None) -> DevicePattern:
        """Copy a pattern to the device.

        Args:
            degrees: of the matrix that its rows are a sample of; its own unless given.
        """
        return cls(pattern, gpu.upload(pattern.indptr), gpu.upload(pattern.indices), degrees or HubDegrees(pattern))

    def hubs(self, gpu: Gpu, balance: str) -> Hubs:
        """List the rows that are hubs by a threshold such as "q95"."""
        degree = self.degrees.of(balance)
        rows = np.flatnonzero(self.pattern.row_lengths() >= degree).astype(np.int32)
        return Hubs(degree, gpu.upload(rows), rows.size)


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A matrix whose arrays are on a device: what `SparseMatrix` is there.

    Args:
        values: (nnz,) float32, float16 or bits of bfloat16 on the device.
    """

    gpu: Gpu
    placed: DevicePattern
    values: Any

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def pattern(self) -> Pattern:
        """Where the nonzeros are, in the memory of the processor."""
        return self.placed.pattern

    def with_values(self, values: Any) -> DeviceMatrix:
        """Put other values at the nonzeros.

        Args:
            values: (nnz,) of such a type, of any library whose arrays are on this device; used as they are.

        Raises:
            TypeError, ValueError: they are not on the device, or not of this type and shape.
        """
        found = self.gpu.adopt(values, "values")
        if found.dtype not in ELEMENTS or found.shape != (self.pattern.nnz,):
            raise ValueError(f"values are {found.dtype} of shape {found.shape}: give ({self.pattern.nnz},) float32 or "
                             "float16")
        return DeviceMatrix(self.gpu, self.placed, found)

    def __repr__(self) -> str:
        return f"DeviceMatrix({self.pattern.rows} x {self.pattern.cols}, {self.pattern.nnz} nonzeros)"


class PatternPlace:
    """Keeps the pattern seen last on the device, as configurations of one matrix share it."""

    def __init__(self) -> None:
        self._latest: tuple[Gpu, DevicePattern] | None = None

    def on(self, gpu: Gpu, pattern: Pattern) -> DevicePattern:
        """Copy the arrays of a pattern, unless they are there."""
        if self._latest is None or self._latest[0] is not gpu or self._latest[1].pattern is not pattern:
            self._latest = gpu, DevicePattern.on(gpu, pattern)
        return self._latest[1]

    def of(self, gpu: Gpu, placed: Placed) -> DevicePattern:
        """Take the pattern of operands, copied unless it came with them."""
        return placed.pattern if placed.pattern is not None else self.on(gpu, placed.given.matrix.pattern)
