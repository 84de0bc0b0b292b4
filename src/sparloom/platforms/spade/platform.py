"""SPADE as a platform: seconds are simulated, results are computed in the order of the simulated tiles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from sparloom.errors import Unsupported
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms.spade.estimate import Walked, estimate_seconds
from sparloom.platforms.spade.line_accurate import simulate_each
from sparloom.platforms.spade.machine import Machine
from sparloom.platforms.spade.simulate import Plan, call, deal, plan, simulate_many, simulator_digest, tile
from sparloom.space import Config, ConfigSpace, Readings, SpadeSpace
from sparloom.sparse import Pattern, locality_order, reorder


def execute(op: str, operands: Operands, plan: Plan, *, pes: int) -> np.ndarray:
    """Compute SpMM, (rows, width), or SDDMM, (nnz,) in CSR order, in float32 and in the order of the tiles.

    A reordered matrix is computed in its own order; operands and result keep the order of the caller.
    """
    pattern, width = operands.matrix.pattern, operands.width
    rows_perm, cols_perm = np.arange(pattern.rows), np.arange(pattern.cols)
    source = np.arange(pattern.nnz)
    moved = pattern
    if plan.reorder:
        rows_perm, cols_perm = locality_order(pattern)
        moved = reorder(pattern, rows_perm, cols_perm)
        source = _sources(pattern.row_ids(), pattern.indices, rows_perm, cols_perm)
    tiling = tile(moved, plan.row_panel, plan.column_panel, with_source=True)
    schedule = deal(tiling, op, pes=pes, barrier=plan.phased)
    values = np.ascontiguousarray(operands.matrix.values[source], dtype=np.float32)
    head = [width, plan.slice_width, tiling.count, tiling.row, tiling.column, tiling.source, tiling.begin,
            schedule.order, values]
    if op == "spmm":
        computed = np.zeros((pattern.rows, width), dtype=np.float32)
        call("spade_spmm", [*head, _taken(operands.dense["B"], cols_perm), computed])
        result = np.empty_like(computed)
        result[rows_perm] = computed
        return result
    products = np.zeros(pattern.nnz, dtype=np.float32)
    b, c = _taken(operands.dense["B"], rows_perm), _taken(operands.dense["C"], cols_perm)
    call("spade_sddmm", [*head, b, c, products])
    result = np.empty_like(products)
    result[source] = products
    return result


@dataclass(frozen=True, kw_only=True)
class SpadePlatform(Machine):
    """A machine and the level at which it is simulated.

    Args:
        preset: name of these parameters in sample tables.
        level: "t1", row-granular, for samples; "t0", line by line, as the reference.
        width: columns of the dense operands for which `space` is made.
        readings: how the shared model reads the configurations; None: the recommended readings.
        option: name of these settings in conf/options/platforms.yaml.
    """

    preset: str
    level: Literal["t0", "t1"]
    width: int
    readings: Readings | None
    option: str = "spade"

    name = "spade"
    kind = "simulated"

    @property
    def machine(self) -> Machine:
        """The parameters without the settings of the platform."""
        return Machine(**{field.name: getattr(self, field.name) for field in fields(Machine)})

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what simulated seconds depend on: all parameters of the machine, the level, the simulator."""
        return {"machine": vars(self.machine), "level": self.level, "simulator": simulator_digest()}

    def space(self, op: Op) -> ConfigSpace:
        """List the 256 configurations of `op`, not yet bound to a matrix."""
        if op.name not in ("spmm", "sddmm"):
            raise Unsupported(f"operation {op.name} on platform spade: use spmm or sddmm")
        return SpadeSpace(op.name, width=self.width, readings=self.readings)

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Choose SPADE Base (ISCA'23 §7A), whatever the matrix."""
        return self.space(op).default()

    def has_estimate(self, op: Op) -> bool:
        """Tell whether there is a formula for an operation: for all whose walks are known."""
        return self.space(op).walks is not None

    def estimate(self, op: Op, matrix: Walked, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Estimate the seconds of configurations by a formula, without simulating; see `estimate_seconds`."""
        self.space(op)
        return estimate_seconds(self.machine, op.name, matrix, configs, width=self.width)

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
        """Simulate configurations together, once, because every round would give the same seconds."""
        for config, turn, measurements in self.measure_together([self], op, operands, configs):
            yield config, turn, measurements[0]

    def measure_together(
        self, machines: Sequence["SpadePlatform"], op: Op, operands: Operands, configs: Sequence[Config],
    ) -> Iterator[tuple[Config, int, tuple[Measurement, ...]]]:
        """Simulate configurations on several machines that share traces; yields one measurement per machine.

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


def _sources(rows: np.ndarray, cols: np.ndarray, rows_perm: np.ndarray, cols_perm: np.ndarray) -> np.ndarray:
    """Compute the index in the original CSR arrays of each nonzero of the reordered pattern."""
    new_row, new_column = np.empty(len(rows_perm), dtype=np.int64), np.empty(len(cols_perm), dtype=np.int64)
    new_row[rows_perm] = np.arange(len(rows_perm))
    new_column[cols_perm] = np.arange(len(cols_perm))
    return np.lexsort((new_column[cols], new_row[rows]))


def _taken(dense: np.ndarray, perm: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(dense[perm], dtype=np.float32)
