"""Compute what the accelerator would, in the order of its tiles."""

import numpy as np

from sparloom.ops import Operands
from sparloom.platforms.spade.native import call
from sparloom.platforms.spade.plan import Plan
from sparloom.platforms.spade.tiling import deal, tile
from sparloom.sparse import locality_order, reorder

__all__ = ["execute"]


def execute(op: str, operands: Operands, plan: Plan, *, pes: int) -> np.ndarray:
    """Run SpMM, giving (rows, width), or SDDMM, giving (nnz,) in CSR order, as float32.

    The reordered matrix is computed in its own order; operands and result keep the order of the caller.
    """
    pattern, width = operands.matrix.pattern, operands.width
    rows_perm, cols_perm = np.arange(pattern.rows), np.arange(pattern.cols)
    place = np.arange(pattern.nnz)
    moved = pattern
    if plan.reorder:
        rows_perm, cols_perm = locality_order(pattern)
        moved = reorder(pattern, rows_perm, cols_perm)
        place = _places(pattern.row_ids(), pattern.indices, rows_perm, cols_perm)
    tiling = tile(moved, plan.row_panel, plan.column_panel, with_source=True)
    schedule = deal(tiling, op, pes=pes, barrier=plan.phased)
    values = np.ascontiguousarray(operands.matrix.values[place], dtype=np.float32)
    head = [width, plan.slice_width, tiling.count, tiling.row, tiling.column, tiling.source, tiling.begin,
            schedule.order, values]
    if op == "spmm":
        computed = np.zeros((pattern.rows, width), dtype=np.float32)
        call("spade_spmm", [*head, _taken(operands.dense["B"], cols_perm), computed])
        result = np.empty_like(computed)
        result[rows_perm] = computed
        return result
    products = np.zeros(pattern.nnz, dtype=np.float32)
    b, c = _taken(operands.dense["B"], rows_perm), _taken(operands.dense["C"], cols_perm)
    call("spade_sddmm", [*head, b, c, products])
    result = np.empty_like(products)
    result[place] = products
    return result


def _places(rows: np.ndarray, cols: np.ndarray, rows_perm: np.ndarray, cols_perm: np.ndarray) -> np.ndarray:
    """Place in the original CSR arrays of each nonzero of the reordered pattern."""
    new_row, new_column = np.empty(len(rows_perm), dtype=np.int64), np.empty(len(cols_perm), dtype=np.int64)
    new_row[rows_perm] = np.arange(len(rows_perm))
    new_column[cols_perm] = np.arange(len(cols_perm))
    return np.lexsort((new_column[cols], new_row[rows]))


def _taken(dense: np.ndarray, perm: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(dense[perm], dtype=np.float32)
