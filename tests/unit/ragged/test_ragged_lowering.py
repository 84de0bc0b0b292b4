"""Generated kernels: hoisted tables, ranges and tiles, and CUDA text."""

from textwrap import dedent

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batches, col, expected, lengths, operands, row

from sparloom import ir, ragged
from sparloom.ir import (
    Binary,
    Const,
    Expr,
    For,
    Load,
    Ref,
    Select,
    interpret,
    pretty,
    pretty_expr,
    simplify_expr,
    walk,
)
from sparloom.ops import assert_close
from sparloom.ragged import At, FusedInner, FusedOuter, Structure, evaluate, hoist, index_range


def text(program, **options):
    return "\n".join(pretty(each.kernel) for each in ragged.lower(program, **options))


def loads_inside_innermost(program, **options):
    (lowered,) = ragged.lower(program, **options)
    tables = {param.name for param in lowered.kernel.params if param.buffer and param.type.scalar in ("i32", "i64")}
    innermost = [node for node in walk(lowered.kernel) if isinstance(node, For) and not any(
        isinstance(each, For) for each in walk(node.body))]
    return [node for loop in innermost for node in walk(loop.body) if isinstance(node, Load) and node.buffer in tables]


def test_load_hoisting_leaves_no_table_in_the_innermost_loops():
    for name in ("scores", "values"):
        assert loads_inside_innermost(CASES[name].program, hoisted=False)
        assert not loads_inside_innermost(CASES[name].program)


def test_hoisting_changes_no_result():
    case = CASES["causal"]
    of = ragged.Structure({lengths: [3, 0, 4]}, InterpretedLibrary)
    inputs = {name: value.data for name, value in operands(case.program, of, seed=1).items()}
    found = ragged.interpreted(case.program, of, **inputs)
    plain = ragged.bind_arrays(case.program, of, inputs)
    for each in ragged.lower(case.program, hoisted=False):
        interpret(each.kernel, **ragged.kernel_arguments(each, of, plain))
    for name in case.program.outputs:
        np.testing.assert_array_equal(plain[name], found[name])


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


def test_a_guard_ends_with_its_choice():
    """Statements after, around or on the other side of a condition are not guarded by it."""
    inner = ir.Select(ir.Binary("<", N, ir.Const(4)), ir.Load("x", ENTRY), ir.Load("x", ir.Load("starts", N)))
    outer = ir.Store("out", J, ir.Select(ir.Binary("<", ROW, N), inner, ir.Const(0.0, ir.F32)))
    printed = hoisted(loops(outer, copied(ir.Load("starts", N + 1))))
    assert "select(i < n, select(n < 4, x[starts[i]], x[starts_entry]), 0.0)" in printed
    assert "x[starts_entry_1]" in printed
    assert "x[starts[i]]" in printed


i, j, o = Ref("i"), Ref("j"), Ref("o")
EXTENTS = {"i": Const(4), "j": simplify_expr(Binary("min", Const(3), o + 2))}
OUTER, INNER = FusedOuter(batches(), lengths(Ref("x0"))), FusedInner(batches(), lengths(Ref("x0")))


def test_products_of_loops_and_remainders_have_no_range():
    assert index_range(i * j, EXTENTS, {}) is None
    assert index_range(Binary("%", i, Const(2)), EXTENTS, {}) is None


def value(expr: Expr, values: dict[str, int], of: Structure) -> int:
    if isinstance(expr, Select):
        chosen = value(expr.cond.a, values, of) == value(expr.cond.b, values, of)
        return value(expr.a if chosen else expr.b, values, of)
    return int(evaluate(expr, {name: np.int64(each) for name, each in values.items()}, of.table))


