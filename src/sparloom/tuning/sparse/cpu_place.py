"""The processor as the place of a sparse matrix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from sparloom.jit import RESULTS, address
from sparloom.measure import checked_threads
from sparloom.ops import Op, Operands
from sparloom.platforms import CpuKernels, Family
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern
from sparloom.tuning.caches import Caches
from sparloom.tuning.plan_cache import PlanCache
from sparloom.tuning.plan_key import machine_digest, sources_digest
from sparloom.tuning.racing import Clock, Timer, by_clock
from sparloom.tuning.sparse.decide import CsrPolicy
from sparloom.tuning.sparse.estimate import CsrEstimate
from sparloom.tuning.sparse.given import array_of, dense_of
from sparloom.tuning.sparse.origin import Origin
from sparloom.tuning.sparse.portfolio import portfolios
from sparloom.tuning.sparse.rivals import LIBRARIES, Library

__all__ = ["SOURCES", "CpuPlace"]

SOURCES = ("spmm.cpp", "spmm_max.cpp", "sddmm.cpp", "attention.cpp", "traversal.cpp")
AHEAD = 8  # `prefetch` where dense rows come from afar
LONG_ROWS = 12  # nonzeros of a mean row, from which on SDDMM better takes groups of one row ...
NARROW = 128  # ... unless dense rows have more columns
SORTED, COMPARED = (8e-9, 1e-9, 0.6e-9), (3e-9, 0.0, 0.3e-9)
"""Seconds per row, column and nonzero, by a trial on training matrices of 20,000 to 600,000 nonzeros on an AMD EPYC."""


class CpuPlace:
    """Arrays in the memory of the processor, kernels compiled for it, wall seconds; see `Place`.

    Args:
        threads: of every call; all processors that this process may use for None.

    Raises:
        TypeError, ValueError: too many threads, or no number of them; see `checked_threads`.
    """

    def __init__(
        self, threads: int | None, libraries: Mapping[str, Mapping[str, Library]] = LIBRARIES,
    ) -> None:
        self.threads, self.libraries = checked_threads(threads), libraries

    dense, array = staticmethod(dense_of), staticmethod(array_of)

    def kernels(self, op: Op, width: int) -> Family:
        """Give kernels of an operation."""
        return CpuKernels(self.threads, width, RESULTS.empty).family(op)

    def with_threads(self, threads: int) -> CpuPlace:
        """Take the same place with so many threads."""
        return CpuPlace(threads, self.libraries)

    def space(self, op: Op, width: int) -> ConfigSpace:
        """Give the space of these kernels."""
        return CpuKernels(self.threads, width).space(op)

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List its configurations; on a sample, which caches hold, those that do as the safe one what pays beyond."""
        listed, width = _configs(op, operands.width), operands.width
        if not sampled:
            return listed
        beyond = ["stream"] if op.name == "spmm" else []
        if Caches.here(self.threads).distant(operands.matrix.pattern, width):
            beyond.append("prefetch")
        safe = self.safe(op, operands)
        return [config for config in listed if all(bool(config[name]) == bool(safe[name]) for name in beyond)]

    def safe(self, op: Op, operands: Operands) -> Config:
        """Take the default, but for what the training matrices of results/choose_kernels say; O(1) in the nonzeros.

        Threads have equal shares, as each finds its own rows in its caches from call to call. Where dense rows come
        from afar, they are requested ahead, and results of SpMM are written past the caches.
        """
        pattern, width, caches = operands.matrix.pattern, operands.width, Caches.here(self.threads)
        changed: dict[str, str | int] = {"balance": "nonzeros"}
        if caches.distant(pattern, width):
            changed["prefetch"] = AHEAD
        if op.name == "spmm":
            changed["stream"] = int(caches.overflow(pattern, width))
        if op.name == "sddmm":
            changed["group"] = 4 if width <= NARROW and pattern.nnz >= LONG_ROWS * pattern.rows else 1
        return self.space(op, width).default().replace(**changed)

    def dtype(self, op: str, operands: Operands) -> str:
        """Name the only one."""
        return "float32"

    def able(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        """Take all."""
        return list(configs)

    def portfolios(self, op: Op, operands: Operands) -> Sequence[Sequence[Config]]:
        """List those that were chosen on training matrices, see `portfolios`."""
        return [_parsed(keys) for keys in portfolios(op.name, operands, Caches.here(self.threads))]

    def binding_seconds(self, config: Config, pattern: Pattern) -> float:
        """Guess from what sorting the rows takes, or looking for rows with equal columns."""
        sizes, seconds = (*pattern.shape, pattern.nnz), 0.0
        if config["order"] != "natural":
            seconds += float(np.dot(SORTED, sizes))
        if "together" in config.names and int(config["together"]) > 1:
            seconds += float(np.dot(COMPARED, sizes))
        return seconds

    def kind(self, config: Config) -> str:
        """Know of none: the portfolio has what the estimate does not see."""
        return ""

    def model(self, cache: PlanCache) -> CsrEstimate:
        """Estimate by rates of this machine, the kernels of the portfolio before all others."""
        def favoured(op: str, operands: Operands) -> Collection[str]:
            return next(iter(portfolios(op, operands, Caches.here(self.threads))), ())

        return CsrEstimate(cache.rates(self.threads), self.threads, favoured)

    def policy(self) -> CsrPolicy:
        """Let the calls of a program be the race."""
        return CsrPolicy.online()

    def timer(self, clock: Clock) -> Timer:
        """Time by the clock."""
        return by_clock(clock)

    def signature(self) -> Mapping[str, Any]:
        """Name threads, machine and kernels."""
        return {"threads": self.threads, "machine": machine_digest(), "kernels": sources_digest(SOURCES)}

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows of A with all their columns."""
        return operands.take_rows(rows, op)

    def few(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows, and the columns they use."""
        return operands.take_rows(rows, op).used_columns(op)

    def some(self, result: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Take some rows of a result."""
        return result[places]

    def spread(self, array: np.ndarray) -> np.ndarray:
        """It is here."""
        return array

    def times(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Multiply, into memory that results use."""
        return np.multiply(one, other, out=RESULTS.empty(one.shape, np.float32))

    def check_out(
        self, out: np.ndarray, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]],
        origin: Origin,
    ) -> np.ndarray:
        """Take an array for the result."""
        if not isinstance(out, np.ndarray) or out.shape != shape:
            given = out.shape if isinstance(out, np.ndarray) else type(out).__name__
            raise ValueError(f"out is {given}: it must be an array of shape {shape}")
        if isinstance(out, np.ma.MaskedArray):
            raise TypeError("out is a masked array, whose mask would not be looked at: give out.data")
        try:
            begin = address(out, written=True)  # which fails before anything is computed
        except ValueError as error:
            raise ValueError(f"out cannot be written: {error}") from error
        shared = origin.at(begin, begin + out.nbytes) if out.size else ""
        for name, array in inputs if origin.is_here else (*inputs, *origin.elsewhere()):
            if array is not None and np.may_share_memory(
                    out, array if type(array) is np.ndarray else array_of(array, name)):
                shared = name
        if shared:
            raise ValueError(f"out lies in the memory of an operand, {shared}: give another array")
        return out

    def copy(self, result: np.ndarray, out: np.ndarray) -> None:
        """Copy a result of a library."""
        address(out, written=True)
        np.copyto(out, result)


@cache
def _parsed(keys: tuple[str, ...]) -> list[Config]:
    return [Config.parse(CpuKernels.name, key) for key in keys]


@lru_cache(64)
def _configs(op: Op, width: int) -> list[Config]:
    return list(CpuKernels(1, width).space(op))
