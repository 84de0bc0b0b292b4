"""The graphs on which AutoSAGE was measured, generated: their sizes, degrees and skew, not their edges."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from sparloom.sparse.corpus import MatrixEntry, Role, entry_of, row_bin
from sparloom.sparse.generators.draw import below, permutation
from sparloom.sparse.pattern import Pattern, SparseMatrix

__all__ = ["AUTOSAGE_GRAPHS", "AutosageCorpus"]

REDDIT = {"nodes": 232_965, "least": 143.0, "most": 21_657}  # 491 draws per node, as many as the real one has edges
PRODUCTS = {"nodes": 2_449_029, "least": 13.55, "most": 17_481}  # 50 draws, likewise; repeated ones count once
LINKS, LINKED_NODES = 4, 200_000  # p = 2e-5
HUBS, HUB_SHARE, BACKGROUND = 4, 0.15, 0.5  # synthhub 200000:4:0.15
SPLIT_NODES, SPLIT_HUB, SPLIT_OTHER, SPLIT_SHARE = 20_000, 5_000, 64, 0.01  # table 10; the share is assumed


class AutosageCorpus:
    """Graphs with the nodes and the degrees of AutoSAGE's tables, as square matrices; nothing is tuned on them.

    Args:
        scale: of their nodes; 1.0 for results that are compared, less for tests.
        graphs: names from `AUTOSAGE_GRAPHS`; None takes all.
    """

    def __init__(self, scale: float, graphs: Sequence[str] | None = None) -> None:
        if not 0 < scale <= 1:
            raise ValueError(f"scale {scale} of the graphs is not in (0, 1]: give corpus.scale=1.0 for all nodes")
        unknown = [name for name in graphs or () if name not in AUTOSAGE_GRAPHS]
        if unknown:
            raise ValueError(f"no graph {unknown[0]!r}: choose from {', '.join(AUTOSAGE_GRAPHS)}")
        self.scale = scale
        self.graphs = graphs
        self._made: dict[str, SparseMatrix] = {}

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the graphs; the first call makes them all, which takes minutes at full scale, and keeps them."""
        return tuple(_entry(name, self._matrix(name).pattern) for name in self.graphs or AUTOSAGE_GRAPHS)

    def load(self, name: str) -> SparseMatrix:
        """Give one graph, its values drawn from [-1, 1).

        Raises:
            KeyError: the corpus has no such graph.
        """
        return self._matrix(entry_of(self.entries(), name).name)

    def split(self) -> dict[str, Role]:
        """All are for tests."""
        return {entry.name: "test" for entry in self.entries()}

    def _matrix(self, name: str) -> SparseMatrix:
        if name not in self._made:
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
            rng = np.random.Generator(np.random.PCG64(seed))
            pattern = AUTOSAGE_GRAPHS[name](self.scale, rng)
            self._made[name] = SparseMatrix(pattern, 2 * rng.random(pattern.nnz, dtype=np.float32) - 1)
        return self._made[name]


def _social(scale: float, rng: np.random.Generator, *, nodes: int, least: float, most: int) -> Pattern:
    """Draw degrees of which a share x^(-4/3) is above x times the least, and neighbours in proportion to theirs."""
    rows = max(2, round(nodes * scale))
    root = np.sqrt(1 - rng.random(rows))
    degrees = np.minimum(least / (root * np.sqrt(root)), min(most, rows)).astype(np.int64)
    receivers = np.repeat(np.arange(rows), degrees)
    return Pattern.from_coo(receivers, receivers[below(receivers.size, receivers.size, rng)], (rows, rows))


def _uniform(scale: float, rng: np.random.Generator) -> Pattern:
    """Draw pairs, all equally likely (Erdos-Renyi); fewer nodes have as many neighbours."""
    rows = max(2, round(LINKED_NODES * scale))
    return Pattern.from_coo(below(rows, LINKS * rows, rng), below(rows, LINKS * rows, rng), (rows, rows))


def _hub_skew(scale: float, rng: np.random.Generator) -> Pattern:
    """Let 4 nodes have 15 % of all as neighbours each, and draw a pair for every second node beside that."""
    rows = max(HUBS, round(LINKED_NODES * scale))
    length, pairs = int(HUB_SHARE * rows), int(BACKGROUND * rows)
    hubs = np.repeat(permutation(rows, rng)[:HUBS], length)
    first = [hubs, below(rows, pairs, rng)]
    second = [permutation(rows, rng)[:length] for _ in range(HUBS)] + [below(rows, pairs, rng)]
    return Pattern.from_coo(np.concatenate(first), np.concatenate(second), (rows, rows))


def _hub_split(scale: float, rng: np.random.Generator) -> Pattern:
    """Let 1 % of the nodes draw 5,000 neighbours each, or a quarter of all where that is less, and all others 64."""
    rows = max(4, round(SPLIT_NODES * scale))
    degrees = np.full(rows, min(SPLIT_OTHER, rows // 4))
    degrees[permutation(rows, rng)[:max(1, int(SPLIT_SHARE * rows))]] = min(SPLIT_HUB, rows // 4)
    receivers = np.repeat(np.arange(rows), degrees)
    return Pattern.from_coo(receivers, below(rows, receivers.size, rng), (rows, rows))


def _entry(name: str, pattern: Pattern) -> MatrixEntry:
    return MatrixEntry(name, name, pattern.rows, pattern.cols, pattern.nnz, False, "synthetic", row_bin(pattern.rows))


Maker = Callable[[float, np.random.Generator], Pattern]

AUTOSAGE_GRAPHS: Mapping[str, Maker] = MappingProxyType({
    "erdos_renyi": _uniform, "hub_skew": _hub_skew, "hub_split": _hub_split, "reddit_like": partial(_social, **REDDIT),
    "products_like": partial(_social, **PRODUCTS),
})
"""Name -> generator; loads of four values are slower than of one on Reddit at 64 columns (AutoSAGE §8)."""
