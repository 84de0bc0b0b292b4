"""The processor as a backend: kernels of `CpuKernels`, an estimate of their seconds, and portfolios of good ones.

    seconds = imbalance * (longer + EXPOSED * shorter of (gathered / rate of the cache that holds the dense rows,
                                                          flops / rate) + streamed / memory)

Source: AutoSAGE's roofline-style estimate; its formula is not published, this one is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from sparloom.jit import RESULT_POOL, kernels_digest
from sparloom.measure import VALUE_BYTES, Caches, checked_threads, machine_digest
from sparloom.ops import Op, Operands
from sparloom.platforms import SPARSE_FAMILIES, CpuKernels, Family
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.machine import Rates, machine_rates
from sparloom.tuning.racing import Clock, Timer, by_clock
from sparloom.tuning.search import favour
from sparloom.tuning.sparse.backend import LIBRARIES, Library
from sparloom.tuning.sparse.cpu_arrays import CpuArrays
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = ["PORTFOLIO", "SOURCES", "STORED", "CpuBackend", "CsrEstimate", "portfolios"]

NO_PREFETCH = 1.3  # factor of gathering distant rows without prefetching
NEEDLESS_PREFETCH = 1.1  # factor of gathering near rows with prefetching
COMPARING = 1.05  # factor of gathering if rows are compared with previous ones
REDUCTION_COLUMNS = 40  # whose products take as long as the reduction over the lanes of a group
INDEX_BYTES = 4
COMPARED_ROWS = 10_000  # with the ones before them, to estimate how many have the same columns
LANES = 16  # of a vector; fewer without AVX-512
EXPOSED = 0.3  # share of the shorter one of gathering and computing that does not overlap with the other
STRIP = 1.05  # factor of everything if indices are read again for every strip
DYNAMIC = 0.97  # factor of dynamic balance: a thread that is held up does less

SOURCES = ("cpu/*.hpp", "cpu/spmm.cpp", "cpu/spmm_max.cpp", "cpu/sddmm.cpp", "cpu/attention.cpp", "cpu/traversal.cpp")
PREFETCH = 8  # rows ahead, if dense rows do not fit in caches
LONG_ROWS = 12  # mean nonzeros of a row, from which on SDDMM is faster with groups of one row ...
MAX_GROUP_WIDTH = 128  # ... unless dense rows have more columns
MAX_FLAT_WIDTH = 48  # columns up to which group=1 reads both dense rows of each nonzero, see kernels/cpu/sddmm.hpp

Keys = tuple[str, ...]

STREAMING = ("spmm", "spmm_mean")  # operations whose results may bypass the caches
DEFAULTS: Mapping[str, str] = {
    **dict.fromkeys(STREAMING, "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=0"),
    "spmm_max": "order=natural,balance=nonzeros,prefetch=0",
    "sddmm": "order=natural,balance=nonzeros,prefetch=0,group=16",
    "attention": "order=natural,balance=nonzeros,prefetch=0",
}
"""Keys of the configurations that `CpuBackend.default_config` adapts: the defaults of the spaces, in equal shares."""

PORTFOLIO: Mapping[str, Keys] = {
    "spmm": (
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=column,balance=nonzeros,prefetch=0,strip=all,together=1,stream=0",
        "order=natural,balance=rows,prefetch=8,strip=all,together=4,stream=1",
        "order=column,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=rows,prefetch=8,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=4,stream=1",
        "order=natural,balance=dynamic,prefetch=0,strip=all,together=4,stream=0",
        "order=column,balance=dynamic,prefetch=0,strip=all,together=1,stream=1",
    ),
    "sddmm": (
        "order=natural,balance=nonzeros,prefetch=8,group=4",
        "order=column,balance=nonzeros,prefetch=0,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=nonzeros,prefetch=8,group=1",
        "order=column,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=dynamic,prefetch=8,group=4",
        "order=column,balance=nonzeros,prefetch=4,group=4",
        "order=natural,balance=nonzeros,prefetch=4,group=16",
    ),
    "attention": (
        "order=natural,balance=nonzeros,prefetch=4",
        "order=natural,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=8",
        "order=column,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=4",
        "order=natural,balance=rows,prefetch=0",
        "order=natural,balance=dynamic,prefetch=0",
        "order=natural,balance=nonzeros,prefetch=8",
    ),
}
"""Operation -> keys of configurations, each the one that helps most beside the previous ones."""

STORED: Mapping[str, Keys] = {
    "spmm": (
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=0",
        "order=natural,balance=rows,prefetch=8,strip=all,together=4,stream=1",
        "order=natural,balance=rows,prefetch=8,strip=all,together=1,stream=1",
        "order=natural,balance=dynamic,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=4,stream=1",
        "order=natural,balance=dynamic,prefetch=4,strip=all,together=4,stream=1",
        "order=natural,balance=dynamic,prefetch=0,strip=all,together=4,stream=0",
    ),
    "sddmm": (
        "order=natural,balance=nonzeros,prefetch=8,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=nonzeros,prefetch=8,group=1",
        "order=natural,balance=dynamic,prefetch=8,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=1",
        "order=natural,balance=nonzeros,prefetch=4,group=16",
        "order=natural,balance=rows,prefetch=4,group=4",
    ),
    "attention": (
        "order=natural,balance=nonzeros,prefetch=4",
        "order=natural,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=8",
        "order=natural,balance=dynamic,prefetch=4",
        "order=natural,balance=dynamic,prefetch=0",
        "order=natural,balance=rows,prefetch=0",
        "order=natural,balance=nonzeros,prefetch=8",
        "order=natural,balance=rows,prefetch=4",
    ),
}
"""The same among configurations that take rows in stored order.

