"""Replays: what runs the calls of one operation on one matrix, once it is decided how.

`NativeReplay` runs a kernel and `LibraryReplay` a library. The native core calls most kernels of a processor itself.
"""

from __future__ import annotations

from typing import Any, Protocol

from sparloom.ops import Operands
from sparloom.platforms import DeviceKernels, Family, SpmmMaxKernels
from sparloom.space import Config
from sparloom.tuning.sparse.backend import Arrays, Product

__all__ = ["ArgmaxReplay", "EmptyReplay", "LibraryReplay", "NativeReplay", "Replay"]


class Replay(Protocol):
    """Computes again and again for operands of one pattern and of the same shapes."""

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute, into `out` if it is given; one thread at a time.

        Raises:
            ValueError: `out` is read-only, of another type or not contiguous.
        """


class NativeReplay:
    """One of our kernels: bound by the first call, pointed to other arrays by later ones."""

    def __init__(self, family: Family, config: Config) -> None:
        self._family, self._config = family, config
        self._call = None

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        result = self._pointed(operands, out)
        self._call()
        self._call.lent = ()
        return result

    def _pointed(self, operands: Operands, out: Any | None) -> Any:
        result = self._family.result(operands) if out is None else out
        if self._call is None:
            self._call = self._family.bind(operands, self._config, result)
        else:
            self._family.rebind(self._call, operands, result)
        return result


class ArgmaxReplay(NativeReplay):
    """The maximum of products by one of our kernels, with the argmax: which nonzero each maximum comes from.

    Raises:
        ValueError: there are too many nonzeros to count them in int32.
    """

    def __init__(self, family: SpmmMaxKernels | DeviceKernels, config: Config) -> None:
        super().__init__(family, config)

    def _pointed(self, operands: Operands, out: None) -> tuple[Any, Any]:
        both = self._family.result(operands), self._family.argmax(operands)
        if self._call is None:
            self._call = self._family.bind(operands, self._config, *both)
        else:
            self._family.rebind(self._call, operands, *both)
        return both


class EmptyReplay:
    """The result for dense operands without columns or heads: it has no elements, or all of them are empty sums."""

    def __init__(self, family: Family, arrays: Arrays, *, argmax: bool) -> None:
        self._family, self._arrays, self._argmax = family, arrays, argmax

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Return zeros, for a maximum with its argmax if that is asked for."""
        result = self._family.result(operands)
        result.fill(0)
        if self._argmax:
            return result, self._family.argmax(operands)
        if out is None:
            return result
        self._arrays.copy(result, out)
        return out


class LibraryReplay:
    """The product of a library, prepared for the pattern."""

    def __init__(self, product: Product, arrays: Arrays) -> None:
        self._product, self._arrays = product, arrays

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        result = self._product(operands)
        if out is None:
            return result
        self._arrays.copy(result, out)
        return out
