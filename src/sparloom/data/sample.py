"""Samples, the rows of a sample table, and the conditions under which their seconds may be compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from sparloom.errors import SchemaError
from sparloom.files import read_json, write_checked_json
from sparloom.measure import Measurement
from sparloom.space import Config

if TYPE_CHECKING:
    import pandas as pd

Group = tuple[str, str, str]
"""Operation, platform and preset: all rows of a group in a table have the same conditions."""

GROUP = ("op", "platform", "preset")
DIGITS = 16
MAX_DIFFERENCES = 5  # differences in a message


@dataclass(frozen=True)
class Sample:
    """Result of measuring or simulating one configuration in one round.

    Args:
        op, platform, preset: what ran where; the preset names a set of machine parameters ("" if there is only one).
        matrix: "group/name".
        width: columns of the dense operand.
        config: key of the configuration in the platform's space.
        round: independent repetition of the whole measurement, from 0.
        seconds: one per repetition; empty on failure.
        cpu_seconds: processor time of the same repetitions, or empty.
        kind: clock: wall, device or simulated.
        failure: reason why there are no seconds, or None.
        stolen: other processes took the machine during every attempt.
        started: UTC, ISO 8601, in seconds.
        conditions: digest of everything else that the seconds depend on (see `Conditions`), ":", and a digest of the
            matrix; "" in rows of older versions. Journals store it in every row, tables once per preset.
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
    def of(cls, measurement: Measurement, config: Config, *, round: int, **conditions: Any) -> Sample:
        """Make a sample from a measurement.

        Args:
            conditions: op, platform, preset, matrix, width, machine, commit, conditions, and started (default: now).
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
        """Return values by column name."""
        return dict(vars(self))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Sample:
        """Make a sample from what `record` returned.

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


@dataclass(frozen=True)
class Conditions:
    """Settings on which seconds depend; equal settings have equal digests in any order.

    Args:
        settings: nested mappings that `to_json_values` accepts; names are part of the digest and must not change.
    """

    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Hash the settings to 16 hexadecimal digits."""
        text = json.dumps(to_json_values(self.settings), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    def differences(self, other: Conditions) -> str:
        """List the settings that differ in `other`, such as "machine.dram_gb_per_s 58.6 -> 5"."""
        own, theirs = dict(_flat(to_json_values(self.settings))), dict(_flat(to_json_values(other.settings)))
        changes = [f"{name} {own.get(name, 'absent')} -> {theirs.get(name, 'absent')}"
                   for name in sorted({*own, *theirs}) if own.get(name) != theirs.get(name)]
        more = f" and {len(changes) - MAX_DIFFERENCES} more" if len(changes) > MAX_DIFFERENCES else ""
        return ", ".join(changes[:MAX_DIFFERENCES]) + more

    def write(self, folder: Path) -> None:
        """Write the settings to conditions_<digest>.json in `folder`, beside the journals that refer to the digest."""
        path = _path(folder, self.digest)
        if not path.exists():
            write_checked_json(path, {"settings": to_json_values(self.settings)})

    @classmethod
    def read(cls, folder: Path, digest: str) -> Conditions | None:
        """Read the settings with this digest, or None if they are missing or damaged."""
        try:
            found = cls(read_json(_path(folder, digest))["settings"])
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        return found if found.digest == digest else None


def checked_seconds(
    seconds: ArrayLike, name: Callable[[int], str], *, gaps: bool = False
) -> Float[np.ndarray, " *shape"]:
    """Return labels as float64, after the check that all that learn from seconds share.

    Args:
        name: names a label by its index in the flat array, for messages.
        gaps: NaN stands for a configuration that has not run.

    Raises:
        ValueError: a label is not a number, or not positive and finite; names the first one.
    """
    labels = np.asarray(seconds)
    numbers = np.full(labels.shape, labels.dtype.kind in "iuf")
    if labels.dtype.kind == "O":
        numbers.flat = [isinstance(label, Real) and not isinstance(label, bool) for label in labels.flat]
    converted = np.ones(labels.shape)
    try:
        converted[numbers] = labels[numbers]
    except OverflowError:
        raise ValueError("seconds has an int beyond the largest float: give a positive number of seconds") from None
    right = numbers & ((np.isfinite(converted) & (converted > 0)) | (gaps & np.isnan(converted)))
    if not right.all():
        index = int(np.argmin(right))
        raise ValueError(f"{name(index)}: seconds={labels.ravel().tolist()[index]!r}: give a positive number; a run "
                         "that failed has none")
    return converted


def label_seconds(labels: pd.DataFrame) -> Float[np.ndarray, " rows"]:
    """Return the checked seconds of labels with the columns matrix, config and seconds, see `checked_seconds`."""
    missing = [name for name in ("matrix", "config", "seconds") if name not in labels]
    if missing:
        raise ValueError(f"labels have no column {missing[0]!r}, but {', '.join(map(str, labels.columns))}: give "
                         "matrix, config and seconds")
    return checked_seconds(labels["seconds"], lambda row: ", ".join(map(str, labels[["matrix", "config"]].iloc[row])))


def to_json_values(value: Any) -> Any:
    """Convert settings to JSON values, equal numbers to equal ones and keys to texts.

    Dataclasses become mappings of their fields, so that classes may be renamed.

    Raises:
        TypeError: a value that is neither number, text, path, None, dataclass nor a collection of these.
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
    raise TypeError(f"settings that seconds depend on contain a {type(value).__name__}: use numbers or texts")


def conditions_entry(group: Group, digest: str, conditions: Conditions | None) -> dict[str, Any]:
    """Make the provenance entry that states the conditions of a group; None: only their digest is known."""
    entry: dict[str, Any] = dict(zip(GROUP, group, strict=True)) | {"digest": digest}
    return {"conditions": entry | ({} if conditions is None else {"settings": to_json_values(conditions.settings)})}


def group_of(entry: Mapping[str, Any]) -> Group | None:
    """Return the group whose conditions a provenance entry states, or None."""
    stated = entry.get("conditions")
    return tuple(stated[name] for name in GROUP) if isinstance(stated, Mapping) and "digest" in stated else None


def mixture_message(group: Group, first: str, second: str) -> str:
    """Say that rows with different digests cannot share a table."""
    return (f"samples of {' '.join(group)} were made under different conditions ({first or 'unknown'}, "
            f"{second or 'unknown'}): their seconds are not comparable, keep them in different folders")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        yield name, json.dumps(value)
        return
    for key, item in value.items():
        yield from _flat(item, f"{name}.{key}" if name else key)


def _path(folder: Path, digest: str) -> Path:
    return Path(folder) / f"conditions_{digest}.json"
