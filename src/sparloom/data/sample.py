"""One measured, simulated or failed configuration: a row of a sample table.

What measured or simulated seconds depend on, and a digest of it that tells whether two rows may share a table.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from sparloom.errors import SchemaError
from sparloom.files import read_json, write_checked_json
from sparloom.measure import Measurement
from sparloom.space import Config

__all__ = [
    "GROUP", "Conditions", "Group", "Sample", "conditions_entry", "group_of", "mixture_message", "to_json_values",
]


@dataclass(frozen=True)
class Sample:
    """What one configuration did in one round, and under which conditions.

    Args:
        op, platform, preset: what ran where; the preset names a set of machine parameters ("" where there is only one).
        matrix: "group/name".
        width: columns of the dense operand.
        config: key of the configuration in the platform's space.
        round: independent repetition of the whole measurement, from 0.
        seconds: one per repetition; empty when it failed.
        cpu_seconds: processor time of the same repetitions, or empty.
        kind: which clock: wall, device or simulated.
        failure: why there are no seconds, or None.
        stolen: the machine was taken away during every attempt.
        machine: one line that describes it.
        commit: of the code that measured.
        started: UTC, ISO 8601, seconds.
        conditions: digest of everything else that the seconds depend on, see `Conditions`, then ":" and a digest of
            the matrix; "" in rows of older versions. Journals keep it in every row, tables once for all of a preset.
    """

    op: str
    platform: str
    preset: str
    matrix: str
    width: int
    config: str
    round: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    kind: str
    failure: str | None
    stolen: bool
    machine: str
    commit: str
    started: str
    conditions: str = ""

    @classmethod
    def of(cls, measurement: Measurement, config: Config, *, round: int, **conditions: Any) -> "Sample":
        """Make the row of one measurement.

        Args:
            conditions: op, platform, preset, matrix, width, machine, commit, conditions, and started if it is not now.
        """
        conditions.setdefault("started", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        return cls(
            config=config.key,
            round=round,
            seconds=tuple(map(float, measurement.seconds)),
            cpu_seconds=tuple(map(float, measurement.cpu_seconds)),
            kind=measurement.kind,
            failure=measurement.failure,
            stolen=measurement.stolen,
            **conditions,
        )

    def record(self) -> dict[str, Any]:
        """Plain values under the column names."""
        return dict(vars(self))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Sample":
        """Read plain values back.

        Raises:
            SchemaError: a field is missing or unknown.
        """
        try:
            row = cls(**record)
        except TypeError as error:
            raise SchemaError(f"a sample has fields {', '.join(cls.__dataclass_fields__)}: {error}") from None
        return cls(**{**record, "seconds": _floats(row.seconds), "cpu_seconds": _floats(row.cpu_seconds)})


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


Group = tuple[str, str, str]
"""Operation, platform and preset: all rows of a table that agree in these were made under the same conditions."""

GROUP = ("op", "platform", "preset")

DIGITS = 16
SHOWN = 5  # differences that a message lists


@dataclass(frozen=True)
class Conditions:
    """Settings on which seconds depend; equal settings have equal digests, in whatever order they are given.

    Args:
        settings: nested mappings of plain values, see `plain`; names are part of the digest and must not change.
    """

    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Hash the settings to 16 hexadecimal digits."""
        text = json.dumps(to_json_values(self.settings), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    def differences(self, other: "Conditions") -> str:
        """Say in what `other` differs from these, one setting after the other: "machine.dram_gb_per_s 58.6 -> 5"."""
        own, theirs = dict(_flat(to_json_values(self.settings))), dict(_flat(to_json_values(other.settings)))
        found = [f"{name} {own.get(name, 'absent')} -> {theirs.get(name, 'absent')}"
                 for name in sorted({*own, *theirs}) if own.get(name) != theirs.get(name)]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return ", ".join(found[:SHOWN]) + more

    def write(self, folder: Path) -> None:
        """Write the settings to conditions_<digest>.json in `folder`, where journals lie that name the digest."""
        path = _path(folder, self.digest)
        if not path.exists():
            write_checked_json(path, {"settings": to_json_values(self.settings)})

    @classmethod
    def read(cls, folder: Path, digest: str) -> "Conditions | None":
        """Read the settings behind a digest; None where they are not known any more."""
        try:
            found = cls(read_json(_path(folder, digest))["settings"])
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        return found if found.digest == digest else None


def to_json_values(value: Any) -> Any:
    """Reduce settings to what JSON holds: numbers that are equal become equal, keys become texts.

    Dataclasses become mappings of their fields, so that a class may be renamed.

    Raises:
        TypeError: something that is neither a number, a text, a path, None, a dataclass nor a collection of these.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return int(number) if number.is_integer() else number if math.isfinite(number) else str(number)
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((to_json_values(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    raise TypeError(f"a {type(value).__name__} among the settings on which seconds depend: give numbers or texts")


def conditions_entry(group: Group, digest: str, conditions: Conditions | None) -> dict[str, Any]:
    """Make the entry of the provenance that says under which conditions the rows of a group were made."""
    entry: dict[str, Any] = dict(zip(GROUP, group, strict=True)) | {"digest": digest}
    return {"conditions": entry | ({} if conditions is None else {"settings": to_json_values(conditions.settings)})}


def group_of(entry: Mapping[str, Any]) -> Group | None:
    """Name the group whose conditions an entry of the provenance states; None: it states none."""
    stated = entry.get("conditions")
    return tuple(stated[name] for name in GROUP) if isinstance(stated, Mapping) and "digest" in stated else None


def mixture_message(group: Group, first: str, second: str) -> str:
    """Say that rows of two digests cannot share a table."""
    return (f"samples of {' '.join(group)} were made under different conditions ({first or 'not noted'}, "
            f"{second or 'not noted'}): their seconds do not compare, keep them in different folders")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        yield name, json.dumps(value)
        return
    for key, item in value.items():
        yield from _flat(item, f"{name}.{key}" if name else key)


def _path(folder: Path, digest: str) -> Path:
    return Path(folder) / f"conditions_{digest}.json"
