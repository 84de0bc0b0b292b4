"""Seconds of fused and unfused loops by formula: flops, and bytes by where they come from, over rates of the machine.

    unfused   loop one:  flops / rate  +  what it reads / memory  +  D1 written
              loop two:  rows of D1 gathered  +  D1 read once from where it lies  +  A, D / memory
    fused     loop one:  the same, but D1 is written back only where wavefront 1 needs it (`local`)
              loop two:  fused rows gather from the tile; the others as unfused, from the rows that are needed

Gathered rows come from a core's cache, the shared cache or memory, by how far apart in the loop they are read.

Departure from Equation 4 of tile fusion, which counts what one tile moves and compares it with a cache: that is how
tiles are split (`Sketch.tiling`); here all that both loops move is counted, and divided by how fast it moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.space import Config
from sparloom.tuning.problem import Problem
from sparloom.tuning.rates import Rates
from sparloom.tuning.sketch import Sketch

__all__ = ["Estimate"]

OUT_OF_TURN = 20e-9  # seconds of a thread for a row that does not follow the one before
LATE = 1.2  # how much longer gathering takes where rows are not requested ahead


@dataclass(frozen=True)
class Estimate:
    """A cost model of dispatch that has learned nothing.

    Args:
        threads: of the executor.
    """

    rates: Rates
    threads: int

    def score(self, problem: Problem, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,)."""
        return np.array([self._fused(problem, config) if config["ct_size"] else self._unfused(problem, config)
                         for config in configs])

    def _unfused(self, problem: Problem, config: Config) -> float:
        return self._always(problem, config) + self._write(problem, 1.0, bool(config["stream_first"])) + self._gather(
            problem, config, share=1.0, rows=1.0)

    def _fused(self, problem: Problem, config: Config) -> float:
        tiling = problem.sketch(config["order"]).tiling(
            ct_size=config["ct_size"], cache_bytes=1024 * config["cache"], threads=self.threads)
        late, needed = 1.0 - tiling.fused_rows, tiling.needed_rows
        written = needed if config["local"] else 1.0
        tile = self._gathering(problem, config, tiling.rows * problem.row_bytes)
        return (self._always(problem, config) + self._write(problem, written, bool(config["stream_first"]))
                + tiling.fused_rows * tile + self._gather(problem, config, share=late, rows=needed)
                + self._out_of_turn(problem, config))

    def _always(self, problem: Problem, config: Config) -> float:
        """Loop one without its result, A, and D."""
        pattern, rates, value = problem.pattern, self.rates, problem.element_bytes
        result = pattern.rows * problem.width * value * (1 if config["stream"] else 2)
        sparse = (value + 4) * pattern.nnz + 8 * pattern.rows
        if problem.right is not None:
            sparse += (value + 4) * problem.right.nnz + 8 * problem.right.rows
            gathered = problem.right.nnz * problem.row_bytes / rates.near
            first = gathered + self._read(problem.right.cols * problem.row_bytes)
        else:
            dense = problem.graph.cols * problem.inner
            first = 2 * dense * problem.width / rates.flops + dense * value / rates.memory
        return first + (result + sparse) / rates.memory

    def _out_of_turn(self, problem: Problem, config: Config) -> float:
        """A row of B and one of D for each iteration."""
        return 0.0 if config["order"] == "natural" else 2 * problem.graph.rows * OUT_OF_TURN / self.threads

    def _write(self, problem: Problem, share: float, stream: bool) -> float:
        """D1 leaves the caches where it does not fit; without streaming its lines are read before."""
        size = problem.graph.cols * problem.row_bytes
        if size > self.rates.far_bytes:
            return share * size * (1 if stream else 2) / self.rates.memory
        return share * size / (self.rates.memory if stream else self.rates.far)

    def _read(self, size: float) -> float:
        return size / (self.rates.memory if size > self.rates.far_bytes else self.rates.far)

    def _gather(self, problem: Problem, config: Config, *, share: float, rows: float) -> float:
        """Wavefront 1, or all of loop two: `share` of its reads, from `rows` of D1 (a share) that lie far."""
        size = problem.graph.cols * problem.row_bytes
        return share * self._gathering(problem, config, size) + self._read(rows * size)

    def _gathering(self, problem: Problem, config: Config, size: float) -> float:
        """All reads of loop two from rows that take `size` bytes in all."""
        rates, sketch = self.rates, problem.sketch(config["order"])
        near = self._within(sketch, problem, rates.near_bytes, size)
        far = self._within(sketch, problem, rates.far_bytes, size)
        seconds = near / rates.near + (1 if config["prefetch"] else LATE) * (
            (far - near) / rates.far + (1 - far) / rates.memory)
        return problem.graph.nnz * problem.row_bytes * seconds

    def _within(self, sketch: Sketch, problem: Problem, cache: float, size: float) -> float:
        """Share of the reads that a cache serves."""
        return 1.0 if size <= cache else sketch.near(cache / problem.row_bytes)
