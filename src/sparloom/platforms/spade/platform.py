"""SPADE as a platform: configurations are simulated, results are computed in the order of the simulated tiles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from sparloom.errors import Unsupported
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms.spade.execute import execute
from sparloom.platforms.spade.machine import Machine
from sparloom.platforms.spade.plan import plan
from sparloom.platforms.spade.simulate import simulate_many, simulator_digest
from sparloom.platforms.spade.t0 import simulate_each
from sparloom.space import Config, ConfigSpace, Readings, SpadeSpace
from sparloom.sparse import Pattern

__all__ = ["SpadePlatform"]


@dataclass(frozen=True, kw_only=True)
class SpadePlatform(Machine):
    """A machine, with the level at which it is simulated.

    Args:
        preset: name of these parameters in sample tables.
        level: "t1", row-granular, for samples; "t0", line by line, as the reference.
        width: columns of the dense operands for which `space` is made.
        readings: how the shared model reads the configurations; None: the recommended readings.
    """

    preset: str
    level: Literal["t0", "t1"]
    width: int
    readings: Readings | None

    name = "spade"
    kind = "simulated"

    @property
    def machine(self) -> Machine:
        """The parameters alone."""
        return Machine(**{field.name: getattr(self, field.name) for field in fields(Machine)})

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what simulated seconds depend on: every parameter of the machine, the level, the simulator."""
        return {"machine": vars(self.machine), "level": self.level, "simulator": simulator_digest()}

    def space(self, op: Op) -> ConfigSpace:
        """The 256 configurations of `op`, not yet bound to a matrix."""
        if op.name not in ("spmm", "sddmm"):
            raise Unsupported(f"operation {op.name} on platform spade: use spmm or sddmm")
        return SpadeSpace(op.name, width=self.width, readings=self.readings)

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """SPADE Base (ISCA'23 §7A), the same for every matrix."""
        return self.space(op).default()

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Compute the result in float32, tile by tile in the simulated order."""
        self.space(op).validate(config)
        chosen = plan(config, operands.matrix.pattern.shape, operands.width)
        return execute(op.name, operands, chosen, pes=self.pes)

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Simulate one configuration."""
        return next(measurement for _, _, measurement in self.measure_many(op, operands, [config], timing))

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Simulate configurations together; every round and repetition gives the same seconds, so one is kept."""
        for config, turn, measurements in self.measure_together([self], op, operands, configs):
            yield config, turn, measurements[0]

    def measure_together(
        self, machines: Sequence["SpadePlatform"], op: Op, operands: Operands, configs: Sequence[Config],
    ) -> Iterator[tuple[Config, int, tuple[Measurement, ...]]]:
        """Simulate configurations on several machines, which share traces; one measurement per machine.

        Raises:
            ValueError: the level is neither "t0" nor "t1", or the machine is impossible.
            Unsupported: the matrix is too large for level t0.
        """
        if self.level not in ("t0", "t1"):
            raise ValueError(f"level {self.level!r} of the simulator is unknown: use t0 (small matrices) or t1")
        space = self.space(op)
        for config in configs:
            space.validate(config)
        pattern = operands.matrix.pattern
        if pattern.nnz == 0:
            failed = Measurement.failed("the matrix has no nonzeros, so nothing runs", "simulated")
            for config in configs:
                yield config, 0, (failed,) * len(machines)
            return
        chosen = [machine.machine for machine in machines]
        simulate = {"t0": simulate_each, "t1": simulate_many}[self.level]
        times = simulate(pattern, op.name, width=operands.width, configs=configs, machines=chosen)
        for config, values in zip(configs, times.T, strict=True):
            yield config, 0, tuple(Measurement((float(value),), "simulated") for value in values)
