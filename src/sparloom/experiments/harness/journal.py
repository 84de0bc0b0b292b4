"""Keep finished cases on disk, so that a killed run continues, and record the code and versions that made them."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sparloom.data import Conditions, JsonLines, to_json_values
from sparloom.experiments.harness.conditions import identities_of
from sparloom.jit import compiler_version
from sparloom.measure import code_changes, code_revision, describe_machine
from sparloom.ragged import LengthCorpus
from sparloom.resources import CHECKOUT, package_versions
from sparloom.sparse import Corpus

PACKAGES = ("numpy", "scipy", "torch", "torch-geometric", "mkl", "cupy-cuda11x", "cupy-cuda12x",
            "cupy-cuda13x", "triton")
"""Packages that benchmarks run or compare with."""


@cache
def commit() -> str:
    """Return the commit of this checkout, with "+" if tracked files differ; "unknown" outside of a checkout."""
    found = None if CHECKOUT is None else code_revision(CHECKOUT)
    return "unknown" if found is None else found.commit[:12] + ("+" if found.dirty else "")


@cache
def code() -> str:
    """Return the commit and a digest of uncommitted changes in src/ and kernels/ ("" if there are none)."""
    return commit().rstrip("+") + code_changes(Path(__file__).parent, "src", "kernels")


def journal_folder(
    journals: str, *settings: object, corpora: Sequence[Corpus] = (), lengths: LengthCorpus | None = None,
) -> Path:
    """Return the folder of an unfinished run: its name hashes everything that the rows depend on.

    That is the settings, the code, the machine, the versions of compiler and packages, and the content of the matrices
    and lengths (not their paths). A run under other conditions starts in a folder of its own.
    """
    matrices = [identities_of(corpus) for corpus in corpora]
    drawn = {} if lengths is None else {name: lengths.load(name).values.tolist() for name in lengths.names}
    known = [code(), describe_machine()["name"], compiler_version("c++"), package_versions(PACKAGES), matrices, drawn,
             [_plain(value) for value in settings]]
    return Path(journals) / Conditions({"run": known}).digest


def _plain(value: object) -> Any:
    try:
        return to_json_values(value)
    except TypeError:
        return repr(value)


class CaseJournal:
    """Store finished cases, one line each: its key and its rows.

    Args:
        path: of the file; created with the first case.
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path, "remove it to do the case again")

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Read the rows of every case, in the order in which they were written.

        Raises:
            SchemaError: a line is damaged; the message names file and line.
        """
        return dict(self._lines.read(lambda record: (record["case"], record["rows"])))

    def append(self, case: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows of a case and wait until they are on disk."""
        self._lines.append([{"case": case, "rows": list(rows)}])
