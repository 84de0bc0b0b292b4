"""Ill-formed kernels are rejected with the path of the statement and the remedy."""

import re

import pytest

from sparloom.errors import IllegalSchedule
from sparloom.ir import (
    BOOL,
    F32,
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
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Prefetch,
    Ref,
    Select,
    Store,
    Sum,
    Type,
    Unary,
    verify,
)

ZERO, ONE = Const(0.0, F32), Const(1.0, F32)
PARAMS = (Param("x", F32, True), Param("y", F32, True, False), Param("flags", BOOL, True, False), Param("n", I64))
V4 = Type("f32", 4)


def refuse(*body, message: str, params=PARAMS, name: str = "k") -> None:
    with pytest.raises(IllegalSchedule, match=re.escape(message)):
        verify(Kernel(name, params, body))


def test_errors_name_the_path_of_the_statement():
    inner = For("j", 0, 4, [Store("y", Ref("j"), Ref("missing"))])
    refuse(For("i", 0, Ref("n"), [If(Const(True, BOOL), [inner])]),
           message="kernel k / for i / if / for j / store y: name missing is not in scope; there are: x, y, flags")


@pytest.mark.parametrize(
    "name", ["int", "a__b", "_a", "1a", "f32x16", "sum_f32x4", "expf", "linux", "int64_t", "", "a-b"]
)
def test_reserved_names_of_c_are_rejected(name):
    refuse(Let(name, I64, 0), message=f"{name!r} is no usable name")


def test_names_similar_to_reserved_ones_are_accepted():
    verify(Kernel("k", PARAMS, [Let("a_b", I64, 0), Let("x16", I64, 0), Let("acc_f32", I64, 0), Let("sums", I64, 0)]))


def test_shadowing_is_rejected():
    refuse(For("n", 0, 4, []), message="kernel k / for n: name n is already in scope")
    refuse(Let("a", I64, 0), If(Const(True, BOOL), [Declare("a", I64, 1)]), message="name a is already in scope")


def test_names_may_be_reused_after_their_block():
    verify(Kernel("k", PARAMS, [If(Const(True, BOOL), [Let("a", I64, 0)], [Let("a", F32, ZERO)]), Let("a", I64, 0)]))
    refuse(If(Const(True, BOOL), [Let("a", I64, 0)]), Let("b", I64, Ref("a")), message="let b: name a is not in scope")


def test_duplicate_parameters_are_rejected():
    refuse(message="name x is already in scope", params=(Param("x", I64), Param("x", F32, True)))


def test_parameters_are_scalars_and_immutable():
    refuse(message="parameter v is f32x4", params=(Param("v", V4),))
    refuse(message="scalar parameter s is not const: copy it by Declare", params=(Param("s", I64, False, False),))


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (Ref("n") + ONE, "operands of + are i64 and f32: use Cast or Broadcast"),
        (Ref("x"), "x is a buffer, not a value: use Load('x', index)"),
        (Load("n", Const(0)), "n is a value, not a buffer: use Ref('n')"),
        (Load("x", ZERO), "index of x is f32, not i64: use Cast(I64, index)"),
        (Load("x", Const(0), 3), "type f32x3: lanes must be a power of two from 1 to 64"),
        (Load("x", Const(0), 128), "type f32x128: lanes must be a power of two"),
        (Load("flags", Const(0), 4), "vector load from flags: vectors of bool are made by comparing, not loaded"),
        (Binary("/", Ref("n"), Ref("n")), "operator / does not take i64; it takes f32, f64"),
        (Binary("//", ONE, ONE), "operator // does not take f32; it takes i32, i64"),
        (Binary("and", ONE, ONE), "operator and does not take f32; it takes bool"),
        (Binary("**", ONE, ONE), "no binary operator '**'; there are: + - * /"),
        (Unary("-", Const(True, BOOL)), "operator - does not take bool"),
        (Unary("not", ONE), "operator not does not take f32"),
        (Unary("~", ONE), "no unary operator '~'"),
        (Sum(ONE), "sum of f32: only vectors of numbers"),
        (Broadcast(Broadcast(ONE, 4), 4), "broadcast of f32x4: only one value"),
        (Cast(V4, ONE), "cast of f32 to f32x4: lanes stay"),
        (Cast(BOOL, ONE), "cast of f32 to bool: lanes stay, and bool is made by comparing"),
        (Select(ONE, ONE, ONE), "select of f32 and f32 by f32"),
        (Select(Const(True, BOOL), Broadcast(ONE, 4), Broadcast(ONE, 4)), "select of f32x4 and f32x4 by bool"),
        (Call("sin", (ONE,)), "no function 'sin'; there are: sqrt, exp, log, tanh, erf, abs"),
        (Call("sqrt", (Const(1),)), "sqrt of (i64): it takes one float"),
        (Call("exp", (ONE, ONE)), "exp of (f32, f32): it takes one float"),
        (Const(1.5, I64), "constant 1.5 is no i64"),
        (Const(2**31, I32), "constant 2147483648 is no i32"),
        (Const(1, BOOL), "constant 1 is no bool"),
        (Const(1.0, V4), "constant 1.0 of type f32x4: use Broadcast"),
    ],
)
def test_types_are_checked(expr, message):
    refuse(Let("a", F32, expr), message=f"kernel k / let a: {message}")


def test_value_has_the_declared_type():
    refuse(Let("a", I32, 1), message="kernel k / let a: value is i64, not i32")
    refuse(Declare("a", F32, ZERO), Assign("a", Const(1)), message="kernel k / assign a: value is i64, not f32")


