"""Dense matrix times dense matrix: C(m,n) = sum over k of A(m,k) B(k,n), row-major."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Work, uniform

__all__ = ["GEMM", "DenseOperands", "GemmShape"]

_NAME = re.compile(r"dense/(\d+)x(\d+)")


@dataclass(frozen=True, order=True)
class GemmShape:
    """Rows m and columns n of the result, length k of the sums.

    Sample tables know a shape as the matrix "dense/<m>x<k>", which is A, and the width n.
    """

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise ValueError(f"shape m={self.m}, n={self.n}, k={self.k}: every extent must be at least 1")

    @classmethod
    def of(cls, matrix: str, width: int) -> "GemmShape":
        """Read the name and the width of a row of a sample table.

        Raises:
            ValueError: the name is not that of a dense matrix.
        """
        found = _NAME.fullmatch(matrix)
        if found is None:
            raise ValueError(f"matrix {matrix!r} is not dense/<m>x<k>, as the operand A of gemm is named")
        return cls(int(found[1]), int(width), int(found[2]))

    @property
    def matrix(self) -> str:
        """Name of A in sample tables."""
        return f"dense/{self.m}x{self.k}"

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.n

    @property
    def flops(self) -> int:
        """One multiplication and one addition per element of A and column."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Every operand moved once, the result written once."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True)
class DenseOperands:
    """The float32 arrays A (m, k) and B (k, n), row-major, by name."""

    dense: Mapping[str, np.ndarray]

    @property
    def shape(self) -> GemmShape:
        (m, k), n = self.dense["A"].shape, self.dense["B"].shape[1]
        return GemmShape(m, n, k)

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.dense["B"].shape[1]


@dataclass(frozen=True)
class GEMM:
    """A (m, k), B (k, n), C (m, n); like the other operations, but given by a shape instead of a sparse matrix."""

    name: str = "gemm"

    def operands(self, shape: GemmShape, *, seed: int) -> DenseOperands:
        """Draw A and B from [-1, 1)."""
        rng = np.random.default_rng(seed)
        return DenseOperands({"A": uniform((shape.m, shape.k), rng), "B": uniform((shape.k, shape.n), rng)})

    def oracle(self, operands: DenseOperands) -> Float64[np.ndarray, "m n"]:
        """Multiply in float64, without a BLAS and so by one thread."""
        return np.einsum("mk,kn->mn", operands.dense["A"], operands.dense["B"], dtype=np.float64)

    def work(self, shape: GemmShape) -> Work:
        """Count flops and bytes."""
        return Work(flops=shape.flops, bytes=shape.bytes)

    def terms(self, shape: GemmShape) -> np.ndarray:
        """Count the products that each element of C adds up, (1, 1), for tolerances."""
        return np.array([[shape.k]])

    def scale(self, operands: DenseOperands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (m, 1), for tolerances."""
        return np.abs(operands.dense["A"]).max(axis=1, keepdims=True) * np.abs(operands.dense["B"]).max()
