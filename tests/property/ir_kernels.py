"""Random kernels whose meaning is exact: small integers in every type, in bounds, no races.

Each expression comes with a bound on its size; bounds stay below 2**22, so f32 holds every value and order of addition
does not matter.
"""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from sparloom.ir import (
    DTYPES,
    F32,
    F64,
    I32,
    I64,
    Accumulate,
    Alloc,
    Assign,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Prefetch,
    Ref,
    Select,
    Stmt,
    Store,
    Sum,
    Type,
    Unary,
)

SIZE = 96  # elements of input buffers; indices are below 64, lanes at most 16
ROW = 128  # elements of output buffers that one parallel iteration owns
TRIPS = 8
LIMIT = 2**22
ADDED = 2**10  # most that one of up to TRIPS**3 additions adds
NUMBERS = (I32, I64, F32, F64)
INPUTS = {"u": I32, "v": I64, "x": F32, "y": F64}
OUTPUTS = {"ou": I32, "ov": I64, "ox": F32, "oy": F64}
LANES = (2, 4, 8, 16)
KINDS = ("serial", "unrolled", "parallel", "parallel")


@dataclass(frozen=True)
class Bounded:
    """A name or expression and the maximum of its magnitude."""

    expr: Expr
    bound: int


@dataclass(frozen=True)
class Context:
    """Names that the next generated statements may use."""

    values: tuple[tuple[Type, Bounded], ...] = ()
    mutable: tuple[tuple[str, Type], ...] = ()
    loops: tuple[str, ...] = ()
    arrays: tuple[tuple[str, Type], ...] = ()
    parallel: str | None = None
    simd: str | None = None
    depth: int = 0


@st.composite
def kernels(draw: st.DrawFn, name: str = "random", *, parallel: bool = False) -> Kernel:
    """A kernel over the buffers of `arguments`, with the scalar n in 0 .. 8; `parallel`: one parallel loop only."""
    params = [
        *(Param(buffer, type, buffer=True) for buffer, type in INPUTS.items()),
        *(Param(buffer, type, buffer=True, const=False) for buffer, type in OUTPUTS.items()),
        Param("n", I64),
        Param("c", F32),
    ]
    context = Context(values=((F32, Bounded(Ref("c"), 4)), (I64, Bounded(Ref("n"), TRIPS))))
    if parallel:
        return Kernel(name, params, [draw(_loops(context, _Names(), kinds=("parallel",)))])
    return Kernel(name, params, draw(_block(context, _Names())))


def arguments(seed: int) -> dict[str, np.ndarray | int | float]:
    """Arguments for the kernels above; u holds indices 0 .. 7."""
    rng = np.random.default_rng(seed)
    inputs = {
        "u": rng.integers(0, TRIPS, SIZE, dtype=np.int32),
        "v": rng.integers(-4, 5, SIZE, dtype=np.int64),
        "x": rng.integers(-4, 5, SIZE).astype(np.float32),
        "y": rng.integers(-4, 5, SIZE).astype(np.float64),
    }
    outputs = {buffer: np.zeros(TRIPS * ROW, DTYPES[type.scalar]) for buffer, type in OUTPUTS.items()}
    return {**inputs, **outputs, "n": int(rng.integers(0, TRIPS + 1)), "c": float(rng.integers(-4, 5))}


