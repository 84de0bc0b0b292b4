"""Lowering of schedules: a configuration becomes a program, a program becomes a kernel of the loop IR.

`lower` builds the loop nest down to the innermost sparse loop. A leaf is that loop with the dense loops inside it,
which decides what stays in registers: a list of (before, inside, after), statements before the loop, in its body and
after it, one entry per block of dense columns. The body can use i, j and the position `<level>_p`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparloom.ir import (
    F32,
    I32,
    I64,
    Accumulate,
    Assign,
    Binary,
    Broadcast,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Param,
    Prefetch,
    Ref,
    Stmt,
    Store,
    Sum,
    Type,
    verify,
)
from sparloom.platforms.cpu_schedules.storage import LEVELS, PADDING, Layout
from sparloom.space import Config

LANES = 16
Vector = tuple[int, int]  # first column, lanes

Leaf = list[tuple[Sequence[Stmt], Sequence[Stmt], Sequence[Stmt]]]

CHAINS = 4  # independent sums of a dot product, to hide the latency of additions

SCALARS = ("rows", "cols", "rows_tile", "cols_tile", "row_tiles", "col_tiles", "stored", "chunk")
"""Run-time numbers of every kernel, in order; `stored` is the number of stored values of the sparse operand."""

EXTENT = {"io": Ref("row_tiles"), "ii": Ref("rows_tile"), "jo": Ref("col_tiles"), "ji": Ref("cols_tile")}
ZEROED_AT_ONCE = 16384  # elements, 64 KiB


@dataclass(frozen=True)
class Program:
    """A loop nest over one sparse operand: a configuration without the numbers that are passed at run time.

    Those are the tile sizes of rows and columns, and the chunk. Loops of extent 1 are left out: jo if one tile holds
    every column, ko if one tile holds the whole width. So configurations that differ only in the position of such a
    loop share their program.

    Args:
        op: "spmm" or "sddmm".
        order: loops outer to inner, ki last.
        compressed: for each level of LEVELS; False for a level that is left out.
        parallel: the loop that is shared among threads, or None if it is left out.
        width: columns of the dense operands.
        dense_tile: columns of a tile, at most `width`.
        register_columns: columns that are kept in registers at once.
    """

    op: str
    order: tuple[str, ...]
    compressed: tuple[bool, ...]
    parallel: str | None
    width: int
    dense_tile: int
    register_columns: int

    @classmethod
    def of(cls, op: str, config: Config, layout: Layout, *, width: int, register_columns: int) -> "Program":
        """Make the program of `config` for a matrix laid out as `layout`."""
        chosen = config["dense_tile"]
        tile = width if chosen == "all" else min(int(chosen), width)
        absent = {name for name, there in (("jo", layout.extent("jo") > 1), ("ko", tile < width)) if not there}
        order = tuple(loop for loop in str(config["order"]).split(".") if loop not in absent)
        parallel = str(config["parallel"])
        return cls(
            op=op,
            order=order,
            compressed=tuple(layout.compressed[layout.order.index(level)] for level in LEVELS),
            parallel=None if parallel in absent else parallel,
            width=width,
            dense_tile=tile,
            register_columns=register_columns,
        )

    def is_compressed(self, level: str) -> bool:
        return self.compressed[LEVELS.index(level)]

    @property
    def name(self) -> str:
        """Name of the kernel, a C identifier."""
        formats = "".join("UC"[compressed] for compressed in self.compressed)
        loops = "_".join(self.order)
        return f"{self.op}_{loops}_{formats}_{self.parallel or 'serial'}_{self.width}_{self.dense_tile}_" \
               f"{self.register_columns}"

    @property
    def levels(self) -> tuple[str, ...]:
        """Storage levels that have a loop, outer to inner."""
        return tuple(loop for loop in self.order if loop in LEVELS)

    @property
    def overwrites(self) -> bool:
        """Tell whether every element of the result is stored before it is read, so that it need not be zeroed.

        SpMM: the innermost sparse loop runs over all columns of a row, and no row is left out.
        SDDMM: the dense loops are inside all sparse ones.
        """
        if self.op == "sddmm":
            return "ko" not in self.order or self.order.index("ko") > self.order.index(self.levels[-1])
        every_row = not (self.is_compressed("io") or self.is_compressed("ii"))
        return "jo" not in self.order and self.order[-2] == "ji" and every_row


def dense_tiles(program: Program, body: Callable[[Expr, int], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """for k: S  ->  for ko: for k in tile: S, then the rest of the width as a loop of one iteration.

    `body` receives the first column and the number of columns, so that all extents inside are constants.
    """
    full, rest = divmod(program.width, program.dense_tile)
    start = Ref("ko") * program.dense_tile
    loops = [For("ko", Const(0), Const(full), tuple(body(start, program.dense_tile)))]
    if rest:
        loops.append(For("ko", Const(full), Const(full + 1), tuple(body(start, rest))))
    return tuple(loops)


def vectors(columns: int) -> list[Vector]:
    """Split columns into vectors of 16 lanes, then 8, 4, 2 and 1."""
    cut, start, lanes = [], 0, LANES
    while start < columns:
        while lanes > columns - start:
            lanes //= 2
        cut.append((start, lanes))
        start += lanes
    return cut


def blocks(columns: int, register_columns: int) -> list[list[Vector]]:
    """Split columns into blocks of at most `register_columns`, each a list of vectors."""
    cut = []
    for start in range(0, columns, register_columns):
        cut.append([(start + off, lanes) for off, lanes in vectors(min(register_columns, columns - start))])
    return cut


def spmm_leaf(program: Program, level: str, *, start: Expr, columns: int) -> Leaf:
    """D(i,k) += A(i,j) B(j,k) for k in `columns` columns from `start`.

    With ji innermost, D(i, block) stays in registers over the nonzeros of a row; with ii innermost, B(j, block) does.
    With ko inside, each nonzero updates all of D(i,:) in memory.
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
                initial = _zeros(lanes) if program.overwrites else _load("D", "i", program, start, vector)
                before.append(Declare(f"d{off}", Type("f32", lanes), initial))
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

    The row of B (ji innermost) or of C (ii innermost) stays in registers over the nonzeros; with ko inside, only the
    partial sums do.
    """
    position = Ref(f"{level}_p")
    value = Load("values", position)
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
        return [((), (*declared, *dense_tiles(program, update), Store("D", position, value * total)), ())]
    fixed, row, moving, moving_row = ("B", "i", "C", "j") if level == "ji" else ("C", "j", "B", "i")
    leaf: Leaf = []
    for number, block in enumerate(blocks(columns, program.register_columns)):
        before = [Let(f"r{off}", Type("f32", lanes), _load(fixed, row, program, start, (off, lanes)))
                  for off, lanes in block]
        partial: dict[str, tuple[Expr, int]] = {}
        for index, vector in enumerate(block):
            product: Expr = Ref(f"r{vector[0]}") * _load(moving, moving_row, program, start, vector)
            name = _chain(index, vector)
            partial[name] = (partial[name][0] + product if name in partial else product, vector[1])
        result = value * _total(list(partial.values()))
        update = Store if program.overwrites and number == 0 else Accumulate
        inside = [*_prefetch(moving, program, level, start, block), update("D", position, result)]
        leaf.append((before, inside, ()))
    return leaf


def lower(program: Program) -> Kernel:
    """Build the loop nest of `program`.

    for i: for j: for k: S  ->  the six halves of these loops in the order of the program: S, where S is
    D(i,k) += A(i,j) B(j,k) or D(i,j) += A(i,j) B(i,k) C(j,k).

    A dense level loops over coordinates, a compressed level over stored positions. The parallel loop is split into
    groups of `chunk` iterations, which are scheduled dynamically. Legal if outer loops come before their inner ones and
    ki is last; iterations of the parallel loop write different elements.

    Parameters: `<level>_pos` and `<level>_crd` of compressed levels, `values`, dense operands, result D; then SCALARS.
    """
    leaf = spmm_leaf if program.op == "spmm" else sddmm_leaf
    body = _Nest(program, leaf).statements()
    if not program.overwrites:
        body = (*_zero(program), *body)
    kernel = Kernel(program.name, _parameters(program), body)
    verify(kernel)
    return kernel


def _has_inner_tiles(program: Program, level: str) -> bool:
    return "ko" in program.order and program.order.index("ko") > program.order.index(level)


def _prefetch(buffer: str, program: Program, level: str, start: Expr, block: list[Vector]) -> list[Stmt]:
    """Prefetch the row of a dense operand that a later nonzero of this row, or of the next one, will need.

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
    """Compute the index of column `start` + `off` in row i or j of a dense operand."""
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
    """Name the partial sum to which vector number `index` adds."""
    return f"s{vector[1]}_{index % CHAINS if vector[1] == LANES else 0}"


