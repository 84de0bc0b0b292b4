"""Corpora of generated matrices, made on demand from seeds, without network.

`SyntheticCorpus` has every family of `generators` in all row bins; `AnchorCorpus` has the matrices on which tile fusion
is tuned and compared; `AutosageCorpus` has graphs with the sizes, degrees and skew of those in the AutoSAGE paper.
"""

import csv
import hashlib
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import resources
from types import MappingProxyType

import numpy as np

from sparloom.log import track
from sparloom.sparse.corpus import MatrixEntry, Role, entry_of, row_bin
from sparloom.sparse.features import reorder
from sparloom.sparse.generators import GENERATORS
from sparloom.sparse.generators.graphs import below, permutation, recursive_links, relabel
from sparloom.sparse.generators.structured import stencil
from sparloom.sparse.pattern import Pattern, SparseMatrix

log = logging.getLogger(__name__)

COLUMNS = ("name", "rows", "cols", "nnz", "sha256")

# Generators that share a construction share a role, so that no model is trained on a relative of a test matrix.
SYNTHETIC_ROLES: Mapping[str, Role] = MappingProxyType({
    **dict.fromkeys(("star_2d", "box_2d"), "train"),
    **dict.fromkeys(("triangles", "shuffled_mesh", "block_mesh", "tetrahedra"), "train"),
    **dict.fromkeys(("banded", "scrambled_band", "arrow"), "train"),
    **dict.fromkeys(("uniform", "kronecker", "hub_rows", "staircase"), "train"),
    **dict.fromkeys(("blocks", "communities", "small_world", "roads"), "validation"),
    **dict.fromkeys(("star_3d", "box_3d"), "test"),
    **dict.fromkeys(("heavy_tail", "nearest", "pruned", "mycielskian", "netlist"), "test"),
})
"""Role of each generator."""

PLANE, SPACE = 512, 64  # grid points along an axis
PLANE_BLOCK, SPACE_BLOCK = 64, 16
BAND_ROWS, BAND_REACH, BAND_DRAWS = 200_000, 200, 16
GRAPH_LEVELS, GRAPH_DRAWS = 17, 16
UNIFORM_ROWS, UNIFORM_DRAWS = 200_000, 8
COMMUNITY_ROWS, COMMUNITY, COMMUNITY_DRAWS, OUTSIDE = 150_000, 256, 24, 0.2
Maker = Callable[[float, np.random.Generator], Pattern]
REDDIT = {"nodes": 232_965, "minimum": 143.0, "maximum": 21_657}  # 491 draws per node, the edges of the real graph
PRODUCTS = {"nodes": 2_449_029, "minimum": 13.55, "maximum": 17_481}  # 50 draws, likewise; repetitions count once
RANDOM_EDGES, RANDOM_NODES = 4, 200_000  # p = 2e-5
HUBS, HUB_SHARE, BACKGROUND = 4, 0.15, 0.5  # synthhub 200000:4:0.15
SPLIT_NODES, SPLIT_HUB, SPLIT_OTHER, SPLIT_SHARE = 20_000, 5_000, 64, 0.01  # AutoSAGE table 10; the share is assumed


@dataclass(eq=False)
class SyntheticCorpus:
    """Every family in every size; the name of a matrix determines it.

    Args:
        rows: sizes to make; generators come close to them, within the row bin for sizes that are not near its border.
        variants: independent matrices per family and size.
        seed: another seed gives another corpus.
        families: names from `GENERATORS`; None: all.
    """

    rows: Sequence[int]
    variants: int
    seed: int
    families: Sequence[str] | None = None

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices, family by family; those that the catalogue of the package does not list are made first."""
        return self._entries

    @cached_property
    def _entries(self) -> tuple[MatrixEntry, ...]:
        known, names = _catalogue(), self._names()
        fresh = [name for name in names if name not in known]
        made = {name: _facts(_make(name)) for name in track(fresh, "synthetic matrices")} if fresh else {}
        return tuple(_entry(name, known.get(name) or made[name]) for name in names)

    def load(self, name: str) -> SparseMatrix:
        """Make one matrix; warns if it differs from the catalogue of the package."""
        entry_of(self.entries(), name)
        matrix = _make(name)
        listed = _catalogue().get(name)
        if listed is not None and _facts(matrix) != listed:
            log.warning("%s differs from the catalogue on this machine: samples taken elsewhere do not apply", name)
        return matrix

    def split(self) -> dict[str, Role]:
        """Map every matrix to the role of its family."""
        return {entry.name: SYNTHETIC_ROLES[entry.family] for entry in self.entries()}

    def _names(self) -> tuple[str, ...]:
        families = GENERATORS if self.families is None else self.families
        unknown = [family for family in families if family not in GENERATORS]
        if unknown:
            raise ValueError(f"no synthetic family {unknown[0]!r}: choose from {', '.join(GENERATORS)}")
        return tuple(
            f"{family}/n{rows}_v{variant}_s{self.seed}"
            for family in families for rows in self.rows for variant in range(self.variants))


def catalogue_text(corpus: SyntheticCorpus) -> str:
    """Make every matrix of a corpus and return the text of its catalogue, synthetic.csv of this package."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((name, *_facts(_make(name))) for name in track(corpus._names(), "synthetic matrices"))
    return sink.getvalue()


