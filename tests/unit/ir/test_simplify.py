"""Expressions and statements that are simplified, and those that must not be."""

import pytest

from sparloom.ir import (
    BOOL,
    F32,
    I32,
    I64,
    Accumulate,
    Binary,
    Cast,
    Const,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Select,
    Store,
    Unary,
    pretty,
    simplify,
    simplify_expr,
)

N, X = Ref("n"), Ref("x")
TRUE = Const(True, BOOL)
PARAMS = (Param("y", F32, True, False), Param("n", I64), Param("x", F32), Param("c", BOOL))


def body(*stmts) -> str:
    """Print the body of the simplified kernel without indentation."""
    text = pretty(simplify(Kernel("k", PARAMS, stmts)))
    return "\n".join(line[4:] for line in text.splitlines()[1:])


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Const(2) * 3 + 4, Const(10)),
        (Const(-7) // 2, Const(-3)),
        (Const(-7) % 2, Const(-1)),
        (N + 0, N),
        (0 + N, N),
        (N - 0, N),
        (N * 1, N),
        (1 * N, N),
        (N * 0, Const(0)),
        (N // 1, N),
        (N % 1, Const(0)),
        (N + 2 + 3, N + 5),
        (N + 2 - 5, N - 3),
        (N - 2 + 2, N),
        (3 + (N + 2), N + 5),
        (N * 2 * 3, N * 6),
        (Binary("min", Const(2), Const(3)), Const(2)),
        (Binary("<", Const(2), Const(3)), TRUE),
        (Unary("-", Const(2)), Const(-2)),
        (Unary("not", TRUE), Const(False, BOOL)),
        (Binary("and", TRUE, Ref("c")), Ref("c")),
        (Binary("or", TRUE, Ref("c")), TRUE),
        (Select(TRUE, N, X), N),
        (Cast(I64, Const(2, I32)), Const(2)),
        (X * Const(1.0, F32), X),
        (X / Const(1.0, F32), X),
        (X - Const(0.0, F32), X),
        (Load("y", Const(2) * 3), Load("y", Const(6))),
    ],
)
def test_expressions_that_are_folded(expr, expected):
    assert simplify_expr(expr) == expected


@pytest.mark.parametrize(
    "expr",
    [
        X + Const(0.0, F32),  # -0.0 + 0.0 is 0.0
        X - Const(-0.0, F32),
        X * Const(0.0, F32),  # NaN
        N // 0,
        Const(1) // 0,
        Const(2**62) * 4,
        N + (2**63 - 1) + 1,
        Binary("min", N, Const(0)),
    ],
)
def test_expressions_that_are_not_folded(expr):
    assert simplify_expr(expr) == expr


def test_constants_are_propagated_through_let():
    assert body(Let("a", I64, Const(2) + 3), Let("b", I64, Ref("a") * N), Store("y", Ref("a") - 5, X)) == (
        "let b: i64 = n * 5\ny[0] = x"
    )


def test_declared_names_stay():
    assert body(Declare("a", F32, Const(0.0, F32)), Store("y", 0, Ref("a"))) == "var a: f32 = 0.0\ny[0] = a"


def test_branches_with_constant_conditions_are_resolved():
    branches = [Store("y", 0, X)], [Store("y", 1, X)]
    assert body(If(TRUE, *branches), If(Unary("not", TRUE), *branches)) == "y[0] = x\ny[1] = x"


def test_loops_without_iterations_are_removed():
    assert body(For("i", 4, 4, [Store("y", 0, X)]), For("i", 5, 4, [Store("y", 0, X)])) == "pass"


def test_loops_that_become_empty_are_removed():
    assert body(For("i", 0, N, [For("j", 4, 4, [Store("y", 0, X)])]), If(Ref("c"), [For("j", 4, 4, [])])) == "pass"


@pytest.mark.parametrize("kind", ["serial", "parallel", "simd", "unrolled"])
def test_single_iterations_are_inlined(kind):
    assert body(For("i", 2, 5, [Accumulate("y", Ref("i"), X)], kind, step=3)) == "y[2] += x"


def test_loops_of_two_iterations_are_kept():
    assert body(For("i", 2, 5, [Store("y", Ref("i"), X)], step=2)) == "for i in 2 .. 5 step 2:\n    y[i] = x"


def test_inlined_names_do_not_clash():
    inner = [Let("a", I64, N + Ref("i")), Store("y", Ref("a"), X)]
    assert body(For("i", 0, 1, inner), For("i", 1, 2, inner), Let("a", I64, N)) == (
        "let a_1: i64 = n\ny[a_1] = x\nlet a_2: i64 = n + 1\ny[a_2] = x\nlet a: i64 = n"
    )
