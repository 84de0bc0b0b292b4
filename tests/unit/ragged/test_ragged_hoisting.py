"""Hoisting of table entries out of loops, in handwritten kernels."""

from textwrap import dedent

import pytest

from sparloom.ir import (
    F32,
    I32,
    I64,
    Alloc,
    Binary,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Select,
    Stmt,
    Store,
    pretty,
)
from sparloom.ragged.table_code import hoist

ROW, J, N = Ref("i"), Ref("j"), Ref("n")
ZERO = Const(0.0, F32)
ENTRY = Load("starts", ROW)
PARAMS = (Param("starts", I32, True), Param("x", F32, True), Param("out", F32, True, const=False), Param("n", I64))


def hoisted(*body: Stmt, params: tuple[Param, ...] = PARAMS) -> str:
    """Hoist the entries of `starts` and print the body of the kernel."""
    return dedent(pretty(hoist(Kernel("k", params, body), {"starts"})).split("\n", 1)[1]).strip()


def copied(index: Expr) -> Store:
    return Store("out", J, Load("x", index))


def loops(*body: Stmt) -> For:
    return For("i", 0, N, (For("j", 0, N, body),))


def test_an_entry_is_read_once_where_its_index_is_known():
    assert hoisted(loops(copied(ENTRY), copied(ENTRY + J), copied(Load("starts", Const(3))))) == dedent("""\
        let starts_entry: i32 = starts[3]
        for i in 0 .. n:
            let starts_entry_1: i32 = starts[i]
            for j in 0 .. n:
                out[j] = x[starts_entry_1]
                out[j] = x[starts_entry_1 + j]
                out[j] = x[starts_entry]""")


@pytest.mark.parametrize("declared", [
    Let("starts_entry", I64, Const(5)), Declare("starts_entry", I64, Const(5)), Alloc("starts_entry", "i64", 5)])
def test_an_entry_gets_a_name_that_nothing_in_the_kernel_has(declared):
    assert "let starts_entry_1: i32 = starts[i]" in hoisted(loops(declared, copied(ENTRY)))
    assert "let starts_entry_1: i32 = starts[i]" in hoisted(loops(copied(ENTRY)), declared)
    also = (*PARAMS, Param("starts_entry", I64), Param("starts_entry_1", I64))
    assert "let starts_entry_2: i32 = starts[i]" in hoisted(loops(copied(ENTRY)), params=also)
    assert "let starts_entry_1: i32 = starts[i]" in hoisted(For("starts_entry", 0, N, (loops(copied(ENTRY)),)))


def test_entries_are_hoisted_in_both_branches():
    inner = For("j", 0, N, (copied(ENTRY),))
    assert hoisted(For("i", 0, N, (If(Binary("<", ROW, Const(3)), (inner,), (inner, inner)),))) == dedent("""\
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
        Let("a", I64, ROW + 1), Declare("b", I64, J), Alloc("c", "i64", 4),
        copied(Load("starts", Ref("a"))), copied(Load("starts", Ref("b"))), copied(Load("starts", Load("c", ROW))),
        For("m", 0, N, (copied(Load("starts", ROW + Ref("m"))),)))
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
    inner = For("j", ENTRY, Load("starts", ROW + 1), (copied(J),))
    assert hoisted(For("i", 0, Load("starts", N), (inner,))) == dedent("""\
        let starts_entry: i32 = starts[n]
        for i in 0 .. starts_entry:
            let starts_entry_1: i32 = starts[i]
            let starts_entry_2: i32 = starts[i + 1]
            for j in starts_entry_1 .. starts_entry_2:
                out[j] = x[j]""")


def test_only_tables_are_hoisted():
    assert hoisted(loops(copied(Load("out", ROW)))) == dedent("""\
        for i in 0 .. n:
            for j in 0 .. n:
                out[j] = x[out[i]]""")


def chosen(cond: Expr, index: Expr, otherwise: Expr = ZERO) -> Stmt:
    return Store("out", J, Select(cond, Load("x", Load("starts", index)), otherwise))


@pytest.mark.parametrize("cond", [
    Binary("<", ROW, N),
    Binary("and", Binary("<", J, N), Binary("<", ROW, N)),
    Binary("and", Binary("<", ROW, N), Binary("<", J, N)),
    Binary("<=", ROW, N),
    Binary("<", Load("lengths", ROW), N),
])
def test_an_entry_stays_where_a_condition_guards_its_index(cond):
    printed = hoisted(loops(chosen(cond, ROW)))
    assert "let" not in printed
    assert "x[starts[i]]" in printed


def test_a_condition_that_does_not_bound_the_index_holds_nothing_back():
    limit = Binary("<", J, ROW)  # bounds j: i stands on the other side
    for cond in (limit, Binary("and", limit, Binary("<", J, N)), Binary("and", Binary("<", J, N), limit)):
        assert "let starts_entry: i32 = starts[i]" in hoisted(loops(chosen(cond, ROW)))
    guard = Binary("<", J, ENTRY)
    other = Load("x", Load("starts", N))
    assert hoisted(loops(chosen(guard, J, other))) == dedent("""\
        let starts_entry: i32 = starts[n]
        for i in 0 .. n:
            let starts_entry_1: i32 = starts[i]
            for j in 0 .. n:
                out[j] = select(j < starts_entry_1, x[starts[j]], x[starts_entry])""")


def test_a_guard_ends_with_its_choice():
    """What comes after a choice, on its other side or around it, is not guarded by it."""
    inner = Select(Binary("<", N, Const(4)), Load("x", ENTRY), Load("x", Load("starts", N)))
    outer = Store("out", J, Select(Binary("<", ROW, N), inner, Const(0.0, F32)))
    printed = hoisted(loops(outer, copied(Load("starts", N + 1))))
    assert "select(i < n, select(n < 4, x[starts[i]], x[starts_entry]), 0.0)" in printed
    assert "x[starts_entry_1]" in printed
    assert "x[starts[i]]" in printed
