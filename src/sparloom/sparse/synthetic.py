"""Synthetic matrices: made on demand from a seed, without network, in all row bins."""

import csv
import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType

import numpy as np

from sparloom.log import track
from sparloom.sparse.corpus import MatrixEntry, Role, entry_of, row_bin
from sparloom.sparse.generators import GENERATORS
from sparloom.sparse.pattern import SparseMatrix

__all__ = ["SYNTHETIC_ROLES", "SyntheticCorpus", "catalogue_text"]

log = logging.getLogger(__name__)

FIELDS = ("name", "rows", "cols", "nnz", "sha256")

# Generators that share their construction have one role: a model never meets a relative of a test matrix in training.
SYNTHETIC_ROLES: Mapping[str, Role] = MappingProxyType({
    **dict.fromkeys(("star_2d", "box_2d"), "train"),
    **dict.fromkeys(("triangles", "shuffled_mesh", "block_mesh", "tetrahedra"), "train"),
    **dict.fromkeys(("banded", "scrambled_band", "arrow"), "train"),
    **dict.fromkeys(("uniform", "kronecker", "hub_rows", "staircase"), "train"),
    **dict.fromkeys(("blocks", "communities", "small_world", "roads"), "validation"),
    **dict.fromkeys(("star_3d", "box_3d"), "test"),
    **dict.fromkeys(("heavy_tail", "nearest", "pruned", "mycielskian", "netlist"), "test"),
})


class SyntheticCorpus:
    """Every family in every size; the name of a matrix holds all that determines it.

    Args:
        rows: sizes to make; generators come close to them, within the row bin for sizes that are not near its border.
        variants: matrices per family and size, which differ in all draws.
        seed: another seed gives another corpus.
        families: names from `GENERATORS`; None takes all.
    """

    def __init__(
        self, rows: Sequence[int], variants: int, seed: int, families: Sequence[str] | None = None,
    ) -> None:
        self.rows = rows
        self.variants = variants
        self.seed = seed
        self.families = families
        self._entries: tuple[MatrixEntry, ...] | None = None

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices, family by family; those that the package's catalogue does not list are made for it."""
        if self._entries is None:
            known, names = _catalogue(), self._names()
            fresh = [name for name in names if name not in known]
            made = {name: _facts(_make(name)) for name in track(fresh, "synthetic matrices")} if fresh else {}
            self._entries = tuple(_entry(name, known.get(name) or made[name]) for name in names)
        return self._entries

    def load(self, name: str) -> SparseMatrix:
        """Make one matrix.

        Raises:
            KeyError: the corpus has no such matrix.
        """
        entry_of(self.entries(), name)
        matrix = _make(name)
        listed = _catalogue().get(name)
        if listed is not None and _facts(matrix) != listed:
            log.warning("%s comes out differently on this machine: samples taken elsewhere do not describe it", name)
        return matrix

    def split(self) -> dict[str, Role]:
        """Give every matrix the role of its family."""
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
    """Make every matrix of a corpus and write the catalogue that the package holds for it."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows((name, *_facts(_make(name))) for name in track(corpus._names(), "synthetic matrices"))
    return sink.getvalue()


def _make(name: str) -> SparseMatrix:
    """Make the matrix of a name "family/n<rows>_v<variant>_s<seed>"."""
    family, _, size = name.partition("/")
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
    rng = np.random.Generator(np.random.PCG64(seed))
    pattern = GENERATORS[family](int(size[1:].partition("_")[0]), rng)
    return SparseMatrix(pattern, 2 * rng.random(pattern.nnz) - 1)


def _facts(matrix: SparseMatrix) -> tuple[int, int, int, str]:
    """Rows, columns, nonzeros and a checksum of pattern and values."""
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


def _entry(name: str, facts: tuple[int, int, int, str]) -> MatrixEntry:
    rows, cols, nnz, _ = facts
    return MatrixEntry(name, name.partition("/")[0], rows, cols, nnz, False, "synthetic", row_bin(rows))
