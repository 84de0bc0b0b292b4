"""Calls of a decided kernel with NumPy arrays of the shapes that it had before.

`Prepared` looks at every operand as if it could be anything: arrays of other libraries, types to convert, cases without
a decision. That takes longer than a kernel of some thousand nonzeros. A `RepeatedCall` asks whether the arrays are as
those of the last call, by a few comparisons, and leaves everything else to `Prepared`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import RLock
from typing import Any

import numpy as np

from sparloom.jit import address_of
from sparloom.ops import Operands
from sparloom.tuning.sparse.inputs import Origin
from sparloom.tuning.sparse.replay import NativeReplay, ProvisionalReplay, Replay

__all__ = ["RepeatedCall", "RepeatedCalls"]

FIELDS = {"spmm": ("dense",), "sddmm": ("left", "right")}
"""Operation -> names of its dense operands in the arguments of kernels."""


class RepeatedCall:
    """A kernel bound to a sparse matrix, for contiguous arrays of fixed shapes and one type.

    Args:
        native: has run once.
        fields: of the arguments, for the dense operands.
        result: of that run.
        provisional: how the kernel is called until it is decided again; None: it is decided.
    """

    def __init__(
        self, native: NativeReplay, fields: Sequence[str], operands: Operands, result: np.ndarray, origin: Origin,
        provisional: ProvisionalReplay | None,
    ) -> None:
        self._native, self._call = native, native._call
        self._fields = [(name, array.shape) for name, array in zip(fields, operands.dense.values(), strict=True)]
        self._dtype, self._result_shape = result.dtype, result.shape
        self._values, self._origin, self._provisional = operands.matrix.values, origin, provisional
        self._begin = address_of(self._values)
        self._end = self._begin + self._values.nbytes

    @classmethod
    def of(
        cls, op: str, replay: Replay, operands: Operands, given: Collection[Any], result: Any, origin: Origin,
    ) -> RepeatedCall | None:
        """Bind what has just run; None if that was no kernel, or if arrays were converted before.

        Args:
            given: dense operands as the user passed them.
        """
        provisional = replay if type(replay) is ProvisionalReplay else None
        replay = replay if provisional is None else provisional._native
        arrays = list(operands.dense.values())
        if op not in FIELDS or type(replay) is not NativeReplay or not origin.all_numpy:
            return None
        if type(result) is not np.ndarray or any(
                array is not each or array.dtype is not result.dtype
                for array, each in zip(arrays, given, strict=True)):
            return None
        return cls(replay, FIELDS[op], operands, result, origin, provisional)

    def __call__(self, given: Sequence[Any], out: Any | None) -> np.ndarray | None:
        """Compute as `Prepared` does; None, with nothing done, if it must look at the arrays first.

        One thread at a time.
        """
        dtype, native, call, provisional = self._dtype, self._native, self._call, self._provisional
        if call is not native._call or self._origin.changed() or (provisional is not None and not provisional._left):
            return None  # a provisional replay reads the clock in this call
        for array, (_, shape) in zip(given, self._fields, strict=True):
            if not (type(array) is np.ndarray and array.dtype is dtype and array.shape == shape):
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        if out is None:
            result = native._family._allocate(self._result_shape, dtype)
        elif type(out) is np.ndarray and out.dtype is dtype and out.shape == self._result_shape:
            result, flags = out, out.flags
            if not (flags.c_contiguous and flags.aligned and flags.writeable):
                return None
        else:
            return None
        arguments = call.arguments
        begin = address_of(result)
        end = begin + result.nbytes
        for array, (name, _) in zip(given, self._fields, strict=True):
            first = address_of(array)
            if first < end and begin < first + array.nbytes:
                return None
            setattr(arguments, name, first)
        if (self._begin < end and begin < self._end) or self._origin.overlapping(begin, end):
            return None
        if provisional is not None:
            provisional._left -= 1
        arguments.result = begin
        call.point(self._values)
        call.lent = (given, result)
        call()
        call.lent = ()
        return result


class RepeatedCalls:
    """The last call of each operation on one matrix."""

    def __init__(self) -> None:
        self._last: dict[str, RepeatedCall | None] = {}

    def keep(
        self, op: str, replay: Replay, operands: Operands, given: Sequence[Any], result: Any, origin: Origin,
    ) -> None:
        """Remember a call that has run, with what the user passed: dense operands, then values."""
        if op in FIELDS:
            self._last[op] = RepeatedCall.of(op, replay, operands, given[:-1], result, origin)

    def result(self, op: str, given: Sequence[Any], out: Any | None, lock: RLock) -> np.ndarray | None:
        """Compute if the arrays are as those of the last call, and no other call runs; else None."""
        last = self._last.get(op)
        if last is None or lock._is_owned() or not lock.acquire(blocking=False):
            return None
        try:
            return last(given, out)
        finally:
            lock.release()
