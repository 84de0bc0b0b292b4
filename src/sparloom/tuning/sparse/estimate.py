"""Seconds of one sparse kernel by formula: bytes by where they come from, flops, and the thread that has most of both.

    seconds = imbalance * (longer + EXPOSED * shorter of (gathered / rate of the cache that holds the dense rows,
                                                          flops / rate) + streamed / memory)

Source: AutoSAGE's roofline-style estimate; its formula is not published, this one is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.sparse import Pattern
from sparloom.tuning.caches import VALUE, Caches
from sparloom.tuning.rates import Rates

__all__ = ["CsrEstimate"]

LATE = 1.3  # how much longer gathering takes from afar where rows are not requested ahead
EARLY = 1.1  # likewise where rows are requested that come anyway
LOOKED_UP = 1.05  # likewise where rows are compared with those before
SUMMED = 40  # columns whose products take as long as adding up the lanes of a group
LANES = 16  # of a vector; fewer without AVX-512
EXPOSED = 0.3  # share of the shorter one of gathering and computing that the other does not hide
STRIP = 1.05  # how much longer all takes where indices are read again for every strip
BEHIND = 1.5  # how much longer something takes that is not favoured: no more than a bad share of the rows costs
ON_DEMAND = 0.97  # likewise where threads ask for their share: one that was held up does less


@dataclass(frozen=True)
class CsrEstimate:
    """Orders configurations of `sparloom.platforms.CpuKernels` for one problem.

    Args:
        threads: of the kernels.
        favoured: gives keys of configurations that come before others, for an operation and operands, unless the
            formula is strongly against them; what makes the difference between two of them is seldom in it.
    """

    rates: Rates
    threads: int
    favoured: Callable[[str, Operands], Collection[str]] = lambda op, operands: ()

    @cached_property
    def _caches(self) -> Caches:
        return Caches(self.rates.near_bytes, self.rates.far_bytes, self.threads)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Give estimated seconds, (configs,), longer for what is not favoured."""
        facts = _Facts(op, operands.matrix.pattern, operands.width, self._caches)
        seconds = np.array([self._seconds(facts, config) for config in configs])
        favoured = self.favoured(op, operands)
        if favoured:
            seconds[[config.key not in favoured for config in configs]] *= BEHIND
        return seconds

    def _seconds(self, facts: _Facts, config: Config) -> float:
        rates, passes = self.rates, 2 if facts.op == "attention" else 1
        near = facts.pattern.cols * facts.row_bytes <= rates.near_bytes
        rate = rates.near if near else rates.memory if facts.distant else rates.far
        gathered = passes * facts.pattern.nnz * facts.row_bytes
        if "together" in config.names and int(config["together"]) > 1:
            gathered *= LOOKED_UP * facts.apart
        if bool(config["prefetch"]) != facts.distant:
            gathered *= LATE if facts.distant else EARLY
        flops = 2 * passes * facts.pattern.nnz * facts.width
        if "group" in config.names:
            group = int(config["group"])
            if group == 1:  # whose lanes are added up with those of other rows, as many as a vector has
                flops *= 1 + SUMMED / (LANES * facts.width)
            else:
                flops *= facts.filled_up(group) * (1 + SUMMED / (group * facts.width))
        both = gathered / rate, flops / rates.flops
        seconds = max(both) + EXPOSED * min(both) + self._streamed(facts, config) / rates.memory
        return seconds * facts.imbalance(str(config["balance"])) * (
            STRIP if "strip" in config.names and config["strip"] != "all" else 1.0)

    def _streamed(self, facts: _Facts, config: Config) -> float:
        """Bytes of A, and of the result: where it does not stay in the caches, its lines are read before written."""
        sparse = 2 * VALUE * facts.pattern.nnz + 8 * facts.pattern.rows
        result = VALUE * facts.pattern.nnz if facts.op == "sddmm" else facts.pattern.rows * facts.row_bytes
        streams = "stream" in config.names and bool(config["stream"])
        if facts.overflow:
            return sparse + (1 if streams else 2) * result
        return sparse + (result if streams else 0)


@dataclass(frozen=True)
class _Facts:
    """What the estimate reads off a pattern, each once."""

    op: str
    pattern: Pattern
    width: int
    caches: Caches
    known: dict[str | int, float] = field(default_factory=dict)  # of balances and groups

    @cached_property
    def distant(self) -> bool:
        return self.caches.distant(self.pattern, self.width)

    @cached_property
    def overflow(self) -> bool:
        return self.caches.overflow(self.pattern, self.width)

    @property
    def row_bytes(self) -> int:
        return VALUE * self.width

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.pattern.row_lengths()

    @cached_property
    def apart(self) -> float:
        """Share of the nonzeros in rows that have other columns than the row before, by their lengths and ends."""
        lengths, begins = self.lengths, self.pattern.indptr[:-1]
        filled = np.flatnonzero((lengths[1:] == lengths[:-1]) & (lengths[1:] > 0)) + 1
        indices, last = self.pattern.indices, lengths[filled] - 1
        alike = (indices[begins[filled]] == indices[begins[filled - 1]]) & (
            indices[begins[filled] + last] == indices[begins[filled - 1] + last])
        return 1.0 - float(lengths[filled[alike]].sum()) / max(1, self.pattern.nnz)

    def filled_up(self, group: int) -> float:
        """Nonzeros, with those that fill the last group of each row, over nonzeros."""
        if group not in self.known:
            self.known[group] = float((-(-self.lengths // group) * group).sum()) / max(1, self.pattern.nnz)
        return self.known[group]

    def imbalance(self, balance: str) -> float:
        """Nonzeros of the thread with most of them over the mean."""
        if balance not in self.known:
            self.known[balance] = self._imbalance(balance)
        return self.known[balance]

    def _imbalance(self, balance: str) -> float:
        if balance == "nonzeros" or not self.pattern.nnz:
            return 1.0
        mean = self.pattern.nnz / self.caches.threads
        longest = float(self.lengths.max()) / mean
        if balance == "dynamic":
            return ON_DEMAND * max(1.0, longest)
        borders = np.linspace(0, self.pattern.rows, self.caches.threads + 1).astype(np.int64)
        return max(1.0, float(np.diff(self.pattern.indptr[borders]).max()) / mean)
