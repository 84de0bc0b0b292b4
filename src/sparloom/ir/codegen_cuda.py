"""Kernels as CUDA C++: a thread per iteration of the parallel loop, or a block if it contains shared loops."""

from __future__ import annotations

from collections.abc import Set

from sparloom.errors import Unsupported
from sparloom.ir.c_family import BF16_HELPERS, Dialect, Printer, element_type
from sparloom.ir.nodes import For, Kernel, Let, Type
from sparloom.ir.transform import lower_products
from sparloom.ir.verify import FLOAT_CALLS, verify

_INTEGERS = """\
#ifdef __CUDACC_RTC__
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
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


def render_cuda(kernel: Kernel) -> str:
    """Print a kernel as `extern "C" __global__ void name(params)`, for nvcc and NVRTC.

    The body must be one parallel loop, after any number of Let. Its iterations are distributed over the threads of a
    one-dimensional grid of any size. An iteration is serial, including simd loops, and its vectors are arrays. If the
    loop contains shared loops, its iterations are distributed over blocks instead, and those of shared loops over the
    threads of a block, with a barrier after each shared loop. Products of tiles become loops.

    Raises:
        IllegalSchedule: the kernel does not verify.
        Unsupported: the body has another form, or a local array has a size that is not a constant.
    """
    verify(kernel)
    kernel = lower_products(kernel)
    *before, last = kernel.body or (None,)
    if not (isinstance(last, For) and last.kind == "parallel" and all(isinstance(stmt, Let) for stmt in before)):
        remedy = "give it one parallel loop at the top, after any number of Let"
        raise Unsupported(f"kernel {kernel.name} has no CUDA form: {remedy}")
    printer = Printer(kernel, _CUDA)
    function = printer.function()
    return "\n".join([_prelude(printer.expressions.needs), function])


def _first(loop: For, lo: str) -> str:
    start = "" if lo == "0" else f"({lo}) + "
    return f"{start}{_workers(loop)[0]}{_times_step(loop)}"


def _step(loop: For, _: str) -> str:
    return f"{loop.var} += {_workers(loop)[1]}{_times_step(loop)}"


def _workers(loop: For) -> tuple[str, str]:
    """Return the index of the thread or block, and their number."""
    if loop.kind == "shared":
        return "(int64_t)threadIdx.x", "(int64_t)blockDim.x"
    if any(isinstance(stmt, For) and stmt.kind == "shared" for stmt in loop.body):
        return "(int64_t)blockIdx.x", "(int64_t)gridDim.x"
    return "((int64_t)blockIdx.x * blockDim.x + threadIdx.x)", "(int64_t)gridDim.x * blockDim.x"


def _times_step(loop: For) -> str:
    return "" if loop.step == 1 else f" * {loop.step}"


_CUDA = Dialect(
    head='extern "C" __global__ void',
    restrict="__restrict__",
    array="",
    convert="convert({}, ({}*)0)",
    prefetch="",
    heap=None,
    pragma=lambda loop: "#pragma unroll" if loop.kind == "unrolled" else None,
    first=_first,
    step=_step,
    after=lambda loop: "__syncthreads();" if loop.kind == "shared" else None,
)


def _prelude(needs: Set[tuple[str, Type]]) -> str:
    """Define the types and helpers in `needs`, which are (helper, type) pairs."""
    types = {type for _, type in needs if type.lanes > 1}
    types |= {Type("bool", type.lanes) for name, type in needs if name == "select"}
    lines = [_INTEGERS.rstrip()] + ([_VECTORS.rstrip()] if types else [])
    lines += [f"typedef vec<{element_type(type)}, {type.lanes}> {type};" for type in sorted(types, key=str)]
    helpers = sorted(((name, type) for name, type in needs if name != "type"), key=lambda need: (need[0], str(need[1])))
    lines += [_helper(name, type) for name, type in helpers]
    return "\n".join(lines) + "\n"


def _helper(name: str, type: Type) -> str:
    if name in BF16_HELPERS:
        return f"static __device__ {BF16_HELPERS[name]}"
    element, lanes = element_type(type), type.lanes
    own = element if lanes == 1 else str(type)
    a, b = ("a", "b") if lanes == 1 else ("a[l]", "b[l]")
    if name == "sum":
        return (
            f"static __device__ {element} sum_{type}({type} a)\n{{\n    for (int h = {lanes // 2}; h > 0; h /= 2)\n"
            f"        for (int l = 0; l < h; ++l) a[l] += a[l + h];\n    return a[0];\n}}"
        )
    scalar, copied = ("bool", "-(int32_t)a") if type.scalar == "bool" else (element, "a")
    suffix = "f" if type.scalar == "f32" else ""
    params, value = {
        "broadcast": (f"{scalar} a", copied),
        "select": (f"{Type('bool', lanes)} c, {own} a, {own} b", f"c[l] ? {a} : {b}"),
        "min": (f"{own} a, {own} b", f"{a} < {b} ? {a} : {b}"),
        "max": (f"{own} a, {own} b", f"{a} > {b} ? {a} : {b}"),
        "abs": (f"{own} a", f"fabs{suffix}({a})" if type.scalar in ("f32", "f64") else f"{a} < 0 ? -{a} : {a}"),
        **{call: (f"{own} a", f"{call}{suffix}({a})") for call in FLOAT_CALLS},
    }[name]
    each = f"{own} r; for (int l = 0; l < {lanes}; ++l) r[l] = {value}; return r;"
    body = f"return {value};" if lanes == 1 else each
    return f"static __device__ {own} {name}_{type}({params}) {{ {body} }}"
