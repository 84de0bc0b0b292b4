"""Typed static single assignment (SSA) form of a Python function, by Numba's front end; nothing is lowered to LLVM.

Numba's front end is documented for version 0.61 and later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numba.core import compiler, errors, registry, typed_passes
from numba.core import ir as nodes
from numba.core import ssa as numba_ssa
from numba.core import types as numba_types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.ir_utils import get_definition, guard
from numba.np.numpy_support import from_dtype

from sparloom.fusion.program import fprange, location_at, refuse

_ALLOCATORS = ((np.zeros, "zeros"), (np.empty, "empty"))
_COLOUR = re.compile(r"\x1b\[\d*m")


@dataclass(frozen=True)
class Allocation:
    """A call of np.zeros or np.empty, with Numba's variable of the shape and Numba's type of the array."""

    origin: Literal["zeros", "empty"]
    shape: Any
    type: Any


@dataclass(frozen=True)
class TypedSsa:
    """A function in SSA form: Numba's FunctionIR with the type of each variable.

    Args:
        marks: variables that hold fprange, which Numba sees as range.
        allocations: arrays that the function allocates, which Numba sees as arguments with these names.
    """

    ir: Any
    types: Mapping[str, Any]
    marks: frozenset[str]
    allocations: Mapping[str, Allocation]


def typed_ssa(function: Callable[..., Any], types: Mapping[str, Any], real: type[np.generic]) -> TypedSsa:
    """Convert a function to typed SSA form; refuse what Numba does not support.

    Args:
        types: Numba type of each parameter.
        real: element type of arrays that are allocated without dtype; NumPy would use float64.
    """
    code = function.__code__
    try:
        ir = compiler.run_frontend(function)
        marks = _mark(ir)
        allocations = _replace_allocations(ir, types, real)
        single = numba_ssa.reconstruct_ssa(ir)
        target = registry.cpu_target
        target.typing_context.refresh()
        arguments = tuple(allocations[name].type if name in allocations else types[name] for name in single.arg_names)
        typed = typed_passes.type_inference_stage(target.typing_context, target.target_context, single, arguments, None)
    except errors.NumbaError as error:
        line = error.loc.line if getattr(error, "loc", None) is not None else code.co_firstlineno
        raise refuse(location_at(code.co_filename, line), f"this is not supported: {_first_line(error)}") from error
    return TypedSsa(single, typed.typemap, marks, allocations)


def _mark(ir: Any) -> frozenset[str]:
    """Replace fprange by range, and return the variables that hold it."""
    marked = [each for each in _assignments(ir) if _object(ir, each.target) is fprange]
    for each in marked:
        each.value = _range(each)
    return frozenset(each.target.name for each in marked)


def _replace_allocations(ir: Any, types: Mapping[str, Any], real: type[np.generic]) -> dict[str, Allocation]:
    """`D = np.zeros(shape)  ->  D = argument`: Numba would compile np.zeros to infer its type."""
    allocations: dict[str, Allocation] = {}
    allocators: set[str] = set()
    for assignment in _assignments(ir):
        call = assignment.value
        if isinstance(call, nodes.Expr) and call.op == "call":
            origin = next((name for function, name in _ALLOCATORS if _object(ir, call.func) is function), None)
            if origin is not None:
                name = f"{assignment.target.name}.made{len(allocations)}"
                allocations[name] = _allocation(ir, call, origin, types=types, real=real)
                allocators.add(call.func.name)
                assignment.value = nodes.Arg(name, len(ir.arg_names), call.loc)
                ir.arg_names, ir.arg_count = (*ir.arg_names, name), ir.arg_count + 1
    for assignment in _assignments(ir):
        if assignment.target.name in allocators:
            assignment.value = _range(assignment)
    return allocations


def _assignments(ir: Any) -> list[Any]:
    return [each for block in ir.blocks.values() for each in block.find_insts(nodes.Assign)]


def _range(assignment: Any) -> Any:
    """Return a value that Numba can type, for a function that is no longer called."""
    return nodes.Global("range", range, assignment.loc)


def _allocation(ir: Any, call: Any, origin: str, *, types: Mapping[str, Any], real: type[np.generic]) -> Allocation:
    given = dict(zip(("shape", "dtype"), call.args, strict=False)) | dict(call.kws)
    location = location_at(call.loc.filename, call.loc.line)
    if not {"shape"} <= set(given) <= {"shape", "dtype"}:
        raise refuse(location, f"np.{origin} with {', '.join(given)}: pass a shape and at most a dtype")
    shape = _definition(ir, given["shape"])
    if shape is None:
        raise refuse(location, "the shape has several definitions: write it into the call")
    dimensions = len(shape.items) if getattr(shape, "op", None) == "build_tuple" else 1
    element = from_dtype(np.dtype(real))
    if "dtype" in given:
        element = _element_type(ir, given["dtype"], types)
        if element is None:
            raise refuse(location, "the dtype is not supported: write np.float32, np.float64 or that of an argument")
    return Allocation(origin, given["shape"], numba_types.Array(element, dimensions, "C"))


def _element_type(ir: Any, variable: Any, types: Mapping[str, Any]) -> Any:
    """Find the Numba type of a dtype: np.float32, or B.dtype of an argument B."""
    definition, known = _definition(ir, variable), _object(ir, variable)
    if isinstance(known, type) and issubclass(known, (np.generic, float, int)):
        return from_dtype(np.dtype(known))
    if isinstance(definition, nodes.Expr) and definition.op == "getattr" and definition.attr == "dtype":
        return getattr(types.get(definition.value.name), "dtype", None)
    return None


def _definition(ir: Any, variable: Any) -> Any:
    """Find the only definition of a variable; None if there are several."""
    return guard(get_definition, ir, variable)


def _object(ir: Any, variable: Any) -> Any:
    """Find the Python object that a variable refers to; None if it is computed."""
    definition = _definition(ir, variable)
    if isinstance(definition, (nodes.Global, nodes.FreeVar)):
        return definition.value
    if isinstance(definition, nodes.Expr) and definition.op == "getattr":
        owner = _object(ir, definition.value)
        return getattr(owner, definition.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _first_line(error: Exception) -> str:
    """Return the first informative line of a Numba error, without colours."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(("Failed in", "-", "During:", "File"))]
    return (informative or lines or [type(error).__name__])[0]


class ControlFlow:
    """The control flow graph of a function; labels of blocks are integers."""

    def __init__(self, blocks: dict[int, Any]) -> None:
        graph = compute_cfg_from_blocks(blocks)
        self.entry: int = graph.entry_point()
        self._loops = graph.loops()
        self._post = graph.post_dominators()

    def is_header(self, label: int) -> bool:
        """Tell whether a block is a loop header."""
        return label in self._loops

    def is_inside(self, label: int | None, header: int) -> bool:
        """Tell whether a block belongs to the loop with this header, as the header itself does."""
        return label in self._loops[header].body

    def join(self, label: int) -> int | None:
        """Return the immediate post-dominator of a block, or None."""
        after = self._post[label] - {label}
        return max(after, key=lambda other: len(self._post[other]), default=None)


def phi_groups(blocks: Iterable[Any]) -> dict[str, str]:
    """Map the versions of a variable that phi nodes join to one leader.

    Variables in no phi have one value, so they need no mutable storage.
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
