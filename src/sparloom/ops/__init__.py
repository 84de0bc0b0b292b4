"""Operations: operands, float64 oracles, counts of flops and bytes.

op: the interface; sparse: operations on one sparse matrix; pairs: two products in a row; gemm: dense GEMM; compare:
results against oracles.
"""

from sparloom.ops.compare import OracleBounds, assert_close, assert_few_close, assert_rows_close, few_rows
from sparloom.ops.gemm import GEMM, LAYOUTS, DenseOperands, GemmProblem, GemmShape, GemmShapes
from sparloom.ops.op import Op, Operands, Work
from sparloom.ops.pairs import GemmSpmm, SpmmGemm, SpmmSpmm
from sparloom.ops.sparse import SDDMM, CsrAttention, SpMM, SpmmMax, SpmmMean

__all__ = [
    "GEMM", "LAYOUTS", "SDDMM", "CsrAttention", "DenseOperands", "GemmProblem", "GemmShape", "GemmShapes", "GemmSpmm",
    "Op", "Operands", "OracleBounds", "SpMM", "SpmmGemm", "SpmmMax", "SpmmMean", "SpmmSpmm", "Work", "assert_close",
    "assert_few_close", "assert_rows_close", "few_rows",
]
