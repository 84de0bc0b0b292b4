"""Ill-formed kernels are rejected with the path of the statement and the remedy."""

import re

import pytest

from sparloom import ir
from sparloom.errors import IllegalSchedule

ZERO, ONE = ir.Const(0.0, ir.F32), ir.Const(1.0, ir.F32)
PARAMS = (ir.Param("x", ir.F32, True), ir.Param("y", ir.F32, True, False), ir.Param("flags", ir.BOOL, True, False),
          ir.Param("n", ir.I64))
V4 = ir.Type("f32", 4)


def refuse(*body, message: str, params=PARAMS, name: str = "k") -> None:
    with pytest.raises(IllegalSchedule, match=re.escape(message)):
        ir.verify(ir.Kernel(name, params, body))


def test_errors_name_the_path_of_the_statement():
    inner = ir.For("j", 0, 4, [ir.Store("y", ir.Ref("j"), ir.Ref("missing"))])
    refuse(ir.For("i", 0, ir.Ref("n"), [ir.If(ir.Const(True, ir.BOOL), [inner])]),
           message="kernel k / for i / if / for j / store y: name missing is not in scope; there are: x, y, flags")


@pytest.mark.parametrize(
    "name", ["int", "a__b", "_a", "1a", "f32x16", "sum_f32x4", "expf", "linux", "int64_t", "", "a-b"]
)
def test_reserved_names_of_c_are_rejected(name):
    refuse(ir.Let(name, ir.I64, 0), message=f"{name!r} is no usable name")


def test_shadowing_is_rejected():
    refuse(ir.For("n", 0, 4, []), message="kernel k / for n: name n is already in scope")
    refuse(ir.Let("a", ir.I64, 0), ir.If(ir.Const(True, ir.BOOL), [ir.Declare("a", ir.I64, 1)]),
           message="name a is already in scope")


def test_duplicate_parameters_are_rejected():
    refuse(message="name x is already in scope", params=(ir.Param("x", ir.I64), ir.Param("x", ir.F32, True)))


def test_parameters_are_scalars_and_immutable():
    refuse(message="parameter v is f32x4", params=(ir.Param("v", V4),))
    refuse(message="scalar parameter s is not const: copy it by Declare", params=(ir.Param("s", ir.I64, False, False),))


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (ir.Ref("n") + ONE, "operands of + are i64 and f32: use Cast or Broadcast"),
        (ir.Ref("x"), "x is a buffer, not a value: use Load('x', index)"),
        (ir.Load("n", ir.Const(0)), "n is a value, not a buffer: use Ref('n')"),
        (ir.Load("x", ZERO), "index of x is f32, not i64: use Cast(I64, index)"),
        (ir.Load("x", ir.Const(0), 3), "type f32x3: lanes must be a power of two from 1 to 64"),
        (ir.Load("x", ir.Const(0), 128), "type f32x128: lanes must be a power of two"),
        (ir.Load("flags", ir.Const(0), 4), "vector load from flags: vectors of bool are made by comparing, not loaded"),
        (ir.Binary("/", ir.Ref("n"), ir.Ref("n")), "operator / does not take i64; it takes f32, f64"),
        (ir.Binary("//", ONE, ONE), "operator // does not take f32; it takes i32, i64"),
        (ir.Binary("and", ONE, ONE), "operator and does not take f32; it takes bool"),
        (ir.Binary("**", ONE, ONE), "no binary operator '**'; there are: + - * /"),
        (ir.Unary("-", ir.Const(True, ir.BOOL)), "operator - does not take bool"),
        (ir.Unary("not", ONE), "operator not does not take f32"),
        (ir.Unary("~", ONE), "no unary operator '~'"),
        (ir.Sum(ONE), "sum of f32: only vectors of numbers"),
        (ir.Broadcast(ir.Broadcast(ONE, 4), 4), "broadcast of f32x4: only one value"),
        (ir.Cast(V4, ONE), "cast of f32 to f32x4: lanes stay"),
        (ir.Cast(ir.BOOL, ONE), "cast of f32 to bool: lanes stay, and bool is made by comparing"),
        (ir.Select(ONE, ONE, ONE), "select of f32 and f32 by f32"),
        (ir.Select(ir.Const(True, ir.BOOL), ir.Broadcast(ONE, 4), ir.Broadcast(ONE, 4)),
         "select of f32x4 and f32x4 by bool"),
        (ir.Call("sin", (ONE,)), "no function 'sin'; there are: sqrt, exp, exp2, log, tanh, erf, abs"),
        (ir.Call("sqrt", (ir.Const(1),)), "sqrt of (i64): it takes one float"),
        (ir.Call("exp", (ONE, ONE)), "exp of (f32, f32): it takes one float"),
        (ir.Const(1.5, ir.I64), "constant 1.5 is no i64"),
        (ir.Const(2**31, ir.I32), "constant 2147483648 is no i32"),
        (ir.Const(1, ir.BOOL), "constant 1 is no bool"),
        (ir.Const(1.0, V4), "constant 1.0 of type f32x4: use Broadcast"),
    ],
)
def test_types_are_checked(expr, message):
    refuse(ir.Let("a", ir.F32, expr), message=f"kernel k / let a: {message}")


