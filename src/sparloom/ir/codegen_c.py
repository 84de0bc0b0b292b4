"""Kernels as C11 with GNU vector extensions and OpenMP, for gcc and clang."""

from __future__ import annotations

from collections.abc import Set

from sparloom.ir.c_family import BF16_HELPERS, C_TYPES, OWN_FLOAT_CALLS, Dialect, Printer, element_type
from sparloom.ir.nodes import PRODUCTS, Assign, Const, For, Kernel, Type, walk
from sparloom.ir.verify import FLOAT_CALLS, reduction_op, verify

_MAX_UNROLL = 64
_ELEMENT_BYTES = {"i32": 4, "i64": 8, "f32": 4, "f64": 8, "bool": 4}
_ORDER = ("allocated", "multiply", *BF16_HELPERS, "broadcast", "sum", "select", "min", "max", "abs", *FLOAT_CALLS)
_ALLOCATED = """\
static inline void *allocated(int64_t bytes)
{
    void *found = aligned_alloc(64, (size_t)(bytes > 0 ? (bytes + 63) / 64 * 64 : 64));
    if (found == 0) abort();
    return found;
}"""
# e^x = 2^n e^r with n = x / ln 2 rounded; the polynomial for e^r and the split of ln 2 are those of Cephes' expf. There
# are no branches or calls, so that loops vectorise; the error is at most 2 ulp.
_EXP = """\
static inline float power_of_two(int32_t n)
{
    union { int32_t bits; float value; } power = {(n + 127) << 23};
    return power.value;
}
static inline float exp_f32(float x)
{
    const float in = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
    const float n = (in * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (in - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const int32_t whole = (int32_t)n, half = whole >> 1;
    return (p * (r * r) + r + 1.0f) * power_of_two(half) * power_of_two(whole - half);
}"""
# 2^x = 2^n 2^r with n = x rounded: a polynomial of r with least relative error, to whose exponent n is added. The error
# is at most 1 ulp; below 2^-126, where numbers are not normal, at most 2^-127.
_EXP2 = """\
static inline float exp2_f32(float x)
{
    const float least = x < -127.0f ? -127.0f : x, in = least > 128.0f ? 128.0f : least;
    const float n = (in + 12582912.0f) - 12582912.0f, r = in - n;
    float p = 1.535335509e-4f;
    p = p * r + 1.339887536e-3f;
    p = p * r + 9.618437385e-3f;
    p = p * r + 5.550332469e-2f;
    p = p * r + 2.402264791e-1f;
    p = p * r + 6.931472029e-1f;
    union { float value; uint32_t bits; } power = {p * r + 1.0f};
    power.bits += (uint32_t)(int32_t)n << 23;
    return power.value;
}"""
# tanh x / x near 0 is a polynomial of x^2, interpolated at Chebyshev's points; the error is at most 3 ulp.
_TANH = """\
static inline float tanh_f32(float x)
{
    const float size = fabsf(x), s = x * x;
    float p = -5.599785130e-3f;
    p = p * s + 2.053697221e-2f;
    p = p * s - 5.370427668e-2f;
    p = p * s + 1.333091706e-1f;
    p = p * s - 3.333325088e-1f;
    p = p * s + 1.0f;
    const float far = 1.0f - 2.0f / (exp_f32(2.0f * size) + 1.0f);
    return size < 0.63f ? p * x : x < 0.0f ? -far : far;
}"""
# erf x / x near 0 likewise; elsewhere the approximation 7.1.26 of Abramowitz and Stegun. The error is at most 5 ulp.
_ERF = """\
static inline float erf_f32(float x)
{
    const float size = fabsf(x), s = x * x;
    float p = -5.648059887e-4f;
    p = p * s + 4.921761807e-3f;
    p = p * s - 2.671505511e-2f;
    p = p * s + 1.128031686e-1f;
    p = p * s - 3.761234283e-1f;
    p = p * s + 1.128379107f;
    const float t = 1.0f / (1.0f + 0.3275911f * size);
    float q = 1.061405429f;
    q = q * t - 1.453152027f;
    q = q * t + 1.421413741f;
    q = q * t - 0.284496736f;
    q = q * t + 0.254829592f;
    const float far = 1.0f - q * t * exp_f32(-s);
    return size < 1.0f ? p * x : x < 0.0f ? -far : far;
}"""
_OWN = dict(zip(OWN_FLOAT_CALLS, (_EXP, _EXP2, _TANH, _ERF), strict=True))  # loops of C's functions do not vectorise


def render_c(kernel: Kernel, *more: Kernel) -> str:
    """Print kernels as one C file, each as `void name(params)` with `restrict` pointers for buffers.

    Loop bounds are evaluated once, before the loop. Vector loads and stores are unaligned.
    """
    printers = []
    for each in (kernel, *more):
        verify(each)
        printers.append(Printer(each, _C))
    functions = [printer.function() for printer in printers]
    needs = set().union(*(printer.expressions.needs for printer in printers))
    return "\n".join([_prelude(needs), *functions])


