"""Ragged matrix products: variable-sized batched GEMM (vgemm), and triangular matrix product (trmm).

vgemm computes c[b] = a[b] b[b], every product with its own sizes; trmm computes out = lower b, where row r of `lower`
has r + 1 elements.

Source: CoRa §7.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparloom.ir import Binary, Const
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.nests import Operation, Program, compute, less, minimum, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, one_block_per_row, parallel, remap, reorder, split, unroll, vectorise
from sparloom.ragged.schedule.operations import PANEL, offload, pad_all, split_operation, store_in_panels
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import Length, Tensor

item, row, col, inner = dims("item row col inner")
PRODUCTS = Length("products")
ROWS, COLS, INNER = (Length(name, {item: PRODUCTS()}) for name in ("rows", "cols", "inners"))
EXTENT = Length("extent")


def vgemm_structure(rows: Sequence[int], cols: Sequence[int], inners: Sequence[int]) -> Structure:
    """Return the structure for products of sizes c[b] of rows[b] x cols[b], with reductions of inners[b]."""
    return Structure({ROWS: rows, COLS: cols, INNER: inners})


def vgemm() -> Program:
    """Define c = a b, unscheduled: a[item, row, inner], b[item, inner, col], packed without padding.

    `pad_storage(..., full=...)` stores the operands fully padded, as the paper does.
    """
    return program("vgemm", [_product(*_operands())])


def tiled_vgemm(*, rows: int = 48, cols: int = 256, panel: int = PANEL, depth: int = 512) -> Program:
    """Schedule `vgemm` for a CPU with tile products; nothing is padded.

    A task is a block of columns of one product. It copies its part of b into panels, then loops over tiles of rows.
    Tasks with the most work run first.

    Args:
        rows: rows of a tile.
        cols: columns of a task.
        panel: contiguous columns of the copy.
        depth: part of the reduction after which a tile of rows moves on to the next panel.
    """
    a, b = _operands()
    near = compute("near", {item: PRODUCTS(), inner: INNER(item), col: COLS(item)}, b[item, inner, col])
    prog = program("tiled_vgemm", [near, _product(a, near.output)])
    prog = split(split(split(prog, "c", "row", rows), "c", "col", cols), "c", "inner", depth)
    prog = reorder(prog, "c", ("item", "col_outer", "inner_outer", "row_outer", "row_inner", "col_inner",
                               "inner_inner"))
    prog = compute_at(fuse(prog, "c", "item", "col_outer"), "near", "c", "item_col_outer", local=True)
    prog = store_in_panels(prog, "near", panel=panel, depth=depth)
    prog = split(prog, "c", "col_inner", panel)
    tile = ("row_inner", "col_inner_inner", "inner_inner")
    prog = offload(reorder(prog, "c", ("inner_outer", "row_outer", "col_inner_outer", *tile)), "c", *tile)
    width = minimum(COLS(item) - Dim("col_outer") * cols, Const(cols))
    prog = remap(prog, "c", "item_col_outer", ROWS(item) * INNER(item) * width)
    return parallel(prog, "c", "item_col_outer_th")


def device_vgemm() -> Program:
    """Schedule `vgemm` for a GPU: a block per row, a thread per column."""
    return one_block_per_row(vgemm(), "c", 2)


def _operands() -> tuple[Tensor, Tensor]:
    return (Tensor("a", {item: PRODUCTS(), row: ROWS(item), inner: INNER(item)}),
            Tensor("b", {item: PRODUCTS(), inner: INNER(item), col: COLS(item)}))


def _product(a: Tensor, b: Tensor) -> Operation:
    return compute("c", {item: PRODUCTS(), row: ROWS(item), col: COLS(item)},
                   sum_over({inner: INNER(item)}, a[item, row, inner] * b[item, inner, col]))


def trmm_structure(extent: int) -> Structure:
    """Return the structure for a number of rows and columns."""
    return Structure({EXTENT: extent})


def trmm() -> Program:
    """Define out = lower b, unscheduled: lower[row, inner < row + 1] packed, b[inner, col] and out[row, col] square.

    The paper pads storage fully: `pad_storage(trmm(), "lower", full=(inner,))`.
    """
    lower = Tensor("lower", {row: EXTENT(), inner: row + 1})
    b = Tensor("b", {inner: EXTENT(), col: EXTENT()})
    return program("trmm", [compute("out", {row: EXTENT(), col: EXTENT()}, sum_over(
        {inner: row + 1}, lower[row, inner] * b[inner, col]))])


def unsplit_trmm(*, cols: int = 32) -> Program:
    """Run rows in parallel, in order; rows are not tiled, since a row of the triangle ends within a tile."""
    return _rows(_padded(1, cols), "out", cols)


def split_trmm(*, rows: int = 8, cols: int = 32) -> Program:
    """Split the reduction where the diagonal enters a tile of rows, so that the main part has whole tiles.

    Storage is padded to whole tiles.

    Args:
        rows, cols: extents of a tile, which a compiler keeps in registers.
    """
    halves = split_operation(_padded(rows, cols), "out", inner, point=Binary("//", row, Const(rows)) * rows)
    tiled = split(split(halves, "out_main", "row", rows), "out_main", "col", cols)
    tiled = reorder(tiled, "out_main", ("row_outer", "col_outer", "inner", "row_inner", "col_inner"))
    tiled = unroll(parallel(tiled, "out_main", "row_outer"), "out_main", "row_inner")
    return _rows(vectorise(tiled, "out_main", "col_inner"), "out_rest", cols)


def balanced_trmm(*, rows: int = 8, cols: int = 32) -> Program:
    """Schedule like `split_trmm`, with the tiles of the longest rows first."""
    return remap(split_trmm(rows=rows, cols=cols), "out_main", "row_outer")


def tiled_trmm(*, rows: int = 24, cols: int = 256, panel: int = PANEL, depth: int = 512) -> Program:
    """Multiply tiles of rows, up to the end of their last row.

    A task is a block of columns; all tasks have the same work. It copies its part of b into panels; the rows of a tile
    are copied to equal lengths, with zeros after their ends, so that they are evenly spaced.

    Args:
        rows: rows of a tile.
        cols: columns of a task.
        panel: contiguous columns of the copy.
        depth: part of the reduction after which a tile of rows moves on to the next panel.
    """
    lower = Tensor("lower", {row: EXTENT(), inner: row + 1})
    b = Tensor("b", {inner: EXTENT(), col: EXTENT()})
    end = minimum(EXTENT(), (Binary("//", row, Const(rows)) + 1) * rows)
    even = compute("even", {row: EXTENT(), inner: end}, where(less(inner, row + 1), lower[row, inner], real(0.0)))
    near = compute("near", {inner: EXTENT(), col: EXTENT()}, b[inner, col])
    prog = program("tiled_trmm", [even, near, compute("out", {row: EXTENT(), col: EXTENT()}, sum_over(
        {inner: end}, even[row, inner] * near[inner, col]))])
    prog = reorder(split(split(prog, "out", "row", rows), "out", "col", cols), "out", (
        "col_outer", "row_outer", "row_inner", "col_inner", "inner"))
    prog = compute_at(prog, "even", "out", "row_outer", local=True)
    prog = compute_at(prog, "near", "out", "col_outer", local=True)
    prog = store_in_panels(vectorise(prog, "even", "inner"), "near", panel=panel, depth=depth)
    prog = split(split(prog, "out", "col_inner", panel), "out", "inner", depth)
    tile = ("row_inner", "col_inner_inner", "inner_inner")
    prog = offload(reorder(prog, "out", ("inner_outer", "col_inner_outer", *tile)), "out", *tile)
    return parallel(prog, "out", "col_outer")


def device_trmm() -> Program:
    """Schedule `trmm` for a GPU: a block per row, a thread per column."""
    return one_block_per_row(trmm(), "out", 1)


def _padded(rows: int, cols: int) -> Program:
    tile = {row: rows, col: cols}
    return pad_all(trmm(), {"lower": {row: rows}, "b": {inner: rows, col: cols}, "out": tile}, "out", tile)


def _rows(prog: Program, nest: str, cols: int) -> Program:
    tiled = split(prog, nest, "col", cols)
    reduction = [loop.name for loop in tiled.nest(nest).loops if loop.reduces]
    tiled = reorder(tiled, nest, ("row", "col_outer", *reduction, "col_inner"))
    return vectorise(parallel(tiled, nest, "row"), nest, "col_inner")
