"""Products of tiles, local arrays of variable size, and reductions of simd loops."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.ir import (
    BOOL,
    F32,
    F64,
    I64,
    Alloc,
    Assign,
    Binary,
    Call,
    Const,
    Declare,
    For,
    Kernel,
    Load,
    Multiply,
    Param,
    Ref,
    Store,
    View,
    interpret,
    pretty,
    render_cuda,
    verify,
)
from sparloom.jit import compile_c

SIZES = tuple(Param(name, I64) for name in ("rows", "cols", "depth"))
ROWS, COLS, DEPTH = (Ref(param.name) for param in SIZES)
OVERWRITE, ADD = Const(False, BOOL), Const(True, BOOL)
SHAPES = [(3, 5, 7), (50, 33, 600), (13, 16, 64), (1, 130, 1), (100, 17, 0), (0, 4, 4), (25, 64, 513)]


def product(type=F32, *, transposed=False, add=OVERWRITE):
    a = View("a", 0, 1, ROWS) if transposed else View("a", 0, DEPTH, 1)
    buffers = (Param("a", type, True), Param("b", type, True), Param("c", type, True, False))
    return Kernel("k", (*SIZES, *buffers), [
        Multiply(View("c", 0, COLS, 1), a, View("b", 0, COLS, 1), ROWS, COLS, DEPTH, add)])


def operands(rows, cols, depth, dtype=np.float32, *, transposed=False):
    rng = np.random.default_rng(rows + cols)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, depth), (depth, cols), (rows, cols)))
    stored = np.ascontiguousarray(a.T if transposed else a)
    return a, b, c, [np.append(each.reshape(-1), dtype(0)) for each in (stored, b, c)]  # buffers are not empty


@pytest.mark.cc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("type", "dtype"), [(F32, np.float32), (F64, np.float64)])
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_products(shape, type, dtype, transposed):
    for add in (OVERWRITE, ADD):
        a, b, c, given = operands(*shape, dtype, transposed=transposed)
        compile_c([product(type, transposed=transposed, add=add)]).function("k")(*shape, *given)
        expected = a @ b + (c if add == ADD else 0)
        np.testing.assert_allclose(given[2][:-1].reshape(c.shape), expected, atol=30 * np.finfo(dtype).eps * max(
            1, shape[2]) ** 0.5)


@pytest.mark.parametrize("transposed", [False, True])
def test_interpreted_products(transposed):
    a, b, _, given = operands(3, 5, 4, transposed=transposed)
    interpret(product(transposed=transposed), rows=3, cols=5, depth=4, **dict(zip("abc", given, strict=True)))
    np.testing.assert_allclose(given[2][:-1].reshape(3, 5), a @ b, rtol=1e-5)


def test_the_interpreter_detects_products_out_of_bounds():
    given = operands(3, 5, 4)[3]
    with pytest.raises(IndexError, match="access to b"):
        interpret(product(), rows=3, cols=5, depth=5, **dict(zip("abc", given, strict=True)))


def test_a_product_prints():
    assert "c[0 + (cols, 1)] = a[0 + (depth, 1)] b[0 + (cols, 1)]    (rows x cols, depth depth)" in pretty(product())
    some = Binary("!=", ROWS, Const(0))
    assert "c[0 + (cols, 1)] += if rows != 0 else = a" in pretty(product(add=some))


def test_products_are_loops_in_cuda():
    rows = Kernel("k", (*SIZES, Param("a", F32, True), Param("b", F32, True), Param("c", F32, True, False)), [
        For("r", 0, ROWS, [Multiply(View("c", Ref("r") * COLS, COLS, 1), View("a", Ref("r") * DEPTH, DEPTH, 1),
                                    View("b", 0, COLS, 1), 1, COLS, DEPTH, OVERWRITE)], "parallel")])
    a, b, _, given = operands(3, 5, 4)
    assert "multiply" not in render_cuda(rows)
    interpret(rows, rows=3, cols=5, depth=4, **dict(zip("abc", given, strict=True)))
    np.testing.assert_allclose(given[2][:-1].reshape(3, 5), a @ b, rtol=1e-5)


@pytest.mark.parametrize(("changed", "message"), [
    ({"c": View("a", 0, COLS, 1)}, "a is const: make its Param const=False"),
    ({"b": View("c", 0, COLS, 1)}, "c is read and written by one product"),
    ({"b": View("b", 0, 1, COLS)}, "columns of b do not lie side by side"),
    ({"a": View("d", 0, DEPTH, 1)}, "a product of f32, f64, f32: all three are f32, or all f64"),
    ({"a": View("missing", 0, DEPTH, 1)}, "is no view of a buffer in scope"),
    ({"rows": Const(1.0, F32)}, "offset or extent of a product is f32, not i64"),
    ({"add": ROWS}, "add is i64, not bool"),
])
def test_invalid_products_are_rejected(changed, message):
    kernel = product()
    kernel = Kernel("k", (*kernel.params, Param("d", F64, True)), [replace(kernel.body[0], **changed)])
    with pytest.raises(IllegalSchedule, match=message):
        verify(kernel)


def test_products_in_simd_loops_are_rejected():
    with pytest.raises(IllegalSchedule, match="a product of tiles in a simd loop: make the loop serial"):
        verify(Kernel("k", product().params, [For("i", 0, 4, product().body, "simd")]))


def doubled_in_an_array():
    """y = 2 x through a local array of n elements."""
    n, i = Ref("n"), Ref("i")
    return Kernel("k", (Param("n", I64), Param("x", F32, True), Param("y", F32, True, False)), [
        For("p", 0, 2, [
            Alloc("t", "f32", n),
            For("i", 0, n, [Store("t", i, Load("x", i) + Load("x", i))]),
            For("i", 0, n, [Store("y", Ref("p") * n + i, Load("t", i))])], "parallel")])


@pytest.mark.cc
@pytest.mark.parametrize("library", [compile_c, InterpretedLibrary])
@pytest.mark.parametrize("n", [0, 1, 70_000])
def test_local_arrays_of_any_size(library, n):
    if library is InterpretedLibrary:
        n = min(n, 9)
    x, y = np.arange(n + 1, dtype=np.float32), np.zeros(2 * n + 1, np.float32)
    library([doubled_in_an_array()]).function("k")(n, x, y)
    np.testing.assert_array_equal(y[:-1], np.tile(2 * x[:-1], 2))


def test_cuda_rejects_local_arrays_of_variable_size():
    with pytest.raises(Unsupported, match="local array t has a size that is not a constant: give lengths a limit"):
        render_cuda(doubled_in_an_array())


def test_the_size_of_an_array_is_an_integer():
    with pytest.raises(IllegalSchedule, match="array t of f32 f32: the size is an i64"):
        verify(Kernel("k", (), [Alloc("t", "f32", Const(2.0, F32))]))


@pytest.mark.cc
@pytest.mark.parametrize(("op", "start", "of"), [("max", -np.inf, np.max), ("min", np.inf, np.min), ("+", 0, np.sum)])
def test_simd_loops_reduce(op, start, of):
    kernel = Kernel("k", (Param("n", I64), Param("x", F32, True), Param("y", F32, True, False)), [
        Declare("s", F32, Const(start, F32)),
        For("i", 0, Ref("n"), [Assign("s", Binary(op, Ref("s"), Load("x", Ref("i"))))], "simd", reduces=("s",)),
        Store("y", 0, Ref("s"))])
    x, y = np.random.default_rng(0).standard_normal(1000, np.float32), np.zeros(1, np.float32)
    for library in (compile_c, InterpretedLibrary):
        library([kernel]).function("k")(1000, x, y)
        np.testing.assert_allclose(y[0], of(x), rtol=1e-4)


@pytest.mark.cc
def test_exp_is_accurate_to_two_ulps_and_saturates():
    i = Ref("i")
    kernel = Kernel("k", (Param("n", I64), Param("x", F32, True), Param("y", F32, True, False)), [
        For("i", 0, Ref("n"), [Store("y", i, Call("exp", (Load("x", i),)))], "simd")])
    x = np.linspace(-87, 88.7, 200_001).astype(np.float32)
    ends = np.array([-np.inf, np.inf, np.nan, 0, 1, -200, 200, -103.9], np.float32)
    x, y = np.concatenate([x, ends]), np.zeros(200_001 + ends.size, np.float32)
    compile_c([kernel]).function("k")(x.size, x, y)
    exact = np.exp(x[:200_001].astype(np.float64))
    assert np.max(np.abs(y[:200_001] - exact) / exact) < 2 * np.finfo(np.float32).eps
    assert y[200_001:200_003].tolist() == [0.0, np.inf]
    assert np.isnan(y[200_003])
    np.testing.assert_allclose(y[200_004:], [1, np.e, 0, np.inf, 0], atol=2e-45, rtol=1e-6)
