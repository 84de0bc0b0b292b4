"""A collection in progress: rows on disk as soon as they exist, whatever kills the process."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparloom.data.sample import Sample
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.files import append_lines, read_lines

__all__ = ["Journal", "compact"]


class Journal:
    """Append-only rows of one (platform, preset, op, matrix), one JSON object per line.

    A line that was being written when the process died is dropped when reading and cut off before the next append, so
    at most the samples in flight are lost. Several processes may append to one journal.

    Args:
        folder: holds the journals of one collection.
        key: platform, preset, op, matrix.
    """

    def __init__(self, folder: Path, key: Sequence[str]) -> None:
        self.path = Path(folder) / f"{','.join(quote(part, safe='') for part in key)}.jsonl"

    def done(self, width: int | None = None) -> set[tuple[str, int]]:
        """(configuration key, round) of every row, failed ones included; of one width, or of all."""
        return {(sample.config, sample.round) for sample in self.samples() if width in (None, sample.width)}

    def samples(self) -> list[Sample]:
        """All complete rows.

        Raises:
            SchemaError: a line before the last is damaged; the message names file and line.
        """
        return list(_complete(self.path))

    def append(self, rows: Iterable[Sample]) -> None:
        """Write rows and wait until they are on disk."""
        append_lines(self.path, (json.dumps(row.record(), allow_nan=False) for row in rows))


def compact(folder: Path, provenance: Sequence[Mapping[str, Any]]) -> SampleTable:
    """Join all journals of a folder into one validated table."""
    samples: list[Sample] = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        samples.extend(_complete(path))
    table = SampleTable.concat([SampleTable.of(samples, provenance)])
    table.validate()
    return table


def _complete(path: Path) -> Iterator[Sample]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield Sample.from_record(json.loads(line))
        except (ValueError, TypeError, SchemaError) as error:
            raise SchemaError(f"{path}, line {number} is damaged ({error}): remove it to collect it again") from None
