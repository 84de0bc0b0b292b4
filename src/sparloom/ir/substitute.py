"""Fix scalar parameters."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir.nodes import Const, Kernel
from sparloom.ir.traverse import replace_refs
from sparloom.ir.verify import verify

__all__ = ["substitute"]


def substitute(kernel: Kernel, values: dict[str, int | float | bool]) -> Kernel:
    """Put constants in place of scalar parameters, which disappear.

    `kernel k(n, ...): S  ->  kernel k(...): S[n := 4]`. Legal when each name is a scalar parameter and its value fits.

    Raises:
        IllegalSchedule: a name is no scalar parameter, or its value does not fit its type.
    """
    scalars = {param.name: param.type for param in kernel.params if not param.buffer}
    unknown = sorted(set(values) - set(scalars))
    if unknown:
        there = ", ".join(scalars) or "none"
        raise IllegalSchedule(f"kernel {kernel.name} has no scalar parameters {', '.join(unknown)}; there are: {there}")
    constants = {name: Const(value, scalars[name]) for name, value in values.items()}
    params = tuple(param for param in kernel.params if param.name not in values)
    result = replace(kernel, params=params, body=replace_refs(kernel.body, constants))
    verify(result)
    return result
