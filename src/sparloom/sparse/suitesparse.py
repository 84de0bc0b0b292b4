"""The SuiteSparse collection, or a part of it in the same layout: catalogue, split, choice, files on demand."""

import csv
import io
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from sparloom.files import sha256
from sparloom.sparse.corpus import MatrixEntry, Role, entry_of, family_role, row_bin
from sparloom.sparse.matrices import read_matrix
from sparloom.sparse.pattern import SparseMatrix

__all__ = ["SuiteSparseCorpus"]

COLUMNS = ("group", "name", "family", "rows", "cols", "nnz", "symmetric", "kind", "sha256")


class SuiteSparseCorpus:
    """Matrices of a mirror: index.csv beside GROUP/NAME.tar.gz.

    Args:
        mirror: a folder, or an address that begins with https:// or http://.
        cache: folder for what is fetched from an address; a folder is read where it is.
    """

    def __init__(self, mirror: str | Path | None, cache: str | Path) -> None:
        self.mirror = mirror
        self.cache = cache
        self._entries: tuple[MatrixEntry, ...] | None = None
        self._sums: dict[str, str] = {}

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices of the mirror, sorted by name."""
        if self._entries is None:
            index = Path(self.mirror) / "index.csv"
            self._entries, self._sums = _parse_index(index.read_text(encoding="utf-8"), str(index))
        return self._entries

    def load(self, name: str) -> SparseMatrix:
        """Read one matrix."""
        return read_matrix(self.path(name))

    def path(self, name: str) -> Path:
        """Return the file of a matrix, its checksum compared with the index."""
        entry_of(self.entries(), name)
        path = Path(self.mirror) / f"{name}.tar.gz"
        actual, expected = sha256(path), self._sums[name]
        if actual != expected:
            raise ValueError(f"{path}: checksum {actual}, the index says {expected}: the file is damaged")
        return path

    def split(self) -> dict[str, Role]:
        """Give every matrix its frozen role; a family that the frozen split does not know gets one by hash."""
        frozen = frozen_families()
        return {entry.name: frozen.get(entry.family) or family_role(entry.family) for entry in self.entries()}


def frozen_families() -> Mapping[str, Role]:
    """Read the roles that were frozen before any result existed: family -> role."""
    text = resources.files("sparloom.sparse").joinpath("suitesparse_split.csv").read_text(encoding="utf-8")
    return {row["family"]: row["role"] for row in csv.DictReader(io.StringIO(text))}


def _parse_index(text: str, place: str) -> tuple[tuple[MatrixEntry, ...], dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{place}: no column {missing[0]!r}: a catalogue has {', '.join(COLUMNS)}")
    entries, sums = [], {}
    for line, row in enumerate(reader, start=2):
        try:
            name = f"{row['group']}/{row['name']}"
            rows, cols, nnz = (int(row[column]) for column in ("rows", "cols", "nnz"))
            entries.append(MatrixEntry(
                name, row["family"], rows, cols, nnz, row["symmetric"] == "1", row["kind"], row_bin(rows)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: line {line}: {error}") from error
        sums[name] = row["sha256"]
    return tuple(sorted(entries, key=lambda entry: entry.name)), sums