class _Names:
    def __init__(self) -> None:
        self.count = 0

    def new(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"


@st.composite
def _block(draw: st.DrawFn, context: Context, names: _Names) -> tuple[Stmt, ...]:
    body: list[Stmt] = []
    for _ in range(draw(st.integers(1, 3))):
        more, context = draw(_statement(context, names))
        body += more
    return tuple(body)


@st.composite
def _statement(draw: st.DrawFn, context: Context, names: _Names) -> tuple[list[Stmt], Context]:
    kinds = ["let", "declare", "store", "accumulate"]
    kinds += ["assign", "assign", "read", "read"] * bool(context.mutable)
    kinds += ["prefetch"] if context.simd is None else []
    kinds += ["for", "for", "for", "simd", "array"] * (context.simd is None and context.depth < 3)
    kinds += ["if"] * (context.depth < 3)
    match draw(st.sampled_from(kinds)):
        case "let":
            type = draw(_types(context))
            value, name = draw(_values(type, context, 2)), names.new("a")
            known = (*context.values, (type, Bounded(Ref(name), value.bound)))
            return [Let(name, type, value.expr)], replace(context, values=known)
        case "declare":
            type = draw(_types(context))
            value, name = draw(_values(type, context, 1)), names.new("s")
            return [Declare(name, type, value.expr)], replace(context, mutable=(*context.mutable, (name, type)))
        case "assign":
            name, type = draw(st.sampled_from(context.mutable))
            return [Assign(name, Ref(name) + _small(draw(_values(type, context, 2)), type))], context
        case "read":
            name, type = draw(st.sampled_from(context.mutable))
            return [Store(_output(type), _own(context, draw(_places(context))), Ref(name))], context
        case "store" | "accumulate" as kind:
            return [draw(_stores(context, accumulate=kind == "accumulate"))], context
        case "prefetch":
            return [Prefetch("x", draw(_indices(context)))], context
        case "array":
            return draw(_arrays(context, names))
        case "if":
            cond = draw(_conditions(context, 1))
            inner = replace(context, depth=context.depth + 1)
            orelse = draw(_block(inner, names)) if draw(st.booleans()) else ()
            return [If(cond, draw(_block(inner, names)), orelse)], context
        case "simd":
            return draw(_simd_loops(context, names)), context
    return [draw(_loops(context, names))], context


@st.composite
def _loops(draw: st.DrawFn, context: Context, names: _Names, kinds: tuple[str, ...] = KINDS) -> For:
    var = names.new("i")
    kind = draw(st.sampled_from([kind for kind in kinds if kind != "parallel" or context.parallel is None]))
    lo = draw(st.integers(0, 3))
    hi = draw(st.one_of(st.integers(0, TRIPS).map(Const), st.just(Ref("n")), st.just(Cast(I64, Load("u", Const(lo))))))
    inner = replace(context, loops=(*context.loops, var), depth=context.depth + 1)
    if kind == "parallel":
        inner = replace(inner, parallel=var, mutable=(), arrays=context.arrays)
    chunk = draw(st.sampled_from([None, 1, 3])) if kind == "parallel" else None
    return For(var, Const(lo), hi, draw(_block(inner, names)), kind=kind, step=draw(st.integers(1, 3)), chunk=chunk)


@st.composite
def _simd_loops(draw: st.DrawFn, context: Context, names: _Names) -> list[Stmt]:
    var, total = names.new("i"), names.new("s")
    type = draw(st.sampled_from(NUMBERS))
    inner = replace(context, loops=(*context.loops, var), simd=var, depth=3, mutable=())
    scalars = tuple((of, known) for of, known in context.values if of.lanes == 1)
    inner = replace(inner, values=scalars)
    added = Assign(total, Ref(total) + _small(draw(_values(type, inner, 2)), type))
    loop = For(var, 0, draw(st.sampled_from([Ref("n"), Const(7)])), (*draw(_block(inner, names)), added), "simd",
               reduces=(total,))
    return [Declare(total, type, Const(0, type)), loop, Store(_output(type), _own(context, Const(ROW - 1)), Ref(total))]


@st.composite
def _arrays(draw: st.DrawFn, context: Context, names: _Names) -> tuple[list[Stmt], Context]:
    name, var, type = names.new("t"), names.new("i"), draw(st.sampled_from(NUMBERS))
    filled = _small(draw(_values(type, context, 1)), type)
    fill = For(var, 0, SIZE, [Store(name, Ref(var), filled)])
    return [Alloc(name, type.scalar, SIZE), fill], replace(context, arrays=(*context.arrays, (name, type)))


@st.composite
def _stores(draw: st.DrawFn, context: Context, *, accumulate: bool) -> Stmt:
    buffer = draw(st.sampled_from(sorted(OUTPUTS)))
    lanes = draw(st.sampled_from((1, *LANES))) if context.simd is None else 1
    type = Type(OUTPUTS[buffer].scalar, lanes)
    value = draw(_values(type, context, 2))
    index = _own(context, draw(_places(context)))
    return Accumulate(buffer, index, _small(value, type)) if accumulate else Store(buffer, index, _small(value, type))


@st.composite
def _places(draw: st.DrawFn, context: Context) -> Expr:
    """Draw an index to store to; iterations of a simd loop never store to the same element."""
    return Ref(context.simd) if context.simd is not None else draw(_indices(context))


def _output(type: Type) -> str:
    return {of.scalar: buffer for buffer, of in OUTPUTS.items()}[type.scalar]


def _own(context: Context, index: Expr) -> Expr:
    """Draw elements that no other parallel iteration accesses."""
    row = Ref(context.parallel) * ROW if context.parallel is not None else Const(0)
    return row + index


@st.composite
def _indices(draw: st.DrawFn, context: Context) -> Expr:
    """An i64 in 0 .. 63."""
    small = [Const(draw(st.integers(0, TRIPS - 1))), Cast(I64, Load("u", Const(draw(st.integers(0, SIZE - 1)))))]
    small += [Ref(loop) for loop in context.loops]
    a, b = draw(st.sampled_from(small)), draw(st.sampled_from(small))
    return draw(st.sampled_from([a, a * TRIPS + b, a + b, Binary("max", a, b) % TRIPS]))


@st.composite
def _types(draw: st.DrawFn, context: Context) -> Type:
    lanes = draw(st.sampled_from((1, 1, *LANES))) if context.simd is None else 1
    return Type(draw(st.sampled_from(NUMBERS)).scalar, lanes)


@st.composite
def _conditions(draw: st.DrawFn, context: Context, lanes: int) -> Expr:
    type = Type(draw(st.sampled_from(NUMBERS)).scalar, lanes)
    a, b = draw(_values(type, context, 1)), draw(_values(type, context, 1))
    test = Binary(draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="])), a.expr, b.expr)
    return draw(st.sampled_from([test, Unary("not", test), Binary("or", test, test), Binary("and", test, test)]))


@st.composite
def _values(draw: st.DrawFn, type: Type, context: Context, depth: int) -> Bounded:
    if depth == 0:
        return draw(_leaves(type, context))
    scalar = Type(type.scalar)
    forms = ["leaf", "binary", "binary", "select", "negate", "abs", "cast"]
    forms += ["divide"] * (type in (I32, I64)) + ["broadcast"] * (type.lanes > 1)
    forms += ["sum"] * (type.lanes == 1 and context.simd is None)
    match draw(st.sampled_from(forms)):
        case "leaf":
            return draw(_leaves(type, context))
        case "binary":
            op = draw(st.sampled_from(["+", "-", "*", "min", "max"]))
            a, b = draw(_values(type, context, depth - 1)), draw(_values(type, context, depth - 1))
            bound = a.bound * b.bound if op == "*" else a.bound + b.bound
            return Bounded(Binary(op, a.expr, b.expr), bound) if bound < LIMIT else a
        case "select":
            a, b = draw(_values(type, context, depth - 1)), draw(_values(type, context, depth - 1))
            return Bounded(Select(draw(_conditions(context, type.lanes)), a.expr, b.expr), max(a.bound, b.bound))
        case "negate":
            a = draw(_values(type, context, depth - 1))
            return Bounded(Unary("-", a.expr), a.bound)
        case "abs":
            a = draw(_values(type, context, depth - 1))
            return Bounded(Call("abs", (a.expr,)), a.bound)
        case "cast":
            a = draw(_values(Type(draw(st.sampled_from(NUMBERS)).scalar, type.lanes), context, depth - 1))
            return Bounded(Cast(type, a.expr), a.bound)
        case "divide":
            a = draw(_values(type, context, depth - 1))
            divisor = Const(draw(st.sampled_from([-3, -2, -1, 1, 2, 5])), type)
            return Bounded(Binary(draw(st.sampled_from(["//", "%"])), a.expr, divisor), max(a.bound, 5))
        case "broadcast":
            a = draw(_values(scalar, context, depth - 1))
            return Bounded(Broadcast(a.expr, type.lanes), a.bound)
        case "sum":
            lanes = draw(st.sampled_from(LANES))
            a = draw(_leaves(Type(type.scalar, lanes), context))
            if a.bound * lanes >= LIMIT:
                return draw(_leaves(type, context))
            return Bounded(Sum(a.expr), a.bound * lanes)
    raise AssertionError


@st.composite
def _leaves(draw: st.DrawFn, type: Type, context: Context) -> Bounded:
    known = [value for of, value in context.values if of == type]
    buffer = {of.scalar: name for name, of in INPUTS.items()}[type.scalar]
    known.append(Bounded(Load(buffer, draw(_indices(context)), type.lanes), TRIPS))
    for name, of in context.arrays:
        if of.scalar == type.scalar:
            known.append(Bounded(Load(name, draw(_indices(context)), type.lanes), ADDED))
    constant = Const(draw(st.integers(-4, 4)), Type(type.scalar))
    known.append(Bounded(constant if type.lanes == 1 else Broadcast(constant, type.lanes), 4))
    return draw(st.sampled_from(known))


def _small(value: Bounded, type: Type) -> Expr:
    """Clamp to -ADDED .. ADDED."""
    if value.bound <= ADDED:
        return value.expr
    high, low = Const(ADDED, Type(type.scalar)), Const(-ADDED, Type(type.scalar))
    if type.lanes > 1:
        high, low = Broadcast(high, type.lanes), Broadcast(low, type.lanes)
    return Binary("max", Binary("min", value.expr, high), low)
