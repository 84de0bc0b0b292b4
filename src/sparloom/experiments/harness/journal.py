"""Keep finished cases on disk, so that a killed run continues, and record the code and versions that made them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparloom.data import Conditions, to_json_values
from sparloom.errors import SchemaError
from sparloom.experiments.harness.conditions import identities_of
from sparloom.files import append_lines, read_lines
from sparloom.jit import compiler_version
from sparloom.measure import code_changes, code_revision, describe_machine
from sparloom.ragged import LengthCorpus
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    pass

__all__ = ["CaseJournal", "code", "commit", "journal_folder", "versions"]

PACKAGES = ("numpy", "scipy", "torch", "torch-geometric", "mkl", "pymetis", "cupy-cuda13x", "triton")
"""What benchmarks run or compare with."""


@cache
def commit() -> str:
    """Commit of the checkout this package is in, "+" appended when tracked files differ; "unknown" outside of one."""
    found = code_revision(Path(__file__).parent)
    return "unknown" if found is None else found.commit[:12] + ("+" if found.dirty else "")


@cache
def code() -> str:
    """Commit, and a digest of what differs from it in the package and in kernels/, "" where nothing does."""
    return commit().rstrip("+") + code_changes(Path(__file__).parent, "src", "kernels")


@cache
def versions() -> Mapping[str, str]:
    """Versions of the packages that benchmarks run, as far as they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def journal_folder(
    journals: str, *settings: object, corpora: Sequence[Corpus] = (), lengths: LengthCorpus | None = None,
) -> Path:
    """Name the folder of a run that is under way; whatever its rows depend on begins anew in another one.

    Beside the settings that is the code, the machine, what the compiler and other packages are, and the content of the
    matrices and lengths; not where they lie.
    """
    matrices = [identities_of(corpus) for corpus in corpora]
    drawn = {} if lengths is None else {name: lengths.load(name).values.tolist() for name in lengths.names}
    known = [code(), describe_machine()["name"], compiler_version("c++"), versions(), matrices, drawn,
             [_plain(value) for value in settings]]
    return Path(journals) / Conditions({"run": known}).digest


def _plain(value: object) -> Any:
    try:
        return to_json_values(value)
    except TypeError:
        return repr(value)


class CaseJournal:
    """One line per case: its key and its rows.

    Args:
        path: of the file; made by the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by case, in the order in which they were written.

        Raises:
            SchemaError: a line is damaged; the message names file and line.
        """
        found = {}
        for number, line in enumerate(read_lines(self.path), start=1):
            try:
                record = json.loads(line)
                found[record["case"]] = record["rows"]
            except (ValueError, TypeError, KeyError) as error:
                raise SchemaError(f"{self.path}, line {number} is damaged ({error}): remove it to do the case "
                                  "again") from None
        return found

    def append(self, case: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a case and wait until they are on disk."""
        append_lines(self.path, [json.dumps({"case": case, "rows": list(rows)}, allow_nan=False)])
