"""What the guardrail compares with: products of other libraries, ready for one pattern.

Where a sparse matrix lies and computes: all in which decisions for a processor and for a GPU differ.

What was decided, run again and again: nothing is made twice but the array of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from sparloom.ops import Op, Operands
from sparloom.platforms import DeviceKernels, Family, SpmmMaxKernels
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import Clock, Timer
from sparloom.tuning.search import CsrCostModel
from sparloom.tuning.sparse.inputs import Origin
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = [
    "LIBRARIES", "Backend", "EmptyReplay", "Library", "LibraryReplay", "MeanwhileReplay", "NativeReplay",
    "PlacesReplay", "Product", "Replay", "TimedReplay", "gathered_pieces",
]

GATHERED_BYTES = 1 << 30  # that a product by gathering may make at a time

Product = Callable[[Operands], np.ndarray]
"""Computes with the values of a matrix that has the pattern, and with dense operands; makes the array of its result.

Numbers are of any type that kernels there take, not only of that of the matrix which brought the pattern.

One thread at a time may call it."""

Library = Callable[[SparseMatrix, int], Product]
"""Brings the pattern of a matrix into the form that a library likes best, for products by so many threads."""


def scipy_spmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by SciPy: on one thread, whatever is allowed."""
    csr = matrix.to_scipy()

    def product(operands: Operands) -> np.ndarray:
        csr.data = operands.matrix.values
        return csr @ operands.dense["B"]

    return product


def gathered_pieces(nnz: int, width: int) -> Iterator[slice]:
    """Cut nonzeros into pieces; of each, three arrays (piece, width) take a gigabyte at most, or one nonzero each."""
    step = max(1, GATHERED_BYTES // (3 * 4 * width))
    return (slice(begin, begin + step) for begin in range(0, nnz, step))


LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({"spmm": MappingProxyType({"scipy": scipy_spmm})})
"""Operation -> name -> library, of those that are always there."""


class Backend(Protocol):
    """A device, its arrays, the kernels and libraries that run on it, and its clock.

    Operands there have the same class everywhere; their matrix and arrays are those of the place.

    Args:
        threads: of every call; 0 where they do not matter.
        libraries: operation -> baselines beside the safe configuration of our kernels.
        sources: of the kernels, as `kernels_digest` takes them.
    """

    threads: int
    libraries: Mapping[str, Mapping[str, Library]]
    sources: tuple[str, ...]

    def kernels(self, op: Op, width: int) -> Family:
        """Give kernels of an operation with a workspace of their own; those of a CPU or what has the same calls.

        Raises:
            Unsupported: there are none here.
        """

    def space(self, op: Op, width: int) -> ConfigSpace:
        """Give the space of these kernels."""

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List its configurations; without those whose worth does not show where only a sample of the rows is timed."""

    def safe(self, op: Op, operands: Operands) -> Config:
        """Take the configuration that runs where nothing is measured, and that others must beat."""

    def able(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        """Compile kernels, and keep those that can start."""

    def portfolios(self, op: Op, operands: Operands) -> Sequence[Sequence[Config]]:
        """List configurations of which one is near the fastest on most such problems.

        Returns:
            Lists, the better ones first, others for where not all of one can be taken; none where that is not known.
        """

    def binding_seconds(self, config: Config, pattern: Pattern) -> float:
        """Guess what it takes to bind a configuration beyond what binding any other takes."""

    def kind(self, config: Config) -> str:
        """Name what an estimate does not see: of each kind at least one is measured."""

    def model(self, cache: PlanCache) -> CsrCostModel:
        """Make what orders configurations by a formula."""

    def policy(self) -> CsrPolicy:
        """Say how decisions are made unless a caller does."""

    def timer(self, clock: Clock) -> Timer:
        """Time calls: by the clock given, or by the device's own."""

    def signature(self) -> Mapping[str, Any]:
        """Name what times here depend on: threads, machine and kernels; part of the key of a decision."""

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows of A with all their columns, as `Operands.take_rows`."""

    def few(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Bring some rows, with the columns they use, into the memory of the processor."""

    def some(self, result: Any, places: np.ndarray) -> np.ndarray:
        """Bring some rows of a result into the memory of the processor."""

    def dense(self, given: Any, name: str, *, rows: int, axes: int) -> Any:
        """Take a dense operand.

        Args:
            rows: that it must have.
            axes: likewise.

        Raises:
            TypeError: of a type that no kernel here reads, or somewhere else.
            ValueError: of another shape.
        """

    def array(self, given: Any, name: str) -> Any:
        """Take an array of any type and shape.

        Raises:
            TypeError: no array, or somewhere else.
        """

    def dtype(self, op: str, operands: Operands) -> str:
        """Name the type of all numbers that an operation reads and writes; part of the key of a decision.

        Raises:
            TypeError: operands are of several types.
        """

    def spread(self, array: np.ndarray) -> Any:
        """Bring an array here."""

    def times(self, one: Any, other: Any) -> Any:
        """Multiply two arrays of one shape that are here, element by element."""

    def check_out(
        self, out: Any, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]], origin: Origin,
    ) -> Any:
        """Take an array for the result.

        Args:
            inputs: arrays of the call as its caller has them, or None, with the names that they have in messages.
            origin: knows the arrays of A.

        Raises:
            TypeError: no array, or of another type.
            ValueError: it has another shape, is read-only, has gaps, or shares memory with an input.
        """

    def copy(self, result: Any, out: Any) -> None:
        """Copy a result of a library to where the caller wants it."""


class Replay(Protocol):
    """Computes for operands of one pattern and of the same shapes each time; arrays are those of a `Backend`."""

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
        both = self._family.result(operands), self._family.argmax(operands)
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

    def __init__(self, family: Family, where: Backend, *, places: bool) -> None:
        self._family, self._where, self._places = family, where, places

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Give it, and for a maximum its places where they are asked for."""
        result = self._family.result(operands)
        result.fill(0)
        if self._places:
            return result, self._family.argmax(operands)
        if out is None:
            return result
        self._where.copy(result, out)
        return out


class LibraryReplay:
    """The product of a library, ready for the pattern."""

    def __init__(self, product: Product, where: Backend) -> None:
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
