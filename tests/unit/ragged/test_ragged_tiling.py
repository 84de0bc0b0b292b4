"""Extents that are the same throughout a tile."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, col, expected, lengths, operands, row

from sparloom import ragged
from sparloom.ir import Binary, Const, Expr, Ref, pretty_expr, simplify_expr
from sparloom.ops import assert_close

ROW = simplify_expr(Ref("outer") * 8 + Ref("inner"))


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
    expr = simplify_expr(ragged.substitute(extent, {"row": ROW}))
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
