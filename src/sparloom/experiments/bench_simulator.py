"""How fast the simulator makes labels, on one core, and whether it repeats itself bit by bit."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparloom import log
from sparloom.measure import TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.sparse import Corpus, SparseMatrix

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["BenchSimulator"]


@dataclass(frozen=True)
class BenchSimulator:
    """Simulate all configurations of all operations twice on the largest matrices of a corpus.

    Args:
        matrices: how many, the largest by nonzeros.
    """

    ops: Sequence[Op]
    platform: "Platform"
    corpus: Corpus
    timing: TimingProtocol
    matrices: int
    width: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Time in processor seconds, since others may use the machine; returns seconds per million nonzeros."""
        largest = sorted(self.corpus.entries(), key=lambda entry: -entry.nnz)[:self.matrices]
        costs, equal, points = [], True, 0
        for entry in largest:
            matrix = self.corpus.load(entry.name)
            began = time.process_time()
            first = self._simulated(matrix)
            costs.append((time.process_time() - began) / matrix.pattern.nnz * 1e6)
            equal &= np.array_equal(first, self._simulated(matrix))
            points = first.size
            log.console.print(f"{entry.name}: {matrix.pattern.nnz} nonzeros, {costs[-1]:.1f} s per million for "
                              f"{points} points, repetition {'equal' if equal else 'DIFFERENT'}")
        return {"seconds_per_million": float(np.median(costs)), "seconds_per_million_max": max(costs),
                "points": points, "bit_equal": int(equal), "matrices": len(largest)}

    def _simulated(self, matrix: SparseMatrix) -> np.ndarray:
        operands = Operands.unfilled(matrix, self.width)
        seconds = []
        for op in self.ops:
            configs = list(self.platform.space(op).bind(matrix.pattern.shape))
            seconds += [measurement.seconds[0] for _, _, measurement
                        in self.platform.measure_many(op, operands, configs, self.timing)]
        return np.array(seconds)
