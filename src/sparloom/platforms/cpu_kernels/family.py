"""What the platform asks of the kernels of one operation."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Operands
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["Family"]


class Family(Protocol):
    """The kernels of one operation: which there are, and how one of them runs."""

    def space(self) -> ConfigSpace:
        """List the configurations, not yet bound to a matrix."""

    def baseline(self, pattern: Pattern) -> Config:
        """Name the configuration that speedups refer to."""

    def run(self, operands: Operands, config: Config) -> np.ndarray:
        """Compute the result in float32, in the oracle's order.

        Raises:
            IllegalSchedule: the configuration is not legal for these operands.
        """

    def measure_many(
        self, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds: configuration, round, measurement."""
