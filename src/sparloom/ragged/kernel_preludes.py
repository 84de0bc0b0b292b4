"""A prelude for every kernel, as if each were compiled by itself: what sharing is compared with."""

from __future__ import annotations

from sparloom.jit import compile_c
from sparloom.ragged.layout import Access, offset_steps
from sparloom.ragged.lower import lower
from sparloom.ragged.prelude import closure
from sparloom.ragged.program import Program
from sparloom.ragged.structure import Prelude
from sparloom.ragged.tensor import Tensor

__all__ = ["kernel_preludes"]


def kernel_preludes(program: Program, *, access: Access = offset_steps) -> dict[str, Prelude]:
    """Compile, by name of the launch, what builds the tables that its kernel reads.

    Args:
        access: as in `lower`.

    Source: CoRa §7.4 (CoRa-Redundant).
    """
    found = {}
    for launch, each in zip(program.launches, lower(program, access=access), strict=True):
        kernels = closure(table for table in each.meaning.values() if not isinstance(table, Tensor))
        found[launch.name] = Prelude(kernels, compile_c([made.kernel for made in kernels]))
    return found
