"""Hoisting of table entries out of loops, in handwritten kernels."""

from textwrap import dedent

import pytest

from sparloom import ir
from sparloom.ragged import hoist

ROW, J, N = ir.Ref("i"), ir.Ref("j"), ir.Ref("n")
ZERO = ir.Const(0.0, ir.F32)
ENTRY = ir.Load("starts", ROW)
PARAMS = (ir.Param("starts", ir.I32, True), ir.Param("x", ir.F32, True), ir.Param("out", ir.F32, True, const=False),
          ir.Param("n", ir.I64))


def hoisted(*body: ir.Stmt, params: tuple[ir.Param, ...] = PARAMS) -> str:
    """Hoist the entries of `starts` and print the body of the kernel."""
    return dedent(ir.pretty(hoist(ir.Kernel("k", params, body), {"starts"})).split("\n", 1)[1]).strip()


def copied(index: ir.Expr) -> ir.Store:
    return ir.Store("out", J, ir.Load("x", index))


def loops(*body: ir.Stmt) -> ir.For:
    return ir.For("i", 0, N, (ir.For("j", 0, N, body),))


def test_an_entry_is_read_once_where_its_index_is_known():
    assert hoisted(loops(copied(ENTRY), copied(ENTRY + J), copied(ir.Load("starts", ir.Const(3))))) == dedent("""\
        let starts_entry: i32 = starts[3]
        for i in 0 .. n:
            let starts_entry_1: i32 = starts[i]
            for j in 0 .. n:
                out[j] = x[starts_entry_1]
                out[j] = x[starts_entry_1 + j]
                out[j] = x[starts_entry]""")


@pytest.mark.parametrize("declared", [
    ir.Let("starts_entry", ir.I64, ir.Const(5)), ir.Declare("starts_entry", ir.I64, ir.Const(5)),
    ir.Alloc("starts_entry", "i64", 5)])
def test_an_entry_gets_a_name_that_nothing_in_the_kernel_has(declared):
    assert "let starts_entry_1: i32 = starts[i]" in hoisted(loops(declared, copied(ENTRY)))
    assert "let starts_entry_1: i32 = starts[i]" in hoisted(loops(copied(ENTRY)), declared)
    also = (*PARAMS, ir.Param("starts_entry", ir.I64), ir.Param("starts_entry_1", ir.I64))
    assert "let starts_entry_2: i32 = starts[i]" in hoisted(loops(copied(ENTRY)), params=also)
    assert "let starts_entry_1: i32 = starts[i]" in hoisted(ir.For("starts_entry", 0, N, (loops(copied(ENTRY)),)))


def test_entries_are_hoisted_in_both_branches():
    inner = ir.For("j", 0, N, (copied(ENTRY),))
    assert hoisted(ir.For("i", 0, N,
                          (ir.If(ir.Binary("<", ROW, ir.Const(3)), (inner,), (inner, inner)),))) == dedent("""\
        for i in 0 .. n:
            if i < 3:
                let starts_entry: i32 = starts[i]
                for j in 0 .. n:
                    out[j] = x[starts_entry]
            else:
                let starts_entry_1: i32 = starts[i]
                for j in 0 .. n:
                    out[j] = x[starts_entry_1]
                let starts_entry_2: i32 = starts[i]
                for j in 0 .. n:
                    out[j] = x[starts_entry_2]""")


def test_an_entry_stays_where_a_name_of_the_loop_is_in_its_index():
    """Let, variable, array and loop of the inside: none of them exists outside."""
    inside = (
        ir.Let("a", ir.I64, ROW + 1), ir.Declare("b", ir.I64, J), ir.Alloc("c", "i64", 4),
        copied(ir.Load("starts", ir.Ref("a"))), copied(ir.Load("starts", ir.Ref("b"))),
        copied(ir.Load("starts", ir.Load("c", ROW))),
        ir.For("m", 0, N, (copied(ir.Load("starts", ROW + ir.Ref("m"))),)))
    assert hoisted(loops(*inside)) == dedent("""\
        for i in 0 .. n:
            for j in 0 .. n:
                let a: i64 = i + 1
                var b: i64 = j
                array c: i64[4]
                out[j] = x[starts[a]]
                out[j] = x[starts[b]]
                out[j] = x[starts[c[i]]]
                for m in 0 .. n:
                    out[j] = x[starts[i + m]]""")


def test_bounds_of_a_loop_are_read_before_it():
    inner = ir.For("j", ENTRY, ir.Load("starts", ROW + 1), (copied(J),))
    assert hoisted(ir.For("i", 0, ir.Load("starts", N), (inner,))) == dedent("""\
        let starts_entry: i32 = starts[n]
        for i in 0 .. starts_entry:
            let starts_entry_1: i32 = starts[i]
            let starts_entry_2: i32 = starts[i + 1]
            for j in starts_entry_1 .. starts_entry_2:
                out[j] = x[j]""")


def test_only_tables_are_hoisted():
    assert hoisted(loops(copied(ir.Load("out", ROW)))) == dedent("""\
        for i in 0 .. n:
            for j in 0 .. n:
                out[j] = x[out[i]]""")


def chosen(cond: ir.Expr, index: ir.Expr, otherwise: ir.Expr = ZERO) -> ir.Stmt:
    return ir.Store("out", J, ir.Select(cond, ir.Load("x", ir.Load("starts", index)), otherwise))


@pytest.mark.parametrize("cond", [
    ir.Binary("<", ROW, N),
    ir.Binary("and", ir.Binary("<", J, N), ir.Binary("<", ROW, N)),
    ir.Binary("and", ir.Binary("<", ROW, N), ir.Binary("<", J, N)),
    ir.Binary("<=", ROW, N),
    ir.Binary("<", ir.Load("lengths", ROW), N),
])
def test_an_entry_stays_where_a_condition_guards_its_index(cond):
    printed = hoisted(loops(chosen(cond, ROW)))
    assert "let" not in printed
    assert "x[starts[i]]" in printed


def test_a_condition_that_does_not_bound_the_index_holds_nothing_back():
    limit = ir.Binary("<", J, ROW)  # bounds j: i stands on the other side
    for cond in (limit, ir.Binary("and", limit, ir.Binary("<", J, N)), ir.Binary("and", ir.Binary("<", J, N), limit)):
        assert "let starts_entry: i32 = starts[i]" in hoisted(loops(chosen(cond, ROW)))
    guard = ir.Binary("<", J, ENTRY)
    other = ir.Load("x", ir.Load("starts", N))
    assert hoisted(loops(chosen(guard, J, other))) == dedent("""\
        let starts_entry: i32 = starts[n]
        for i in 0 .. n:
            let starts_entry_1: i32 = starts[i]
            for j in 0 .. n:
                out[j] = select(j < starts_entry_1, x[starts[j]], x[starts_entry])""")


def test_a_guard_ends_with_its_choice():
    """Statements after, around or on the other side of a condition are not guarded by it."""
    inner = ir.Select(ir.Binary("<", N, ir.Const(4)), ir.Load("x", ENTRY), ir.Load("x", ir.Load("starts", N)))
    outer = ir.Store("out", J, ir.Select(ir.Binary("<", ROW, N), inner, ir.Const(0.0, ir.F32)))
    printed = hoisted(loops(outer, copied(ir.Load("starts", N + 1))))
    assert "select(i < n, select(n < 4, x[starts[i]], x[starts_entry]), 0.0)" in printed
    assert "x[starts_entry_1]" in printed
    assert "x[starts[i]]" in printed
