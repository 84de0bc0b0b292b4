"""The innermost sparse loop with the dense loops inside it: what stays in registers, what goes through memory.

A leaf is a list of (before, inside, after): statements before the innermost sparse loop, its body, statements after it,
once per block of dense columns. In the body i, j and `<level>_p` are bound.
"""

from collections.abc import Sequence

from sparloom.ir import (
    F32,
    I64,
    Accumulate,
    Assign,
    Broadcast,
    Cast,
    Const,
    Declare,
    Expr,
    Let,
    Load,
    Prefetch,
    Ref,
    Stmt,
    Store,
    Sum,
    Type,
)
from sparloom.platforms.cpu.columns import LANES, Vector, blocks, dense_tiles, vectors
from sparloom.platforms.cpu.program import Program
from sparloom.platforms.cpu.storage import PADDING

__all__ = ["Leaf", "sddmm_leaf", "spmm_leaf"]

Leaf = list[tuple[Sequence[Stmt], Sequence[Stmt], Sequence[Stmt]]]

CHAINS = 4  # independent sums of a dot product, to hide the latency of additions


def spmm_leaf(program: Program, level: str, *, start: Expr, columns: int) -> Leaf:
    """D(i,k) += A(i,j) B(j,k) for k in `columns` columns from `start`.

    Innermost ji: D(i, block) stays in registers over the run of nonzeros. Innermost ii: B(j, block) does. With ko
    inside, each nonzero goes through all of D(i,:) in memory.
    """
    value = Let("a", F32, Load("values", Ref(f"{level}_p")))
    if _has_inner_tiles(program, level):
        def update(first: Expr, count: int) -> list[Stmt]:
            return [_add_to_row(program, first, vector, _scaled(_load("B", "j", program, first, vector), vector))
                    for vector in vectors(count)]
        return [((), (value, *dense_tiles(program, update)), ())]
    leaf: Leaf = []
    for block in blocks(columns, program.register_columns):
        before: list[Stmt] = []
        inside: list[Stmt] = [*_prefetch("B", program, level, start, block), value]
        after: list[Stmt] = []
        for vector in block:
            off, lanes = vector
            if level == "ji":
                kept = _zeros(lanes) if program.overwrites else _load("D", "i", program, start, vector)
                before.append(Declare(f"d{off}", Type("f32", lanes), kept))
                term = _scaled(_load("B", "j", program, start, vector), vector)
                inside.append(Assign(f"d{off}", Ref(f"d{off}") + term))
                after.append(Store("D", _at("i", program, start, off), Ref(f"d{off}")))
            else:
                before.append(Let(f"b{off}", Type("f32", lanes), _load("B", "j", program, start, vector)))
                inside.append(_add_to_row(program, start, vector, _scaled(Ref(f"b{off}"), vector)))
        leaf.append((before, inside, after))
    return leaf


def sddmm_leaf(program: Program, level: str, *, start: Expr, columns: int) -> Leaf:
    """D(p) += A(p) * sum of B(i,k) C(j,k) over k in `columns` columns from `start`, at the position p of (i,j).

    The row of B (innermost ji) or of C (innermost ii) stays in registers over the run of nonzeros; with ko inside,
    only the partial sums do.
    """
    place = Ref(f"{level}_p")
    value = Load("values", place)
    if _has_inner_tiles(program, level):
        sums = _chains(vectors(program.dense_tile)) | _chains(vectors(program.width % program.dense_tile))
        declared = [Declare(name, Type("f32", lanes), _zeros(lanes)) for name, lanes in sums.items()]

        def update(first: Expr, count: int) -> list[Stmt]:
            steps = []
            for index, vector in enumerate(vectors(count)):
                product = _load("B", "i", program, first, vector) * _load("C", "j", program, first, vector)
                steps.append(Assign(_chain(index, vector), Ref(_chain(index, vector)) + product))
            return steps
        total = _total([(Ref(name), lanes) for name, lanes in sums.items()])
        return [((), (*declared, *dense_tiles(program, update), Store("D", place, value * total)), ())]
    kept, row, moving, moving_row = ("B", "i", "C", "j") if level == "ji" else ("C", "j", "B", "i")
    leaf: Leaf = []
    for number, block in enumerate(blocks(columns, program.register_columns)):
        before = [Let(f"r{off}", Type("f32", lanes), _load(kept, row, program, start, (off, lanes)))
                  for off, lanes in block]
        partial: dict[str, tuple[Expr, int]] = {}
        for index, vector in enumerate(block):
            product: Expr = Ref(f"r{vector[0]}") * _load(moving, moving_row, program, start, vector)
            name = _chain(index, vector)
            partial[name] = (partial[name][0] + product if name in partial else product, vector[1])
        result = value * _total(list(partial.values()))
        update = Store if program.overwrites and number == 0 else Accumulate
        inside = [*_prefetch(moving, program, level, start, block), update("D", place, result)]
        leaf.append((before, inside, ()))
    return leaf


def _has_inner_tiles(program: Program, level: str) -> bool:
    return "ko" in program.order and program.order.index("ko") > program.order.index(level)


def _prefetch(buffer: str, program: Program, level: str, start: Expr, block: list[Vector]) -> list[Stmt]:
    """Fetch the row of a dense operand that a later nonzero of the run, or of the next run, will need.

    Measured on seven matrices at width 256: 0 to 10 % faster, never slower.
    """
    if level != "ji" or not program.is_compressed("ji"):
        return []
    ahead: Expr = Cast(I64, Load("ji_crd", Ref("ji_p") + PADDING))
    if "jo" in program.order:
        ahead = Ref("jo") * Ref("cols_tile") + ahead
    return [Let("ahead", I64, ahead),
            *(Prefetch(buffer, _at("ahead", program, start, off)) for off, lanes in block if lanes == LANES)]


def _at(row: str, program: Program, start: Expr, off: int) -> Expr:
    """Index of column `start` + `off` in row i or j of a dense operand."""
    index = Ref(row) * program.width
    if start != Const(0):
        index = index + start
    return index + off if off else index


def _load(buffer: str, row: str, program: Program, start: Expr, vector: Vector) -> Load:
    return Load(buffer, _at(row, program, start, vector[0]), vector[1])


def _add_to_row(program: Program, start: Expr, vector: Vector, term: Expr) -> Accumulate:
    return Accumulate("D", _at("i", program, start, vector[0]), term)


def _scaled(term: Expr, vector: Vector) -> Expr:
    """Multiply by the value of A, which is bound as `a`."""
    return (Broadcast(Ref("a"), vector[1]) if vector[1] > 1 else Ref("a")) * term


def _zeros(lanes: int) -> Expr:
    return Broadcast(Const(0.0, F32), lanes) if lanes > 1 else Const(0.0, F32)


def _chain(index: int, vector: Vector) -> str:
    """Name of the sum that the vector number `index` adds to."""
    return f"s{vector[1]}_{index % CHAINS if vector[1] == LANES else 0}"


def _chains(cut: list[Vector]) -> dict[str, int]:
    return {_chain(index, vector): vector[1] for index, vector in enumerate(cut)}


def _total(sums: list[tuple[Expr, int]]) -> Expr:
    """Add vectors of equal lanes, then their lanes, then all."""
    by_lanes: dict[int, Expr] = {}
    for expr, lanes in sums:
        by_lanes[lanes] = by_lanes[lanes] + expr if lanes in by_lanes else expr
    scalars = [Sum(expr) if lanes > 1 else expr for lanes, expr in by_lanes.items()]
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar
    return total
