"""Operations: operands, float64 oracles, counts of flops and bytes."""

from sparloom.ops.compare import OracleBounds, assert_close
from sparloom.ops.gemm import GEMM, DenseOperands, GemmShape
from sparloom.ops.gemm_shapes import GemmProblem, GemmShapes
from sparloom.ops.op import Op, Operands, Work
from sparloom.ops.sddmm import SDDMM
from sparloom.ops.spmm import SpMM

__all__ = [
    "GEMM", "SDDMM", "DenseOperands", "GemmProblem", "GemmShape", "GemmShapes", "Op", "Operands", "OracleBounds",
    "SpMM", "Work", "assert_close",
]
