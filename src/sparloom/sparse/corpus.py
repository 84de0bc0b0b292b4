"""Corpora of matrices: named entries with roles by family, folders and joined corpora, and stratified choices."""

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np

from sparloom.files import sha256
from sparloom.log import track
from sparloom.sparse.matrix_files import MATRIX_ENDINGS, matrix_stem, read_matrix
from sparloom.sparse.pattern import Pattern, SparseMatrix

ROW_BINS = ("<8192", "<32768", "<65536", "<131072", ">=131072")
"""Bins of matrices by rows (COGNATE appendix A)."""
Role = Literal["train", "validation", "test"]
"""Role of a matrix in an evaluation."""
Part = Literal["development", "final"]
"""Part of the real matrices: designs were made and judged on those of development, and final figures are made on test
matrices of the other part."""


@dataclass(frozen=True)
class MatrixEntry:
    """One matrix of a corpus.

    Args:
        name: "group/name", unique in the corpus.
        family: shared by versions of one input, which stay on one side of every split.
        nnz: stored entries after symmetric expansion.
        symmetric: the values are symmetric.
        kind: kind of problem, in the words of the collection.
        row_bin: one of `ROW_BINS`.
        spd: symmetric positive definite, as far as the catalogue knows.
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
        """Fraction of the positions that are stored."""
        return self.nnz / max(1, self.rows * self.cols)

    @classmethod
    def of(cls, name: str, family: str, pattern: Pattern, kind: str) -> "MatrixEntry":
        """Describe a matrix of which only the pattern is known."""
        return cls(name, family, pattern.rows, pattern.cols, pattern.nnz, False, kind, row_bin(pattern.rows))


class Corpus(Protocol):
    """Named matrices with a split by family; `corpus` in conf/options has one option per kind of corpus."""

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices."""

    def load(self, name: str) -> SparseMatrix:
        """Read or make one matrix; an unknown name raises KeyError."""

    def split(self) -> Mapping[str, Role]:
        """Map every matrix to its role."""


def row_bin(rows: int) -> str:
    """Return the row bin of a matrix with `rows` rows, one of `ROW_BINS`."""
    for name in ROW_BINS[:-1]:
        if rows < int(name[1:]):
            return name
    return ROW_BINS[-1]


def family_role(family: str) -> Role:
    """Assign a role by a hash of the family's name: about 50 % train, 10 % validation, 40 % test."""
    share = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4], "big") / 2**32
    return "train" if share < 0.5 else "validation" if share < 0.6 else "test"


def entry_of(entries: Iterable[MatrixEntry], name: str) -> MatrixEntry:
    """Find an entry by name, or raise a KeyError that names the nearest ones."""
    known = {entry.name: entry for entry in entries}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or sorted(known)[:3]
        raise KeyError(f"no matrix {name!r} in the corpus of {len(known)}; nearest: {', '.join(near)}")
    return known[name]


