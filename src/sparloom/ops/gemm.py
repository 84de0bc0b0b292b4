"""Dense GEMM, C(m,n) = sum over k of A(m,k) B(k,n), and the shapes and layouts on which it is measured."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np
from jaxtyping import Float64

from sparloom.ops.compare import OracleBounds
from sparloom.ops.op import Work, uniform

LAYOUTS = ("nn", "tn", "nt", "tt")
"""How A and B are stored, as in BLAS: n, row-major as they are multiplied; t, transposed."""
_NAME = re.compile(r"dense/(\d+)x(\d+)(?:/(tn|nt|tt))?")

MAX_DRAWS = 10_000  # per kind; shapes beyond the limits are drawn again


@dataclass(frozen=True, order=True)
class GemmShape:
    """Rows m and columns n of the result, length k of the sums, and layout of the operands.

    In sample tables a shape is the matrix "dense/<m>x<k>", which is A, or "dense/<m>x<k>/<layout>" if an operand is
    stored transposed, and the width n.
    """

    m: int
    n: int
    k: int
    layout: str = "nn"

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise ValueError(f"shape m={self.m}, n={self.n}, k={self.k}: every extent must be at least 1")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout={self.layout!r} of a product is not one of {', '.join(LAYOUTS)}")

    @classmethod
    def of(cls, matrix: str, width: int) -> "GemmShape":
        """Parse the name and the width in a row of a sample table.

        Raises:
            ValueError: the name is not that of a dense matrix.
        """
        found = _NAME.fullmatch(matrix)
        if found is None:
            raise ValueError(f"matrix {matrix!r} is not dense/<m>x<k> or dense/<m>x<k>/<tn, nt or tt>, as the operand "
                             "A of gemm is named")
        return cls(int(found[1]), int(width), int(found[2]), found[3] or "nn")

    @property
    def matrix(self) -> str:
        """Name of A in sample tables."""
        return f"dense/{self.m}x{self.k}" + ("" if self.layout == "nn" else f"/{self.layout}")

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.n

    @property
    def a_transposed(self) -> bool:
        """Whether A is stored as (k, m)."""
        return self.layout[0] == "t"

    @property
    def b_transposed(self) -> bool:
        """Whether B is stored as (n, k)."""
        return self.layout[1] == "t"

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
    """The row-major float32 arrays A and B by name: A (m, k) and B (k, n), or as `layout` stores them."""

    dense: Mapping[str, np.ndarray]
    layout: str = "nn"

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Views of A (m, k) and B (k, n), whatever their layout."""
        left, right = self.dense["A"], self.dense["B"]
        return left.T if self.layout[0] == "t" else left, right.T if self.layout[1] == "t" else right

    @property
    def shape(self) -> GemmShape:
        left, right = self.factors
        return GemmShape(*left.shape[:1], right.shape[1], left.shape[1], self.layout)

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.factors[1].shape[1]