def test_only_declared_names_are_assigned():
    refuse(Let("a", I64, 0), Assign("a", Const(1)), message="a is immutable: introduce it by Declare")
    refuse(Assign("a", Const(1)), message="a is not in scope: introduce it by Declare")
    refuse(For("i", 0, 4, [Assign("i", Const(1))]), message="i is immutable")


def test_const_buffers_are_not_stored_to():
    refuse(Store("x", 0, ONE), message="kernel k / store x: x is const: make its Param const=False")
    refuse(Store("z", 0, ONE), message="no buffer z in scope")
    refuse(Store("y", 0, Const(1)), message="value is i64, y holds f32")
    refuse(Accumulate("flags", 0, Const(True, BOOL)), message="bool cannot be added up")
    refuse(Prefetch("n", 0), message="no buffer n in scope")


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (For("i", 0, Const(4, I32), []), "bound is i32, not i64: use Cast(I64, bound)"),
        (For("i", 0, 4, [], kind="vector"), "no kind of loop 'vector'; there are: serial, parallel, shared, simd"),
        (For("i", 0, 4, [], step=0), "step 0 is not a positive int"),
        (For("i", 0, 4, [], chunk=4), "chunk 4 on a serial loop: only parallel loops have one"),
        (For("i", 0, 4, [], kind="parallel", chunk=0), "chunk 0 on a parallel loop"),
        (For("i", 0, 4, [], reduces=("s",)), "a serial loop reduces s: only simd loops reduce"),
        (For("i", 0, 4, [For("j", 0, 4, [], "parallel")], "parallel"), "a parallel loop contains a parallel loop"),
        (For("i", 0, 4, [For("j", 0, 4, [])], kind="simd"), "a simd loop contains a loop"),
        (For("i", 0, 4, [Alloc("t", "f32", 4)], kind="simd"), "array t in a simd loop: allocate it outside"),
        (For("i", 0, 4, [Store("y", Ref("i"), Load("x", Const(0), 4))], kind="simd"), "a vector in a simd loop"),
    ],
)
def test_loops_are_checked(loop, message):
    refuse(loop, message=message)


def test_parallel_loop_assigns_nothing_from_outside():
    add = Assign("s", Ref("s") + ONE)
    refuse(Declare("s", F32, ZERO), For("i", 0, 4, [add], kind="parallel"),
           message="s is declared outside the parallel loop: declare it inside")
    refuse(Declare("s", F32, ZERO), For("i", 0, 4, [For("j", 0, 4, [add], "simd", reduces=("s",))], "parallel"),
           message="reduces s: declare it inside the parallel loop")
    inside = For("i", 0, 4, [Declare("s", F32, ZERO), For("j", 0, 4, [add], "simd", reduces=("s",))], "parallel")
    verify(Kernel("k", PARAMS, [inside]))


def test_simd_loop_only_reduces_what_it_says():
    start = Declare("s", F32, ZERO)
    refuse(start, For("i", 0, 4, [Assign("s", Ref("s") + ONE)], "simd"), message="s is declared outside the simd loop")
    refuse(start, For("i", 0, 4, [Assign("s", Ref("s") * ONE)], "simd", reduces=("s",)),
           message="reduces s, but reads it other than in s = s + value")
    refuse(start, For("i", 0, 4, [Assign("s", ONE)], "simd", reduces=("s",)),
           message="s is reduced: only s = s + value, or min, or max, may assign it")
    refuse(start, For("i", 0, 4, [Assign("s", Ref("s") + ONE), Assign("s", Binary("max", Ref("s"), ONE))], "simd",
                      reduces=("s",)), message="reduces s, but reads it other than")
    refuse(start, For("i", 0, 4, [Assign("s", Ref("s") + Ref("s"))], "simd", reduces=("s",)),
           message="reduces s, but reads it other than")
    refuse(For("i", 0, 4, [], "simd", reduces=("s",)), message="reduces s: declare it outside the loop")


def test_local_arrays_are_small():
    refuse(Alloc("t", "f32", 1 << 18), Alloc("u", "f32", 1),
           message="local arrays take 1048580 bytes, over 1048576: pass u as a buffer")
    refuse(Alloc("t", "f32", 0), message="array t of 0 f32: the size is a positive int")


def test_condition_is_one_bool():
    refuse(If(Const(1), []), message="kernel k / if: condition is i64, not bool")
    refuse(If(Binary("<", Load("x", Const(0), 4), Load("x", Const(4), 4)), []), message="condition is boolx4, not bool")


def test_objects_that_are_not_nodes_are_rejected():
    with pytest.raises(TypeError, match="is not a statement of the IR"):
        verify(Kernel("k", (), ["store"]))
    with pytest.raises(TypeError, match="is not an expression of the IR"):
        verify(Kernel("k", (), [Let("a", I64, "n")]))


def test_a_shared_loop_is_directly_in_a_parallel_loop_next_to_let_only():
    shared = For("j", 0, 4, [Store("y", Ref("j"), ZERO)], "shared")
    refuse(shared, message="a shared loop that is not directly in a parallel loop")
    refuse(For("i", 0, 4, [If(Const(True, BOOL), [shared])], "parallel"),
           message="a shared loop that is not directly in a parallel loop")
    refuse(For("i", 0, 4, [shared, Store("y", Ref("i"), ONE)], "parallel"),
           message="beside shared loops only Let may stand in a parallel loop")
    verify(Kernel("k", PARAMS, (For("i", 0, 4, [Let("a", I64, Ref("i")), shared], "parallel"),)))
