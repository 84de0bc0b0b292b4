"""Triangular matrix product: out = lower b, where row r of `lower` has r + 1 elements."""

from __future__ import annotations

from sparloom.ir import Binary, Const
from sparloom.ragged.definition import program
from sparloom.ragged.program import Program, compute, less, minimum, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import one_block_per_row, parallel, remap, reorder, split, unroll, vectorise
from sparloom.ragged.schedule.operations import offload, split_operation
from sparloom.ragged.schedule.storage import PANEL, copied_to_panels, pad_loop, pad_storage
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import Length, Tensor
from sparloom.ragged.variable_gemm import col, inner, row

__all__ = ["balanced_trmm", "device_trmm", "split_trmm", "tiled_trmm", "trmm", "trmm_structure", "unsplit_trmm"]

EXTENT = Length("extent")


def trmm_structure(extent: int) -> Structure:
    """Give the number of rows and columns."""
    return Structure({EXTENT: extent})


def trmm() -> Program:
    """Define out = lower b, unscheduled: lower[row, inner < row + 1] packed, b[inner, col] and out[row, col] square.

    Source: CoRa §7.1, where storage is fully padded: `pad_storage(trmm(), "lower", full=(inner,))`.
    """
    lower = Tensor("lower", {row: EXTENT(), inner: row + 1})
    b = Tensor("b", {inner: EXTENT(), col: EXTENT()})
    return program("trmm", [compute("out", {row: EXTENT(), col: EXTENT()}, sum_over(
        {inner: row + 1}, lower[row, inner] * b[inner, col]))])


def unsplit_trmm(*, cols: int = 32) -> Program:
    """Run rows in parallel in order; a row of the triangle ends within a tile, so rows are not tiled."""
    return _rows(_padded(1, cols), "out", cols)


def split_trmm(*, rows: int = 8, cols: int = 32) -> Program:
    """Split the reduction where the diagonal enters a tile of rows, so that the main part has whole tiles.

    Storage is padded to whole tiles.

    Args:
        rows, cols: extent of a tile, which a compiler keeps in registers.
    """
    halves = split_operation(_padded(rows, cols), "out", inner, point=Binary("//", row, Const(rows)) * rows)
    tiled = split(split(halves, "out_main", "row", rows), "out_main", "col", cols)
    tiled = reorder(tiled, "out_main", ("row_outer", "col_outer", "inner", "row_inner", "col_inner"))
    tiled = unroll(parallel(tiled, "out_main", "row_outer"), "out_main", "row_inner")
    return _rows(vectorise(tiled, "out_main", "col_inner"), "out_rest", cols)


def balanced_trmm(*, rows: int = 8, cols: int = 32) -> Program:
    """Run the tiles of the longest rows first."""
    return remap(split_trmm(rows=rows, cols=cols), "out_main", "row_outer")


def tiled_trmm(*, rows: int = 24, cols: int = 256, panel: int = PANEL, depth: int = 512) -> Program:
    """Multiply tiles of rows, up to where the triangle ends in their last row.

    A task is a block of columns, all of the same work. It copies its part of b into panels; the rows of a tile are
    copied to equal lengths, zeros behind their ends, so that they are evenly spaced.

    Args:
        rows: of a tile.
        cols: of a task.
        panel: columns that lie side by side in the copy.
        depth: of the reduction, that a tile of rows meets all panels with.
    """
    lower = Tensor("lower", {row: EXTENT(), inner: row + 1})
    b = Tensor("b", {inner: EXTENT(), col: EXTENT()})
    end = minimum(EXTENT(), (Binary("//", row, Const(rows)) + 1) * rows)
    even = compute("even", {row: EXTENT(), inner: end}, where(less(inner, row + 1), lower[row, inner], real(0.0)))
    near = compute("near", {inner: EXTENT(), col: EXTENT()}, b[inner, col])
    given = program("tiled_trmm", [even, near, compute("out", {row: EXTENT(), col: EXTENT()}, sum_over(
        {inner: end}, even[row, inner] * near[inner, col]))])
    given = reorder(split(split(given, "out", "row", rows), "out", "col", cols), "out", (
        "col_outer", "row_outer", "row_inner", "col_inner", "inner"))
    given = compute_at(given, "even", "out", "row_outer", local=True)
    given = compute_at(given, "near", "out", "col_outer", local=True)
    given = copied_to_panels(vectorise(given, "even", "inner"), "near", panel=panel, depth=depth)
    given = split(split(given, "out", "col_inner", panel), "out", "inner", depth)
    tile = ("row_inner", "col_inner_inner", "inner_inner")
    given = offload(reorder(given, "out", ("inner_outer", "col_inner_outer", *tile)), "out", *tile)
    return parallel(given, "out", "col_outer")


def device_trmm() -> Program:
    """Schedule `trmm`."""
    return one_block_per_row(trmm(), "out", 1)


def _padded(rows: int, cols: int) -> Program:
    padded = trmm()
    for tensor, padding in {
            "lower": {row: rows}, "b": {inner: rows, col: cols}, "out": {row: rows, col: cols}}.items():
        padded = pad_storage(padded, tensor, padding)
    return pad_loop(pad_loop(padded, "out", row, rows), "out", col, cols)


def _rows(given: Program, nest: str, cols: int) -> Program:
    tiled = split(given, nest, "col", cols)
    reduction = [loop.name for loop in tiled.nest(nest).loops if loop.reduces]
    tiled = reorder(tiled, nest, ("row", "col_outer", *reduction, "col_inner"))
    return vectorise(parallel(tiled, nest, "row"), nest, "col_inner")
