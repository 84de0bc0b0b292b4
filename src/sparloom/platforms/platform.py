"""What tasks ask of a platform."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from sparloom.measure import Kind, Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["Platform"]


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
