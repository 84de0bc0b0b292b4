"""A platform without hardware: results by the oracle, seconds by a formula."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.space import Config, ConfigSpace, CpuSpace
from sparloom.sparse import Pattern

__all__ = ["NullPlatform"]

FLOPS_PER_SECOND = 1e10
BEST_ROWS = 256  # rows of the tile that the formula likes best
STEP = 0.05  # cost of each factor of two away from it


class NullPlatform:
    """Runs everything that the CPU's space describes, instantly and alike on every machine.

    For trying out pipelines without a compiler or a simulator, and as the shortest example of a platform. The seconds
    are made up: useless for anything but tests.

    Args:
        width: columns of the dense operands for which `space` is made.
        preset: name of these settings in sample tables.
    """

    name = "null"
    kind = "simulated"

    def __init__(self, width: int, preset: str) -> None:
        self.width = width
        self.preset = preset

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name the constants of the formula."""
        return {"best_rows": BEST_ROWS, "flops_per_second": FLOPS_PER_SECOND, "step": STEP}

    def space(self, op: Op) -> ConfigSpace:
        """Schedules of the CPU under the name of this platform; operations it does not know are taken for SpMM."""
        return replace(CpuSpace(op.name if op.name == "sddmm" else "spmm", width=self.width), name=self.name)

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """The default of the space."""
        return self.space(op).default()

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Compute by the oracle, in float32.

        Raises:
            IllegalSchedule: the configuration is not in the space.
        """
        self.space(op).validate(config)
        return op.oracle(operands).astype(np.float32)

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Work over a constant rate, more for tiles far from 256 rows and for compressed levels."""
        self.space(op).validate(config)
        work = op.work(operands.matrix.pattern, operands.width)
        distance = abs(math.log2(int(config["rows_tile"]) / BEST_ROWS)) + str(config["formats"]).count("C")
        return Measurement(((work.flops + 1) / FLOPS_PER_SECOND * (1 + STEP * distance),), "simulated")

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Give every configuration once: rounds would repeat it exactly."""
        for config in configs:
            try:
                yield config, 0, self.measure(op, operands, config, timing)
            except IllegalSchedule as error:
                yield config, 0, Measurement.failed(str(error), "simulated")
