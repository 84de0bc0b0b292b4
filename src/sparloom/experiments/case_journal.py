"""Rows of cases that are done, on disk as soon as they exist, so that a run that is killed goes on where it was."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparloom.data import Conditions, plain
from sparloom.errors import SchemaError
from sparloom.experiments.provenance import code, versions
from sparloom.experiments.resumed import identities_of
from sparloom.files import append_lines, read_lines
from sparloom.jit import compiler_version
from sparloom.measure import describe_machine
from sparloom.ragged import LengthCorpus
from sparloom.sparse import Corpus

__all__ = ["CaseJournal", "journal_folder"]


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
        return plain(value)
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
