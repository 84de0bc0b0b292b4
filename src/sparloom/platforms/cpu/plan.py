"""From a configuration and a matrix to storage and program, or to the reason why not."""

from dataclasses import dataclass

from sparloom.platforms.cpu.program import Program
from sparloom.platforms.cpu.storage import LEVELS, Layout, Packer
from sparloom.space import Config, ConfigSpace

__all__ = ["Job", "Planner"]

POSITION_BYTES = 12  # of one stored position at most: pos, crd, or value and result


@dataclass(frozen=True)
class Job:
    """A configuration made definite for one matrix."""

    config: Config
    layout: Layout
    program: Program
    packed_bytes: int


@dataclass(frozen=True)
class Planner:
    """Checks configurations against their space and a matrix.

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operands.
        register_columns: of them, how many are kept in registers at once.
    """

    op: str
    space: ConfigSpace
    width: int
    register_columns: int

    def job(self, packer: Packer, config: Config) -> Job:
        """Lay out the matrix of `packer` and name the program.

        Raises:
            IllegalSchedule: the configuration is not in the space, or would store too many zeros.
        """
        self.space.validate(config)
        layout = Layout.of(
            packer.matrix.pattern.shape,
            rows_tile=int(config["rows_tile"]),
            cols_tile=config["cols_tile"],
            order=[loop for loop in str(config["order"]).split(".") if loop in LEVELS],
            formats=str(config["formats"]),
        )
        positions = packer.count(layout)
        program = Program.of(self.op, config, layout, width=self.width, register_columns=self.register_columns)
        return Job(config, layout, program, packed_bytes=POSITION_BYTES * sum(positions))
