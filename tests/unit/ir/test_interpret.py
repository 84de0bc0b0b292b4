"""Edge cases of the interpreter; ordinary programs are in tests/property."""

import math

import numpy as np
import pytest

from sparloom import ir
from sparloom.errors import IllegalSchedule

ITERATION, ONE = ir.Ref("i"), ir.Const(1.0, ir.F32)
X, Y = ir.Param("x", ir.F32, True), ir.Param("y", ir.F32, True, False)
TYPES = {np.dtype(np.int32): ir.I32, np.dtype(np.int64): ir.I64, np.dtype(np.float32): ir.F32}


def run(body, params=(X, Y), **arguments):
    ir.interpret(ir.Kernel("k", params, body), **arguments)


def evaluate(expr, type=ir.I64, **buffers):
    result = np.zeros(1, ir.DTYPES[type.scalar])
    inputs = [ir.Param(name, TYPES[array.dtype], True) for name, array in buffers.items()]
    ir.interpret(ir.Kernel("k", (*inputs, ir.Param("out", type, True, False)), [ir.Store("out", 0, expr)]), out=result,
                 **buffers)
    return result[0]


@pytest.mark.parametrize(
    ("a", "b", "quotient", "rest"), [(7, 2, 3, 1), (-7, 2, -3, -1), (7, -2, -3, 1), (-7, -2, 3, -1)]
)
def test_division_rounds_toward_zero(a, b, quotient, rest):
    assert evaluate(ir.Const(a) // ir.Const(b)) == quotient
    assert evaluate(ir.Const(a) % ir.Const(b)) == rest


def test_integer_division_by_zero_is_an_error():
    with pytest.raises(ZeroDivisionError, match="integer divided by zero"):
        evaluate(ir.Const(1) // ir.Const(0))


def test_sum_adds_halves_first():
    lanes = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    assert evaluate(ir.Sum(ir.Load("x", ir.Const(0), 4)), ir.F32, x=lanes) == 2.0  # in order it would be 1


def test_min_takes_the_second_where_neither_is_less():
    nan = ir.Const(math.nan, ir.F32)
    assert evaluate(ir.Binary("min", nan, ONE), ir.F32) == 1.0
    assert np.isnan(evaluate(ir.Binary("min", ONE, nan), ir.F32))


def test_and_or_and_select_evaluate_only_what_they_need():
    outside = ir.Binary(">", ir.Load("x", ir.Const(9)), ir.Const(0.0, ir.F32))
    guarded = ir.Binary("and", ir.Binary("<", ir.Const(9), ir.Const(1)), outside)
    free = ir.Binary("or", ir.Binary(">", ir.Const(9), ir.Const(1)), outside)
    x = np.ones(1, np.float32)
    assert evaluate(ir.Select(guarded, ir.Const(1), ir.Const(2)), x=x) == 2
    assert evaluate(ir.Select(free, ir.Const(1), ir.Const(2)), x=x) == 1
    assert evaluate(ir.Select(ir.Binary("<", ir.Const(9), ir.Const(1)), ir.Load("x", ir.Const(9)),
                              ir.Const(5.0, ir.F32)), ir.F32, x=x) == 5


@pytest.mark.parametrize("name", ["sqrt", "exp", "exp2", "log", "tanh", "erf", "abs"])
def test_functions(name):
    expected = abs(0.25) if name == "abs" else getattr(math, name)(0.25)
    assert evaluate(ir.Call(name, (ir.Const(0.25, ir.F64),)), ir.F64) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("index", "lanes"), [(-1, 1), (4, 1), (1, 4)])
def test_access_out_of_bounds_is_an_error(index, lanes):
    with pytest.raises(IndexError, match=rf"access to x\[{index}; {lanes}\], which has 4 elements"):
        run([ir.Store("y", 0, ir.Load("x", ir.Const(index), lanes))], x=np.ones(4, np.float32),
            y=np.ones(8, np.float32))


def test_reading_an_uninitialised_element_is_an_error():
    body = [ir.Alloc("t", "f32", 4), ir.Store("t", 1, ONE), ir.Store("y", 0, ir.Load("t", ir.Const(0), 2))]
    with pytest.raises(ValueError, match=r"load of t\[0; 2\], which was never stored"):
        run(body, (Y,), y=np.ones(4, np.float32))


def test_array_is_new_in_every_iteration():
    fill = ir.If(ir.Binary("==", ITERATION, ir.Const(0)), [ir.Store("t", 0, ONE)])
    loop = ir.For("i", 0, 2, [ir.Alloc("t", "f32", 1), fill, ir.Store("y", ITERATION, ir.Load("t", ir.Const(0)))])
    with pytest.raises(ValueError, match="never stored"):
        run([loop], (Y,), y=np.ones(4, np.float32))


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (3, 1), (-2, -2)])
@pytest.mark.parametrize("kind", ["serial", "parallel", "simd", "unrolled"])
def test_empty_loops_do_nothing(lo, hi, kind):
    y = np.zeros(1, np.float32)
    run([ir.For("i", lo, hi, [ir.Store("y", 0, ONE)], kind)], (Y,), y=y)
    assert y[0] == 0


@pytest.mark.parametrize(
    ("stmt", "message"),
    [
        (ir.Store("y", 0, ONE), r"iteration 4 of parallel loop i writes y\[0\]"),
        (ir.Accumulate("y", ITERATION // 2, ONE), r"iteration 5 of parallel loop i reads y\[2\]"),
        (ir.Store("y", ITERATION, ir.Load("y", ITERATION - 1)), r"iteration 4 of parallel loop i reads y\[3\]"),
        (ir.Store("y", ITERATION, ir.Load("y", ITERATION + 1)), r"iteration 4 of parallel loop i writes y\[4\]"),
    ],
)
def test_races_between_parallel_iterations_are_errors(stmt, message):
    with pytest.raises(IllegalSchedule, match=message + ", which another iteration"):
        run([ir.For("i", 3, 9, [stmt], "parallel")], (Y,), y=np.zeros(12, np.float32))


def test_shared_reads_and_private_arrays_are_no_races():
    body = [ir.Alloc("t", "f32", 1), ir.Store("t", 0, ir.Load("x", ir.Const(0))),
            ir.Store("y", ITERATION, ir.Load("t", ir.Const(0)))]
    y = np.zeros(4, np.float32)
    run([ir.For("i", 0, 4, body, "parallel"), ir.For("i", 0, 4, [ir.Accumulate("y", ITERATION, ONE)], "parallel")],
        x=np.full(1, 2, np.float32), y=y)
    np.testing.assert_array_equal(y, 3)


def test_arguments_are_checked():
    y = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match=r"kernel k: missing arguments \['x'\], unknown arguments \['z'\]"):
        run([], y=y, z=1)
    with pytest.raises(TypeError, match="argument x is not a C-contiguous NumPy array of float32"):
        run([], x=np.zeros(4), y=y)
    with pytest.raises(TypeError, match="argument x is not a C-contiguous"):
        run([], x=np.zeros((4, 4), np.float32).T, y=y)