def _make(name: str) -> SparseMatrix:
    """Make the matrix of a name "family/n<rows>_v<variant>_s<seed>"."""
    family, _, size = name.partition("/")
    rng = _rng_of(name)
    pattern = GENERATORS[family](int(size[1:].partition("_")[0]), rng)
    return SparseMatrix(pattern, 2 * rng.random(pattern.nnz) - 1)


def _rng_of(name: str) -> np.random.Generator:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
    return np.random.Generator(np.random.PCG64(seed))


def _entry(name: str, facts: tuple[int, int, int, str]) -> MatrixEntry:
    return MatrixEntry(name, name.partition("/")[0], *facts[:3], False, "synthetic", row_bin(facts[0]))


def _facts(matrix: SparseMatrix) -> tuple[int, int, int, str]:
    """Return rows, columns, nonzeros, and a checksum of pattern and values."""
    pattern = matrix.pattern
    content = hashlib.sha256(pattern.digest().encode())
    content.update(matrix.values.astype("<f4", copy=False).tobytes())
    return pattern.rows, pattern.cols, pattern.nnz, content.hexdigest()


@cache
def _catalogue() -> Mapping[str, tuple[int, int, int, str]]:
    text = resources.files("sparloom.sparse").joinpath("synthetic.csv").read_text(encoding="utf-8")
    return {
        row["name"]: (int(row["rows"]), int(row["cols"]), int(row["nnz"]), row["sha256"])
        for row in csv.DictReader(io.StringIO(text))
    }


class GraphCorpus:
    """Large generated matrices by name, all of one role; their values are drawn from [-1, 1).

    Args:
        makers: by name.
        scale: factor on the rows; 1.0 for results that are compared, less for tests.
    """

    role: Role

    def __init__(self, makers: Mapping[str, Maker], scale: float) -> None:
        if not 0 < scale <= 1:
            raise ValueError(f"scale {scale} of the matrices is not in (0, 1]: give scale=1.0 for all rows")
        self.scale, self._makers = scale, makers
        self._made: dict[str, SparseMatrix] = {}

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices; the first call makes them all, which takes minutes at full scale, and keeps them."""
        return tuple(MatrixEntry.of(name, self.family(name), self._matrix(name).pattern, "synthetic")
                     for name in self._makers)

    def load(self, name: str) -> SparseMatrix:
        """Return one matrix."""
        return self._matrix(entry_of(self.entries(), name).name)

    def split(self) -> dict[str, Role]:
        """Map every matrix to the role."""
        return {entry.name: self.role for entry in self.entries()}

    def family(self, name: str) -> str:
        """Return the family of a matrix."""
        return name

    def values(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw values."""
        return 2 * rng.random(count, dtype=np.float32) - 1

    def _matrix(self, name: str) -> SparseMatrix:
        if name not in self._made:
            rng = _rng_of(name)
            pattern = self._makers[name](self.scale, rng)
            self._made[name] = SparseMatrix(pattern, self.values(pattern.nnz, rng))
        return self._made[name]


