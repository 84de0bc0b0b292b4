"""Buffers of the interpreter: bounds, elements never written, races between parallel iterations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ir.nodes import BOOL, F32, F64, I32, I64, Type

__all__ = ["DTYPES", "Memory"]

DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64, "bool": np.bool_}

_NOBODY, _SEVERAL = -1, -2


@dataclass
class _Marks:
    """Which iteration of the parallel loop read and wrote each element of one array."""

    reader: np.ndarray
    writer: np.ndarray


@dataclass
class _Region:
    """A parallel loop that is running; iterations are counted from 0."""

    loop: str
    private: set[str] = field(default_factory=set)  # arrays made by an iteration
    order: int = -1
    iterations: list[int] = field(default_factory=list)
    marks: dict[str, _Marks] = field(default_factory=dict)


class Memory:
    """Arrays by name; one parallel region at a time."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._stored: dict[str, np.ndarray] = {}
        self._region: _Region | None = None

    def bind(self, name: str, array: Any, dtype: type[np.generic]) -> None:
        """Let `name` be a view of `array`."""
        if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.c_contiguous:
            raise TypeError(f"argument {name} is not a C-contiguous NumPy array of {np.dtype(dtype)}")
        self._arrays[name] = array.reshape(-1)

    def names(self) -> set[str]:
        """Name all arrays."""
        return set(self._arrays)

    def type(self, name: str) -> Type:
        """Give the type of an array's elements."""
        return next(each for each in (F32, F64, I32, I64, BOOL) if self._arrays[name].dtype == DTYPES[each.scalar])

    def alloc(self, name: str, size: int, dtype: type[np.generic]) -> None:
        """Make a local array; whatever had its name is gone."""
        self._arrays[name] = np.zeros(size, dtype)
        self._stored[name] = np.zeros(size, bool)
        if self._region is not None:
            self._region.private.add(name)

    def load(self, name: str, index: int, lanes: int) -> Any:
        """Read a scalar, or a copy of `lanes` elements."""
        where = self._slice(name, index, lanes)
        if name in self._stored and not self._stored[name][where].all():
            raise ValueError(f"load of {name}[{index}; {lanes}], which was never stored")
        self._mark(name, where, writes=False)
        return self._arrays[name][index] if lanes == 1 else self._arrays[name][where].copy()

    def store(self, name: str, index: int, value: Any) -> None:
        """Write a scalar or a vector from `index` on."""
        where = self._slice(name, index, np.size(value))
        self._mark(name, where, writes=True)
        self._arrays[name][where] = value
        if name in self._stored:
            self._stored[name][where] = True

    def fork(self, loop: str) -> None:
        """Begin a parallel loop; arrays made from now on belong to one iteration."""
        self._region = _Region(loop)

    def enter(self, iteration: int) -> None:
        """Begin an iteration of the parallel loop."""
        assert self._region is not None
        self._region.order += 1
        self._region.iterations.append(iteration)

    def join(self) -> None:
        """End the parallel loop."""
        self._region = None

    def _slice(self, name: str, index: int, lanes: int) -> slice:
        size = self._arrays[name].size
        if index < 0 or index + lanes > size:
            raise IndexError(f"access to {name}[{index}; {lanes}], which has {size} elements")
        return slice(index, index + lanes)

    def _mark(self, name: str, where: slice, *, writes: bool) -> None:
        region = self._region
        if region is None or name in region.private:
            return
        if name not in region.marks:
            size = self._arrays[name].size
            region.marks[name] = _Marks(np.full(size, _NOBODY), np.full(size, _NOBODY))
        marks, me = region.marks[name], region.order
        clash = (marks.writer[where] != _NOBODY) & (marks.writer[where] != me)
        if writes:
            clash |= (marks.reader[where] != _NOBODY) & (marks.reader[where] != me)
        if clash.any():
            now, element = region.iterations[me], where.start + int(np.argmax(clash))
            raise IllegalSchedule(
                f"iteration {now} of parallel loop {region.loop} {'writes' if writes else 'reads'} {name}[{element}], "
                f"which another iteration {'reads or writes' if writes else 'writes'}"
            )
        if writes:
            marks.writer[where] = me
        else:
            readers = marks.reader[where]
            marks.reader[where] = np.where((readers == _NOBODY) | (readers == me), me, _SEVERAL)