def _chains(cut: list[Vector]) -> dict[str, int]:
    return {_chain(index, vector): vector[1] for index, vector in enumerate(cut)}


def _total(sums: list[tuple[Expr, int]]) -> Expr:
    """Add vectors of equal lanes, reduce their lanes, add the sums."""
    by_lanes: dict[int, Expr] = {}
    for expr, lanes in sums:
        by_lanes[lanes] = by_lanes[lanes] + expr if lanes in by_lanes else expr
    scalars = [Sum(expr) if lanes > 1 else expr for lanes, expr in by_lanes.items()]
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar
    return total


class _Nest:
    def __init__(self, program: Program, leaf: Callable[..., Leaf]) -> None:
        self.program = program
        self.leaf = leaf

    def statements(self) -> tuple[Stmt, ...]:
        return self._loop(0, parent=Const(0), start=Const(0), columns=self.program.width)

    def _loop(self, depth: int, *, parent: Expr, start: Expr, columns: int) -> tuple[Stmt, ...]:
        """Build the loops from `depth` on, below position `parent`, for `columns` dense columns from `start`."""
        loop = self.program.order[depth]
        if loop == "ko":
            return dense_tiles(self.program, lambda first, count: self._loop(
                depth + 1, parent=parent, start=first, columns=count))
        if loop == self.program.levels[-1]:
            leaf = self.leaf(self.program, loop, start=start, columns=columns)
            statements: list[Stmt] = []
            for before, inside, after in leaf:
                statements += [*before, *self._level(loop, parent, inside), *after]
            return tuple(statements)
        inner = self._loop(depth + 1, parent=Ref(f"{loop}_p"), start=start, columns=columns)
        return self._level(loop, parent, inner)

    def _level(self, level: str, parent: Expr, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Build the loop over one storage level; binds its position `<level>_p`, and i or j below an inner level."""
        position = f"{level}_p"
        if self.program.is_compressed(level):
            bounds = tuple(Cast(I64, Load(f"{level}_pos", _plus(parent, step))) for step in (0, 1))
            found = (Let(level, I64, Cast(I64, Load(f"{level}_crd", Ref(position)))),)
            return self._for(level, position, bounds, (*found, *self._coordinate(level), *body))
        extent = Ref("cols") if level == "ji" and "jo" not in self.program.order else EXTENT[level]
        below = Ref(level) if parent == Const(0) else parent * extent + Ref(level)
        bounds = (Const(0), self._bound(level, extent))
        return self._for(level, level, bounds, (Let(position, I64, below), *self._coordinate(level), *body))

    def _bound(self, level: str, extent: Expr) -> Expr:
        """Count the coordinates of a dense level: the last tile may extend beyond the edge of the matrix."""
        if level == "ii":
            return Binary("min", extent, Ref("rows") - Ref("io") * Ref("rows_tile"))
        if level == "ji" and "jo" in self.program.order:
            return Binary("min", extent, Ref("cols") - Ref("jo") * Ref("cols_tile"))
        return extent

    def _coordinate(self, level: str) -> tuple[Stmt, ...]:
        if level == "ii":
            return (Let("i", I64, Ref("io") * Ref("rows_tile") + Ref("ii")),)
        if level == "ji":
            tiled = "jo" in self.program.order
            return (Let("j", I64, Ref("jo") * Ref("cols_tile") + Ref("ji") if tiled else Ref("ji")),)
        return ()

    def _for(self, level: str, var: str, bounds: tuple[Expr, Expr], body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        if level != self.program.parallel:
            return (For(var, *bounds, tuple(body)),)
        first, end, chunk, group = Ref("first"), Ref("end"), Ref("chunk"), Ref("group")
        share = For(var, first + group * chunk, Binary("min", end, first + (group + 1) * chunk), tuple(body))
        groups = (end - first + chunk - 1) // chunk
        return (
            Let("first", I64, bounds[0]),
            Let("end", I64, bounds[1]),
            For("group", Const(0), groups, (share,), kind="parallel", chunk=1),
        )


def _parameters(program: Program) -> tuple[Param, ...]:
    names = [f"{level}_{part}" for level in program.levels if program.is_compressed(level) for part in ("pos", "crd")]
    dense = ["B"] if program.op == "spmm" else ["B", "C"]
    return (
        *(Param(name, I32, buffer=True) for name in names),
        *(Param(name, F32, buffer=True) for name in ("values", *dense)),
        Param("D", F32, buffer=True, const=False),
        *(Param(name, I64) for name in SCALARS),
    )


def _zero(program: Program) -> tuple[Stmt, ...]:
    size = Ref("rows") * program.width if program.op == "spmm" else Ref("stored")
    share = For("z", Ref("part") * ZEROED_AT_ONCE, Binary("min", size, (Ref("part") + 1) * ZEROED_AT_ONCE),
                (Store("D", Ref("z"), Const(0.0, F32)),), kind="simd")
    parts = (size + (ZEROED_AT_ONCE - 1)) // ZEROED_AT_ONCE
    return (For("part", Const(0), parts, (share,), kind="parallel" if program.parallel else "serial"),)


def _plus(expr: Expr, step: int) -> Expr:
    if isinstance(expr, Const):
        return Const(int(expr.value) + step)
    return expr + step if step else expr
