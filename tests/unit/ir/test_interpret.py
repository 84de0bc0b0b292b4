"""Edge cases of the interpreter; ordinary programs are in tests/property."""

import math

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.ir import (
    DTYPES,
    F32,
    F64,
    I32,
    I64,
    Accumulate,
    Alloc,
    Binary,
    Call,
    Const,
    For,
    If,
    Kernel,
    Load,
    Param,
    Ref,
    Select,
    Store,
    Sum,
    interpret,
)

ITERATION, ONE = Ref("i"), Const(1.0, F32)
X, Y = Param("x", F32, True), Param("y", F32, True, False)
TYPES = {np.dtype(np.int32): I32, np.dtype(np.int64): I64, np.dtype(np.float32): F32}


def run(body, params=(X, Y), **arguments):
    interpret(Kernel("k", params, body), **arguments)


def evaluate(expr, type=I64, **buffers):
    result = np.zeros(1, DTYPES[type.scalar])
    given = [Param(name, TYPES[array.dtype], True) for name, array in buffers.items()]
    interpret(Kernel("k", (*given, Param("out", type, True, False)), [Store("out", 0, expr)]), out=result, **buffers)
    return result[0]


@pytest.mark.parametrize(
    ("a", "b", "quotient", "rest"), [(7, 2, 3, 1), (-7, 2, -3, -1), (7, -2, -3, 1), (-7, -2, 3, -1)]
)
def test_division_rounds_toward_zero(a, b, quotient, rest):
    assert evaluate(Const(a) // Const(b)) == quotient
    assert evaluate(Const(a) % Const(b)) == rest


def test_integer_division_by_zero_is_an_error():
    with pytest.raises(ZeroDivisionError, match="integer divided by zero"):
        evaluate(Const(1) // Const(0))


def test_float_division_by_zero_is_infinite():
    assert evaluate(ONE / Const(0.0, F32), F32) == np.inf


def test_sum_adds_halves_first():
    lanes = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    assert evaluate(Sum(Load("x", Const(0), 4)), F32, x=lanes) == 2.0  # in order it would be 1


def test_min_takes_the_second_where_neither_is_less():
    nan = Const(math.nan, F32)
    assert evaluate(Binary("min", nan, ONE), F32) == 1.0
    assert np.isnan(evaluate(Binary("min", ONE, nan), F32))


def test_and_or_and_select_evaluate_only_what_they_need():
    outside = Binary(">", Load("x", Const(9)), Const(0.0, F32))
    guarded = Binary("and", Binary("<", Const(9), Const(1)), outside)
    free = Binary("or", Binary(">", Const(9), Const(1)), outside)
    x = np.ones(1, np.float32)
    assert evaluate(Select(guarded, Const(1), Const(2)), x=x) == 2
    assert evaluate(Select(free, Const(1), Const(2)), x=x) == 1
    assert evaluate(Select(Binary("<", Const(9), Const(1)), Load("x", Const(9)), Const(5.0, F32)), F32, x=x) == 5


@pytest.mark.parametrize("name", ["sqrt", "exp", "log", "tanh", "erf", "abs"])
def test_functions(name):
    expected = abs(0.25) if name == "abs" else getattr(math, name)(0.25)
    assert evaluate(Call(name, (Const(0.25, F64),)), F64) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("index", "lanes"), [(-1, 1), (4, 1), (1, 4)])
def test_access_out_of_bounds_is_an_error(index, lanes):
    with pytest.raises(IndexError, match=rf"access to x\[{index}; {lanes}\], which has 4 elements"):
        run([Store("y", 0, Load("x", Const(index), lanes))], x=np.ones(4, np.float32), y=np.ones(8, np.float32))


def test_reading_an_uninitialised_element_is_an_error():
    body = [Alloc("t", "f32", 4), Store("t", 1, ONE), Store("y", 0, Load("t", Const(0), 2))]
    with pytest.raises(ValueError, match=r"load of t\[0; 2\], which was never stored"):
        run(body, (Y,), y=np.ones(4, np.float32))


def test_array_is_new_in_every_iteration():
    fill = If(Binary("==", ITERATION, Const(0)), [Store("t", 0, ONE)])
    loop = For("i", 0, 2, [Alloc("t", "f32", 1), fill, Store("y", ITERATION, Load("t", Const(0)))])
    with pytest.raises(ValueError, match="never stored"):
        run([loop], (Y,), y=np.ones(4, np.float32))


def test_bounds_are_evaluated_once():
    n, y = np.array([3], np.int64), np.zeros(1, np.float32)
    body = [For("i", 0, Load("n", Const(0)), [Store("n", 0, Const(9)), Accumulate("y", 0, ONE)])]
    run(body, (Param("n", I64, True, False), Y), n=n, y=y)
    assert y[0] == 3


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (3, 1), (-2, -2)])
@pytest.mark.parametrize("kind", ["serial", "parallel", "simd", "unrolled"])
def test_empty_loops_do_nothing(lo, hi, kind):
    y = np.zeros(1, np.float32)
    run([For("i", lo, hi, [Store("y", 0, ONE)], kind)], (Y,), y=y)
    assert y[0] == 0


@pytest.mark.parametrize(
    ("stmt", "message"),
    [
        (Store("y", 0, ONE), r"iteration 4 of parallel loop i writes y\[0\]"),
        (Accumulate("y", ITERATION // 2, ONE), r"iteration 5 of parallel loop i reads y\[2\]"),
        (Store("y", ITERATION, Load("y", ITERATION - 1)), r"iteration 4 of parallel loop i reads y\[3\]"),
        (Store("y", ITERATION, Load("y", ITERATION + 1)), r"iteration 4 of parallel loop i writes y\[4\]"),
    ],
)
def test_races_between_parallel_iterations_are_errors(stmt, message):
    with pytest.raises(IllegalSchedule, match=message + ", which another iteration"):
        run([For("i", 3, 9, [stmt], "parallel")], (Y,), y=np.zeros(12, np.float32))


def test_shared_reads_and_private_arrays_are_no_races():
    body = [Alloc("t", "f32", 1), Store("t", 0, Load("x", Const(0))), Store("y", ITERATION, Load("t", Const(0)))]
    y = np.zeros(4, np.float32)
    run([For("i", 0, 4, body, "parallel"), For("i", 0, 4, [Accumulate("y", ITERATION, ONE)], "parallel")],
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
