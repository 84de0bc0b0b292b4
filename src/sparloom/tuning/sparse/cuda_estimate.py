"""Seconds of one CUDA kernel on a sparse matrix by formula: loads to issue, bytes to move, the longest row.

    seconds = max(warp instructions / rate, bytes / rate, latency * steps of the group that has most of them)

Rates are those of the device. The other constants are of data sheets (A100 to H200), and orders of magnitude: estimates
order candidates.

Source: AutoSAGE's roofline-style estimate; its formula is not published, this one is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparloom.ops import Operands
from sparloom.space import HUBS, Config
from sparloom.sparse import Pattern
from sparloom.tuning.sparse.cuda_rates import CudaRates

__all__ = ["CudaEstimate"]

WARP = 32  # threads
LATENCY = 1e-7  # seconds of a step in a row: a load takes 600 cycles of 1.5 GHz, four are under way
OVERHEAD = 3.0  # instructions of a step beside loads and multiplications
SHARES = 1.1  # how much longer equal shares take: their begins are searched, their carries added


@dataclass(frozen=True)
class CudaEstimate:
    """Orders configurations of the space cuda_kernels for one problem; reads what of its parameters there is."""

    rates: CudaRates

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,)."""
        lengths, number = _Lengths(operands.matrix.pattern), next(iter(operands.dense.values())).dtype.itemsize
        return np.array([self._seconds(_Mapping.of(op, config, operands.width, number_bytes=number), lengths)
                         for config in configs])

    def _seconds(self, mapping: _Mapping, lengths: _Lengths) -> float:
        issued = mapping.instructions * lengths.nnz * lengths.divergence(mapping) / self.rates.instructions
        moved = mapping.bytes * lengths.nnz / self.rates.memory
        serial = LATENCY * lengths.longest(mapping) * mapping.steps
        return max(issued, moved, serial) * (SHARES if mapping.balance == "nonzeros" else 1.0)


@dataclass(frozen=True)
class _Mapping:
    """What a configuration does with one nonzero.

    Args:
        instructions: of warps, for all columns; a group smaller than a warp counts for its part of one.
        bytes: read for it, indices once for every tile of columns.
        steps: that the group of a row takes after each other.
        groups: of a block.
        lanes: of a group.
    """

    instructions: float
    bytes: float
    steps: float
    groups: int
    lanes: int
    balance: str

    @classmethod
    def of(cls, op: str, config: Config, width: int, *, number_bytes: int) -> _Mapping:
        def number(name: str, default: int) -> int:
            return int(config[name]) if name in config.names else default

        lanes, vector, loads, group = number("lanes", WARP), number("vector", 1), number("loads", 1), number("group", 1)
        columns = lanes * vector * loads
        tiles = -(-width // columns)
        product = op.startswith("spmm")
        rows_read, sums = 2 if op == "attention" else 1, 0.0 if product else np.log2(lanes)
        passes = tiles if product else 1
        work = tiles * rows_read * loads * (1 + vector) + sums + OVERHEAD * passes / group
        return cls(
            instructions=work * lanes / WARP,
            bytes=float(number_bytes * rows_read * width + (4 + number_bytes) * passes),
            steps=(1 if product else tiles) / group, groups=max(1, WARP * number("warps", 4) // lanes),
            lanes=lanes, balance=str(config["balance"]) if "balance" in config.names else "rows")


class _Lengths:
    """What the estimate reads off a pattern, each once."""

    def __init__(self, pattern: Pattern) -> None:
        self.nnz = max(1, pattern.nnz)
        self._all = pattern.row_lengths()
        self._divergence: dict[tuple[int, int], float] = {}

    @cached_property
    def _filled(self) -> np.ndarray:
        return np.sort(self._all[self._all > 0])

    def threshold(self, balance: str) -> int:
        """Nonzeros from which on a row is a hub; more than any has where none is one."""
        most = int(self._all.max(initial=0)) + 1
        if balance not in HUBS or not self._filled.size:
            return most
        return int(min(most, max(128, self._filled[int(0.01 * int(balance[1:]) * (self._filled.size - 1))])))

    def divergence(self, mapping: _Mapping) -> float:
        """Steps of warps over nonzeros: the rows of a warp wait for the longest of them."""
        rows = WARP // mapping.lanes
        if mapping.balance == "nonzeros" or rows <= 1:
            return 1.0
        limit = self.threshold(mapping.balance)
        if (rows, limit) not in self._divergence:
            short = np.where(self._all < limit, self._all, 0)
            filled = np.concatenate([short, np.zeros(-short.size % rows, np.int64)]).reshape(-1, rows)
            waited = rows * filled.max(axis=1, initial=0).sum() + (self._all.sum() - short.sum())
            self._divergence[rows, limit] = float(waited / self.nnz)
        return self._divergence[rows, limit]

    def longest(self, mapping: _Mapping) -> float:
        """Nonzeros that one group takes after each other."""
        if mapping.balance == "nonzeros":
            return 1.0
        limit = self.threshold(mapping.balance)
        most = float(self._all.max(initial=0))
        alone = float(self._all[self._all < limit].max(initial=0))
        return max(alone, most / mapping.groups) if most >= limit else most
