"""From operations to a program."""

from __future__ import annotations

from collections.abc import Sequence

from sparloom.errors import IllegalSchedule
from sparloom.ir import is_name
from sparloom.ragged.accesses import check_accesses
from sparloom.ragged.operation import Operation
from sparloom.ragged.parts import Part, check_parts, whole
from sparloom.ragged.program import Launch, Loop, Nest, Program
from sparloom.ragged.tensor import Tensor

__all__ = ["program"]


def program(name: str, operations: Sequence[Operation | Part],
            outputs: Sequence[str | Operation] | None = None) -> Program:
    """Make a program that runs operations one after the other, unscheduled.

    Args:
        operations: an operation stands after those whose results it reads; all parts of a tensor before it is read.
        outputs: what is kept, by default the last result.

    Raises:
        IllegalSchedule: a result is read before it is computed, is defined twice or has two forms; two things have one
            name; an access may leave its tensor.
    """
    if not is_name(name):
        raise IllegalSchedule(f"program {name!r}: take letters, digits and single _ after a first letter, no word of C")
    parts = [each if isinstance(each, Part) else whole(each) for each in operations]
    check_parts(name, parts)
    operations = [each.operation for each in parts]
    names = [operation.name for operation in operations]
    forms: dict[str, Tensor] = {}
    for number, operation in enumerate(operations):
        for tensor in (operation.output, *(read.tensor for read in operation.reads)):
            if forms.setdefault(tensor.name, tensor) != tensor:
                raise IllegalSchedule(f"program {name} has two tensors named {tensor.name}: give each its own name")
            if tensor is not operation.output and tensor.name in names[number + 1:]:
                raise IllegalSchedule(f"{operation.name} reads {tensor.name} before it is computed: put {tensor.name} "
                                      f"first")
    loops = {dim.name for operation in operations for dim, _ in (*operation.output.axes, *operation.reduced)}
    both = sorted(set(forms) & loops)
    if both:
        raise IllegalSchedule(f"program {name} has a tensor and a dimension named {both[0]}: give each its own name")
    chosen = tuple(each if isinstance(each, str) else each.name for each in (outputs or names[-1:]))
    unknown = [each for each in chosen if each not in names]
    if unknown:
        raise IllegalSchedule(f"program {name} computes no {unknown[0]}; it computes: {', '.join(names)}")
    nests = [_unscheduled(each) for each in parts]
    for nest in nests:
        check_accesses(nest)
    return Program(name, tuple(Launch((nest,)) for nest in nests), chosen)


def _unscheduled(given: Part) -> Nest:
    space = [Loop(dim.name, extent) for dim, extent in given.operation.axes]
    reduction = [Loop(dim.name, extent, reduces=True) for dim, extent in given.operation.reduced]
    return Nest(given.name, given.operation, (*space, *reduction))
