"""The processor as a backend: kernels of `CpuKernels`, chosen and ranked by the model of choice.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sparloom.jit import RESULT_POOL, kernels_digest
from sparloom.measure import Caches, checked_threads, machine_digest
from sparloom.ops import Op, Operands
from sparloom.platforms import SPARSE_FAMILIES, Family
from sparloom.space import Config, ConfigSpace
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import Clock, Timer, by_clock
from sparloom.tuning.sparse.backend import LIBRARIES, Library
from sparloom.tuning.sparse.choice import choose, score
from sparloom.tuning.sparse.cpu_arrays import CpuArrays
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = ["SOURCES", "CpuBackend", "CpuScores"]

SOURCES = ("cpu/*.hpp", "cpu/spmm.cpp", "cpu/spmm_max.cpp", "cpu/sddmm.cpp", "cpu/attention.cpp", "cpu/traversal.cpp")
STREAMING = ("spmm", "spmm_mean")  # operations whose results may bypass the caches


class CpuBackend:
    """Kernels compiled for the processor, timed by wall seconds; see `Backend`.

    Args:
        threads: of every call; None: all processors that this process may use.

    Raises:
        TypeError, ValueError: `threads` is too large or no number, see `checked_threads`.
    """

    sources = SOURCES
    arrays = CpuArrays()

    def __init__(
        self, threads: int | None, libraries: Mapping[str, Mapping[str, Library]] = LIBRARIES,
    ) -> None:
        self.threads, self.libraries = checked_threads(threads), libraries
        self._caches = Caches.here(self.threads)

    def kernels(self, op: Op, width: int) -> Family:
        return SPARSE_FAMILIES[op.name](self.threads, width, RESULT_POOL.empty)

    def space(self, op: Op, width: int) -> ConfigSpace:
        return SPARSE_FAMILIES[op.name].make_space(width)

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List configurations that treat results as the default does; for a sample, which fits in caches, rows, too.

        Results that bypass the caches put out those of other candidates there, and whoever reads them next must wait
        for memory. A race would judge such kernels by their rivals, and not at all by what they cost their program.
        """
        alike = ["stream"] if op.name in STREAMING else []
        if sampled and self._caches.distant(operands.matrix.pattern, operands.width, operands.value_bytes):
            alike.append("prefetch")
        default = self.default_config(op, operands)
        return [config for config in _configs(op, operands.width)
                if all(bool(config[name]) == bool(default[name]) for name in alike)]

    def default_config(self, op: Op, operands: Operands) -> Config:
        return choose(op.name, operands.matrix.pattern, operands.width, caches=self._caches,
                      value_bytes=operands.value_bytes, prepared=True)

    def launchable(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        return list(configs)

    def kind(self, config: Config) -> str:
        """Return one kind for all: the model compares all of them."""
        return ""

    def model(self, cache: PlanCache) -> CpuScores:
        """Return the model; it needs no rates of this machine."""
        return CpuScores(self._caches)

    def policy(self) -> CsrPolicy:
        return CsrPolicy()

    def timer(self, clock: Clock) -> Timer:
        return by_clock(clock)

    def signature(self) -> Mapping[str, Any]:
        return {"threads": self.threads, "machine": machine_digest(), "kernels": kernels_digest(SOURCES)}


@dataclass(frozen=True)
class CpuScores:
    """Ranks configurations for one problem, see `sparloom.tuning.sparse.choice.score`."""

    caches: Caches

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        return score(op, operands, configs, caches=self.caches)


@lru_cache(64)
def _configs(op: Op, width: int) -> list[Config]:
    return list(SPARSE_FAMILIES[op.name].make_space(width))