class AnchorCorpus(GraphCorpus):
    """Six matrices for tuning, which fuse well, a little or not at all, and two of them again in block order.

    Args:
        scale: of `GraphCorpus`.
        reordered: include the two in block order.
    """

    role = "train"

    def __init__(self, scale: float, reordered: bool) -> None:
        super().__init__({**ANCHORS, **(REORDERED_ANCHORS if reordered else {})}, scale)

    def family(self, name: str) -> str:
        """Return the matrix of which one in block order is made."""
        return name.partition("_")[0]

    def values(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw values in float64."""
        return 2 * rng.random(count) - 1


def _grid(scale: float, _: np.random.Generator, *, points: int, axes: int, block: int = 0) -> Pattern:
    """Connect each point of a grid with its neighbours along the axes, numbered row by row, or block by block."""
    side = max(2, round(points * scale ** (1 / axes)))
    pattern = stencil((side,) * axes, reach=1)
    if not block:
        return pattern
    position = np.indices((side,) * axes).reshape(axes, -1)
    order = np.lexsort((*position[::-1], *(position // block)[::-1]))
    return reorder(pattern, order, order)


def _band(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 16 columns at most 200 away for every row."""
    rows = max(2, round(BAND_ROWS * scale))
    row = np.repeat(np.arange(rows), BAND_DRAWS)
    col = row + below(2 * BAND_REACH + 1, row.size, rng) - BAND_REACH
    inside = (col >= 0) & (col < rows)
    return Pattern.from_coo(row[inside], col[inside], (rows, rows))


def _rmat(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 16 edges per vertex of a recursive graph (R-MAT) whose vertices are numbered at random."""
    levels = max(1, round(GRAPH_LEVELS + np.log2(scale)))
    rows = 1 << levels
    return relabel(Pattern.from_coo(*recursive_links(levels, GRAPH_DRAWS * rows, rng), (rows, rows)), rng)


def _uniform(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 8 columns for every row, all equally likely (Erdos-Renyi)."""
    rows = max(2, round(UNIFORM_ROWS * scale))
    row = np.repeat(np.arange(rows), UNIFORM_DRAWS)
    return Pattern.from_coo(row, below(rows, row.size, rng), (rows, rows))


def _communities(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 24 edges per vertex inside communities of 256; every fifth vertex has one edge to any vertex."""
    rows = max(2, round(COMMUNITY_ROWS * scale))
    row = np.repeat(np.arange(rows), COMMUNITY_DRAWS)
    col = np.minimum(row // COMMUNITY * COMMUNITY + below(COMMUNITY, row.size, rng), rows - 1)
    far = np.flatnonzero(rng.random(rows) < OUTSIDE)
    return Pattern.from_coo(np.concatenate([row, far]), np.concatenate([col, below(rows, far.size, rng)]), (rows, rows))


ANCHORS: Mapping[str, Maker] = MappingProxyType({
    "lap2d": partial(_grid, points=PLANE, axes=2), "lap3d": partial(_grid, points=SPACE, axes=3), "band": _band,
    "rmat17": _rmat, "er": _uniform, "comm": _communities,
})
"""Large generated matrices for benchmarks, by name."""
REORDERED_ANCHORS: Mapping[str, Maker] = MappingProxyType({
    "lap2d_blk64": partial(_grid, points=PLANE, axes=2, block=PLANE_BLOCK),
    "lap3d_blk16": partial(_grid, points=SPACE, axes=3, block=SPACE_BLOCK),
})
"""Anchors with their points in blocks, by name."""


class AutosageCorpus(GraphCorpus):
    """Graphs for tests with the nodes and degrees of AutoSAGE's tables, as square matrices.

    Args:
        scale: of `GraphCorpus`.
        graphs: names from `AUTOSAGE_GRAPHS`; None: all.
    """

    role = "test"

    def __init__(self, scale: float, graphs: Sequence[str] | None = None) -> None:
        unknown = [name for name in graphs or () if name not in AUTOSAGE_GRAPHS]
        if unknown:
            raise ValueError(f"no graph {unknown[0]!r}: choose from {', '.join(AUTOSAGE_GRAPHS)}")
        self.graphs = graphs
        super().__init__({name: AUTOSAGE_GRAPHS[name] for name in graphs or AUTOSAGE_GRAPHS}, scale)


def _social(scale: float, rng: np.random.Generator, *, nodes: int, minimum: float, maximum: int) -> Pattern:
    """Draw power-law degrees, P(degree > x minimum) = x^(-4/3), and neighbours in proportion to their degrees."""
    rows = max(2, round(nodes * scale))
    root = np.sqrt(1 - rng.random(rows))
    degrees = np.minimum(minimum / (root * np.sqrt(root)), min(maximum, rows)).astype(np.int64)
    receivers = np.repeat(np.arange(rows), degrees)
    return Pattern.from_coo(receivers, receivers[below(receivers.size, receivers.size, rng)], (rows, rows))


def _uniform_graph(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw edges, all equally likely (Erdos-Renyi); the mean degree does not depend on the scale."""
    rows = max(2, round(RANDOM_NODES * scale))
    return Pattern.from_coo(below(rows, RANDOM_EDGES * rows, rng), below(rows, RANDOM_EDGES * rows, rng), (rows, rows))


def _hub_skew(scale: float, rng: np.random.Generator) -> Pattern:
    """Connect 4 hubs with 15 % of all nodes each, and draw one further edge for every two nodes."""
    rows = max(HUBS, round(RANDOM_NODES * scale))
    length, pairs = int(HUB_SHARE * rows), int(BACKGROUND * rows)
    hubs = np.repeat(permutation(rows, rng)[:HUBS], length)
    first = [hubs, below(rows, pairs, rng)]
    second = [permutation(rows, rng)[:length] for _ in range(HUBS)] + [below(rows, pairs, rng)]
    return Pattern.from_coo(np.concatenate(first), np.concatenate(second), (rows, rows))


def _hub_split(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw 5,000 neighbours, but at most a quarter of all nodes, for 1 % of the nodes, and 64 for all others."""
    rows = max(4, round(SPLIT_NODES * scale))
    degrees = np.full(rows, min(SPLIT_OTHER, rows // 4))
    degrees[permutation(rows, rng)[:max(1, int(SPLIT_SHARE * rows))]] = min(SPLIT_HUB, rows // 4)
    receivers = np.repeat(np.arange(rows), degrees)
    return Pattern.from_coo(receivers, below(rows, receivers.size, rng), (rows, rows))


AUTOSAGE_GRAPHS: Mapping[str, Maker] = MappingProxyType({
    "erdos_renyi": _uniform_graph, "hub_skew": _hub_skew, "hub_split": _hub_split,
    "reddit_like": partial(_social, **REDDIT),
    "products_like": partial(_social, **PRODUCTS),
})
"""Name -> generator; loads of four values are slower than of one on Reddit at 64 columns (AutoSAGE §8)."""