@dataclass(frozen=True)
class GEMM:
    """C = A B with A (m, k), B (k, n), C (m, n); like the other operations, but its operands come from a shape."""

    name: str = "gemm"

    def operands(self, shape: GemmShape, *, seed: int) -> DenseOperands:
        """Draw A and B from [-1, 1)."""
        rng = np.random.default_rng(seed)
        left, right = (shape.m, shape.k), (shape.k, shape.n)
        return DenseOperands({"A": uniform(left[::-1] if shape.a_transposed else left, rng),
                              "B": uniform(right[::-1] if shape.b_transposed else right, rng)}, shape.layout)

    def oracle(self, operands: DenseOperands) -> Float64[np.ndarray, "m n"]:
        """Multiply in float64, without a BLAS and therefore on one thread."""
        return np.einsum("mk,kn->mn", *operands.factors, dtype=np.float64)

    def work(self, shape: GemmShape) -> Work:
        """Count flops and bytes."""
        return Work(flops=shape.flops, bytes=shape.bytes)

    def terms(self, shape: GemmShape) -> np.ndarray:
        """Count the products that each element of C adds up, (1, 1), for tolerances."""
        return np.array([[shape.k]])

    def scale(self, operands: DenseOperands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (m, 1), for tolerances."""
        left, right = operands.factors
        return np.abs(left).max(axis=1, keepdims=True) * np.abs(right).max()

    def bounds(self, operands: DenseOperands) -> OracleBounds:
        """Compute the oracle and its tolerances, for many results of one problem."""
        return OracleBounds(self.oracle(operands), terms=self.terms(operands.shape), scale=self.scale(operands))


@dataclass(frozen=True)
class GemmProblem:
    """A shape, its kind, and the source of a layer ("" for a shape that was drawn)."""

    shape: GemmShape
    kind: str
    origin: str = ""


class GemmShapes:
    """Shapes of several kinds, all extents log-uniform, with the layers of layers.csv.

    Kinds: "tiny" (extents up to 32), "one_row" (m = 1: one token, one image), "skinny" (m or n up to 16), "square"
    (extents within a factor of 2), "large" (from 20 MFLOP on), "layer" (transformers; convolutions as im2col).

    Every shape comes in the layout nn, and in one of the others in turn if `transposed`.

    Args:
        counts: how many shapes to draw of each kind except "layer".
        transposed: list each shape with a transposed operand, too.
        flops, bytes: limits of every shape.
        seed: of the draws; the shapes of a kind do not depend on the counts of others.
    """

    def __init__(
        self, counts: Mapping[str, int], *, flops: float, bytes: float, seed: int, transposed: bool = False
    ) -> None:
        unknown = sorted(set(counts) - set(_DRAWS))
        if unknown:
            raise ValueError(f"shapes of kind {unknown[0]!r} cannot be drawn: kinds are {', '.join(_DRAWS)}")
        self.counts = counts
        self.flops = flops
        self.bytes = bytes
        self.seed = seed
        self.transposed = transposed

    def problems(self) -> tuple[GemmProblem, ...]:
        """List the shapes, each once: layers, then drawn shapes, kind by kind.

        Raises:
            ValueError: the limits leave too few shapes of a kind.
        """
        found: dict[GemmShape, GemmProblem] = {}
        for problem in _layers():
            if self._fits(problem.shape):
                found.setdefault(problem.shape, problem)
        for kind, draw in _DRAWS.items():
            rng = np.random.default_rng([self.seed, *kind.encode()])
            wanted = len(found) + self.counts.get(kind, 0)
            for _ in range(MAX_DRAWS):
                if len(found) == wanted:
                    break
                shape = draw(rng)
                if self._fits(shape):
                    found.setdefault(shape, GemmProblem(shape, kind))
            if len(found) < wanted:
                raise ValueError(f"{self.flops:.3g} flops and {self.bytes:.3g} bytes leave too few {kind} shapes: draw "
                                 f"fewer than {self.counts[kind]} or raise the limits")
        plain = tuple(found.values())
        if not self.transposed:
            return plain
        turned = (replace(problem, shape=replace(problem.shape, layout=LAYOUTS[1 + number % 3]))
                  for number, problem in enumerate(plain))
        return (*plain, *turned)

    def _fits(self, shape: GemmShape) -> bool:
        return shape.flops <= self.flops and shape.bytes <= self.bytes


def _large(rng: np.random.Generator) -> GemmShape:
    while True:
        shape = GemmShape(*(_extent(rng, 32, 4096) for _ in "mnk"))
        if shape.flops >= 2e7:
            return shape


def _one_row(rng: np.random.Generator) -> GemmShape:
    return GemmShape(1, _extent(rng, 16, 8192), _extent(rng, 16, 8192))


def _skinny(rng: np.random.Generator) -> GemmShape:
    few, many, k = _extent(rng, 2, 16), _extent(rng, 64, 4096), _extent(rng, 64, 4096)
    return GemmShape(few, many, k) if rng.random() < 0.5 else GemmShape(many, few, k)


def _square(rng: np.random.Generator) -> GemmShape:
    size = np.exp(rng.uniform(np.log(24), np.log(620)))
    return GemmShape(*(max(1, round(size * 2 ** rng.uniform(-0.5, 0.5))) for _ in "mnk"))


def _tiny(rng: np.random.Generator) -> GemmShape:
    return GemmShape(*(_extent(rng, 2, 32) for _ in "mnk"))


_DRAWS: Mapping[str, Callable[[np.random.Generator], GemmShape]] = {
    "tiny": _tiny, "one_row": _one_row, "skinny": _skinny, "square": _square, "large": _large,
}


def _layers() -> Iterator[GemmProblem]:
    text = resources.files("sparloom.ops").joinpath("layers.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        origin = f"{row['model']}, {row['layer']} ({row['source']})"
        yield GemmProblem(GemmShape(int(row["m"]), int(row["n"]), int(row["k"])), "layer", origin)


def _extent(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a log-uniform integer in [low, high]."""
    return min(high, int(np.exp(rng.uniform(np.log(low), np.log(high + 1)))))
