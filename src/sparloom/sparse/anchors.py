"""The matrices on which fused products are tuned and compared with what other programs were seen to reach."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from sparloom.sparse.corpus import MatrixEntry, Role, entry_of, row_bin
from sparloom.sparse.generators.draw import below, relabel
from sparloom.sparse.generators.graphs import recursive_links
from sparloom.sparse.generators.stencils import stencil
from sparloom.sparse.order import reorder
from sparloom.sparse.pattern import Pattern, SparseMatrix

__all__ = ["ANCHORS", "REORDERED_ANCHORS", "AnchorCorpus"]

PLANE, SPACE = 512, 64  # points of a grid along one axis
PLANE_BLOCK, SPACE_BLOCK = 64, 16
BAND_ROWS, BAND_REACH, BAND_DRAWS = 200_000, 200, 16
GRAPH_LEVELS, GRAPH_DRAWS = 17, 16
UNIFORM_ROWS, UNIFORM_DRAWS = 200_000, 8
COMMUNITY_ROWS, COMMUNITY, COMMUNITY_DRAWS, OUTSIDE = 150_000, 256, 24, 0.2


class AnchorCorpus:
    """Six matrices that fuse well, a little or not at all, and two of them in block order; all are for tuning.

    Args:
        scale: of their rows; 1.0 for results that are compared, less for tests.
        reordered: with the two in block order.
    """

    def __init__(self, scale: float, reordered: bool) -> None:
        if not 0 < scale <= 1:
            raise ValueError(f"scale {scale} of the anchors is not in (0, 1]: give corpus.scale=1.0 for all rows")
        self.scale = scale
        self.reordered = reordered
        self._entries: tuple[MatrixEntry, ...] | None = None

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices; the first call makes them all, which takes seconds."""
        if self._entries is None:
            names = (*ANCHORS, *(REORDERED_ANCHORS if self.reordered else ()))
            self._entries = tuple(_entry(name, self._make(name).pattern) for name in names)
        return self._entries

    def load(self, name: str) -> SparseMatrix:
        """Make one matrix, its values drawn from [-1, 1).

        Raises:
            KeyError: the corpus has no such matrix.
        """
        return self._make(entry_of(self.entries(), name).name)

    def split(self) -> dict[str, Role]:
        """All are for training: constants are tuned on them."""
        return {entry.name: "train" for entry in self.entries()}

    def _make(self, name: str) -> SparseMatrix:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        rng = np.random.Generator(np.random.PCG64(seed))
        pattern = {**ANCHORS, **REORDERED_ANCHORS}[name](self.scale, rng)
        return SparseMatrix(pattern, 2 * rng.random(pattern.nnz) - 1)


def _grid(scale: float, _: np.random.Generator, *, points: int, axes: int, block: int = 0) -> Pattern:
    """Couple each point of a grid with its neighbours along the axes, numbered row by row, or block by block."""
    side = max(2, round(points * scale ** (1 / axes)))
    pattern = stencil((side,) * axes, reach=1)
    if not block:
        return pattern
    places = np.indices((side,) * axes).reshape(axes, -1)
    order = np.lexsort((*places[::-1], *(places // block)[::-1]))
    return reorder(pattern, order, order)


def _band(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 16 columns at most 200 away for every row."""
    rows = max(2, round(BAND_ROWS * scale))
    row = np.repeat(np.arange(rows), BAND_DRAWS)
    col = row + below(2 * BAND_REACH + 1, row.size, rng) - BAND_REACH
    inside = (col >= 0) & (col < rows)
    return Pattern.from_coo(row[inside], col[inside], (rows, rows))


def _rmat(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 16 links per member of a recursive graph whose members are numbered at random."""
    levels = max(1, round(GRAPH_LEVELS + np.log2(scale)))
    rows = 1 << levels
    return relabel(Pattern.from_coo(*recursive_links(levels, GRAPH_DRAWS * rows, rng), (rows, rows)), rng)


def _uniform(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 8 columns for every row, all equally likely (Erdos-Renyi)."""
    rows = max(2, round(UNIFORM_ROWS * scale))
    row = np.repeat(np.arange(rows), UNIFORM_DRAWS)
    return Pattern.from_coo(row, below(rows, row.size, rng), (rows, rows))


def _communities(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 24 links inside communities of 256; every fifth member has one link that leads anywhere."""
    rows = max(2, round(COMMUNITY_ROWS * scale))
    row = np.repeat(np.arange(rows), COMMUNITY_DRAWS)
    col = np.minimum(row // COMMUNITY * COMMUNITY + below(COMMUNITY, row.size, rng), rows - 1)
    far = np.flatnonzero(rng.random(rows) < OUTSIDE)
    return Pattern.from_coo(np.concatenate([row, far]), np.concatenate([col, below(rows, far.size, rng)]), (rows, rows))


def _entry(name: str, pattern: Pattern) -> MatrixEntry:
    family = name.partition("_")[0]
    return MatrixEntry(name, family, pattern.rows, pattern.cols, pattern.nnz, False, "synthetic", row_bin(pattern.rows))


Maker = Callable[[float, np.random.Generator], Pattern]

ANCHORS: Mapping[str, Maker] = MappingProxyType({
    "lap2d": partial(_grid, points=PLANE, axes=2), "lap3d": partial(_grid, points=SPACE, axes=3), "band": _band,
    "rmat17": _rmat, "er": _uniform, "comm": _communities,
})
REORDERED_ANCHORS: Mapping[str, Maker] = MappingProxyType({
    "lap2d_blk64": partial(_grid, points=PLANE, axes=2, block=PLANE_BLOCK),
    "lap3d_blk16": partial(_grid, points=SPACE, axes=3, block=SPACE_BLOCK),
})
