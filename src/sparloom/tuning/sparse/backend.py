"""Backends of sparse operations: the interface of a device, and candidates bound to a matrix.

`Backend` computes, `Arrays` handles operands and results; `sparloom.tuning.sparse.cpu` and `cuda` implement both. A
`CandidateSet` binds candidates for a race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from sparloom.ops import (
    SDDMM,
    CsrAttention,
    Op,
    Operands,
    SpMM,
    SpmmMax,
    SpmmMean,
    assert_few_close,
    few_rows,
)
from sparloom.platforms import Family
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import Call, Clock, Decision, Timer
from sparloom.tuning.search import CsrCostModel
from sparloom.tuning.sparse.inputs import Origin
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = [
    "LIBRARIES", "LIBRARY_DTYPES", "OPS", "Arrays", "Backend", "CandidateSet", "Case", "CsrChoice", "CsrPlan",
    "Library", "Product", "gathered_pieces",
]

EPS: Mapping[str, float] = {"bfloat16": 2.0**-7}
"""Of types that are compared as float32."""

LIBRARY_DTYPES = ("float32", "float64")
"""Types of numbers that libraries on a processor compute with."""

GATHERED_BYTES = 1 << 30  # that a product by gathering may allocate at a time

Product = Callable[[Operands], np.ndarray]
"""Computes with the values of a matrix that has the pattern, and with dense operands; allocates its result.

