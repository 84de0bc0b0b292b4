"""Seconds of one sparse kernel by formula: bytes by where they come from, flops, and the thread that has most of both.

    seconds = imbalance * (max(gathered / rate of the cache that holds the dense rows, flops / rate)
                           + streamed / memory)

Source: AutoSAGE's roofline-style estimate; its formula is not published, this one is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparloom.dispatch.rates import Rates
from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.sparse import Pattern

__all__ = ["CsrEstimate"]

VALUE = 4  # bytes
LATE = 1.2  # how much longer gathering takes where rows are not requested ahead
STRIP = 1.05  # likewise where indices are read again for every strip
ON_DEMAND = 1.02  # likewise where threads ask for their share


@dataclass(frozen=True)
class CsrEstimate:
    """Orders configurations of `sparloom.platforms.CpuKernels` for one problem.

    Args:
        threads: of the kernels.
    """

    rates: Rates
    threads: int

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,)."""
        facts = _Facts(operands.matrix.pattern, operands.width, self.threads)
        return np.array([self._seconds(op, facts, config) for config in configs])

    def _seconds(self, op: str, facts: _Facts, config: Config) -> float:
        rates, passes = self.rates, 2 if op == "attention" else 1
        size = facts.pattern.cols * facts.row_bytes
        rate = rates.near if size <= rates.near_bytes else rates.far if size <= rates.far_bytes else rates.memory
        gathered = passes * facts.pattern.nnz * facts.row_bytes
        if "together" in config.names and int(config["together"]) > 1:
            gathered *= facts.apart
        late = 1.0 if config["prefetch"] or size <= rates.near_bytes else LATE
        flops = 2 * passes * facts.pattern.nnz * facts.width
        if "group" in config.names:
            flops *= facts.filled_up(int(config["group"]))
        seconds = max(late * gathered / rate, flops / rates.flops) + self._streamed(op, facts, config) / rates.memory
        return seconds * facts.imbalance(str(config["balance"])) * (
            STRIP if "strip" in config.names and config["strip"] != "all" else 1.0)

    def _streamed(self, op: str, facts: _Facts, config: Config) -> float:
        """Bytes of A, and of the result: unless it fits the caches, its lines are read before they are written."""
        sparse = 2 * VALUE * facts.pattern.nnz + 8 * facts.pattern.rows
        result = VALUE * facts.pattern.nnz if op == "sddmm" else facts.pattern.rows * facts.row_bytes
        streams = "stream" in config.names and bool(config["stream"])
        if result > self.rates.far_bytes:
            return sparse + (1 if streams else 2) * result
        return sparse + (result if streams else 0)


@dataclass(frozen=True)
class _Facts:
    """What the estimate reads off a pattern, each once."""

    pattern: Pattern
    width: int
    threads: int

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
        return float((-(-self.lengths // group) * group).sum()) / max(1, self.pattern.nnz)

    def imbalance(self, balance: str) -> float:
        """Nonzeros of the thread with most of them over the mean."""
        if balance == "nonzeros" or not self.pattern.nnz:
            return 1.0
        mean = self.pattern.nnz / self.threads
        longest = float(self.lengths.max()) / mean
        if balance == "dynamic":
            return ON_DEMAND * max(1.0, longest)
        borders = np.linspace(0, self.pattern.rows, self.threads + 1).astype(np.int64)
        return max(1.0, float(np.diff(self.pattern.indptr[borders]).max()) / mean)
