"""A folder of matrix files as a corpus."""

from pathlib import Path

import numpy as np

from sparloom.files import sha256
from sparloom.log import track
from sparloom.sparse.corpus import MatrixEntry, Role, entry_of, family_role, row_bin
from sparloom.sparse.matrices import MATRIX_ENDINGS, matrix_stem, read_matrix
from sparloom.sparse.pattern import Pattern, SparseMatrix

__all__ = ["FolderCorpus"]


class FolderCorpus:
    """All matrix files below a folder; the folder a file lies in is its group.

    Files in one sub-folder count as one family, so versions of one input belong in a folder of their own; a file
    that lies in `folder` itself is its own family. Roles follow from the hash of the family.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder
        self._found: dict[str, tuple[MatrixEntry, Path]] | None = None

    def entries(self) -> tuple[MatrixEntry, ...]:
        """List the matrices, sorted by name; the first call reads every file.

        Raises:
            NotADirectoryError: there is no such folder.
            ValueError: a file is damaged, or two files have one name.
        """
        return tuple(entry for entry, _ in self._files().values())

    def load(self, name: str) -> SparseMatrix:
        """Read one matrix; its values are float32, beside the exact ones where these differ."""
        return read_matrix(self._files()[entry_of(self.entries(), name).name][1]).astype(np.float32)

    def identity(self, name: str) -> str:
        """Hash the file of a matrix: files of one name in two folders may hold different matrices."""
        return sha256(self._files()[entry_of(self.entries(), name).name][1])

    def split(self) -> dict[str, Role]:
        """Give every matrix a role by the hash of its family."""
        return {entry.name: family_role(entry.family) for entry in self.entries()}

    def _files(self) -> dict[str, tuple[MatrixEntry, Path]]:
        if self._found is None:
            folder = Path(self.folder)
            if not folder.is_dir():
                raise NotADirectoryError(f"{folder}: no such folder: give one that holds {', '.join(MATRIX_ENDINGS)}")
            paths: dict[str, Path] = {}
            for path in sorted(path for path in folder.rglob("*") if _is_matrix(path)):
                name = f"{_group(path, folder)}/{matrix_stem(path)}"
                if name in paths:
                    raise ValueError(f"{path} and {paths[name]} are both named {name}: rename one of them")
                paths[name] = path
            self._found = {
                name: (_entry(name, read_matrix(paths[name]).pattern, _family(name, paths[name], folder)), paths[name])
                for name in track(sorted(paths), "matrix files")
            }
        return self._found


def _is_matrix(path: Path) -> bool:
    """Tell by the name; a Mac puts "._NAME", which holds attributes, beside every file on foreign disks."""
    return path.name.endswith(MATRIX_ENDINGS) and not path.name.startswith("._")


def _group(path: Path, folder: Path) -> str:
    inner = path.parent.relative_to(folder).as_posix()
    return folder.resolve().name if inner == "." else inner


def _family(name: str, path: Path, folder: Path) -> str:
    return matrix_stem(path) if path.parent == folder else name.rpartition("/")[0]


def _entry(name: str, pattern: Pattern, family: str) -> MatrixEntry:
    return MatrixEntry(
        name, family, pattern.rows, pattern.cols, pattern.nnz, False, "unknown", row_bin(pattern.rows))
