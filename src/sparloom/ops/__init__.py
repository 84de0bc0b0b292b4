"""Operations: operands, float64 oracles, counts of flops and bytes."""

from sparloom.ops.attention import CsrAttention
from sparloom.ops.compare import OracleBounds, assert_close
from sparloom.ops.gemm import GEMM, DenseOperands, GemmShape
from sparloom.ops.gemm_shapes import GemmProblem, GemmShapes
from sparloom.ops.gemm_spmm import GemmSpmm
from sparloom.ops.op import Op, Operands, Work
from sparloom.ops.sddmm import SDDMM
from sparloom.ops.some_rows import assert_few_close, assert_rows_close, few_rows
from sparloom.ops.spmm import SpMM
from sparloom.ops.spmm_gemm import SpmmGemm
from sparloom.ops.spmm_max import SpmmMax
from sparloom.ops.spmm_mean import SpmmMean
from sparloom.ops.spmm_spmm import SpmmSpmm

__all__ = [
    "GEMM", "SDDMM", "CsrAttention", "DenseOperands", "GemmProblem", "GemmShape", "GemmShapes", "GemmSpmm", "Op",
    "Operands", "OracleBounds", "SpMM", "SpmmGemm", "SpmmMax", "SpmmMean", "SpmmSpmm", "Work", "assert_close",
    "assert_few_close", "assert_rows_close", "few_rows",
]
