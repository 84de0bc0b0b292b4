"""Expressions and statements that are simplified, and those that must not be."""

import pytest

from sparloom import ir

N, X = ir.Ref("n"), ir.Ref("x")
TRUE = ir.Const(True, ir.BOOL)
PARAMS = (ir.Param("y", ir.F32, True, False), ir.Param("n", ir.I64), ir.Param("x", ir.F32), ir.Param("c", ir.BOOL))


def body(*stmts) -> str:
    """Print the body of the simplified kernel without indentation."""
    text = ir.pretty(ir.simplify(ir.Kernel("k", PARAMS, stmts)))
    return "\n".join(line[4:] for line in text.splitlines()[1:])


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (ir.Const(2) * 3 + 4, ir.Const(10)),
        (ir.Const(-7) // 2, ir.Const(-3)),
        (ir.Const(-7) % 2, ir.Const(-1)),
        (N + 0, N),
        (0 + N, N),
        (N - 0, N),
        (N * 1, N),
        (1 * N, N),
        (N * 0, ir.Const(0)),
        (N // 1, N),
        (N % 1, ir.Const(0)),
        (N + 2 + 3, N + 5),
        (N + 2 - 5, N - 3),
        (N - 2 + 2, N),
        (3 + (N + 2), N + 5),
        (N * 2 * 3, N * 6),
        (ir.Binary("min", ir.Const(2), ir.Const(3)), ir.Const(2)),
        (ir.Binary("<", ir.Const(2), ir.Const(3)), TRUE),
        (ir.Unary("-", ir.Const(2)), ir.Const(-2)),
        (ir.Unary("not", TRUE), ir.Const(False, ir.BOOL)),
        (ir.Binary("and", TRUE, ir.Ref("c")), ir.Ref("c")),
        (ir.Binary("or", TRUE, ir.Ref("c")), TRUE),
        (ir.Select(TRUE, N, X), N),
        (ir.Cast(ir.I64, ir.Const(2, ir.I32)), ir.Const(2)),
        (X * ir.Const(1.0, ir.F32), X),
        (X / ir.Const(1.0, ir.F32), X),
        (X - ir.Const(0.0, ir.F32), X),
        (ir.Load("y", ir.Const(2) * 3), ir.Load("y", ir.Const(6))),
    ],
)
def test_expressions_that_are_folded(expr, expected):
    assert ir.simplify_expr(expr) == expected


@pytest.mark.parametrize(
    "expr",
    [
        X + ir.Const(0.0, ir.F32),  # -0.0 + 0.0 is 0.0
        X - ir.Const(-0.0, ir.F32),
        X * ir.Const(0.0, ir.F32),  # NaN
        N // 0,
        ir.Const(1) // 0,
        ir.Const(2**62) * 4,
        N + (2**63 - 1) + 1,
        ir.Binary("min", N, ir.Const(0)),
    ],
)
def test_expressions_that_are_not_folded(expr):
    assert ir.simplify_expr(expr) == expr


def test_constants_are_propagated_through_let():
    assert body(ir.Let("a", ir.I64, ir.Const(2) + 3), ir.Let("b", ir.I64, ir.Ref("a") * N),
                ir.Store("y", ir.Ref("a") - 5, X)) == (
        "let b: i64 = n * 5\ny[0] = x"
    )


def test_branches_with_constant_conditions_are_resolved():
    branches = [ir.Store("y", 0, X)], [ir.Store("y", 1, X)]
    assert body(ir.If(TRUE, *branches), ir.If(ir.Unary("not", TRUE), *branches)) == "y[0] = x\ny[1] = x"


def test_loops_without_iterations_are_removed():
    assert body(ir.For("i", 4, 4, [ir.Store("y", 0, X)]), ir.For("i", 5, 4, [ir.Store("y", 0, X)])) == "pass"


@pytest.mark.parametrize("kind", ["serial", "parallel", "simd", "unrolled"])
def test_single_iterations_are_inlined(kind):
    assert body(ir.For("i", 2, 5, [ir.Accumulate("y", ir.Ref("i"), X)], kind, step=3)) == "y[2] += x"


def test_inlined_names_do_not_clash():
    inner = [ir.Let("a", ir.I64, N + ir.Ref("i")), ir.Store("y", ir.Ref("a"), X)]
    assert body(ir.For("i", 0, 1, inner), ir.For("i", 1, 2, inner), ir.Let("a", ir.I64, N)) == (
        "let a_1: i64 = n\ny[a_1] = x\nlet a_2: i64 = n + 1\ny[a_2] = x\nlet a: i64 = n"
    )
