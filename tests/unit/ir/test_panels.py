"""Loops over panels of a product: one call in C, which computes what the loop means."""

import numpy as np
import pytest

from sparloom.ir import (
    BOOL,
    F32,
    F64,
    I64,
    Binary,
    Const,
    For,
    Kernel,
    Let,
    Multiply,
    Param,
    Ref,
    View,
    interpret,
    render_c,
)
from sparloom.ir.panels import panels_of
from sparloom.jit import compile_c

SIZES = tuple(Param(name, I64) for name in ("rows", "cols", "depth"))
ROWS, COLS, DEPTH = (Ref(param.name) for param in SIZES)
P = Ref("p")


def least(a, b):
    return Binary("min", a, b)


def panels(width, *, type=F32, transposed=False, adds=False, **changed):
    """B is stored in panels of `width` columns, C in rows of `cols`."""
    a = View("a", 0, 1, ROWS) if transposed else View("a", 0, DEPTH, 1)
    product = {"c": View("c", P * width, COLS, 1), "a": a, "b": View("b", P * (DEPTH * width), width, 1), "rows": ROWS,
               "cols": least(Const(width), COLS - P * width), "depth": DEPTH, "add": Const(adds, BOOL)} | changed
    loop = For("p", 0, Binary("//", COLS + (width - 1), Const(width)), [Multiply(**product)])
    buffers = (Param("a", type, True), Param("b", type, True), Param("c", type, True, False))
    return Kernel("k", (*SIZES, *buffers), [loop])


def operands(rows, cols, depth, width, dtype, *, transposed=False):
    rng = np.random.default_rng(rows + cols)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, depth), (depth, cols), (rows, cols)))
    count = -(-cols // width)
    stored = np.zeros((count, depth, width), dtype)
    for place in range(count):
        part = b[:, place * width : (place + 1) * width]
        stored[place, :, : part.shape[1]] = part
    left = np.ascontiguousarray(a.T if transposed else a)
    return a @ b, c, [np.append(each.reshape(-1), dtype(0)) for each in (left, stored, c)]


@pytest.mark.cc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("type", "dtype"), [(F32, np.float32), (F64, np.float64)])
@pytest.mark.parametrize(("rows", "cols", "depth", "width"), [
    (48, 256, 64, 16), (50, 250, 600, 16), (13, 300, 7, 16), (5, 128, 9, 8), (7, 200, 3, 64), (100, 129, 0, 16),
    (30, 16, 20, 16), (24, 144, 513, 12), (0, 160, 4, 16), (6, 0, 4, 16), (61, 131, 520, 8)])
def test_compiled_panels(rows, cols, depth, width, type, dtype, transposed):
    for add in (False, True):
        product, c, given = operands(rows, cols, depth, width, dtype, transposed=transposed)
        kernel = panels(width, type=type, transposed=transposed, adds=add)
        assert f"multiply_panels_{type}(" in render_c(kernel)
        compile_c([kernel]).function("k")(rows, cols, depth, *given)
        np.testing.assert_allclose(given[2][:-1].reshape(c.shape), product + (c if add else 0),
                                   atol=90 * np.finfo(dtype).eps * max(1, depth) ** 0.5)


def test_the_loop_means_what_it_did():
    product, c, given = operands(3, 7, 4, 3, np.float32)
    interpret(panels(3), rows=3, cols=7, depth=4, **dict(zip("abc", given, strict=True)))
    np.testing.assert_allclose(given[2][:-1].reshape(c.shape), product, rtol=1e-5)


@pytest.mark.parametrize("changed", [
    {"a": View("a", P, DEPTH, 1)}, {"rows": P + 1}, {"depth": P}, {"b": View("b", 0, P + 1, 1)},
    {"c": View("c", P * P, COLS, 1)}, {"add": Binary("!=", P, Const(0))}, {"cols": COLS - P * 16},
    {"cols": least(Const(16), COLS - P * 8)}], ids=["a", "rows", "depth", "row of b", "square", "add", "cols", "step"])
def test_loops_that_are_none(changed):
    kernel = panels(16, **changed)
    assert panels_of(kernel.body[0]) is None
    assert "multiply_panels" not in render_c(kernel)


def test_a_loop_with_something_else_or_another_start_is_none():
    (loop,) = panels(16).body
    assert panels_of(loop) is not None
    assert panels_of(For("p", 1, loop.hi, loop.body)) is None
    assert panels_of(For("p", 0, loop.hi, loop.body, step=2)) is None
    assert panels_of(For("p", 0, loop.hi, [*loop.body, *loop.body])) is None
    assert panels_of(For("p", 0, loop.hi, loop.body, "parallel")) is None


def test_names_in_between_are_seen_through():
    x, q = Ref("p"), Ref("q")
    product = panels(16).body[0].body[0]
    product = Multiply(**{**vars(product), "cols": Const(16),
                          "b": View("b", q * 80 + Ref("r") * 40 + x % 4 * 10, 16, 1),
                          "c": View("c", q * 128 + Ref("r") * 64 + Ref("s") * 16 + 5, COLS, 1)})
    lets = [Let("h", I64, x // 4), Let("q", I64, Ref("h") // 2), Let("r", I64, Ref("h") % 2), Let("s", I64, x % 4)]
    found = panels_of(For("p", 0, Const(24), [*lets, product]))
    assert (found.b_step, found.c_step) == (Const(10), Const(16))
    assert (found.first.b.at, found.first.c.at) == (Const(0), Const(5))
    shifted = Let("h", I64, x // 3)  # q, r and s do not make p together
    assert panels_of(For("p", 0, Const(24), [shifted, *lets[1:], product])) is None
    assert panels_of(For("p", 0, Const(24), [*lets, product, product])) is None
