"""What is timed of tile fusion: matrices x operations x widths x threads, and by which methods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparloom.experiments.dispatch_cases import spread_out
from sparloom.sparse import Corpus, MatrixEntry

__all__ = ["METHODS", "Block", "Case", "cases", "fusion_set"]

METHODS = (
    "unfused", "auto", "fused", "local", "separated", "coarse", "sequential", "mkl", "torch", "scipy", "overlapped",
    "atomic", "gemv", "blas_gemv", "listing",
)
"""In the order in which they are run and listed: a fast one first."""


@dataclass(frozen=True)
class Block:
    """Methods for some operations, widths and matrices.

    Args:
        part: "anchors" or "real".
        ops: names of operations.
        threads: of every method that is not serial by nature.
        count: at most so many matrices, evenly over their nonzeros; None: all.
        methods: from `METHODS`.
    """

    part: str
    ops: Sequence[str]
    widths: Sequence[int]
    threads: int
    count: int | None
    methods: Sequence[str]


@dataclass(frozen=True)
class Case:
    """One product, computed by several methods side by side."""

    part: str
    matrix: str
    op: str
    width: int
    threads: int
    methods: tuple[str, ...]

    @property
    def problem(self) -> str:
        """Names what is decided."""
        return " ".join(map(str, (self.part, self.matrix, self.op, self.width, self.threads)))

    @property
    def key(self) -> str:
        """Names what is timed."""
        return f"{self.problem} {','.join(self.methods)}"


def fusion_set(corpus: Corpus, *, least_nonzeros: int) -> list[MatrixEntry]:
    """Choose the square matrices that are positive definite or graphs and have more than so many nonzeros.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.1.2; like there, a graph is what the
    collection calls one. Positive definite is what the catalogue knows to be.
    """
    return [entry for entry in corpus.entries()
            if entry.rows == entry.cols and entry.nnz > least_nonzeros and (entry.spd or "graph" in entry.kind)]


def cases(blocks: Iterable[Block], part: str, entries: Sequence[MatrixEntry]) -> dict[str, list[Case]]:
    """List the cases of one part, by matrix; blocks that meet in a case join their methods.

    Raises:
        ValueError: a block names an unknown method.
    """
    found: dict[str, dict[tuple[str, int, int], set[str]]] = {entry.name: {} for entry in entries}
    for block in blocks:
        unknown = sorted(set(block.methods) - set(METHODS))
        if unknown:
            raise ValueError(f"no method {', '.join(unknown)}: choose from {', '.join(METHODS)}")
        if block.part != part:
            continue
        for entry in spread_out(entries, block.count):
            for op in block.ops:
                for width in block.widths:
                    found[entry.name].setdefault((op, width, block.threads), set()).update(block.methods)
    return {name: [Case(part, name, *key, tuple(method for method in METHODS if method in methods))
                   for key, methods in wanted.items()]
            for name, wanted in found.items() if wanted}