@pytest.mark.parametrize("entries", [[3, 0, 2, 4], [1, 1], [5]])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranges_of_a_tile_of_a_fused_loop_cover_it_and_no_more(entries, size):
    """Figure 7: over all o of the range, the i of the range are those of the tile."""
    of = Structure({lengths: entries}, InterpretedLibrary)
    pairs = [(a, b) for a, length in enumerate(entries) for b in range(length)]
    f = simplify_expr(Ref("t") * size + Ref("f"))
    extents = {"f": simplify_expr(Binary("min", Const(size), OUTER.total - Ref("t") * size))}
    outer = index_range(At(OUTER, (f,)), extents, {})
    inner = index_range(At(INNER, (f,)), extents, {OUTER: o})
    for tile in range(-(-len(pairs) // size)):
        found = []
        for a in range(value(outer.first, {"t": tile}, of), value(outer.last, {"t": tile}, of) + 1):
            first, last = (value(end, {"t": tile, "o": a}, of) for end in (inner.first, inner.last))
            found += [(a, b) for b in range(first, last + 1)]
        assert found == pairs[tile * size : (tile + 1) * size]


TILING_ROW = simplify_expr(Ref("outer") * 8 + Ref("inner"))


def floor(expr: Expr, multiple: int) -> Expr:
    return Binary("//", expr, Const(multiple)) * multiple


@pytest.mark.parametrize(("extent", "text"), [
    (floor(Ref("row"), 8), "outer * 8"),
    (floor(Ref("row"), 4), None),
    (ragged.round_up(Ref("row") + 1, 8), "(outer + 1) * 8"),
    (ragged.round_up(Ref("row"), 8), None),
    (ragged.round_up(Ref("row") + 1, 16), "(outer + 2) // 2 * 16"),
    (floor(Ref("row") + 16, 8) + Ref("n"), "(outer + 2) * 8 + n"),
    (Binary("//", Ref("row") + Ref("n"), Const(8)), None),
])
def test_the_inner_loop_is_dropped_in_whole_tiles(extent, text):
    expr = simplify_expr(ragged.substitute(extent, {"row": TILING_ROW}))
    simple = ragged.without_inner(expr, "inner", 8)
    assert pretty_expr(simple) == text if text is not None else simple == expr
    outer, inner = (each.reshape(-1) for each in np.meshgrid(np.arange(5), np.arange(8)))
    values = {"outer": outer, "inner": inner, "n": np.int64(3)}
    np.testing.assert_array_equal(np.broadcast_to(ragged.evaluate(simple, values, None), outer.shape),
                                  ragged.evaluate(expr, values, None))


def test_a_triangle_is_covered_by_tiles():
    case = CASES["causal"]
    stored = ragged.pad_storage(case.program, "s", {row: 4, col: 4})
    for tensor in ("q", "k"):
        stored = ragged.pad_storage(stored, tensor, {row: 4})
    padded = ragged.pad_loop(ragged.pad_loop(stored, "s", row, 4), "s", col, 4)
    tiled = ragged.split(ragged.split(padded, "s", "row", 4), "s", "col", 4)
    tiled = ragged.reorder(tiled, "s", ("row_outer", "head", "col_outer", "row_inner", "col_inner"))
    tiled = ragged.unroll(tiled, "s", "row_inner")
    assert "for col_outer in 0 .. row_outer + 1:" in str(tiled)
    of = ragged.Structure({lengths: [6, 0, 4, 1]}, InterpretedLibrary)
    inputs = operands(tiled, of, seed=1)
    found = ragged.interpreted(tiled, of, **{name: value.data for name, value in inputs.items()})
    packed = ragged.RaggedTensor(tiled.tensors()["s"], of, found["s"]).to_packed()[0]
    assert_close(packed.reshape(-1), expected(case, of, inputs)["s"], terms=3, scale=9.0)


def test_minima_are_written_in_one_order():
    """Kernels are cached by their text, so it must not depend on the order in which sets of terms are traversed."""
    for number in range(20):
        a, b, n = Ref(f"a{number}"), Ref(f"b{number}"), Ref("n")
        sums = {ragged.min_of_sums(Binary("min", n, each)) for each in (a + b - 512, b + a - 512, b - 512 + a)}
        assert sums == {Binary("min", a + b - 512, n)}
