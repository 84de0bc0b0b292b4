"""Journals of a collection in progress: samples are on disk as soon as they exist, even if the process is killed."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from sparloom.data.sample import Conditions, Group, Sample, conditions_entry
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.files import append_lines, locked, read_lines, write_text

T = TypeVar("T")
_CRC_BYTES = len(', "crc": "00000000"}')


class JsonLines:
    """Append-only file of JSON objects, one per line, whose last entry is a CRC-32 of the rest of the line.

    A line that was incomplete when the process died is ignored by readers and cut off by the next append. Several
    processes may append to one file.

    Args:
        remedy: what to do about a damaged line, the end of a message.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records and wait until they are on disk."""
        append_lines(self.path, map(_line, records))

    def read(self, parse: Callable[[dict[str, Any]], T]) -> list[T]:
        """Parse all complete lines; those of older versions have no CRC.

        Raises:
            SchemaError: a line is damaged; the message names file and line.
        """
        parsed = []
        for number, line in enumerate(read_lines(self.path), start=1):
            try:
                record = json.loads(line)
                if record.pop("crc", None) not in (None, _crc(line[:-_CRC_BYTES])):
                    raise ValueError("its checksum does not match")
                parsed.append(parse(record))
            except (ValueError, TypeError, KeyError, AttributeError, SchemaError) as error:
                raise SchemaError(f"{self.path}, line {number} is damaged ({error}): {self.remedy}") from None
        return parsed

    def replace(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the content of the file, atomically."""
        write_text(self.path, "".join(f"{_line(record)}\n" for record in records))


class Journal:
    """Samples of one (platform, preset, op, matrix); a killed process loses at most the samples in flight.

    Args:
        key: platform, preset, op, matrix.
    """

    def __init__(self, folder: Path, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self.path = Path(folder) / f"{','.join(quote(part, safe='') for part in key)}.jsonl"
        self._lines = JsonLines(self.path, "remove it to collect it again")

    @classmethod
    def at(cls, path: Path) -> "Journal":
        return cls(path.parent, [unquote(part) for part in path.name.removesuffix(".jsonl").split(",")])

    def done(self, width: int | None = None) -> set[tuple[str, int]]:
        """Return (configuration key, round) of every row including failures, of one width or of all."""
        return {(sample.config, sample.round) for sample in self.samples() if width in (None, sample.width)}

    def samples(self) -> list[Sample]:
        """Return all complete rows.

        Raises:
            SchemaError: a complete line is damaged; the message names file and line.
        """
        return self._lines.read(Sample.from_record)

    def conditions(self) -> dict[str, int]:
        """Count the rows by conditions; rows of older versions have "".

        Raises:
            SchemaError: as `samples`.
        """
        return dict(Counter(sample.conditions for sample in self.samples()))

    def keep(self, conditions: str) -> None:
        """Remove the rows with other conditions."""
        with locked(self.path):
            self._lines.replace(sample.record() for sample in self.samples() if sample.conditions == conditions)

    def append(self, rows: Iterable[Sample]) -> None:
        """Append rows and wait until they are on disk."""
        self._lines.append(row.record() for row in rows)


def compact(folder: Path, provenance: Sequence[Mapping[str, Any]]) -> SampleTable:
    """Join all journals of a folder into one validated table.

    Raises:
        SchemaError: a journal is damaged, or rows of one preset have different conditions.
    """
    samples: list[Sample] = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        samples.extend(Journal.at(path).samples())
    found: dict[Group, set[str]] = {}
    for sample in samples:
        found.setdefault((sample.op, sample.platform, sample.preset), set()).add(sample.conditions.partition(":")[0])
    known = []
    for group, digests in sorted(found.items()):
        if len(digests) > 1:
            listed = ", ".join(digest or "none" for digest in sorted(digests))
            raise SchemaError(f"{folder}: samples of {' '.join(group)} were made under different conditions "
                              f"({listed}): collect them into different folders")
        known += [conditions_entry(group, digest, Conditions.read(folder, digest)) for digest in digests if digest]
    table = SampleTable.concat([SampleTable.of(samples, [*provenance, *known])])
    table.validate()
    return table


def _line(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, allow_nan=False)[:-1]
    return f'{text}, "crc": "{_crc(text.encode())}"}}'


def _crc(text: bytes) -> str:
    return f"{zlib.crc32(text):08x}"
