"""Variable-sized batched GEMM: c[b] = a[b] b[b], every product of its own size."""

from __future__ import annotations

from collections.abc import Sequence

from sparloom.ir import Const
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.program import Operation, Program, compute, minimum, sum_over
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, one_block_per_row, parallel, remap, reorder, split, unroll, vectorise
from sparloom.ragged.schedule.operations import offload
from sparloom.ragged.schedule.storage import PANEL, copied_to_panels, pad_loop, pad_storage
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import Length, Tensor

__all__ = ["device_vgemm", "scheduled_vgemm", "tiled_vgemm", "vgemm", "vgemm_structure"]

item, row, col, inner = dims("item row col inner")
PRODUCTS = Length("products")
ROWS, COLS, INNER = (Length(name, {item: PRODUCTS()}) for name in ("rows", "cols", "inners"))


def vgemm_structure(rows: Sequence[int], cols: Sequence[int], inners: Sequence[int]) -> Structure:
    """Give the sizes of the products: c[b] is rows[b] x cols[b], the reduction inners[b] long."""
    return Structure({ROWS: rows, COLS: cols, INNER: inners})


def vgemm() -> Program:
    """Define c = a b, unscheduled: a[item, row, inner], b[item, inner, col], packed without padding.

    `pad_storage(..., full=...)` stores the operands fully padded, as the paper does.

    Source: CoRa §7.1.
    """
    return program("vgemm", [_product(*_operands())])


def tiled_vgemm(*, rows: int = 48, cols: int = 256, panel: int = PANEL, depth: int = 512) -> Program:
    """Schedule `vgemm` for a CPU with products of tiles; nothing is padded.

    A task is a block of columns of one product. It copies its part of b into panels, then runs through tiles of rows.
    Tasks with the most work are first.

    Args:
        rows: of a tile.
        cols: of a task.
        panel: columns that lie side by side in the copy.
        depth: of the reduction, that a tile of rows meets all panels with.
    """
    a, b = _operands()
    near = compute("near", {item: PRODUCTS(), inner: INNER(item), col: COLS(item)}, b[item, inner, col])
    given = program("tiled_vgemm", [near, _product(a, near.output)])
    given = split(split(split(given, "c", "row", rows), "c", "col", cols), "c", "inner", depth)
    given = reorder(given, "c", ("item", "col_outer", "inner_outer", "row_outer", "row_inner", "col_inner",
                                 "inner_inner"))
    given = compute_at(fuse(given, "c", "item", "col_outer"), "near", "c", "item_col_outer", local=True)
    given = copied_to_panels(given, "near", panel=panel, depth=depth)
    given = split(given, "c", "col_inner", panel)
    tile = ("row_inner", "col_inner_inner", "inner_inner")
    given = offload(reorder(given, "c", ("inner_outer", "row_outer", "col_inner_outer", *tile)), "c", *tile)
    width = minimum(COLS(item) - Dim("col_outer") * cols, Const(cols))
    given = remap(given, "c", "item_col_outer", ROWS(item) * INNER(item) * width)
    return parallel(given, "c", "item_col_outer_th")


def scheduled_vgemm(*, rows: int = 8, cols: int = 32) -> Program:
    """Schedule `vgemm` for a CPU.

    Rows and columns are padded, loops and storage, to whole tiles, which a compiler keeps in registers while the
    reduction runs, columns in vector lanes. Tiles of rows of all products are one parallel loop, those of large
    products first.

    Args:
        rows, cols: extent of a tile; padding costs least where they divide the sizes.
    """
    padded = vgemm()
    for tensor, padding in {"a": {row: rows}, "b": {col: cols}, "c": {row: rows, col: cols}}.items():
        padded = pad_storage(padded, tensor, padding)
    padded = pad_loop(pad_loop(padded, "c", row, rows), "c", col, cols)
    tiled = split(split(padded, "c", "row", rows), "c", "col", cols)
    tiled = reorder(tiled, "c", ("item", "row_outer", "col_outer", "inner", "row_inner", "col_inner"))
    fused = remap(fuse(tiled, "c", "item", "row_outer"), "c", "item_row_outer")
    return vectorise(unroll(parallel(fused, "c", "item_row_outer_th"), "c", "row_inner"), "c", "col_inner")


def device_vgemm() -> Program:
    """Schedule `vgemm`."""
    return one_block_per_row(vgemm(), "c", 2)


def _operands() -> tuple[Tensor, Tensor]:
    return (Tensor("a", {item: PRODUCTS(), row: ROWS(item), inner: INNER(item)}),
            Tensor("b", {item: PRODUCTS(), inner: INNER(item), col: COLS(item)}))


def _product(a: Tensor, b: Tensor) -> Operation:
    return compute("c", {item: PRODUCTS(), row: ROWS(item), col: COLS(item)},
                   sum_over({inner: INNER(item)}, a[item, row, inner] * b[item, inner, col]))