@dataclass(eq=False)
class FolderCorpus:
    """All matrix files in a folder and its sub-folders; the folder of a file is its group.

    The files of a sub-folder are one family, so versions of one input belong in a folder of their own; a file directly
    in `folder` is its own family. Roles follow from the hash of the family.
    """

    folder: str | Path

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices, sorted by name; the first call reads every file.

        Raises:
            NotADirectoryError: there is no such folder.
            ValueError: a file is damaged, or two files have the same name.
        """
        return tuple(entry for entry, _ in self._files.values())

    def load(self, name: str) -> SparseMatrix:
        """Read one matrix as float32; values that float32 rounds are kept in `SparseMatrix.exact` too."""
        return read_matrix(self._files[entry_of(self.entries(), name).name][1]).astype(np.float32)

    def identity(self, name: str) -> str:
        """Hash the file of a matrix, since files of one name in two folders may hold different matrices."""
        return sha256(self._files[entry_of(self.entries(), name).name][1])

    def split(self) -> dict[str, Role]:
        """Map every matrix to the role of its family."""
        return {entry.name: family_role(entry.family) for entry in self.entries()}

    @cached_property
    def _files(self) -> dict[str, tuple[MatrixEntry, Path]]:
        folder = Path(self.folder)
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder}: no such folder: give one that holds {', '.join(MATRIX_ENDINGS)}")
        paths: dict[str, Path] = {}
        for path in sorted(path for path in folder.rglob("*") if is_matrix_file(path)):
            name = f"{_group(path, folder)}/{matrix_stem(path)}"
            if name in paths:
                raise ValueError(f"{path} and {paths[name]} are both named {name}: rename one of them")
            paths[name] = path
        return {name: (MatrixEntry.of(name, _family(name, path, folder), read_matrix(path).pattern, "unknown"), path)
                for name, path in track(sorted(paths.items()), "matrix files")}


def is_matrix_file(path: Path) -> bool:
    """Decide by the name; macOS puts "._NAME", which holds attributes, beside every file on foreign disks."""
    return path.name.endswith(MATRIX_ENDINGS) and not path.name.startswith("._")


def _group(path: Path, folder: Path) -> str:
    inner = path.parent.relative_to(folder).as_posix()
    return folder.resolve().name if inner == "." else inner


def _family(name: str, path: Path, folder: Path) -> str:
    return matrix_stem(path) if path.parent == folder else name.rpartition("/")[0]


@dataclass(eq=False)
class JoinedCorpus:
    """Several corpora as one; no name occurs in two of them.

    Args:
        role: keep only matrices with this role; None: all.
    """

    corpora: Sequence[Corpus]
    role: Role | None = None

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices, corpus by corpus.

        Raises:
            ValueError: two corpora have a matrix of the same name, or the role is unknown.
        """
        return tuple(entry for entry, _ in self._homes.values())

    def load(self, name: str) -> SparseMatrix:
        """Read or make one matrix."""
        return self._homes[entry_of(self.entries(), name).name][1].load(name)

    def split(self) -> dict[str, Role]:
        """Map every matrix to the role that its corpus gives it."""
        roles = {id(corpus): corpus.split() for corpus in self.corpora}
        return {name: roles[id(corpus)][name] for name, (_, corpus) in self._homes.items()}

    @cached_property
    def _homes(self) -> dict[str, tuple[MatrixEntry, Corpus]]:
        if self.role not in (None, *get_args(Role)):
            raise ValueError(f"role {self.role!r} is not one of {', '.join(get_args(Role))}: corpus.role=null for all")
        homes: dict[str, tuple[MatrixEntry, Corpus]] = {}
        for corpus in self.corpora:
            roles = corpus.split()
            for entry in corpus.entries():
                if entry.name in homes:
                    raise ValueError(f"{entry.name} is in two of the joined corpora: leave one of them out")
                if self.role in (None, roles[entry.name]):
                    homes[entry.name] = entry, corpus
        return homes


def stratified_choice(entries: Iterable[MatrixEntry], count: int, *, seed: int) -> tuple[str, ...]:
    """Choose `count` names, spread evenly over the row bins as far as their sizes allow, and over density in each bin.

    A bin that gives k matrices is sorted by density and cut into k equal parts; one is drawn from each.

    Returns:
        Names by row bin, then by density; the same for the same entries (in any order), count and seed.

    Raises:
        ValueError: there are fewer than `count` entries.
    """
    ordered = sorted(entries, key=lambda entry: (entry.density, entry.name))
    if not 0 <= count <= len(ordered):
        raise ValueError(f"{count} matrices requested, the corpus has {len(ordered)}: request at most that many")
    rng = np.random.default_rng(seed)
    bins = [[entry for entry in ordered if entry.row_bin == name] for name in ROW_BINS]
    chosen: list[str] = []
    for members, share in zip(bins, _shares([len(members) for members in bins], count, rng), strict=True):
        for part in np.array_split(np.arange(len(members)), share) if share else ():
            chosen.append(members[int(part[int(rng.integers(part.size))])].name)
    return tuple(chosen)


def _shares(sizes: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Distribute `count` over the bins one by one, in a random order, skipping bins that are exhausted."""
    shares = [0] * len(sizes)
    order = rng.permutation(len(sizes))
    while sum(shares) < count:
        for index in order:
            if shares[index] < sizes[index] and sum(shares) < count:
                shares[index] += 1
    return shares
