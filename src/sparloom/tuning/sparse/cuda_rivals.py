"""Baselines on a GPU that are always there: cuSPARSE for SpMM, gather-dot for SDDMM."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.ops import Operands
from sparloom.platforms import DeviceMatrix, cusparse_spmm
from sparloom.tuning.sparse.rivals import Library, Product, gathered_pieces

__all__ = ["CUDA_LIBRARIES", "gather_dot"]


def gather_dot(matrix: DeviceMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and add up, in float32.

    Source: AutoSAGE's baseline for SDDMM.
    """
    gpu, nnz = matrix.gpu, matrix.pattern.nnz
    rows, cols = gpu.upload(matrix.pattern.row_ids()), matrix.placed.indices

    def product(operands: Operands) -> Any:
        left, right = operands.dense["B"], operands.dense["C"]
        values, result = operands.matrix.values, gpu.empty((nnz,), np.float32)
        for piece in gathered_pieces(nnz, operands.width):
            result[piece] = (_floats(left[rows[piece]]) * _floats(right[cols[piece]])).sum(1)
        result *= values
        return result.astype(values.dtype, copy=False)

    return product


def _cusparse(matrix: DeviceMatrix, threads: int, *, algorithm: str) -> Product:
    return cusparse_spmm(matrix, algorithm)


CUDA_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    "spmm": MappingProxyType({"cusparse": partial(_cusparse, algorithm="default"),
                              "cusparse_alg2": partial(_cusparse, algorithm="alg2")}),
    "sddmm": MappingProxyType({"gather_dot": gather_dot})})
"""Operation -> name -> library."""


def _floats(array: Any) -> Any:
    return array.astype(np.float32, copy=False)
