"""Strip-mining, unrolling and substitution: their form and their refusals; their meaning is in tests/property."""

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.ir import (
    BOOL,
    F32,
    I64,
    Assign,
    Const,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Store,
    interpret,
    pretty,
    split,
    substitute,
    unroll,
)

N, COUNT = Ref("n"), Ref("i")
PARAMS = (Param("y", I64, True, False), Param("n", I64))


def kernel(*stmts, params=PARAMS) -> Kernel:
    return Kernel("k", params, stmts)


def body(changed: Kernel) -> str:
    return "\n".join(line[4:] for line in pretty(changed).splitlines()[1:])


@pytest.mark.parametrize(("lo", "hi", "step"), [(0, 12, 1), (0, 13, 1), (2, 3, 1), (3, 3, 1), (5, 2, 1), (1, 12, 3)])
@pytest.mark.parametrize("factor", [1, 4, 100])
def test_split_keeps_every_iteration_once(lo, hi, step, factor):
    count = [Store("y", COUNT, Load("y", COUNT) + 1)]
    y = np.zeros(16, np.int64)
    interpret(split(kernel(For("i", lo, hi, count, step=step)), "i", factor), y=y, n=0)
    np.testing.assert_array_equal(np.flatnonzero(y), np.arange(lo, hi, step))
    assert y.max(initial=0) <= 1


def test_split_leaves_out_the_minimum_where_strips_are_full():
    loop = For("i", 0, 12, [Store("y", COUNT, 1)])
    assert "for i in io .. io + 4:" in body(split(kernel(loop), "i", 4))
    assert "min(io + 5, 12)" in body(split(kernel(loop), "i", 5))


def test_split_of_a_parallel_loop_is_parallel_outside():
    assert body(split(kernel(For("i", 0, N, [Store("y", COUNT, 1)], "parallel", chunk=2)), "i", 4)) == (
        "parallel for io in 0 .. n step 4 chunk 2:\n    for i in io .. min(io + 4, n):\n        y[i] = 1"
    )


@pytest.mark.parametrize("kind", ["simd", "unrolled"])
def test_split_of_an_inner_kind_keeps_it_inside(kind):
    text = body(split(kernel(For("i", 0, N, [Store("y", COUNT, 1)], kind)), "i", 4))
    assert text.startswith(f"for io in 0 .. n step 4:\n    {kind} for i in io")


def test_split_keeps_reductions():
    loop = For("i", 0, N, [Assign("s", Ref("s") + COUNT)], "simd", reduces=("s",))
    changed = split(kernel(Declare("s", I64, 0), loop, Store("y", 0, Ref("s"))), "i", 4)
    y = np.zeros(1, np.int64)
    interpret(changed, y=y, n=7)
    assert y[0] == sum(range(7))


def test_split_evaluates_a_bound_that_may_change_once():
    inner = [Assign("end", Const(0)), Store("y", COUNT, 1)]
    changed = split(kernel(Declare("end", I64, N), For("i", 0, Ref("end"), inner)), "i", 2)
    assert "let i_end: i64 = end" in body(changed)
    y = np.zeros(8, np.int64)
    interpret(changed, y=y, n=5)
    assert y.sum() == 5


def test_split_numbers_names_that_are_taken():
    changed = split(kernel(Let("io", I64, 0), For("i", 0, N, [Store("y", COUNT, Ref("io"))])), "i", 4)
    assert "for io_1 in 0 .. n step 4" in body(changed)


def test_split_refuses_what_is_not_there():
    with pytest.raises(IllegalSchedule, match="kernel k has no loop j to split"):
        split(kernel(For("i", 0, N, [])), "j", 4)
    with pytest.raises(IllegalSchedule, match="loop i cannot be cut into strips of 0: take at least 1"):
        split(kernel(For("i", 0, N, [])), "i", 0)


def test_unroll_repeats_the_body_with_its_names_numbered():
    loop = For("i", 0, 5, [Let("a", I64, COUNT), Store("y", Ref("a"), COUNT)], "unrolled", step=2)
    assert body(unroll(kernel(loop))) == (
        "let a: i64 = 0\ny[a] = 0\nlet a_1: i64 = 2\ny[a_1] = 2\nlet a_2: i64 = 4\ny[a_2] = 4"
    )


def test_unroll_takes_the_loops_of_its_kind_or_the_named_ones():
    loops = For("i", 0, 2, [For("j", 0, 2, [Store("y", COUNT, Ref("j"))], "unrolled")])
    assert body(unroll(kernel(loops))) == "for i in 0 .. 2:\n    y[i] = 0\n    y[i] = 1"
    assert body(unroll(kernel(loops), "i")).count("unrolled for j") == 2
    assert unroll(unroll(kernel(loops), "i")) == unroll(unroll(kernel(loops)), "i")


def test_unroll_leaves_names_free_that_the_block_around_declares():
    loop = For("i", 0, 2, [Let("a", I64, COUNT), Store("y", Ref("a"), COUNT)], "unrolled")
    assert body(unroll(kernel(loop, Let("a", I64, N)))) == (
        "let a_1: i64 = 0\ny[a_1] = 0\nlet a_2: i64 = 1\ny[a_2] = 1\nlet a: i64 = n"
    )


def test_unroll_reaches_into_branches():
    text = body(unroll(kernel(If(Const(True, BOOL), [For("i", 0, 2, [Store("y", COUNT, 1)], "unrolled")]))))
    assert text == "if true:\n    y[0] = 1\n    y[1] = 1"


def test_unroll_refuses_unknown_and_long_loops():
    with pytest.raises(IllegalSchedule, match="loop i has no constant bounds: substitute them before unrolling"):
        unroll(kernel(For("i", 0, N, [], "unrolled")))
    with pytest.raises(IllegalSchedule, match="loop i has 65 iterations, over 64: split it first"):
        unroll(kernel(For("i", 0, 65, [], "unrolled")))
    with pytest.raises(IllegalSchedule, match="kernel k has no loop j to unroll"):
        unroll(kernel(For("i", 0, 4, [])), "j")


def test_substitute_fixes_parameters():
    changed = substitute(kernel(For("i", 0, N, [Store("y", COUNT, N)])), {"n": 4})
    assert pretty(changed) == "kernel k(y: mut i64[]):\n    for i in 0 .. 4:\n        y[i] = 4\n"


def test_substitute_refuses_buffers_strangers_and_wrong_values():
    with pytest.raises(IllegalSchedule, match="kernel k has no scalar parameters m, y; there are: n"):
        substitute(kernel(), {"y": 4, "m": 3})
    with pytest.raises(IllegalSchedule, match=r"constant 1\.5 is no i64"):
        substitute(kernel(Store("y", 0, N)), {"n": 1.5})


def test_substitute_keeps_the_type():
    params = (Param("y", F32, True, False), Param("x", F32))
    changed = substitute(kernel(Store("y", 0, Ref("x")), params=params), {"x": 2})
    y = np.zeros(1, np.float32)
    interpret(changed, y=y)
    assert y[0] == 2
