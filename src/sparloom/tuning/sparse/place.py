"""Where a sparse matrix lies and computes: all in which decisions for a processor and for a GPU differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sparloom.ops import Op, Operands
from sparloom.platforms import Family
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern
from sparloom.tuning.plan_cache import PlanCache
from sparloom.tuning.racing import Clock, Timer
from sparloom.tuning.sparse.origin import Origin
from sparloom.tuning.sparse.rivals import Library
from sparloom.tuning.sparse.shortlist import CsrCostModel

if TYPE_CHECKING:
    from sparloom.tuning.sparse.decide import CsrPolicy

__all__ = ["Place"]


class Place(Protocol):
    """A device, its arrays, the kernels and libraries that run on it, and its clock.

    Operands there have the same class everywhere; their matrix and arrays are those of the place.

    Args:
        threads: of every call; 0 where they do not matter.
        libraries: operation -> baselines beside the safe configuration of our kernels.
    """

    threads: int
    libraries: Mapping[str, Mapping[str, Library]]

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
