"""A collection in progress: rows on disk as soon as they exist, whatever kills the process."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from sparloom.data.sample import Sample
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError

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
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            return list(_complete(file, self.path))

    def append(self, rows: Iterable[Sample]) -> None:
        """Write rows and wait until they are on disk."""
        text = "".join(json.dumps(row.record(), allow_nan=False) + "\n" for row in rows)
        if not text:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_torn_line(file)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def compact(folder: Path, provenance: Sequence[Mapping[str, Any]]) -> SampleTable:
    """Join all journals of a folder into one validated table."""
    samples: list[Sample] = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        with path.open("rb") as file:
            samples.extend(_complete(file, path))
    table = SampleTable.concat([SampleTable.of(samples, provenance)])
    table.validate()
    return table


def _complete(file: IO[bytes], path: Path) -> Iterator[Sample]:
    lines = file.read().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield Sample.from_record(json.loads(line))
        except (ValueError, TypeError, SchemaError) as error:
            raise SchemaError(f"{path}, line {number} is damaged ({error}): remove it to collect it again") from None


def _cut_torn_line(file: IO[bytes]) -> None:
    size = file.seek(0, os.SEEK_END)
    block = 1 << 16
    end = size
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        file.truncate(end)
