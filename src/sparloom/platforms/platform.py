"""What tasks ask of a platform.

A platform without hardware: results by the oracle, seconds by a formula.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.measure import Kind, Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.space import Config, ConfigSpace, CpuSpace
from sparloom.sparse import Pattern

__all__ = ["NullPlatform", "Platform"]


class Platform(Protocol):
    """A machine that runs configurations of operations, or simulates them.

    Several presets of one platform may share their work in `measure_together`, which tasks use where a class has it;
    see `SpadePlatform`. A class may also have `conditions(op)`, a mapping of plain values on which its seconds depend
    beside the machine, the timing and what a row of a sample table names: samples that were made under other ones are
    not added to. Where it has none, its public attributes are taken, without `width`.

    Args:
        name: of the platform, one for all presets.
        preset: name of its settings in sample tables.
        kind: clock of its seconds; they never mix.
    """

    name: str
    preset: str
    kind: Kind

    def space(self, op: Op) -> ConfigSpace:
        """List the configurations of `op`, not yet bound to a matrix."""

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Name the configuration that speedups refer to."""

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Compute the result in float32, to compare with the float64 oracle."""

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration."""

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds: configuration, round, measurement.

        Platforms on which others' code can run between their own take it as a last argument, `rivals`: what binds it to
        operands and a result, by the configuration that names it in sample tables.
        """


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
