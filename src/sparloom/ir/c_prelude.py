"""Types and small functions that rendered C relies on."""

from __future__ import annotations

from collections.abc import Set

from sparloom.ir.nodes import Type
from sparloom.ir.types import FLOAT_CALLS

__all__ = ["prelude"]

_ELEMENTS = {
    "i32": ("int32_t", 4), "i64": ("int64_t", 8), "f32": ("float", 4), "f64": ("double", 8), "bool": ("int32_t", 4),
}
_ORDER = ("broadcast", "sum", "select", "min", "max", "abs", *FLOAT_CALLS)


def prelude(needs: Set[tuple[str, Type]]) -> str:
    """Print what `needs` names, as (helper, type) pairs; vectors of bool are vectors of i32 that hold 0 or -1."""
    needs = _close(needs)
    lines = ["#include <math.h>", "#include <stdbool.h>", "#include <stdint.h>"]
    types = sorted((type for name, type in needs if name == "type"), key=lambda t: (t.scalar, t.lanes))
    lines += ["", *(_typedef(type) for type in types)] if types else []
    helpers = sorted(
        ((name, type) for name, type in needs if name != "type"),
        key=lambda need: (_ORDER.index(need[0]), need[1].scalar, need[1].lanes),
    )
    lines += [_helper(name, type) for name, type in helpers]
    return "\n".join(lines) + "\n"


def _close(needs: Set[tuple[str, Type]]) -> set[tuple[str, Type]]:
    """Add the helpers and types that helpers rely on."""
    closed: set[tuple[str, Type]] = set()
    waiting = list(needs)
    while waiting:
        name, type = waiting.pop()
        if (name, type) in closed:
            continue
        closed.add((name, type))
        if type.lanes > 1:
            waiting.append(("type", type))
        if name == "sum":
            lanes = type.lanes // 2
            waiting += [("sum", Type(type.scalar, lanes))] if lanes > 1 else []
        elif name == "select":
            waiting += [("type", Type("bool", type.lanes)), ("type", _integer(type))]
        elif name in ("min", "max", "abs") and type.lanes > 1:
            waiting += [("select", type)]
    return closed


def _integer(type: Type) -> Type:
    """Integer vector with elements as wide as those of `type`."""
    return Type("i64" if type.scalar in ("i64", "f64") else "i32", type.lanes)


def _typedef(type: Type) -> str:
    element, width = _ELEMENTS[type.scalar]
    return f"typedef {element} {type} __attribute__((vector_size({width * type.lanes}), aligned({width}), may_alias));"


def _helper(name: str, type: Type) -> str:
    element = _ELEMENTS[type.scalar][0]
    own = element if type.lanes == 1 else str(type)
    if name == "broadcast":
        if type.scalar == "bool":
            return f"static inline {type} broadcast_{type}(_Bool a) {{ return -(int32_t)a - ({type}){{0}}; }}"
        return f"static inline {type} broadcast_{type}({element} a) {{ return a - ({type}){{0}}; }}"
    if name == "sum":
        return _sum(type, element)
    if name == "select":
        integer, mask = _integer(type), Type("bool", type.lanes)
        wide = f"__builtin_convertvector(c, {integer})" if integer.scalar == "i64" else f"({integer})c"
        return (
            f"static inline {type} select_{type}({mask} c, {type} a, {type} b)\n{{\n"
            f"    const {integer} m = {wide};\n"
            f"    return ({type})((({integer})a & m) | (({integer})b & ~m));\n}}"
        )
    if name in ("min", "max"):
        test = "a < b" if name == "min" else "a > b"
        return f"static inline {own} {name}_{type}({own} a, {own} b) {{ return {_choose(type, test, 'a', 'b')}; }}"
    if name == "abs":
        return _abs(type, own)
    call = name + ("f" if type.scalar == "f32" else "")
    return (
        f"static inline {type} {name}_{type}({type} a)\n{{\n"
        f"    for (int l = 0; l < {type.lanes}; ++l) a[l] = {call}(a[l]);\n    return a;\n}}"
    )


def _choose(type: Type, test: str, a: str, b: str) -> str:
    if type.lanes == 1:
        return f"{test} ? {a} : {b}"
    mask = Type("bool", type.lanes)
    wide = f"__builtin_convertvector({test}, {mask})" if _integer(type).scalar == "i64" else f"({mask})({test})"
    return f"select_{type}({wide}, {a}, {b})"


def _abs(type: Type, own: str) -> str:
    if type.lanes > 1 and type.scalar in ("f32", "f64"):
        call = "fabsf" if type.scalar == "f32" else "fabs"
        body = f"for (int l = 0; l < {type.lanes}; ++l) a[l] = {call}(a[l]); return a;"
    else:
        body = f"return {_choose(type, 'a < 0', '-a', 'a')};"
    return f"static inline {own} abs_{type}({own} a) {{ {body} }}"


def _sum(type: Type, element: str) -> str:
    lanes = type.lanes // 2
    if lanes == 1:
        return f"static inline {element} sum_{type}({type} a) {{ return a[0] + a[1]; }}"
    half = Type(type.scalar, lanes)
    low, high = ", ".join(map(str, range(lanes))), ", ".join(map(str, range(lanes, type.lanes)))
    return (
        f"static inline {element} sum_{type}({type} a)\n{{\n"
        f"    const {half} low = __builtin_shufflevector(a, a, {low});\n"
        f"    const {half} high = __builtin_shufflevector(a, a, {high});\n"
        f"    return sum_{half}(low + high);\n}}"
    )