Numbers are of any type that kernels on the device take, not only of that of the matrix which brought the pattern. One
thread at a time may call it.
"""

Library = Callable[[SparseMatrix, int], Product]
"""Converts the pattern of a matrix to the format that a library prefers, for products by so many threads."""

OPS: Mapping[str, Op] = {
    "spmm": SpMM(), "spmm_mean": SpmmMean(), "spmm_max": SpmmMax(), "sddmm": SDDMM(), "attention": CsrAttention()}


class Arrays(Protocol):
    """Operands and results of a device. Operands have the same class on every device."""

    def dense(self, given: Any, name: str, *, rows: int, axes: int) -> Any:
        """Accept a dense operand.

        Args:
            rows, axes: that it must have.

        Raises:
            TypeError: its type is read by no kernel here, or it is on another device.
            ValueError: it has another shape.
        """

    def array(self, given: Any, name: str) -> Any:
        """Accept an array of any type and shape.

        Raises:
            TypeError: it is no array, or on another device.
        """

    def dtype(self, op: str, operands: Operands) -> str:
        """Name the type of all numbers that an operation reads and writes; part of the key of a decision.

        Raises:
            TypeError: operands are of several types.
        """

    def promoted(self, matrix: Any, *dense: Any) -> tuple[Any, ...]:
        """Convert the values of A and dense operands to one type, where that is done here.

        Args:
            matrix: None: its values are not read.

        Returns:
            `matrix` and `dense`, converted.
        """

    def to_device(self, array: np.ndarray) -> Any:
        """Copy an array to the device, if it is not in the memory of the processor."""

    def multiply(self, one: Any, other: Any) -> Any:
        """Multiply two arrays of one shape, element by element."""

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows of A with all their columns, as `Operands.take_rows`."""

    def gather_operands(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Copy some rows, with the columns they use, to the memory of the processor."""

    def gather_rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        """Copy some rows of a result to the memory of the processor."""

    def check_out(
        self, out: Any, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]], origin: Origin,
    ) -> Any:
        """Accept an array for the result.

        Args:
            inputs: arrays of the call as its caller has them, or None, with their names in messages.
            origin: the arrays of A.

        Raises:
            TypeError: it is no array, or of another type.
            ValueError: it has another shape, is read-only, has gaps, or shares memory with an input.
        """

    def copy(self, result: Any, out: Any) -> None:
        """Copy the result of a library to where the caller wants it."""


class Backend(Protocol):
    """Kernels and libraries of a device, and its clock.

    Args:
        threads: of every call; 0 on a GPU.
        libraries: operation -> baselines besides the default configuration of our kernels.
        sources: of the kernels, as for `kernels_digest`.
        arrays: operands and results there.
    """

    threads: int
    libraries: Mapping[str, Mapping[str, Library]]
    sources: tuple[str, ...]
    arrays: Arrays

    def kernels(self, op: Op, width: int) -> Family:
        """Make kernels of an operation with their own workspace.

        Raises:
            Unsupported: there are none.
        """

    def space(self, op: Op, width: int) -> ConfigSpace:
        """Configurations of these kernels."""

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List the configurations; for a sample, without those whose benefit only shows on all rows."""

    def default_config(self, op: Op, operands: Operands) -> Config:
        """Choose the configuration that runs if nothing is measured, and that others must beat."""

    def launchable(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        """Compile kernels, and keep the configurations that can be launched."""

    def kind(self, config: Config) -> str:
        """Name what an estimate cannot compare: at least one configuration of each kind is measured."""

    def model(self, cache: PlanCache) -> CsrCostModel:
        """Make the formula that ranks configurations."""

    def policy(self) -> CsrPolicy:
        """Policy of decisions unless a caller gives one."""

    def timer(self, clock: Clock) -> Timer:
        """Make a timer by the given clock, or by the device's own."""

    def signature(self) -> Mapping[str, Any]:
        """Conditions that times depend on: threads, machine and kernels; part of the cache key of a decision."""


class Case(NamedTuple):
    """Subject of one decision: an operation with the shapes of its dense operands and the type of all numbers.

    Args:
        shapes: of the dense operands, each without its first axis.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    @property
    def operation(self) -> Op:
        """The operation, attention with as many heads as its operands."""
        return CsrAttention(self.shapes[0][0]) if self.op == "attention" else OPS[self.op]


@dataclass(frozen=True)
class CsrChoice:
    """Choice of a decision: a library, or a configuration of our kernels.

    Args:
        library: its name; "" for our own kernels.
        config: key of a point of the space; "" for a library.
    """

    library: str = ""
    config: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @property
    def name(self) -> str:
        """Its name among trials."""
        return self.library or self.config


@dataclass(frozen=True)
class CsrPlan:
    """Plan by which one operation on one matrix runs from now on.

    Args:
        space: name of the space of our kernels.
    """

    choice: CsrChoice
    decision: Decision
    space: str = "cpu_kernels"

    @cached_property
    def config(self) -> Config:
        """Configuration of our kernels, if they were chosen."""
        return Config.parse(self.space, self.choice.config)


class CandidateSet:
    """Candidates and baselines, bound to the parts of a sample on request.

    Args:
        own: configurations of our kernels, the default one first; the libraries follow.
    """

    def __init__(
        self, op: Op, backend: Backend, own: Sequence[Config], libraries: Mapping[str, Library],
        parts: Sequence[Operands],
    ) -> None:
        self.own, self.parts = own, parts
        self.names = [*(config.key for config in own), *libraries]
        self._op, self._backend, self._libraries = op, backend, libraries
        self._families = [backend.kernels(op, part.width) for part in parts]
        self._results = [family.result(part) for family, part in zip(self._families, parts, strict=True)]

    def choice(self, index: int) -> CsrChoice:
        """Name a candidate."""
        name = self.names[index]
        return CsrChoice(config=name) if index < len(self.own) else CsrChoice(library=name)

    def call(self, index: int) -> Call:
        """Bind a candidate to all parts, one after the other."""
        calls = [self._bound(index, part) for part in range(len(self.parts))]

        def run() -> None:
            for call in calls:
                call()

        return run

    def call_or_failure(self, index: int) -> Call:
        """Bind a candidate, or make a call that fails as binding did, so that a race goes on without it."""
        try:
            return self.call(index)
        except Exception as error:
            failure = error  # `error` is gone when the call runs

            def fail() -> None:
                raise failure

            return fail

    def pairs(self, one: int, other: int) -> list[tuple[Call, Call]]:
        """Bind two candidates to each part."""
        return [(self._bound(one, part), self._bound(other, part)) for part in range(len(self.parts))]

    def difference(self, winner: int, baseline: int) -> str:
        """Describe where, in some rows, the winner computes something else than the baseline; "" if it does not."""
        operands, name, arrays = self.parts[0], self._op.name, self._backend.arrays
        rows = few_rows(operands.matrix.pattern)
        places = operands.matrix.pattern.nonzeros_of(rows) if name == "sddmm" else rows
        expected, found = (
            arrays.gather_rows(self._computed(index, operands), places) for index in (baseline, winner))
        few = arrays.gather_operands(operands, rows, name)
        try:
            assert_few_close(found, expected, self._op, few, eps=EPS.get(arrays.dtype(name, operands)))
        except AssertionError as error:
            return f"other than the baseline: {error}"
        return ""

    def _bound(self, index: int, part: int) -> Call:
        operands = self.parts[part]
        if index < len(self.own):
            return self._families[part].bind(operands, self.own[index], self._results[part])
        product = self._libraries[self.names[index]](operands.matrix, self._backend.threads)
        return lambda: product(operands)

    def _computed(self, index: int, operands: Operands) -> Any:
        """Run a candidate once."""
        if index >= len(self.own):
            return self._libraries[self.names[index]](operands.matrix, self._backend.threads)(operands)
        result = self._families[0].result(operands)
        self._families[0].bind(operands, self.own[index], result)()
        return result


def gathered_pieces(nnz: int, width: int) -> Iterator[slice]:
    """Cut nonzeros into pieces so that three arrays (piece, width) take at most a gigabyte, or one nonzero each."""
    step = max(1, GATHERED_BYTES // (3 * 4 * width))
    return (slice(begin, begin + step) for begin in range(0, nnz, step))


def _scipy_spmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by SciPy, which uses one thread."""
    csr = matrix.to_scipy()

    def product(operands: Operands) -> np.ndarray:
        csr.data = operands.matrix.values
        return csr @ operands.dense["B"]

    return product


LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({"spmm": MappingProxyType({"scipy": _scipy_spmm})})
"""Operation -> name -> library; those that are always installed on a processor."""