def test_value_has_the_declared_type():
    refuse(ir.Let("a", ir.I32, 1), message="kernel k / let a: value is i64, not i32")
    refuse(ir.Declare("a", ir.F32, ZERO), ir.Assign("a", ir.Const(1)),
           message="kernel k / assign a: value is i64, not f32")


def test_only_declared_names_are_assigned():
    refuse(ir.Let("a", ir.I64, 0), ir.Assign("a", ir.Const(1)), message="a is immutable: introduce it by Declare")
    refuse(ir.Assign("a", ir.Const(1)), message="a is not in scope: introduce it by Declare")
    refuse(ir.For("i", 0, 4, [ir.Assign("i", ir.Const(1))]), message="i is immutable")


def test_const_buffers_are_not_stored_to():
    refuse(ir.Store("x", 0, ONE), message="kernel k / store x: x is const: make its Param const=False")
    refuse(ir.Store("z", 0, ONE), message="no buffer z in scope")
    refuse(ir.Store("y", 0, ir.Const(1)), message="value is i64, y holds f32")
    refuse(ir.Accumulate("flags", 0, ir.Const(True, ir.BOOL)), message="bool cannot be added up")
    refuse(ir.Prefetch("n", 0), message="no buffer n in scope")


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (ir.For("i", 0, ir.Const(4, ir.I32), []), "bound is i32, not i64: use Cast(I64, bound)"),
        (ir.For("i", 0, 4, [], kind="vector"), "no kind of loop 'vector'; there are: serial, parallel, shared, simd"),
        (ir.For("i", 0, 4, [], step=0), "step 0 is not a positive int"),
        (ir.For("i", 0, 4, [], chunk=4), "chunk 4 on a serial loop: only parallel loops have one"),
        (ir.For("i", 0, 4, [], kind="parallel", chunk=0), "chunk 0 on a parallel loop"),
        (ir.For("i", 0, 4, [], reduces=("s",)), "a serial loop reduces s: only simd loops reduce"),
        (ir.For("i", 0, 4, [ir.For("j", 0, 4, [], "parallel")], "parallel"),
         "a parallel loop contains a parallel loop"),
        (ir.For("i", 0, 4, [ir.For("j", 0, 4, [])], kind="simd"), "a simd loop contains a loop"),
        (ir.For("i", 0, 4, [ir.Alloc("t", "f32", 4)], kind="simd"), "array t in a simd loop: allocate it outside"),
        (ir.For("i", 0, 4, [ir.Store("y", ir.Ref("i"), ir.Load("x", ir.Const(0), 4))], kind="simd"),
         "a vector in a simd loop"),
    ],
)
def test_loops_are_checked(loop, message):
    refuse(loop, message=message)


