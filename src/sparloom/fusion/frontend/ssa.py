"""What marks a loop for fusion.

Typed static single assignment form of a Python function, by Numba's front end; nothing is lowered to LLVM.

Numba: documented for 0.61 and later.

Loops, branches and joins of Numba's control flow graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

from sparloom.fusion.program import location_at, refuse

__all__ = ["Flow", "Made", "TypedSsa", "fprange", "mutable_groups", "typed_ssa"]


def fprange(*bounds: int) -> range:
    """Mark an outermost loop whose iterations are independent; in plain Python it is `range`.

    Source: tile fusion §3.1, Listing 1.
    """
    return range(*bounds)


_MAKERS = ((np.zeros, "zeros"), (np.empty, "empty"))
_COLOUR = re.compile(r"\x1b\[\d*m")


@dataclass(frozen=True)
class Made:
    """A call of np.zeros or np.empty.

    Args:
        shape: the Numba variable that holds the shape; it has one definition.
        type: Numba type of the array.
    """

    origin: Literal["zeros", "empty"]
    shape: Any
    type: Any


@dataclass(frozen=True)
class TypedSsa:
    """A function in SSA.

    Args:
        ir: a `numba.core.ir.FunctionIR`.
        types: Numba type of every variable.
        marks: variables that hold fprange; to Numba they hold range.
        made: arrays that the function makes; to Numba they are arguments of these names.
    """

    ir: Any
    types: Mapping[str, Any]
    marks: frozenset[str]
    made: Mapping[str, Made]


def typed_ssa(function: Callable[..., Any], types: Mapping[str, Any], real: type[np.generic]) -> TypedSsa:
    """Bring `function` into typed SSA.

    Args:
        types: Numba type of every parameter.
        real: type of the elements of arrays that are made without dtype. Departure: np.zeros of NumPy makes float64.

    Raises:
        Unfusable: Numba does not understand the function.
    """
    from numba.core import compiler, errors, registry, ssa, typed_passes

    code = function.__code__
    try:
        ir = compiler.run_frontend(function)
        marks = _mark(ir)
        made = _make_arguments(ir, types, real)
        single = ssa.reconstruct_ssa(ir)
        target = registry.cpu_target
        target.typing_context.refresh()
        arguments = tuple(made[name].type if name in made else types[name] for name in single.arg_names)
        typed = typed_passes.type_inference_stage(target.typing_context, target.target_context, single, arguments, None)
    except errors.NumbaError as error:
        line = error.loc.line if getattr(error, "loc", None) is not None else code.co_firstlineno
        raise refuse(location_at(code.co_filename, line), f"this is not understood: {_first_line(error)}") from error
    return TypedSsa(single, typed.typemap, marks, made)


def _mark(ir: Any) -> frozenset[str]:
    """Put range in place of fprange and name the variables that hold it."""
    marked = [each for each in _assignments(ir) if _object(ir, each.target) is fprange]
    for each in marked:
        each.value = _range(each)
    return frozenset(each.target.name for each in marked)


def _make_arguments(ir: Any, types: Mapping[str, Any], real: type[np.generic]) -> dict[str, Made]:
    """`D = np.zeros(shape)  ->  D = argument`: Numba would compile np.zeros to find its type."""
    from numba.core import ir as nodes

    made: dict[str, Made] = {}
    makers: set[str] = set()
    for assignment in _assignments(ir):
        call = assignment.value
        if isinstance(call, nodes.Expr) and call.op == "call":
            origin = next((name for maker, name in _MAKERS if _object(ir, call.func) is maker), None)
            if origin is not None:
                name = f"{assignment.target.name}.made{len(made)}"
                made[name] = _made(ir, call, origin, types=types, real=real)
                makers.add(call.func.name)
                assignment.value = nodes.Arg(name, len(ir.arg_names), call.loc)
                ir.arg_names, ir.arg_count = (*ir.arg_names, name), ir.arg_count + 1
    for assignment in _assignments(ir):
        if assignment.target.name in makers:
            assignment.value = _range(assignment)
    return made


def _assignments(ir: Any) -> list[Any]:
    from numba.core import ir as nodes

    return [each for block in ir.blocks.values() for each in block.find_insts(nodes.Assign)]


def _range(assignment: Any) -> Any:
    """A value that Numba can type, in place of a function that is not called any more."""
    from numba.core import ir as nodes

    return nodes.Global("range", range, assignment.loc)


def _made(ir: Any, call: Any, origin: str, *, types: Mapping[str, Any], real: type[np.generic]) -> Made:
    from numba.core import types as numba_types
    from numba.np.numpy_support import from_dtype

    given = dict(zip(("shape", "dtype"), call.args, strict=False)) | dict(call.kws)
    place = location_at(call.loc.filename, call.loc.line)
    if not {"shape"} <= set(given) <= {"shape", "dtype"}:
        raise refuse(place, f"np.{origin} with {', '.join(given)}: pass a shape and at most a dtype")
    shape = _definition(ir, given["shape"])
    if shape is None:
        raise refuse(place, "the shape has several definitions: write it into the call")
    dimensions = len(shape.items) if getattr(shape, "op", None) == "build_tuple" else 1
    element = from_dtype(np.dtype(real))
    if "dtype" in given:
        element = _element_type(ir, given["dtype"], types)
        if element is None:
            raise refuse(place, "the dtype is not understood: write np.float32, np.float64 or that of an argument")
    return Made(origin, given["shape"], numba_types.Array(element, dimensions, "C"))


def _element_type(ir: Any, variable: Any, types: Mapping[str, Any]) -> Any:
    """Find the Numba type that a dtype stands for: np.float32, or B.dtype of an argument B."""
    from numba.core import ir as nodes
    from numba.np.numpy_support import from_dtype

    definition, known = _definition(ir, variable), _object(ir, variable)
    if isinstance(known, type) and issubclass(known, (np.generic, float, int)):
        return from_dtype(np.dtype(known))
    if isinstance(definition, nodes.Expr) and definition.op == "getattr" and definition.attr == "dtype":
        return getattr(types.get(definition.value.name), "dtype", None)
    return None


def _definition(ir: Any, variable: Any) -> Any:
    """Find the only definition of a variable; None where there are several."""
    from numba.core.ir_utils import get_definition, guard

    return guard(get_definition, ir, variable)


def _object(ir: Any, variable: Any) -> Any:
    """Find the Python object that a variable stands for; None where it is computed."""
    from numba.core import ir as nodes

    definition = _definition(ir, variable)
    if isinstance(definition, (nodes.Global, nodes.FreeVar)):
        return definition.value
    if isinstance(definition, nodes.Expr) and definition.op == "getattr":
        owner = _object(ir, definition.value)
        return getattr(owner, definition.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _first_line(error: Exception) -> str:
    """Shorten what Numba prints, without its colours."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Failed in", "-", "During:", "File"))]
    return (telling or lines or [type(error).__name__])[0]


