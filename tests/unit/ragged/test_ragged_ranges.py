"""Ranges of indices while inner loops run."""

import itertools

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batches, lengths

from sparloom.ir import Binary, Const, Expr, Ref, Select, pretty_expr, simplify_expr
from sparloom.ragged import At, FusedInner, FusedOuter, Structure, evaluate, index_range, printable

i, j, o = Ref("i"), Ref("j"), Ref("o")
EXTENTS = {"i": Const(4), "j": simplify_expr(Binary("min", Const(3), o + 2))}
OUTER, INNER = FusedOuter(batches(), lengths(Ref("x0"))), FusedInner(batches(), lengths(Ref("x0")))


@pytest.mark.parametrize(("index", "tight"), [
    (i, True), (i * 5 + j, True), (o + i, True), (Const(9) - i, True), (i - j, True), (Binary("min", i * 3, j + 4),
    True), (Binary("//", i + 5, Const(3)), True), (i + (Const(9) - i), False),
])
def test_ranges_match_enumeration(index: Expr, tight: bool):
    found = index_range(index, EXTENTS, {})
    for outside in range(3):
        inner = evaluate(EXTENTS["j"], {"o": np.int64(outside)}, None)
        seen = [int(evaluate(index, {"o": np.int64(outside), "i": np.int64(a), "j": np.int64(b)}, None))
                for a, b in itertools.product(range(4), range(inner))]
        first, last = (int(evaluate(end, {"o": np.int64(outside)}, None)) for end in (found.first, found.last))
        assert (first, last) == (min(seen), max(seen)) if tight else first <= min(seen) <= max(seen) <= last


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


def test_the_whole_of_a_fused_loop_is_whole_dimensions():
    extents = {"f": OUTER.total}
    outer = index_range(At(OUTER, (Ref("f"),)), extents, {})
    inner = index_range(At(INNER, (Ref("f"),)), extents, {OUTER: o})
    printed = [pretty_expr(printable(end)) for each in (outer, inner) for end in (each.first, each.last)]
    assert printed == ["0", "batches() - 1", "0", "lengths(o) - 1"]
    assert index_range(At(INNER, (Ref("f"),)), extents, {}) is None
