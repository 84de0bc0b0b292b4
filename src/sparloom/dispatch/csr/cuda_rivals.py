"""Baselines on a GPU that are always there: cuSPARSE for SpMM, gather-dot for SDDMM."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.dispatch.csr.rivals import Library, Product
from sparloom.platforms import DeviceMatrix, cusparse_spmm

__all__ = ["CUDA_LIBRARIES", "gather_dot"]


def gather_dot(matrix: DeviceMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and add up, in float32.

    Source: AutoSAGE's baseline for SDDMM.
    """
    rows, cols, values = matrix.gpu.upload(matrix.pattern.row_ids()), matrix.placed.indices, matrix.values

    def product(dense: Mapping[str, Any]) -> Any:
        left, right = (dense[name].astype(np.float32, copy=False) for name in ("B", "C"))
        return ((left[rows] * right[cols]).sum(1) * values).astype(values.dtype, copy=False)

    return product


def _cusparse(matrix: DeviceMatrix, threads: int, *, algorithm: str) -> Product:
    return cusparse_spmm(matrix, algorithm)


CUDA_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    "spmm": MappingProxyType({"cusparse": partial(_cusparse, algorithm="default"),
                              "cusparse_alg2": partial(_cusparse, algorithm="alg2")}),
    "sddmm": MappingProxyType({"gather_dot": gather_dot})})
"""Operation -> name -> library."""
