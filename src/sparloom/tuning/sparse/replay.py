"""What was decided, run again and again: nothing is made twice but the array of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sparloom.ops import Operands
from sparloom.platforms import DeviceKernels, Family, SpmmMaxKernels
from sparloom.space import Config
from sparloom.tuning.racing import Clock, Timer
from sparloom.tuning.sparse.place import Place
from sparloom.tuning.sparse.rivals import Product

__all__ = ["EmptyReplay", "LibraryReplay", "MeanwhileReplay", "NativeReplay", "PlacesReplay", "Replay", "TimedReplay"]


class Replay(Protocol):
    """Computes for operands of one pattern and of the same shapes each time; arrays are those of a `Place`."""

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute, into an array of the right shape if one is given; one thread at a time.

        Raises:
            ValueError: `out` is read-only, of another type or not contiguous.
        """


class TimedReplay(Replay, Protocol):
    """One that can say how long it computes."""

    def timed(self, operands: Operands, out: Any | None, timer: Timer) -> tuple[Any, float]:
        """Compute likewise; also gives the seconds, without those of what is done once."""


class NativeReplay:
    """One of our kernels; bound at the first call, pointed to other arrays at each one after it."""

    def __init__(self, family: Family, config: Config) -> None:
        self._family, self._config = family, config
        self._call = None

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute."""
        result = self._pointed(operands, out)
        self._call()
        self._call.lent = ()
        return result

    def timed(self, operands: Operands, out: Any | None, timer: Timer) -> tuple[Any, float]:
        """Compute, and time the kernel."""
        result = self._pointed(operands, out)
        seconds = timer(self._call, 1)
        self._call.lent = ()
        return result, seconds

    def _pointed(self, operands: Operands, out: Any | None) -> Any:
        result = self._family.result(operands) if out is None else out
        if self._call is None:
            self._call = self._family.bind(operands, self._config, result)
        else:
            self._family.rebind(self._call, operands, result)
        return result


class PlacesReplay:
    """The maximum of products by one of our kernels, with the places of the maxima; otherwise as `NativeReplay`."""

    def __init__(self, family: SpmmMaxKernels | DeviceKernels, config: Config) -> None:
        self._family, self._config = family, config
        self._call = None

    def __call__(self, operands: Operands, out: None = None) -> tuple[Any, Any]:
        """Compute.

        Raises:
            ValueError: there are too many nonzeros to count them in int32.
        """
        both = self._pointed(operands)
        self._call()
        self._call.lent = ()
        return both

    def timed(self, operands: Operands, out: None, timer: Timer) -> tuple[tuple[Any, Any], float]:
        """Compute, and time the kernel."""
        both = self._pointed(operands)
        seconds = timer(self._call, 1)
        self._call.lent = ()
        return both, seconds

    def _pointed(self, operands: Operands) -> tuple[Any, Any]:
        both = self._family.result(operands), self._family.places(operands)
        if self._call is None:
            self._call = self._family.bind(operands, self._config, *both)
        else:
            self._family.rebind(self._call, operands, *both)
        return both


class MeanwhileReplay:
    """What runs until it is time to decide anew.

    Args:
        replay: computes until then.
        until: by the clock.
        anew: gives what computes from then on.
    """

    def __init__(self, replay: Replay, until: float, anew: Callable[[Operands], Replay], *, clock: Clock) -> None:
        self._replay, self._until, self._anew, self._clock = replay, until, anew, clock

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute."""
        replay = self._replay if self._clock() < self._until else self._anew(operands)
        return replay(operands, out)


class EmptyReplay:
    """The result for dense operands without columns, or without heads: without elements, or of empty sums."""

    def __init__(self, family: Family, where: Place, *, places: bool) -> None:
        self._family, self._where, self._places = family, where, places

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Give it, and for a maximum its places where they are asked for."""
        result = self._family.result(operands)
        result.fill(0)
        if self._places:
            return result, self._family.places(operands)
        if out is None:
            return result
        self._where.copy(result, out)
        return out


class LibraryReplay:
    """The product of a library, ready for the pattern."""

    def __init__(self, product: Product, where: Place) -> None:
        self._product, self._where = product, where

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute."""
        result = self._product(operands)
        if out is None:
            return result
        self._where.copy(result, out)
        return out

    def timed(self, operands: Operands, out: Any | None, timer: Timer) -> tuple[Any, float]:
        """Compute, and time all of it."""
        results: list[Any] = []
        seconds = timer(lambda: results.append(self(operands, out)), 1)
        return results[-1], seconds
