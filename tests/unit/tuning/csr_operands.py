"""Operands of spmm, sddmm and csr_attention on the CPU, and their expected results."""

import numpy as np
import scipy.sparse

from sparloom.ops import Op, Operands, assert_close
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["close", "dense", "matrix"]


def matrix(rows: int = 300, cols: int = 200, seed: int = 0) -> scipy.sparse.csr_array:
    return scipy.sparse.random_array((rows, cols), density=0.05, format="csr", dtype=np.float32,
                                     rng=np.random.default_rng(seed))


def dense(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def close(op: Op, a: scipy.sparse.csr_array, dense: dict[str, np.ndarray], found: np.ndarray) -> None:
    """Compare with the definition, within the rounding errors of the sums."""
    operands = Operands(SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data), dense)
    assert_close(found, op.oracle(operands), terms=op.terms(operands.matrix.pattern, operands.width),
                 scale=op.scale(operands))
