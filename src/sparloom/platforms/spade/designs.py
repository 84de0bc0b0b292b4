"""Machines of a design space, and what each would cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from sparloom.platforms.spade.machine import Machine

__all__ = ["Prices", "designs"]


@dataclass(frozen=True)
class Prices:
    """A proxy of what a machine costs: so much per element, per MB of L2 and LLC, per GB/s of DRAM; in any unit.

    Nothing is said of wires, of yield, or of how a cache's price depends on its ways: put in your own numbers.

    Source of those in conf/task/explore_designs.yaml, watts: ISCA'23 §7G. 224 elements with L1, bypass buffer and
    victim cache take 20.3 W, 14 % of the system; DRAM, of 410 GB/s, takes more than 50 %. Departure: exactly 50 % are
    taken, and what remains is put down to the 154 MB of L2 and LLC, though it holds the interconnect too.
    """

    pe: float
    cache_mb: float
    dram_gb_per_s: float

    def of(self, machine: Machine) -> float:
        """Price of a machine, in the unit of the prices."""
        clusters = -(-machine.pes // machine.pes_per_l2)
        cache_mb = clusters * (machine.l2_kib + machine.llc_kib) / 1024
        return machine.pes * self.pe + cache_mb * self.cache_mb + machine.dram_gb_per_s * self.dram_gb_per_s


def designs(base: Machine, grid: Mapping[str, Sequence[float]], *, width: int) -> dict[str, Machine]:
    """Every combination of the values of a grid: "pes=32,llc_kib=1536" -> machine.

    Args:
        grid: parameter of the machine -> its values; those of `base` are among them.
        width: columns of the dense operands.

    Raises:
        ValueError: there is no such parameter, a machine is impossible, or `base` is not one of them.
    """
    unknown = sorted(set(grid) - {field.name for field in fields(Machine)})
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no parameter of the machine: task.grid takes names of the platform's "
                         "options")
    made = {}
    for values in product(*grid.values()):
        changes = dict(zip(grid, values, strict=True))
        made[",".join(f"{name}={value}" for name, value in changes.items())] = replace(base, **changes)
    for machine in made.values():
        machine.geometry(width)
    if base not in made.values():
        own = ", ".join(f"{name}={getattr(base, name)}" for name in grid)
        raise ValueError(f"the grid lacks the target itself, which all designs are compared with: add {own}")
    return made
