"""Journals of a collection in progress: samples are on disk as soon as they exist, even if the process is killed."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sparloom.data.sample import Conditions, Group, Sample, conditions_entry
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.files import append_lines, locked, read_lines, write_text

_CRC_BYTES = len(', "crc": "00000000"}')
_CONDITIONS = re.compile(rb'"conditions": "([0-9a-f:]+)"')


class Journal:
    """Append-only file of the samples of one (platform, preset, op, matrix), one JSON object per line.

    A line that was incomplete when the process died is ignored by readers and cut off by the next append, so at most
    the samples in flight are lost. Several processes may append to one journal.

    Args:
        key: platform, preset, op, matrix.
    """

    def __init__(self, folder: Path, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self.path = Path(folder) / f"{','.join(quote(part, safe='') for part in key)}.jsonl"

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
        return list(_complete(self.path))

    def conditions(self) -> dict[str, int]:
        """Count the rows by conditions; rows of older versions have "".

        Raises:
            SchemaError: as `samples`.
        """
        lines = read_lines(self.path)
        first = _CONDITIONS.search(lines[0]) if lines else None
        if first is not None and all(first[0] in line for line in lines):
            return {first[1].decode(): len(lines)}  # common case: do not parse the rows
        return dict(Counter(sample.conditions for sample in self.samples()))

    def keep(self, conditions: str) -> None:
        """Remove the rows with other conditions."""
        with locked(self.path):
            matching = [sample for sample in self.samples() if sample.conditions == conditions]
            write_text(self.path, "".join(f"{_line(sample.record())}\n" for sample in matching))

    def append(self, rows: Iterable[Sample]) -> None:
        """Append rows and wait until they are on disk."""
        append_lines(self.path, (_line(row.record()) for row in rows))


def compact(folder: Path, provenance: Sequence[Mapping[str, Any]]) -> SampleTable:
    """Join all journals of a folder into one validated table.

    Raises:
        SchemaError: a journal is damaged, or rows of one preset have different conditions.
    """
    samples: list[Sample] = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        samples.extend(_complete(path))
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
    """Render a record as a line of JSON whose last entry is a checksum of the rest of the line."""
    text = json.dumps(record, allow_nan=False)[:-1]
    return f'{text}, "crc": "{zlib.crc32(text.encode()):08x}"}}'


def _record(line: bytes) -> dict[str, Any]:
    """Parse a line that `_line` rendered, or one of older versions without checksum.

    Raises:
        ValueError: the line is damaged.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    noted = record.pop("crc", None)
    if noted is not None and noted != f"{zlib.crc32(line[:-_CRC_BYTES]):08x}":
        raise ValueError("its checksum does not match")
    return record


def _complete(path: Path) -> Iterator[Sample]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield Sample.from_record(_record(line))
        except (ValueError, TypeError, SchemaError) as error:
            raise SchemaError(f"{path}, line {number} is damaged ({error}): remove it to collect it again") from None