def test_parallel_loop_assigns_nothing_from_outside():
    add = ir.Assign("s", ir.Ref("s") + ONE)
    refuse(ir.Declare("s", ir.F32, ZERO), ir.For("i", 0, 4, [add], kind="parallel"),
           message="s is declared outside the parallel loop: declare it inside")
    refuse(ir.Declare("s", ir.F32, ZERO),
           ir.For("i", 0, 4, [ir.For("j", 0, 4, [add], "simd", reduces=("s",))], "parallel"),
           message="reduces s: declare it inside the parallel loop")
    inside = ir.For("i", 0, 4, [ir.Declare("s", ir.F32, ZERO), ir.For("j", 0, 4, [add], "simd", reduces=("s",))],
                    "parallel")
    ir.verify(ir.Kernel("k", PARAMS, [inside]))


def test_simd_loop_only_reduces_what_it_says():
    start = ir.Declare("s", ir.F32, ZERO)
    refuse(start, ir.For("i", 0, 4, [ir.Assign("s", ir.Ref("s") + ONE)], "simd"),
           message="s is declared outside the simd loop")
    refuse(start, ir.For("i", 0, 4, [ir.Assign("s", ir.Ref("s") * ONE)], "simd", reduces=("s",)),
           message="reduces s, but reads it other than in s = s + value")
    refuse(start, ir.For("i", 0, 4, [ir.Assign("s", ONE)], "simd", reduces=("s",)),
           message="s is reduced: only s = s + value, or min, or max, may assign it")
    refuse(start,
           ir.For("i", 0, 4, [ir.Assign("s", ir.Ref("s") + ONE), ir.Assign("s", ir.Binary("max", ir.Ref("s"), ONE))],
                  "simd",
                      reduces=("s",)), message="reduces s, but reads it other than")
    refuse(start, ir.For("i", 0, 4, [ir.Assign("s", ir.Ref("s") + ir.Ref("s"))], "simd", reduces=("s",)),
           message="reduces s, but reads it other than")
    refuse(ir.For("i", 0, 4, [], "simd", reduces=("s",)), message="reduces s: declare it outside the loop")


def test_local_arrays_are_small():
    refuse(ir.Alloc("t", "f32", 1 << 18), ir.Alloc("u", "f32", 1),
           message="local arrays take 1048580 bytes, over 1048576: pass u as a buffer")
    refuse(ir.Alloc("t", "f32", 0), message="array t of 0 f32: the size is a positive int")


def test_condition_is_one_bool():
    refuse(ir.If(ir.Const(1), []), message="kernel k / if: condition is i64, not bool")
    refuse(ir.If(ir.Binary("<", ir.Load("x", ir.Const(0), 4), ir.Load("x", ir.Const(4), 4)), []),
           message="condition is boolx4, not bool")


def test_objects_that_are_not_nodes_are_rejected():
    with pytest.raises(TypeError, match="is not a statement of the IR"):
        ir.verify(ir.Kernel("k", (), ["store"]))
    with pytest.raises(TypeError, match="is not an expression of the IR"):
        ir.verify(ir.Kernel("k", (), [ir.Let("a", ir.I64, "n")]))


def test_a_shared_loop_is_directly_in_a_parallel_loop_next_to_let_only():
    shared = ir.For("j", 0, 4, [ir.Store("y", ir.Ref("j"), ZERO)], "shared")
    refuse(shared, message="a shared loop that is not directly in a parallel loop")
    refuse(ir.For("i", 0, 4, [ir.If(ir.Const(True, ir.BOOL), [shared])], "parallel"),
           message="a shared loop that is not directly in a parallel loop")
    refuse(ir.For("i", 0, 4, [shared, ir.Store("y", ir.Ref("i"), ONE)], "parallel"),
           message="beside shared loops only Let may stand in a parallel loop")
    ir.verify(ir.Kernel("k", PARAMS, (ir.For("i", 0, 4, [ir.Let("a", ir.I64, ir.Ref("i")), shared], "parallel"),)))
