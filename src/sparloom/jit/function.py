"""Compiled functions that check their arguments."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparloom.ir import DTYPES, Param

__all__ = ["Function"]

_C_TYPES = {
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool,
}
_RANGES = {"i32": range(-(2**31), 2**31), "i64": range(-(2**63), 2**63)}


class Function:
    """A compiled kernel; calling it releases the GIL.

    Buffers are C-contiguous arrays of any number of dimensions with exactly the dtype of their parameter. Buffers that
    are written overlap no other buffer.
    """

    def __init__(self, name: str, params: Sequence[Param], entry: Any) -> None:
        self.name = name
        self.params = tuple(params)
        self._entry = entry
        self._entry.restype = None
        self._entry.argtypes = [ctypes.c_void_p if p.buffer else _C_TYPES[p.type.scalar] for p in self.params]

    def __call__(self, *arguments: Any) -> None:
        """Check `arguments` and run.

        Raises:
            TypeError: wrong number of arguments, or one of the wrong type.
            ValueError: a buffer is not contiguous, read-only though written, or overlaps another.
        """
        self.bind(*arguments)()

    def bind(self, *arguments: Any) -> Callable[[], None]:
        """Check `arguments` once and return a call without arguments, for loops that take times."""
        if len(arguments) != len(self.params):
            names = ", ".join(param.name for param in self.params)
            raise TypeError(f"kernel {self.name} takes {len(self.params)} arguments ({names}), got {len(arguments)}")
        pairs = list(zip(self.params, arguments, strict=True))
        values = [self._buffer(p, a) if p.buffer else self._scalar(p, a) for p, a in pairs]
        self._check_overlap([(p, a) for p, a in pairs if p.buffer])
        entry = self._entry

        def run(kept: tuple[Any, ...] = arguments) -> None:
            entry(*values)

        return run

    def at(self, *values: int | float) -> None:
        """Run with the addresses of buffers in place of buffers, unchecked: for callers that made the buffers."""
        self._entry(*values)

    def _buffer(self, param: Param, array: Any) -> int:
        where = f"argument {param.name} of kernel {self.name}"
        dtype = np.dtype(DTYPES[param.type.scalar])
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{where} is a {type(array).__name__}: pass a NumPy array of {dtype}")
        if array.dtype != dtype:
            raise TypeError(f"{where} has dtype {array.dtype}, not {dtype}: convert it with .astype(np.{dtype})")
        if not array.flags.c_contiguous or not array.flags.aligned:
            raise ValueError(f"{where} is not C-contiguous and aligned: pass np.ascontiguousarray of it")
        if not param.const and not array.flags.writeable:
            raise ValueError(f"{where} is written but read-only: pass a copy")
        return array.ctypes.data

    def _scalar(self, param: Param, value: Any) -> Any:
        where, kind = f"argument {param.name} of kernel {self.name}", param.type.scalar
        if kind == "bool":
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"{where} is a {type(value).__name__}: pass a bool")
            return bool(value)
        if isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{where} is a bool: pass a number of type {kind}")
        if kind in _RANGES:
            if not isinstance(value, (int, np.integer)):
                raise TypeError(f"{where} is a {type(value).__name__}: pass an int")
            if int(value) not in _RANGES[kind]:
                raise ValueError(f"{where} is {value}, outside the range of {kind}")
            return int(value)
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise TypeError(f"{where} is a {type(value).__name__}: pass a float")
        return float(value)

    def _check_overlap(self, buffers: list[tuple[Param, np.ndarray]]) -> None:
        for written, array in buffers:
            if written.const:
                continue
            for other, against in buffers:
                if other is not written and np.may_share_memory(array, against):
                    names = f"{written.name} and {other.name}"
                    raise ValueError(f"arguments {names} of kernel {self.name} overlap: pass a copy of one")
