"""Do the kernels compute products of matrix and vector, and of vectors? N = 1 and K = 1, every configuration."""

from typing import TYPE_CHECKING

from sparloom.ops import GEMM, GemmShape, assert_close

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels

__all__ = ["degenerate_results"]

SHAPES = tuple(GemmShape(*sizes) for sizes in (
    (1, 1, 1), (1, 1, 64), (1, 64, 1), (64, 1, 1), (64, 1, 64), (64, 64, 1), (300, 1, 257), (300, 257, 1)))


def degenerate_results(platform: "CpuKernels", op: GEMM) -> tuple[int, int]:
    """Run every configuration on small degenerate shapes; returns how many results are right, and of how many."""
    right = asked = 0
    for shape in SHAPES:
        operands = op.operands(shape, seed=0)
        oracle, terms, scale = op.oracle(operands), op.terms(shape), op.scale(operands)
        for config in platform.space(op):
            asked += 1
            try:
                assert_close(platform.run(op, operands, config), oracle, terms=terms, scale=scale)
            except AssertionError:
                continue
            right += 1
    return right, asked
