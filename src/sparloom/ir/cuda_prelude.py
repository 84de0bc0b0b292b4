"""Types and small functions that rendered CUDA relies on."""

from __future__ import annotations

from collections.abc import Set

from sparloom.ir.c_expressions import C_TYPES
from sparloom.ir.nodes import Type
from sparloom.ir.types import FLOAT_CALLS

__all__ = ["cuda_prelude"]

_INTEGERS = """\
#ifdef __CUDACC_RTC__
typedef int int32_t;
typedef long long int64_t;
#else
#include <cstdint>
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
"""

_VECTORS = """\
template <typename T, int N> struct vec {
    T lane[N];
    __device__ T &operator[](int l) { return lane[l]; }
    __device__ T operator[](int l) const { return lane[l]; }
    __device__ vec &operator+=(const vec &b) { return *this = *this + b; }
};
template <typename T, int N, typename S> __device__ vec<S, N> convert(vec<T, N> a, vec<S, N> *)
{
    vec<S, N> r;
    for (int l = 0; l < N; ++l) r[l] = (S)a[l];
    return r;
}
#define LANEWISE(result, op) \\
    template <typename T, int N> __device__ vec<result, N> operator op(vec<T, N> a, vec<T, N> b) \\
    { \\
        vec<result, N> r; \\
        for (int l = 0; l < N; ++l) r[l] = OUTCOME(a[l] op b[l]); \\
        return r; \\
    }
#define OUTCOME(value) value
LANEWISE(T, +) LANEWISE(T, -) LANEWISE(T, *) LANEWISE(T, /) LANEWISE(T, %) LANEWISE(T, &) LANEWISE(T, |)
#undef OUTCOME
#define OUTCOME(value) -(int32_t)(value)
LANEWISE(int32_t, <) LANEWISE(int32_t, <=) LANEWISE(int32_t, >) LANEWISE(int32_t, >=)
LANEWISE(int32_t, ==) LANEWISE(int32_t, !=)
#undef OUTCOME
template <typename T, int N> __device__ vec<T, N> operator-(vec<T, N> a)
{
    for (int l = 0; l < N; ++l) a[l] = -a[l];
    return a;
}
template <typename T, int N> __device__ vec<T, N> operator~(vec<T, N> a)
{
    for (int l = 0; l < N; ++l) a[l] = ~a[l];
    return a;
}
"""


def cuda_prelude(needs: Set[tuple[str, Type]]) -> str:
    """Print what `needs` names, as (helper, type) pairs; vectors of bool are vectors of i32 that hold 0 or -1."""
    types = {type for _, type in needs if type.lanes > 1}
    types |= {Type("bool", type.lanes) for name, type in needs if name == "select"}
    lines = [_INTEGERS.rstrip()] + ([_VECTORS.rstrip()] if types else [])
    lines += [f"typedef vec<{_element(type)}, {type.lanes}> {type};" for type in sorted(types, key=str)]
    helpers = sorted(((name, type) for name, type in needs if name != "type"), key=lambda need: (need[0], str(need[1])))
    lines += [_helper(name, type) for name, type in helpers]
    return "\n".join(lines) + "\n"


def _element(type: Type) -> str:
    return "int32_t" if type.scalar == "bool" else C_TYPES[type.scalar]


def _helper(name: str, type: Type) -> str:
    element, lanes = _element(type), type.lanes
    own = element if lanes == 1 else str(type)
    a, b = ("a", "b") if lanes == 1 else ("a[l]", "b[l]")
    if name == "sum":
        return (
            f"static __device__ {element} sum_{type}({type} a)\n{{\n    for (int h = {lanes // 2}; h > 0; h /= 2)\n"
            f"        for (int l = 0; l < h; ++l) a[l] += a[l + h];\n    return a[0];\n}}"
        )
    given, copied = ("bool", "-(int32_t)a") if type.scalar == "bool" else (element, "a")
    suffix = "f" if type.scalar == "f32" else ""
    params, value = {
        "broadcast": (f"{given} a", copied),
        "select": (f"{Type('bool', lanes)} c, {own} a, {own} b", f"c[l] ? {a} : {b}"),
        "min": (f"{own} a, {own} b", f"{a} < {b} ? {a} : {b}"),
        "max": (f"{own} a, {own} b", f"{a} > {b} ? {a} : {b}"),
        "abs": (f"{own} a", f"fabs{suffix}({a})" if type.scalar in ("f32", "f64") else f"{a} < 0 ? -{a} : {a}"),
        **{call: (f"{own} a", f"{call}{suffix}({a})") for call in FLOAT_CALLS},
    }[name]
    each = f"{own} r; for (int l = 0; l < {lanes}; ++l) r[l] = {value}; return r;"
    body = f"return {value};" if lanes == 1 else each
    return f"static __device__ {own} {name}_{type}({params}) {{ {body} }}"
