"""What a corpus of matrices is: named entries, loading, roles by family."""

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from sparloom.sparse.pattern import SparseMatrix

__all__ = ["ROW_BINS", "Corpus", "MatrixEntry", "Role", "family_role", "row_bin"]

ROW_BINS = ("<8192", "<32768", "<65536", "<131072", ">=131072")  # COGNATE appendix A
Role = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class MatrixEntry:
    """One matrix of a corpus.

    Args:
        name: "group/name", unique in the corpus.
        family: versions of one input share it, and stay on one side of every split.
        nnz: stored entries after symmetric expansion.
        symmetric: the values are symmetric.
        kind: problem kind, as the collection words it.
        row_bin: one of `ROW_BINS`.
        spd: positive definite, as far as the catalogue knows.
    """

    name: str
    family: str
    rows: int
    cols: int
    nnz: int
    symmetric: bool
    kind: str
    row_bin: str
    spd: bool = False

    @property
    def density(self) -> float:
        """Share of the positions that are stored."""
        return self.nnz / max(1, self.rows * self.cols)


class Corpus(Protocol):
    """Named matrices with a split by family; conf/corpus has one file per kind of corpus."""

    def entries(self) -> tuple[MatrixEntry, ...]: ...

    def load(self, name: str) -> SparseMatrix: ...

    def split(self) -> Mapping[str, Role]: ...


def row_bin(rows: int) -> str:
    """Name the row bin of a matrix with `rows` rows."""
    for name in ROW_BINS[:-1]:
        if rows < int(name[1:]):
            return name
    return ROW_BINS[-1]


def family_role(family: str) -> Role:
    """Give a family its role by a hash of its name: about 50 % train, 10 % validation, 40 % test."""
    share = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4], "big") / 2**32
    return "train" if share < 0.5 else "validation" if share < 0.6 else "test"


def entry_of(entries: Iterable[MatrixEntry], name: str) -> MatrixEntry:
    """Find an entry by name.

    Raises:
        KeyError: names the nearest entries.
    """
    known = {entry.name: entry for entry in entries}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or sorted(known)[:3]
        raise KeyError(f"no matrix {name!r} in the corpus of {len(known)}; nearest: {', '.join(near)}")
    return known[name]
