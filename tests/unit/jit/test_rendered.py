"""Rendered C in critical cases: constants, masks, bounds, functions, every scalar type."""

import math
from dataclasses import replace

import numpy as np
import pytest
from ir_cases import spmm

from sparloom.ir import (
    BOOL,
    DTYPES,
    F32,
    F64,
    I32,
    I64,
    Accumulate,
    Alloc,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Select,
    Store,
    Sum,
    Type,
    Unary,
    interpret,
    render_c,
)
from sparloom.jit import compile_c

pytestmark = pytest.mark.cc

N = Ref("n")
ONE = Const(1.0, F32)
EXPRESSIONS = [
    (Const(100000) * 100000, I64, 10**10),
    (Const(100000) * 100000 * -3 + 7, I64, -3 * 10**10 + 7),
    (Select(Binary("<", N, Const(4)), Const(50000), Const(1)) * Const(50000), I64, 25 * 10**8),
    (Const(2**62), I64, 2**62),
    (Unary("-", Const(-5)), I64, 5),
    (Const(5) - (Const(3) - Const(2)), I64, 4),
    (Const(5) - Const(-3), I64, 8),
    (Const(-7) // 2 * 2 + Const(-7) % 2, I64, -7),
    (Const(100) // (Const(10) // 2), I64, 20),
    (Call("abs", (Const(-3, I32),)), I32, 3),
    (Call("abs", (Const(-3.5, F32),)), F32, 3.5),
    (Const(0.1, F32), F32, np.float32(0.1)),
    (Const(1e-40, F64), F64, 1e-40),
    (Const(1e30, F32), F32, np.float32(1e30)),
    (Const(-math.inf, F32), F32, -math.inf),
    (Const(math.nan, F64), F64, math.nan),
    (Cast(I64, Const(-2.7, F64)), I64, -2),
    (ONE / Const(3.0, F32), F32, np.float32(1) / np.float32(3)),
    (Binary("or", Binary("and", Const(True, BOOL), Const(False, BOOL)), Const(True, BOOL)), BOOL, True),
    (Binary("min", N, Const(3)) * 10 + Binary("min", N, Const(2)), I64, 32),
    (Binary("max", N, Const(3)) * 10 + Binary("max", N, Const(4)), I64, 34),
    (Unary("not", Binary("<", Binary("min", N, Const(9)), Const(2))), BOOL, True),
]
SCALARS = ("i32", "i64", "f32", "f64")
LANES = (2, 4, 16, 64)
FUNCTIONS = ("sqrt", "exp", "log", "tanh", "erf")
KINDS = ("serial", "parallel", "simd", "unrolled")
WIDTHS = (1, 7, 16, 20, 33)


def expression(number: int) -> Kernel:
    expr, type, _ = EXPRESSIONS[number]
    params = (Param("out", type, True, False), Param("n", I64))
    return Kernel(f"expression{number}", params, [Store("out", 0, expr)])


def function(name: str, type: Type, lanes: int) -> Kernel:
    params = (Param("x", type, True), Param("y", type, True, False))
    body = [For("i", 0, 16, [Store("y", Ref("i"), Call(name, (Load("x", Ref("i"), lanes),)))], step=lanes)]
    return Kernel(f"{name}_of_{type}_by_{lanes}", params, body)


def masks(scalar: str, lanes: int) -> Kernel:
    type, x = Type(scalar), Load("x", Const(0), lanes)
    negative = Binary("<", x, Broadcast(Const(0, type), lanes))
    odd = Binary("!=", Cast(Type("i32", lanes), x), Broadcast(Const(3, I32), lanes))
    mask = Binary("or", Binary("and", negative, odd), Unary("not", Binary("or", negative, odd)))
    body = [
        Let("mask", Type("bool", lanes), mask),
        Let("chosen", Type(scalar, lanes), Select(Ref("mask"), x, Unary("-", x))),
        Store("y", 0, Binary("max", Binary("min", Ref("chosen"), Broadcast(Const(2, type), lanes)), Unary("-", x))),
        Accumulate("y", lanes, Call("abs", (x,))),
        Store("y", 2 * lanes, Sum(x)),
    ]
    return Kernel(f"masks_{scalar}_by_{lanes}", (Param("x", type, True), Param("y", type, True, False)), body)


def bounds(kind: str) -> Kernel:
    shrink = [Store("n", Ref("i") * 0, 0)] if kind in ("serial", "unrolled") else []
    body = [For("i", 0, Load("n", Const(0)), [*shrink, Store("y", Ref("i"), ONE)], kind)]
    return Kernel(f"bounds_{kind}", (Param("n", I64, True, False), Param("y", F32, True, False)), body)


def empty_loops(kind: str) -> Kernel:
    edges = [(0, 0), (3, 1), (-2, -2), (N, 9), (10, N), (N, N)]
    body = [For("i", lo, hi, [Store("y", 0, ONE)], kind) for lo, hi in edges]
    return Kernel(f"empty_{kind}", (Param("y", F32, True, False), Param("n", I64)), body)


def broadcasts() -> Kernel:
    mask, x = Broadcast(Binary("<", N, Const(4)), 4), Load("x", Const(0), 4)
    body = [Store("y", 0, Select(mask, x, Unary("-", x))), Store("y", 4, Broadcast(Const(-0.0, F32), 4))]
    return Kernel("broadcasts", (Param("x", F32, True), Param("y", F32, True, False), Param("n", I64)), body)


def private_array() -> Kernel:
    inner = [
        Alloc("t", "i64", 64),
        For("j", 0, 64, [Store("t", Ref("j"), Ref("i"))]),
        For("j", 0, 64, [Accumulate("y", Ref("i"), Load("t", Ref("j")))]),
    ]
    return Kernel("private_array", (Param("y", I64, True, False),), [For("i", 0, 500, inner, "parallel", chunk=1)])


def bools() -> Kernel:
    x = Load("x", Ref("i"))
    stored = If(Ref("flip"), [Store("y", Ref("i"), Unary("not", x))], [Store("y", Ref("i"), x)])
    params = (Param("x", BOOL, True), Param("y", BOOL, True, False), Param("flip", BOOL))
    return Kernel("bools", params, [For("i", 0, 4, [stored])])


def tailed_spmm(width: int, lanes: int) -> Kernel:
    return replace(spmm(width, lanes).kernel, name=f"spmm_{width}_by_{lanes}")


@pytest.fixture(scope="module")
def library(compile_once):
    """All kernels of this file, compiled together."""
    kernels = [
        *(expression(number) for number in range(len(EXPRESSIONS))),
        *(function(name, type, lanes) for name in FUNCTIONS for type in (F32, F64) for lanes in (1, 8)),
        *(masks(scalar, lanes) for scalar in SCALARS for lanes in LANES),
        *(make(kind) for make in (bounds, empty_loops) for kind in KINDS),
        *(tailed_spmm(width, lanes) for width in WIDTHS for lanes in (2, 4, 8, 16)),
        broadcasts(),
        private_array(),
        bools(),
    ]
    return compile_once(kernels)


@pytest.fixture
def both(library):
    """Return the arguments after a compiled and after an interpreted run."""

    def run(kernel: Kernel, **arguments) -> tuple[dict, dict]:
        compiled, interpreted = (
            {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in arguments.items()} for _ in range(2)
        )
        library.function(kernel.name)(*(compiled[param.name] for param in kernel.params))
        interpret(kernel, **interpreted)
        return compiled, interpreted

    return run


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_expressions(both, number):
    _, type, expected = EXPRESSIONS[number]
    for arguments in both(expression(number), out=np.zeros(1, DTYPES[type.scalar]), n=3):
        np.testing.assert_array_equal(arguments["out"][0], expected)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("type", [F32, F64])
@pytest.mark.parametrize("lanes", [1, 8])
def test_functions(both, name, type, lanes):
    x = np.linspace(0.1, 3, 16).astype(DTYPES[type.scalar])
    compiled, interpreted = both(function(name, type, lanes), x=x, y=np.zeros_like(x))
    np.testing.assert_array_max_ulp(compiled["y"], interpreted["y"], maxulp=4)


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("lanes", LANES)
def test_masks_of_every_width(both, scalar, lanes):
    values = np.arange(lanes).astype(DTYPES[scalar]) % 9 - 4
    compiled, interpreted = both(masks(scalar, lanes), x=values, y=np.ones(2 * lanes + 1, values.dtype))
    np.testing.assert_array_equal(compiled["y"], interpreted["y"])


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_evaluated_once(both, kind):
    compiled, _ = both(bounds(kind), n=np.array([3]), y=np.zeros(5, np.float32))
    np.testing.assert_array_equal(compiled["y"], [1, 1, 1, 0, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_empty_loops_do_nothing(both, kind):
    compiled, _ = both(empty_loops(kind), y=np.zeros(1, np.float32), n=9)
    assert compiled["y"][0] == 0


@pytest.mark.parametrize("n", [3, 4])
def test_broadcasts_of_bool_and_of_negative_zero(both, n):
    for arguments in both(broadcasts(), x=np.ones(4, np.float32), y=np.zeros(8, np.float32), n=n):
        np.testing.assert_array_equal(arguments["y"][:4], 1 if n == 3 else -1)
        assert np.signbit(arguments["y"][4:]).all()


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("width", WIDTHS)
def test_spmm_with_a_tail(both, width, lanes):
    case = spmm(width, lanes)
    for arguments in both(tailed_spmm(width, lanes), **case.arguments()):
        np.testing.assert_array_equal(arguments["D"], case.expected["D"])


def test_local_arrays_are_private_to_parallel_iterations(library):
    y = np.zeros(500, np.int64)
    library.set_threads(4)
    library.function("private_array")(y)
    np.testing.assert_array_equal(y, 64 * np.arange(500))


@pytest.mark.parametrize("flip", [True, False])
def test_bool_buffers_and_parameters(both, flip):
    x = np.array([True, False, True, True])
    for arguments in both(bools(), x=x, y=np.zeros(4, bool), flip=flip):
        np.testing.assert_array_equal(arguments["y"], x ^ flip)


def test_rendered_text_is_free_of_warnings(monkeypatch):
    flags = ("-O1", "-fopenmp", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-unused-parameter")
    monkeypatch.setattr("sparloom.jit.compile.default_flags", lambda _: flags)
    compile_c([spmm().kernel])


def test_several_kernels_share_one_prelude():
    text = render_c(spmm().kernel, Kernel("other", (), ()))
    assert text.count("typedef float f32x8") == 1
    assert "void other(void)" in text
