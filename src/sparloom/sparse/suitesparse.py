"""SuiteSparse collection, or part of it in the same layout: catalogue, split, choice, files on demand."""

import csv
import io
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import get_args

import numpy as np

from sparloom.files import sha256
from sparloom.log import track
from sparloom.sparse.corpus import MatrixEntry, Part, Role, entry_of, family_role, row_bin, stratified_choice
from sparloom.sparse.download import RetryPolicy, fetch
from sparloom.sparse.matrix_files import read_matrix
from sparloom.sparse.pattern import SparseMatrix

log = logging.getLogger(__name__)

COLUMNS = ("group", "name", "family", "rows", "cols", "nnz", "symmetric", "kind", "sha256")
SAFE_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*")  # path component that stays in its folder
DIGEST = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(eq=False)
class SuiteSparseCorpus:
    """Matrices of a mirror in SuiteSparse layout: index.csv beside GROUP/NAME.tar.gz; all of them, or a choice.

    Args:
        mirror: folder, or address that begins with https:// or http://; with None, every use raises an error that says
            how to set one.
        cache: folder for downloads, with a folder for each address; a mirror that is a folder is read in place.
            A catalogue is downloaded once: remove it for a newer one.
        patience: when a download is given up; None: the default policy.
        count: number of matrices, chosen evenly over row bins and sparsity (`stratified_choice`); None: all.
        role: keep only matrices with this role; None: all.
        seed: of the choice.
        part: keep only this part of the matrices; None: all.
    """

    mirror: str | None
    cache: str
    patience: RetryPolicy | None = None
    _: KW_ONLY
    count: int | None
    role: Role | None
    seed: int
    part: Part | None = None

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices, sorted by name.

        Raises:
            ValueError: there are fewer than `count`, or the role or the part is unknown.
        """
        return self._entries

    def load(self, name: str) -> SparseMatrix:
        """Read one matrix as float32, after downloading it if it is not in the cache.

        Values that float32 rounds are kept in `SparseMatrix.exact` too.

        Raises:
            KeyError: the mirror has no such matrix.
            ValueError: the file is damaged, or its checksum differs from the catalogue.
            FileNotFoundError, ConnectionError: the mirror does not provide it.
        """
        return read_matrix(self.fetch((name,))[0]).astype(np.float32)

    def fetch(self, names: Iterable[str]) -> tuple[Path, ...]:
        """Download missing files of these matrices, verify all checksums, and return the paths."""
        names = tuple(names)
        for name in names:
            entry_of(self.entries(), name)
        missing = [name for name in names if not self._is_here(name)]
        for name in track(missing, "downloads") if missing else ():
            self._download(f"{name}.tar.gz", self._index[1][name])
        return tuple(self._path(name) for name in names)

    def split(self) -> dict[str, Role]:
        """Map every matrix to its frozen role; families that the frozen split does not list get a role by hash."""
        return _roles(self.entries())

    @cached_property
    def _entries(self) -> tuple[MatrixEntry, ...]:
        if self.role not in (None, *get_args(Role)):
            raise ValueError(f"role {self.role!r} is not one of {', '.join(get_args(Role))}: corpus.role=null for all")
        if self.part not in (None, *get_args(Part)):
            raise ValueError(f"part {self.part!r} is not one of {', '.join(get_args(Part))}: corpus.part=null for all")
        entries = self._index[0]
        roles, parts = _roles(entries), _parts(entries)
        candidates = tuple(entry for entry in entries if self.role in (None, roles[entry.name])
                           and self.part in (None, parts[entry.name]))
        if self.count is None:
            return candidates
        chosen = set(stratified_choice(candidates, self.count, seed=self.seed))
        return tuple(entry for entry in candidates if entry.name in chosen)

    @cached_property
    def _index(self) -> tuple[tuple[MatrixEntry, ...], Mapping[str, str]]:
        """Read the catalogue: entries, and checksums by name."""
        path = self._home() / "index.csv"
        if self._is_remote() and not path.exists():
            self._download("index.csv", None)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file: a mirror holds index.csv beside GROUP/NAME.tar.gz")
        return _parse_index(path.read_text(encoding="utf-8"), str(path))

    def _is_here(self, name: str) -> bool:
        """Return whether the file exists and is intact; False only where it can be downloaded."""
        path, expected = self._path(name), self._index[1][name]
        if not path.is_file():
            if self._is_remote():
                return False
            raise FileNotFoundError(f"{path}: no such file, though the catalogue lists it: the mirror is incomplete")
        actual = sha256(path)
        if actual == expected:
            return True
        if not self._is_remote():
            raise ValueError(f"{path}: checksum {actual}, the catalogue says {expected}: the mirror is damaged")
        log.warning("%s: damaged in the cache; downloading it again", path)
        path.unlink()
        return False

    def _path(self, name: str) -> Path:
        return self._home() / f"{name}.tar.gz"

    def _download(self, relative: str, digest: str | None) -> None:
        fetch(self._address(relative), self._home() / relative, digest=digest, policy=self.patience or RetryPolicy())

    def _address(self, relative: str) -> str:
        return f"{str(self.mirror).rstrip('/')}/{relative}"

    def _is_remote(self) -> bool:
        return str(self.mirror).startswith(("https://", "http://"))

    def _home(self) -> Path:
        """Return the folder of the mirror, or of its downloads in the cache."""
        if not self.mirror:
            raise ValueError(
                "no mirror of real matrices: set SPARLOOM_MIRROR, or paths.mirror=..., to a folder or an https:// "
                "address in SuiteSparse layout (index.csv beside GROUP/NAME.tar.gz)")
        if self._is_remote():
            return Path(self.cache) / re.sub(r"[^A-Za-z0-9.-]+", "_", str(self.mirror).partition("://")[2].rstrip("/"))
        if "://" in str(self.mirror):
            raise ValueError(f"mirror {str(self.mirror)!r}: give a folder or an address with https:// or http://")
        return Path(self.mirror)


def _roles(entries: Iterable[MatrixEntry]) -> dict[str, Role]:
    """Map matrices to roles; the roles of known families were frozen before any result existed."""
    frozen = {row["family"]: row["role"] for row in _split_rows()}
    return {entry.name: frozen.get(entry.family) or family_role(entry.family) for entry in entries}


def _parts(entries: Iterable[MatrixEntry]) -> dict[str, Part]:
    """Map matrices to their parts; no design was made or judged on one that the split does not list."""
    listed = {f"{row['group']}/{row['name']}": row["part"] for row in _split_rows()}
    return {entry.name: listed.get(entry.name, "final") for entry in entries}


def _split_rows() -> list[dict[str, str]]:
    text = resources.files("sparloom.sparse").joinpath("suitesparse_split.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def _parse_index(text: str, source: str) -> tuple[tuple[MatrixEntry, ...], Mapping[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{source}: line 1: no column {missing[0]!r}: a catalogue has {', '.join(COLUMNS)}")
    entries, sums = [], {}
    for line, row in enumerate(reader, start=2):
        if any(row[column] is None for column in COLUMNS):
            raise ValueError(f"{source}: line {line}: fewer fields than line 1 names: truncated; remove the file")
        entry = _entry(row, f"{source}: line {line}")
        if not DIGEST.fullmatch(row["sha256"]):
            raise ValueError(f"{source}: line {line}: sha256 {row['sha256']!r} is no checksum: damaged or truncated; "
                             "remove the file")
        if entry.name in sums:
            raise ValueError(f"{source}: line {line}: {entry.name} occurs a second time")
        entries.append(entry)
        sums[entry.name] = row["sha256"].lower()
    return tuple(sorted(entries, key=lambda entry: entry.name)), sums


def _entry(row: Mapping[str, str], source: str) -> MatrixEntry:
    for column in ("group", "name"):
        if not SAFE_NAME.fullmatch(row[column]):
            raise ValueError(f"{source}: {column} {row[column]!r} is not a plain file name: refused")
    counts = []
    for column in ("rows", "cols", "nnz"):
        if not (row[column].isascii() and row[column].isdigit()):
            raise ValueError(f"{source}: {column} {row[column]!r} is not a count")
        counts.append(int(row[column]))
    name = f"{row['group']}/{row['name']}"
    return MatrixEntry(name, row["family"], *counts, row["symmetric"] == "1", row["kind"], row_bin(counts[0]),
                       spd=row.get("spd_likely") == "1")
