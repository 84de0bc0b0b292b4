"""The GEMM shapes that are measured: drawn over several decades, and layers of published networks."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from sparloom.ops.gemm import GemmShape

__all__ = ["GemmProblem", "GemmShapes"]

ATTEMPTS = 10_000  # draws per kind; shapes beyond the limits are drawn again


@dataclass(frozen=True)
class GemmProblem:
    """A shape, the kind of shapes it stands for, and for a layer where it is from ("" if it was drawn)."""

    shape: GemmShape
    kind: str
    origin: str = ""


class GemmShapes:
    """Shapes of several kinds, all extents log-uniform, with the layers of layers.csv.

    Kinds: "tiny" (extents up to 32), "one_row" (m = 1: one token, one image), "skinny" (m or n up to 16), "square"
    (extents within a factor of 2), "large" (from 20 MFLOP on), "layer" (transformers; convolutions as im2col).

    Args:
        counts: how many of each kind but "layer" are drawn.
        flops, bytes: limits of every shape.
        seed: of the draws; a kind's shapes do not change with the counts of others.
    """

    def __init__(self, counts: Mapping[str, int], *, flops: float, bytes: float, seed: int) -> None:
        unknown = sorted(set(counts) - set(_DRAWS))
        if unknown:
            raise ValueError(f"shapes of kind {unknown[0]!r} cannot be drawn: kinds are {', '.join(_DRAWS)}")
        self.counts = counts
        self.flops = flops
        self.bytes = bytes
        self.seed = seed

    def problems(self) -> tuple[GemmProblem, ...]:
        """List the shapes, each once: layers, then what is drawn, kind by kind.

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
            for _ in range(ATTEMPTS):
                if len(found) == wanted:
                    break
                shape = draw(rng)
                if self._fits(shape):
                    found.setdefault(shape, GemmProblem(shape, kind))
            if len(found) < wanted:
                raise ValueError(f"{self.flops:.3g} flops and {self.bytes:.3g} bytes leave too few {kind} shapes: draw "
                                 f"fewer than {self.counts[kind]} or raise the limits")
        return tuple(found.values())

    def _fits(self, shape: GemmShape) -> bool:
        return shape.flops <= self.flops and shape.bytes <= self.bytes


def _layers() -> Iterator[GemmProblem]:
    text = resources.files("sparloom.ops").joinpath("layers.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        origin = f"{row['model']}, {row['layer']} ({row['source']})"
        yield GemmProblem(GemmShape(int(row["m"]), int(row["n"]), int(row["k"])), "layer", origin)


def _extent(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a log-uniform integer in [low, high]."""
    return min(high, int(np.exp(rng.uniform(np.log(low), np.log(high + 1)))))


def _tiny(rng: np.random.Generator) -> GemmShape:
    return GemmShape(*(_extent(rng, 2, 32) for _ in "mnk"))


def _one_row(rng: np.random.Generator) -> GemmShape:
    return GemmShape(1, _extent(rng, 16, 8192), _extent(rng, 16, 8192))


def _skinny(rng: np.random.Generator) -> GemmShape:
    few, many, k = _extent(rng, 2, 16), _extent(rng, 64, 4096), _extent(rng, 64, 4096)
    return GemmShape(few, many, k) if rng.random() < 0.5 else GemmShape(many, few, k)


def _square(rng: np.random.Generator) -> GemmShape:
    size = np.exp(rng.uniform(np.log(24), np.log(620)))
    return GemmShape(*(max(1, round(size * 2 ** rng.uniform(-0.5, 0.5))) for _ in "mnk"))


def _large(rng: np.random.Generator) -> GemmShape:
    while True:
        shape = GemmShape(*(_extent(rng, 32, 4096) for _ in "mnk"))
        if shape.flops >= 2e7:
            return shape


_DRAWS: Mapping[str, Callable[[np.random.Generator], GemmShape]] = {
    "tiny": _tiny, "one_row": _one_row, "skinny": _skinny, "square": _square, "large": _large,
}
