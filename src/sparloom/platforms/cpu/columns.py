"""Dense columns of constant extent: tiles of the loop ko, blocks held in registers, vectors."""

from collections.abc import Callable, Sequence

from sparloom.ir import Const, Expr, For, Ref, Stmt
from sparloom.platforms.cpu.program import Program

__all__ = ["LANES", "Vector", "blocks", "dense_tiles", "vectors"]

LANES = 16
Vector = tuple[int, int]  # first column, lanes


def dense_tiles(program: Program, body: Callable[[Expr, int], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """for k: S  ->  for ko: for k in tile: S, then the rest of the width as a loop of one iteration.

    `body` is given the first column and the number of columns, so that all extents below are constants.
    """
    full, rest = divmod(program.width, program.dense_tile)
    start = Ref("ko") * program.dense_tile
    loops = [For("ko", Const(0), Const(full), tuple(body(start, program.dense_tile)))]
    if rest:
        loops.append(For("ko", Const(full), Const(full + 1), tuple(body(start, rest))))
    return tuple(loops)


def vectors(columns: int) -> list[Vector]:
    """Cut columns into vectors of 16 lanes, then 8, 4, 2 and 1."""
    cut, start, lanes = [], 0, LANES
    while start < columns:
        while lanes > columns - start:
            lanes //= 2
        cut.append((start, lanes))
        start += lanes
    return cut


def blocks(columns: int, register_columns: int) -> list[list[Vector]]:
    """Cut columns into blocks of at most `register_columns`, each a list of vectors."""
    cut = []
    for start in range(0, columns, register_columns):
        cut.append([(start + off, lanes) for off, lanes in vectors(min(register_columns, columns - start))])
    return cut