class Flow:
    """Questions about the graph of blocks of a function; labels are integers."""

    def __init__(self, blocks: dict[int, Any]) -> None:
        from numba.core.analysis import compute_cfg_from_blocks

        graph = compute_cfg_from_blocks(blocks)
        self.entry: int = graph.entry_point()
        self._loops = graph.loops()
        self._post = graph.post_dominators()

    def is_header(self, label: int) -> bool:
        """Whether a loop begins here."""
        return label in self._loops

    def is_inside(self, label: int | None, header: int) -> bool:
        """Whether a block belongs to the loop that begins at `header`, which itself does."""
        return label in self._loops[header].body

    def join(self, label: int) -> int | None:
        """Find the first block that every way from `label` passes; None where they part until the end."""
        after = self._post[label] - {label}
        return max(after, key=lambda other: len(self._post[other]), default=None)


def mutable_groups(blocks: Iterable[Any]) -> dict[str, str]:
    """Map every version of a variable that is joined by a phi to one name for all of them.

    A variable that is in no phi has one value, so it needs no storage that changes.
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for block in blocks:
        for phi in block.find_exprs(op="phi"):
            target = next(each.target.name for each in block.body if getattr(each, "value", None) is phi)
            for value in phi.incoming_values:
                if hasattr(value, "name"):
                    leader[find(value.name)] = find(target)
    return {name: find(name) for name in list(leader)}
