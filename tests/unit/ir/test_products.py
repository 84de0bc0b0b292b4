"""Products of tiles, local arrays of variable size, and reductions of simd loops."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom import ir
from sparloom.errors import IllegalSchedule
from sparloom.jit import compile_c

SIZES = tuple(ir.Param(name, ir.I64) for name in ("rows", "cols", "depth"))
ROWS, COLS, DEPTH = (ir.Ref(param.name) for param in SIZES)
OVERWRITE, ADD = ir.Const(False, ir.BOOL), ir.Const(True, ir.BOOL)
SHAPES = [(3, 5, 7), (50, 33, 600), (13, 16, 64), (1, 130, 1), (100, 17, 0), (0, 4, 4), (25, 64, 513)]


def product(type=ir.F32, *, transposed=False, add=OVERWRITE):
    a = ir.View("a", 0, 1, ROWS) if transposed else ir.View("a", 0, DEPTH, 1)
    buffers = (ir.Param("a", type, True), ir.Param("b", type, True), ir.Param("c", type, True, False))
    return ir.Kernel("k", (*SIZES, *buffers), [
        ir.Multiply(ir.View("c", 0, COLS, 1), a, ir.View("b", 0, COLS, 1), ROWS, COLS, DEPTH, add)])


def operands(rows, cols, depth, dtype=np.float32, *, transposed=False):
    rng = np.random.default_rng(rows + cols)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, depth), (depth, cols), (rows, cols)))
    stored = np.ascontiguousarray(a.T if transposed else a)
    return a, b, c, [np.append(each.reshape(-1), dtype(0)) for each in (stored, b, c)]  # buffers are not empty


@pytest.mark.cc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("type", "dtype"), [(ir.F32, np.float32), (ir.F64, np.float64)])
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_products(shape, type, dtype, transposed):
    for add in (OVERWRITE, ADD):
        a, b, c, inputs = operands(*shape, dtype, transposed=transposed)
        compile_c([product(type, transposed=transposed, add=add)]).function("k")(*shape, *inputs)
        expected = a @ b + (c if add == ADD else 0)
        np.testing.assert_allclose(inputs[2][:-1].reshape(c.shape), expected, atol=30 * np.finfo(dtype).eps * max(
            1, shape[2]) ** 0.5)


@pytest.mark.cc
def test_products_of_any_height_and_width():
    """Tiles of all heights, whole and partial vectors."""
    run = compile_c([product()]).function("k")
    for rows in (*range(1, 27), 48, 61):
        for cols in (1, 15, 16, 31, 32, 33, 64):
            a, b, _, inputs = operands(rows, cols, 20)
            run(rows, cols, 20, *inputs)
            np.testing.assert_allclose(inputs[2][:-1].reshape(rows, cols), a @ b, atol=2e-5)
            assert inputs[2][-1] == 0


@pytest.mark.cc
@pytest.mark.parametrize(("types", "group"), [((ir.BF16, ir.BF16, ir.F32), 2), ((ir.U8, ir.I8, ir.I32), 4)])
def test_products_of_interleaved_rows(types, group):
    buffers = tuple(ir.Param(name, type, True, name != "c") for name, type in zip("abc", types, strict=True))
    rng, whole = np.random.default_rng(0), ir.Param("whole", ir.BOOL)
    kernel = ir.Kernel("k", (*SIZES, whole, *buffers), [ir.Multiply(
        ir.View("c", 0, COLS, 1), ir.View("a", 0, DEPTH, 1), ir.View("b", 0, COLS * group, group), ROWS, COLS, DEPTH,
        ir.Unary("not", ir.Ref("whole")))])
    run = compile_c([kernel]).function("k")
    for rows in (*range(1, 15), 25, 48):
        for cols in (1, 15, 16, 17, 32, 40):
            for depth in (group, 5 * group):
                a, b = (rng.integers(0, 200, size).astype(ir.DTYPES[type.scalar]) for size, type in zip(
                    ((rows, depth), (depth, cols)), types, strict=False))
                if types[0] == ir.BF16:
                    a, b = (ir.rounded(rng.standard_normal(each.shape).astype(np.float32)) for each in (a, b))
                exact = [ir.widened(each).astype(float) if types[0] == ir.BF16 else each.astype(int) for each in (a, b)]
                stored = b.reshape(depth // group, group, cols).transpose(0, 2, 1).copy()
                found = np.full(rows * cols + 1, 3, ir.DTYPES[types[2].scalar])
                for runs in (run, lambda *values: ir.interpret(kernel, **dict(zip(
                        (param.name for param in kernel.params), values, strict=True)))):
                    if runs is run or rows * cols * depth < 300:
                        for overwrite in (True, False):  # the second one adds the product once more
                            runs(rows, cols, depth, overwrite, a.reshape(-1), stored.reshape(-1), found)
                        np.testing.assert_allclose(found[:-1].reshape(rows, cols), 2 * exact[0] @ exact[1], rtol=1e-5,
                                                   atol=1e-4)
                        assert found[-1] == 3


@pytest.mark.parametrize("transposed", [False, True])
def test_interpreted_products(transposed):
    a, b, _, inputs = operands(3, 5, 4, transposed=transposed)
    ir.interpret(product(transposed=transposed), rows=3, cols=5, depth=4, **dict(zip("abc", inputs, strict=True)))
    np.testing.assert_allclose(inputs[2][:-1].reshape(3, 5), a @ b, rtol=1e-5)


def test_the_interpreter_detects_products_out_of_bounds():
    inputs = operands(3, 5, 4)[3]
    with pytest.raises(IndexError, match="access to b"):
        ir.interpret(product(), rows=3, cols=5, depth=5, **dict(zip("abc", inputs, strict=True)))


def test_products_are_loops_in_cuda():
    rows = ir.Kernel("k",
                     (*SIZES, ir.Param("a", ir.F32, True), ir.Param("b", ir.F32, True),
                      ir.Param("c", ir.F32, True, False)), [
        ir.For("r", 0, ROWS,
               [ir.Multiply(ir.View("c", ir.Ref("r") * COLS, COLS, 1), ir.View("a", ir.Ref("r") * DEPTH, DEPTH, 1),
                                    ir.View("b", 0, COLS, 1), 1, COLS, DEPTH, OVERWRITE)], "parallel")])
    a, b, _, inputs = operands(3, 5, 4)
    assert "multiply" not in ir.render_cuda(rows)
    ir.interpret(rows, rows=3, cols=5, depth=4, **dict(zip("abc", inputs, strict=True)))
    np.testing.assert_allclose(inputs[2][:-1].reshape(3, 5), a @ b, rtol=1e-5)


@pytest.mark.parametrize(("changed", "message"), [
    ({"c": ir.View("a", 0, COLS, 1)}, "a is const: make its Param const=False"),
    ({"b": ir.View("c", 0, COLS, 1)}, "c is read and written by one product"),
    ({"b": ir.View("b", 0, 1, COLS)}, "columns of b do not lie side by side"),
    ({"a": ir.View("d", 0, DEPTH, 1)}, "a product of f64 by f32 in f32: there are f32 by f32 in f32, f64 by f64"),
    ({"a": ir.View("missing", 0, DEPTH, 1)}, "is no view of a buffer in scope"),
    ({"rows": ir.Const(1.0, ir.F32)}, "offset or extent of a product is f32, not i64"),
    ({"add": ROWS}, "add is i64, not bool"),
    ({"a": ir.View("h", 0, DEPTH, 1), "b": ir.View("h", 0, COLS, 1)}, "columns of h do not lie side by side"),
    ({"a": ir.View("h", 0, 1, ROWS), "b": ir.View("h", 0, COLS, 2)}, "as those of bf16 must"),
    ({"b": ir.View("h", 0, COLS, 2)}, "a product of f32 by bf16 in f32"),
])
def test_invalid_products_are_rejected(changed, message):
    kernel = product()
    kernel = ir.Kernel("k", (*kernel.params, ir.Param("d", ir.F64, True), ir.Param("h", ir.BF16, True)), [
        replace(kernel.body[0], **changed)])
    with pytest.raises(IllegalSchedule, match=message):
        ir.verify(kernel)


def test_products_in_simd_loops_are_rejected():
    with pytest.raises(IllegalSchedule, match="a product of tiles in a simd loop: make the loop serial"):
        ir.verify(ir.Kernel("k", product().params, [ir.For("i", 0, 4, product().body, "simd")]))


def doubled_in_an_array():
    """y = 2 x through a local array of n elements."""
    n, i = ir.Ref("n"), ir.Ref("i")
    return ir.Kernel("k", (ir.Param("n", ir.I64), ir.Param("x", ir.F32, True), ir.Param("y", ir.F32, True, False)), [
        ir.For("p", 0, 2, [
            ir.Alloc("t", "f32", n),
            ir.For("i", 0, n, [ir.Store("t", i, ir.Load("x", i) + ir.Load("x", i))]),
            ir.For("i", 0, n, [ir.Store("y", ir.Ref("p") * n + i, ir.Load("t", i))])], "parallel")])


@pytest.mark.cc
@pytest.mark.parametrize("library", [compile_c, InterpretedLibrary])
@pytest.mark.parametrize("n", [0, 1, 70_000])
def test_local_arrays_of_any_size(library, n):
    if library is InterpretedLibrary:
        n = min(n, 9)
    x, y = np.arange(n + 1, dtype=np.float32), np.zeros(2 * n + 1, np.float32)
    library([doubled_in_an_array()]).function("k")(n, x, y)
    np.testing.assert_array_equal(y[:-1], np.tile(2 * x[:-1], 2))


@pytest.mark.cc
@pytest.mark.parametrize(("op", "start", "of"), [("max", -np.inf, np.max), ("min", np.inf, np.min), ("+", 0, np.sum)])
def test_simd_loops_reduce(op, start, of):
    kernel = ir.Kernel("k", (ir.Param("n", ir.I64), ir.Param("x", ir.F32, True), ir.Param("y", ir.F32, True, False)), [
        ir.Declare("s", ir.F32, ir.Const(start, ir.F32)),
        ir.For("i", 0, ir.Ref("n"), [ir.Assign("s", ir.Binary(op, ir.Ref("s"), ir.Load("x", ir.Ref("i"))))], "simd",
               reduces=("s",)),
        ir.Store("y", 0, ir.Ref("s"))])
    x, y = np.random.default_rng(0).standard_normal(1000, np.float32), np.zeros(1, np.float32)
    for library in (compile_c, InterpretedLibrary):
        library([kernel]).function("k")(1000, x, y)
        np.testing.assert_allclose(y[0], of(x), rtol=1e-4)


@pytest.mark.cc
def test_exp_is_accurate_to_two_ulps_and_saturates():
    i = ir.Ref("i")
    kernel = ir.Kernel("k", (ir.Param("n", ir.I64), ir.Param("x", ir.F32, True), ir.Param("y", ir.F32, True, False)), [
        ir.For("i", 0, ir.Ref("n"), [ir.Store("y", i, ir.Call("exp", (ir.Load("x", i),)))], "simd")])
    x = np.linspace(-87, 88.7, 200_001).astype(np.float32)
    ends = np.array([-np.inf, np.inf, np.nan, 0, 1, -200, 200, -103.9], np.float32)
    x, y = np.concatenate([x, ends]), np.zeros(200_001 + ends.size, np.float32)
    compile_c([kernel]).function("k")(x.size, x, y)
    exact = np.exp(x[:200_001].astype(np.float64))
    assert np.max(np.abs(y[:200_001] - exact) / exact) < 2 * np.finfo(np.float32).eps
    assert y[200_001:200_003].tolist() == [0.0, np.inf]
    assert np.isnan(y[200_003])
    np.testing.assert_allclose(y[200_004:], [1, np.e, 0, np.inf, 0], atol=2e-45, rtol=1e-6)
