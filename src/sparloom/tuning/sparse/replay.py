"""Replays: what runs the calls of one operation on one matrix, once it is decided how.

`NativeReplay` runs a kernel, `copying` a library or NumPy. The native core calls most kernels of a processor itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sparloom.ops import Operands
from sparloom.platforms import Family
from sparloom.space import Config
from sparloom.tuning.sparse.backend import Arrays

__all__ = ["NativeReplay", "Replay", "copying"]


class Replay(Protocol):
    """Computes again and again for operands of one pattern and of the same shapes."""

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute, into `out` if it is given; one thread at a time.

        Raises:
            ValueError: `out` is read-only, of another type or not contiguous.
        """


class NativeReplay:
    """One of our kernels: bound by the first call, pointed to other arrays by later ones.

    Args:
        argmax: of a maximum: also return which nonzero each maximum comes from.
    """

    def __init__(self, family: Family, config: Config, *, argmax: bool = False) -> None:
        self._family, self._config, self._argmax = family, config, argmax
        self._call = None

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        results = (self._family.result(operands) if out is None else out,)
        if self._argmax:
            results += (self._family.argmax(operands),)
        if self._call is None:
            self._call = self._family.bind(operands, self._config, *results)
        else:
            self._family.rebind(self._call, operands, *results)
        self._call()
        self._call.lent = ()
        return results if self._argmax else results[0]


def copying(compute: Callable[[Operands], Any], arrays: Arrays) -> Replay:
    """Copy what a function returns to where the caller wants it."""
    def replay(operands: Operands, out: Any | None = None) -> Any:
        result = compute(operands)
        if out is None:
            return result
        arrays.copy(result, out)
        return out

    return replay