def _pragma(loop: For) -> str | None:
    if loop.kind == "parallel":
        return f"#pragma omp parallel for schedule(dynamic, {loop.chunk or 1})"
    if loop.kind == "simd":
        return "#pragma omp simd" + "".join(
            f" reduction({op}:{', '.join(names)})" for op, names in _reductions(loop).items())
    if loop.kind == "unrolled":
        known = isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
        trips = -(-(loop.hi.value - loop.lo.value) // loop.step) if known else 4
        return f"#pragma GCC unroll {min(max(trips, 1), _MAX_UNROLL)}"
    return None


def _reductions(loop: For) -> dict[str, list[str]]:
    """Return the names that a simd loop reduces, by operator."""
    ops = {node.name: reduction_op(node) for node in walk(loop.body) if isinstance(node, Assign)}
    found: dict[str, list[str]] = {}
    for name in loop.reduces:
        found.setdefault(ops.get(name) or "+", []).append(name)
    return found


_C = Dialect(
    head="void",
    restrict="restrict",
    array=" __attribute__((aligned(64)))",
    convert="__builtin_convertvector({}, {})",
    prefetch="__builtin_prefetch({});",
    heap=("allocated({})", "free({});"),
    pragma=_pragma,
    first=lambda loop, lo: lo,
    step=lambda loop, step: step,
    after=lambda loop: None,
)


def _prelude(needs: Set[tuple[str, Type]]) -> str:
    """Define the types and helpers in `needs`, which are (helper, type) pairs."""
    needs = _close(needs)
    lines = ["#include <math.h>", "#include <stdbool.h>", "#include <stdint.h>"]
    lines += ["#include <stdlib.h>"] if any(name == "allocated" for name, _ in needs) else []
    types = sorted((type for name, type in needs if name == "type"), key=lambda t: (t.scalar, t.lanes))
    lines += ["", *(_typedef(type) for type in types)] if types else []
    helpers = sorted(
        ((name, type) for name, type in needs if name != "type"),
        key=lambda need: (_ORDER.index(need[0]), need[1].scalar, need[1].lanes),
    )
    lines += [_helper(name, type) for name, type in helpers]
    return "\n".join(lines) + "\n"


def _close(needs: Set[tuple[str, Type]]) -> set[tuple[str, Type]]:
    """Add the helpers and types that helpers depend on."""
    closed: set[tuple[str, Type]] = set()
    waiting = list(needs)
    while waiting:
        name, type = waiting.pop()
        type = Type("f32") if name == "allocated" else type  # one for all
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
        elif name in _OWN and type.scalar == "f32" and (type.lanes > 1 or name in ("tanh", "erf")):
            waiting += [(name if type.lanes > 1 else "exp", Type("f32"))]
        elif name in ("min", "max", "abs") and type.lanes > 1:
            waiting += [("select", type)]
    return closed


def _integer(type: Type) -> Type:
    """Return the integer vector type whose elements are as wide as those of `type`."""
    return Type("i64" if type.scalar in ("i64", "f64") else "i32", type.lanes)


def _typedef(type: Type) -> str:
    element, width = element_type(type), _ELEMENT_BYTES[type.scalar]
    return f"typedef {element} {type} __attribute__((vector_size({width * type.lanes}), aligned({width}), may_alias));"


def _helper(name: str, type: Type) -> str:
    element = element_type(type)
    if name == "allocated":
        return _ALLOCATED
    if name == "multiply":
        return _multiply(type)
    if name in BF16_HELPERS:
        return f"static inline {BF16_HELPERS[name]}"
    if name in _OWN and type == Type("f32"):
        return _OWN[name]
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
    call = name + ("" if type.scalar == "f64" else "_f32" if name in _OWN else "f")
    return (
        f"static inline {type} {name}_{type}({type} a)\n{{\n"
        f"    for (int l = 0; l < {type.lanes}; ++l) a[l] = {call}(a[l]);\n    return a;\n}}"
    )


def _multiply(type: Type) -> str:
    """Declare a function pointer that is set when the library is loaded; see `sparloom.jit`."""
    a, b, c = next((left, right, made) for (left, right), made in PRODUCTS.items() if left == type.scalar)
    params = (f"int64_t, int64_t, int64_t, const {C_TYPES[a]} *, int64_t, int64_t, const {C_TYPES[b]} *, int64_t, "
              f"{C_TYPES[c]} *, int64_t, _Bool")
    return (f"static void (*multiply_{type})({params});\n"
            f"void sparloom_set_multiply_{type}(void *given) {{ multiply_{type} = (void (*)({params}))given; }}")


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
