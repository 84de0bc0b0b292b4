"""Lowering of a program to the loop IR: the nest around the innermost sparse loop."""

from collections.abc import Callable, Sequence

from sparloom.ir import (
    F32,
    I32,
    I64,
    Binary,
    Cast,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Stmt,
    Store,
    verify,
)
from sparloom.platforms.cpu.columns import dense_tiles
from sparloom.platforms.cpu.leaf import Leaf, sddmm_leaf, spmm_leaf
from sparloom.platforms.cpu.program import Program

__all__ = ["lower"]

SCALARS = ("rows", "cols", "rows_tile", "cols_tile", "row_tiles", "col_tiles", "stored", "chunk")
"""Run-time numbers of every kernel, in order; `stored` counts the stored values of the sparse operand."""

EXTENT = {"io": Ref("row_tiles"), "ii": Ref("rows_tile"), "jo": Ref("col_tiles"), "ji": Ref("cols_tile")}
ZEROED_AT_ONCE = 16384  # elements, 64 KiB


def lower(program: Program) -> Kernel:
    """Write the loops of `program`.

    for i: for j: for k: S  ->  the six halves of these loops in the given order: S, where S is
    D(i,k) += A(i,j) B(j,k) or D(i,j) += A(i,j) B(i,k) C(j,k).

    A dense level loops over coordinates, a compressed level over stored positions. The parallel loop is cut into groups
    of `chunk` iterations, handed out dynamically. Legal when outer loops come before their inner ones and ki is last;
    iterations of the parallel loop write different elements.

    Parameters: `<level>_pos` and `<level>_crd` of compressed levels, `values`, dense operands, result D; then SCALARS.
    """
    leaf = spmm_leaf if program.op == "spmm" else sddmm_leaf
    body = _Nest(program, leaf).statements()
    if not program.overwrites:
        body = (*_zero(program), *body)
    kernel = Kernel(program.name, _parameters(program), body)
    verify(kernel)
    return kernel


class _Nest:
    def __init__(self, program: Program, leaf: Callable[..., Leaf]) -> None:
        self.program = program
        self.leaf = leaf

    def statements(self) -> tuple[Stmt, ...]:
        return self._loop(0, parent=Const(0), start=Const(0), columns=self.program.width)

    def _loop(self, depth: int, *, parent: Expr, start: Expr, columns: int) -> tuple[Stmt, ...]:
        """Loops from `depth` on, below position `parent`, for `columns` dense columns from `start`."""
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
        """Loop over one storage level; binds its position `<level>_p`, and i or j below an inner level."""
        place = f"{level}_p"
        if self.program.is_compressed(level):
            bounds = tuple(Cast(I64, Load(f"{level}_pos", _plus(parent, step))) for step in (0, 1))
            found = (Let(level, I64, Cast(I64, Load(f"{level}_crd", Ref(place)))),)
            return self._for(level, place, bounds, (*found, *self._coordinate(level), *body))
        extent = Ref("cols") if level == "ji" and "jo" not in self.program.order else EXTENT[level]
        below = Ref(level) if parent == Const(0) else parent * extent + Ref(level)
        bounds = (Const(0), self._bound(level, extent))
        return self._for(level, level, bounds, (Let(place, I64, below), *self._coordinate(level), *body))

    def _bound(self, level: str, extent: Expr) -> Expr:
        """Coordinates of a dense level: the last tile may reach over the edge of the matrix."""
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
