"""Rows of cases that are done, on disk as soon as they exist, so that a run that is killed goes on where it was."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparloom.files import append_lines, read_lines

__all__ = ["CaseJournal", "journal_folder"]


def journal_folder(journals: str, *settings: object) -> Path:
    """Name the folder of a run that is under way; other settings begin anew in another one."""
    return Path(journals) / hashlib.sha256(repr(settings).encode()).hexdigest()[:16]


class CaseJournal:
    """One line per case: its key and its rows.

    Args:
        path: of the file; made by the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by case, in the order in which they were written."""
        found = (json.loads(line) for line in read_lines(self.path))
        return {line["case"]: line["rows"] for line in found}

    def append(self, case: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a case and wait until they are on disk."""
        append_lines(self.path, [json.dumps({"case": case, "rows": list(rows)}, allow_nan=False)])