Both are from results/choose_kernels/portfolios.json, which `python run.py experiment=choose_kernels` writes."""


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

    def kernels(self, op: Op, width: int) -> Family:
        return SPARSE_FAMILIES[op.name](self.threads, width, RESULT_POOL.empty)

    def space(self, op: Op, width: int) -> ConfigSpace:
        return SPARSE_FAMILIES[op.name].make_space(width)

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List configurations that treat results as the default does; for a sample, which fits in caches, rows, too.

        Results that bypass the caches put out those of other candidates there, and whoever reads them next must wait
        for memory. A race would judge such kernels by their rivals, and not at all by what they cost their program.
        """
        listed, width = _configs(op, operands.width), operands.width
        alike = ["stream"] if op.name in STREAMING else []
        if sampled and Caches.here(self.threads).distant(operands.matrix.pattern, width, operands.value_bytes):
            alike.append("prefetch")
        default = self.default_config(op, operands)
        return [config for config in listed if all(bool(config[name]) == bool(default[name]) for name in alike)]

    def default_config(self, op: Op, operands: Operands) -> Config:
        """Choose by what the training matrices of results/choose_kernels show, in O(1).

        Threads have equal shares, so each finds its own rows in its caches from call to call. Dense rows that do not
        fit in caches are prefetched, and large results of SpMM bypass the caches.
        """
        pattern, width, caches = operands.matrix.pattern, operands.width, Caches.here(self.threads)
        changed: dict[str, str | int] = {}
        if caches.distant(pattern, width, operands.value_bytes):
            changed["prefetch"] = PREFETCH
        if op.name in STREAMING:
            changed["stream"] = int(caches.overflow(pattern, width, operands.value_bytes))
        if op.name == "sddmm":
            changed["group"] = _group(pattern, width, distant=bool(changed))
        return _parsed((DEFAULTS[op.name],))[0].replace(**changed)

    def launchable(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        return list(configs)

    def kind(self, config: Config) -> str:
        """Return one kind for all: portfolios cover what the estimate cannot compare."""
        return ""

    def model(self, cache: PlanCache) -> CsrEstimate:
        """Make an estimate by rates of this machine that prefers the kernels of the portfolio."""
        def favoured(op: str, operands: Operands) -> Collection[str]:
            return next(iter(self._portfolios(op, operands)), ())

        return CsrEstimate(machine_rates(cache, threads=self.threads, kernels="sparse"), self.threads, favoured)

    def _portfolios(self, op: str, operands: Operands) -> list[Keys]:
        caches = Caches.here(self.threads)
        listed = portfolios(op, operands, caches)
        if op not in STREAMING:
            return listed
        stream = int(caches.overflow(operands.matrix.pattern, operands.width, operands.value_bytes))
        return [_streamed(keys, stream) for keys in listed]

    def policy(self) -> CsrPolicy:
        return CsrPolicy()

    def timer(self, clock: Clock) -> Timer:
        return by_clock(clock)

    def signature(self) -> Mapping[str, Any]:
        return {"threads": self.threads, "machine": machine_digest(), "kernels": kernels_digest(SOURCES)}


def _group(pattern: Pattern, width: int, *, distant: bool) -> int:
    """Choose the nonzeros of a row that SDDMM takes together.

    Short rows of narrow operands are faster without regard to rows, and wider ones in pairs at the end of each row.
    """
    if pattern.nnz >= LONG_ROWS * pattern.rows:
        return 4 if width <= MAX_GROUP_WIDTH else 1
    return 1 if distant or width <= MAX_FLAT_WIDTH else 16


@cache
def _streamed(keys: Keys, stream: int) -> Keys:
    """Let the results of all configurations bypass the caches, or none."""
    return tuple(dict.fromkeys(config.replace(stream=stream).key for config in _parsed(keys)))


@cache
def _parsed(keys: Keys) -> list[Config]:
    return [Config.parse(CpuKernels.name, key) for key in keys]


@lru_cache(64)
def _configs(op: Op, width: int) -> list[Config]:
    return list(SPARSE_FAMILIES[op.name].make_space(width))


@dataclass(frozen=True)
class CsrEstimate:
    """Ranks configurations of `sparloom.platforms.CpuKernels` for one problem.

    Args:
        threads: of the kernels.
        favoured: keys of configurations that rank above others for an operation and operands, unless the formula is
            strongly against them: it seldom tells similar configurations apart.
    """

    rates: Rates
    threads: int
    favoured: Callable[[str, Operands], Collection[str]] = lambda op, operands: ()

    @cached_property
    def _caches(self) -> Caches:
        return Caches(self.rates.near_bytes, self.rates.far_bytes, self.threads)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,), longer for configurations that are not favoured."""
        facts = _Facts(op, operands.matrix.pattern, operands.width, self._caches, operands.value_bytes)
        seconds = np.array([self._seconds(facts, config) for config in configs])
        return favour(seconds, configs, self.favoured(op, operands))

    def _seconds(self, facts: _Facts, config: Config) -> float:
        rates, passes = self.rates, 2 if facts.op == "attention" else 1
        near = facts.pattern.cols * facts.row_bytes <= rates.near_bytes
        rate = rates.near if near else rates.memory if facts.distant else rates.far
        gathered = passes * facts.pattern.nnz * facts.row_bytes
        if "together" in config.names and int(config["together"]) > 1:
            gathered *= COMPARING * facts.distinct
        if bool(config["prefetch"]) != facts.distant:
            gathered *= NO_PREFETCH if facts.distant else NEEDLESS_PREFETCH
        flops = 2 * passes * facts.pattern.nnz * facts.width
        if "group" in config.names:
            group = int(config["group"])
            if group == 1:  # lanes are reduced together with those of other rows, as many as fit in a vector
                flops *= 1 + REDUCTION_COLUMNS / (LANES * facts.width)
            else:
                full = facts.grouped(group)
                flops *= 1 + REDUCTION_COLUMNS / facts.width * (full / group + (1 - full) / 2)
        both = gathered / rate, flops * max(1.0, facts.value_bytes / VALUE_BYTES) / rates.flops
        seconds = max(both) + EXPOSED * min(both) + self._streamed(facts, config) / rates.memory
        return seconds * facts.imbalance(str(config["balance"])) * (
            STRIP if "strip" in config.names and config["strip"] != "all" else 1.0)

    def _streamed(self, facts: _Facts, config: Config) -> float:
        """Bytes of A and of the result, whose lines are read before they are written if it does not fit in caches."""
        sparse = (INDEX_BYTES + facts.value_bytes) * facts.pattern.nnz + 8 * facts.pattern.rows
        result = facts.value_bytes * facts.pattern.nnz if facts.op == "sddmm" else facts.pattern.rows * facts.row_bytes
        streams = "stream" in config.names and bool(config["stream"])
        if facts.overflow:
            return sparse + (1 if streams else 2) * result
        return sparse + (result if streams else 0)


@dataclass(frozen=True)
class _Facts:
    """Properties of a pattern that the estimate needs, each computed once."""

    op: str
    pattern: Pattern
    width: int
    caches: Caches
    value_bytes: int = VALUE_BYTES
    known: dict[str | int, float] = field(default_factory=dict)  # by balance or group

    @cached_property
    def distant(self) -> bool:
        return self.caches.distant(self.pattern, self.width, self.value_bytes)

    @cached_property
    def overflow(self) -> bool:
        return self.caches.overflow(self.pattern, self.width, self.value_bytes)

    @property
    def row_bytes(self) -> int:
        return self.value_bytes * self.width

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.pattern.row_lengths()

    @cached_property
    def distinct(self) -> float:
        """Share of nonzeros in rows with other columns than the previous row, by lengths and ends of some rows."""
        lengths, begins = self.lengths, self.pattern.indptr[:-1]
        rows = np.arange(1, lengths.size, 1 + lengths.size // COMPARED_ROWS)
        filled = rows[(lengths[rows] == lengths[rows - 1]) & (lengths[rows] > 0)]
        indices, last = self.pattern.indices, lengths[filled] - 1
        alike = (indices[begins[filled]] == indices[begins[filled - 1]]) & (
            indices[begins[filled] + last] == indices[begins[filled - 1] + last])
        return 1.0 - float(lengths[filled[alike]].sum()) / max(1, int(lengths[rows].sum()))

    def grouped(self, group: int) -> float:
        """Share of the nonzeros in full groups of a row; the others are taken in pairs."""
        if group not in self.known:
            self.known[group] = float((self.lengths // group * group).sum()) / max(1, self.pattern.nnz)
        return self.known[group]

    def imbalance(self, balance: str) -> float:
        """Nonzeros of the thread with the most of them, over the mean."""
        if balance not in self.known:
            self.known[balance] = self._imbalance(balance)
        return self.known[balance]

    def _imbalance(self, balance: str) -> float:
        if balance == "nonzeros" or not self.pattern.nnz:
            return 1.0
        mean = self.pattern.nnz / self.caches.threads
        longest = float(self.lengths.max()) / mean
        if balance == "dynamic":
            return DYNAMIC * max(1.0, longest)
        borders = np.linspace(0, self.pattern.rows, self.caches.threads + 1).astype(np.int64)
        return max(1.0, float(np.diff(self.pattern.indptr[borders]).max()) / mean)


def portfolios(op: str, operands: Operands, caches: Caches) -> list[Keys]:
    """List the portfolios that fit a problem, the better one first; none if none was chosen.

    Rows sorted by their columns reuse what caches hold. If dense rows do not fit in caches that seldom helps, as the
    rows of the other operand or of the result do not fit either. Only SpMM benefits again if dense rows exceed the
    shared cache (of the matrices of data/samples/cpu_kernels_*, meshes).
    """
    kernels = "spmm" if op in STREAMING else op
    if kernels not in PORTFOLIO:
        return []
    sizes = operands.matrix.pattern, operands.width, operands.value_bytes
    if caches.distant(*sizes) and not (kernels == "spmm" and caches.beyond(*sizes)):
        return [STORED[kernels]]
    return [PORTFOLIO[kernels], STORED[kernels]]
