"""The sample table, which platforms write and models read: samples with their provenance, stored as Parquet."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sparloom.data.files import read_rows, write_rows
from sparloom.data.sample import GROUP, Group, Sample, group_of, mixture_message
from sparloom.errors import SchemaError

_TEXT = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([
    ("op", _TEXT), ("platform", _TEXT), ("preset", _TEXT), ("matrix", _TEXT), ("width", pa.int32()), ("config", _TEXT),
    ("round", pa.int16()), ("seconds", pa.list_(pa.float32())), ("cpu_seconds", pa.list_(pa.float32())),
    ("kind", _TEXT), ("failure", _TEXT), ("stolen", pa.bool_()), ("machine", _TEXT), ("commit", _TEXT),
    ("started", pa.timestamp("ms", "UTC")),
])
"""Seconds are float32: 24 bits resolve more than any clock here, and equal simulated times stay equal."""

FORMAT = 1
KEY = ("op", "platform", "preset", "matrix", "width", "config", "round")
ORDER = ("op", "platform", "preset", "matrix", "width", "round", "config")
PROBLEM = ("op", "platform", "preset", "matrix", "width")  # collected together
DEFAULT_TIES: Mapping[str, float] = {"wall": 0.05, "device": 0.05, "simulated": 0.01}
"""Relative differences that are treated as ties, by kind of clock."""

REMEDY = "restore it with `dvc pull --force`, or remove it and collect it again (experiment=collect_<platform>)"
_METADATA = b"sparloom"
_TEXTS = tuple(field.name for field in SCHEMA if pa.types.is_dictionary(field.type))


class SampleTable:
    """Samples and the conditions under which they were made.

    Args:
        rows: table with exactly the columns of SCHEMA.
        provenance: machine, versions, protocol, seed and conditions; one entry per origin.
    """

    def __init__(self, rows: pa.Table, provenance: Sequence[Mapping[str, Any]] = ()) -> None:
        self._rows = _conform(rows, "sample table")
        self.provenance = tuple(dict(entry) for entry in provenance)

    @classmethod
    def of(cls, samples: Iterable[Sample], provenance: Sequence[Mapping[str, Any]] = ()) -> "SampleTable":
        records = [sample.record() for sample in samples]
        columns = []
        for field in SCHEMA:
            values = [record[field.name] for record in records]
            if field.name == "started":
                columns.append(pa.array(pd.to_datetime(values, utc=True).as_unit("ms"), field.type))
            elif field.name in _TEXTS:
                columns.append(pa.array(values, pa.string()).dictionary_encode())
            else:
                columns.append(pa.array(values, field.type))
        return cls(pa.table(columns, schema=SCHEMA), provenance)

    @classmethod
    def read(cls, paths: Path | str | Sequence[Path | str]) -> "SampleTable":
        """Read one Parquet file, or several that are shards of one collection.

        Raises:
            SchemaError: not a sample table, another format version, or rows that contradict each other.
        """
        listed = [paths] if isinstance(paths, str | Path) else list(paths)
        return cls.concat([_read(Path(path)) for path in listed])

    def write(self, path: Path) -> None:
        """Write one compressed Parquet file atomically; equal rows give equal files, whatever their order."""
        metadata = json.dumps({"format": FORMAT, "provenance": list(self.provenance)}, allow_nan=False, sort_keys=True)
        rows = self._sorted().replace_schema_metadata({_METADATA: metadata.encode()})
        encoding = {"seconds.list.element": "BYTE_STREAM_SPLIT", "cpu_seconds.list.element": "BYTE_STREAM_SPLIT",
                    "started": "DELTA_BINARY_PACKED"}
        write_rows(path, rows, compression_level=19, use_dictionary=list(_TEXTS), column_encoding=encoding,
                   store_schema=True)

    @classmethod
    def concat(cls, tables: "Sequence[SampleTable]") -> "SampleTable":
        """Join tables and drop repeated rows.

        Raises:
            SchemaError: two results for the same configuration and round, or different conditions within a preset.
        """
        rows = pa.concat_tables([table._rows for table in tables]) if tables else SCHEMA.empty_table()
        unknown = _unknown_groups(tables)
        provenance: list[Mapping[str, Any]] = []
        for entry in (entry for table in tables for entry in table.provenance):
            if entry not in provenance and group_of(entry) not in unknown:
                provenance.append(entry)
        return cls(_without_duplicates(rows.unify_dictionaries()), provenance)

    def __len__(self) -> int:
        return self._rows.num_rows

    @property
    def matrices(self) -> tuple[str, ...]:
        return tuple(sorted(self._unique("matrix")))

    def presets(self) -> tuple[str, ...]:
        return tuple(sorted(self._unique("preset")))

    def widths(self) -> tuple[int, ...]:
        return tuple(sorted(self._unique("width")))

    def conditions(self) -> dict[Group, str]:
        """Return the digest of the conditions of every group with rows; "" if unknown."""
        known = {group_of(entry): str(entry["conditions"]["digest"]) for entry in self.provenance
                 if group_of(entry) is not None}
        return {group: known.get(group, "") for group in self._groups()}

    def settings(self, group: Group) -> Mapping[str, Any] | None:
        """Return the settings behind the digest of a group, or None if unknown."""
        settings = [entry["conditions"].get("settings") for entry in self.provenance if group_of(entry) == group]
        return settings[-1] if settings else None

    def without(self, group: Group) -> "SampleTable":
        mask = np.ones(len(self), bool)
        for name, value in zip(GROUP, group, strict=True):
            mask &= self._is_in(name, (value,))
        others = [entry for entry in self.provenance if group_of(entry) != group]
        return SampleTable(self._rows.filter(pa.array(~mask)), others)

    def frame(self) -> pd.DataFrame:
        """Return all rows as a pandas frame with categorical text columns."""
        return self._rows.to_pandas()

    def filter(
        self, *, op: str | None = None, platform: str | None = None, preset: str | None = None,
        matrices: Collection[str] | None = None, width: int | None = None,
    ) -> "SampleTable":
        """Select the rows that match all arguments."""
        mask = np.ones(len(self), bool)
        for name, wanted in (("op", op), ("platform", platform), ("preset", preset)):
            if wanted is not None:
                mask &= self._is_in(name, (wanted,))
        if matrices is not None:
            mask &= self._is_in("matrix", matrices)
        if width is not None:
            mask &= self._rows["width"].to_numpy() == width
        return SampleTable(self._rows.filter(pa.array(mask)), self.provenance)

    def updated(self, fresh: "SampleTable") -> "SampleTable":
        """Replace the problems that a newer table has; problems have the same group, matrix and width.

        Raises:
            SchemaError: rows of one preset would have different or unknown conditions.
        """
        replaced = self._problems().isin(fresh._problems().unique())
        others = SampleTable(self._rows.filter(pa.array(~replaced)), self.provenance)
        old, new = others.conditions(), fresh.conditions()
        for group in sorted(old.keys() & new.keys()):
            if old[group] != new[group]:
                raise SchemaError(mixture_message(group, old[group], new[group]))
        present = {*old, *new, None}
        others.provenance = tuple(entry for entry in others.provenance if group_of(entry) in present - new.keys())
        return SampleTable.concat([others, fresh])

    def labels(self, *, noise: Mapping[str, float] | None = None) -> pd.DataFrame:
        """Reduce repetitions and rounds to one value per matrix and configuration; drop failures.

        Args:
            noise: measured A/A noise by matrix, which raises the spread of that matrix.

        Returns:
            Columns matrix, config, seconds (median over rounds of the fastest repetition) and spread. A pair is ordered
            if its times differ by more than the larger spread, relative to the faster time. The spread is the largest
            of `DEFAULT_TIES`, `noise` and the relative difference between the rounds of a row.

        Raises:
            SchemaError: the rows mix operations, platforms, presets, widths or clocks, whose times are not comparable.
        """
        self._check_uniform("op", "platform", "preset", "width", "kind")
        seconds = self._min_seconds()
        keys = pd.DataFrame({"matrix": self._text("matrix"), "config": self._text("config"), "seconds": seconds})
        groups = keys[np.isfinite(seconds)].groupby(["matrix", "config"], sort=False, observed=True)["seconds"]
        labels = groups.agg(seconds="median", low="min", high="max").reset_index()
        spread = (labels["high"] - labels["low"]) / labels["seconds"]
        kinds = self._unique("kind")
        spread = spread.clip(lower=DEFAULT_TIES[kinds[0]] if kinds else 0.0)
        if noise:
            spread = np.maximum(spread, labels["matrix"].map(noise).astype(float).fillna(0.0))
        labels = labels.assign(matrix=labels["matrix"].astype(str), config=labels["config"].astype(str), spread=spread)
        return labels[["matrix", "config", "seconds", "spread"]]

    def sweeps(self) -> pd.DataFrame:
        """Reduce repetitions but not rounds; drop failures.

        Returns:
            Columns matrix, width, config, round and seconds (fastest repetition), one row per sample.

        Raises:
            SchemaError: the rows mix operations, platforms, presets or clocks, whose times are not comparable.
        """
        self._check_uniform("op", "platform", "preset", "kind")
        seconds = self._min_seconds()
        frame = pd.DataFrame({
            "matrix": self._text("matrix"), "width": self._rows["width"].to_numpy(), "config": self._text("config"),
            "round": self._rows["round"].to_numpy(), "seconds": seconds,
        })
        return frame[np.isfinite(seconds)]

    def failures(self) -> pd.DataFrame:
        """Return rows without seconds: matrix, config, round and failure."""
        failed = self._rows.filter(pc.is_valid(self._rows["failure"])).select(["matrix", "config", "round", "failure"])
        return failed.to_pandas().astype({"matrix": str, "config": str, "failure": str})

    def validate(self) -> None:
        """Check every row.

        Raises:
            SchemaError: an empty field, seconds that are not positive and finite, both or neither of seconds and
                failure, an unknown kind, or duplicates with different results.
        """
        self._check_values()
        failed = pc.is_valid(self._rows["failure"]).to_numpy()
        self._refuse(np.isfinite(self._min_seconds()) == failed, "needs seconds or a failure, not both or neither")
        _without_duplicates(self._rows)

    def _check_values(self) -> None:
        """Make the cheap checks: no empty fields, positive finite seconds, known kinds of clock."""
        for field in SCHEMA:
            missing = self._rows[field.name].null_count
            if missing and field.name != "failure":
                raise SchemaError(f"column {field.name} is empty in {missing} of {len(self)} rows")
        values = self._rows["seconds"].combine_chunks().flatten().to_numpy()
        if not (np.isfinite(values) & (values > 0)).all():
            raise SchemaError("seconds must be finite and above 0; record a failure with its reason instead")
        kinds = set(self._unique("kind")) - set(DEFAULT_TIES)
        if kinds:
            raise SchemaError(f"unknown kind {', '.join(sorted(kinds))}; kinds are {', '.join(DEFAULT_TIES)}")

    def _check_uniform(self, *names: str) -> None:
        for name in names:
            values = self._unique(name)
            if len(values) > 1:
                listed = ", ".join(sorted(map(str, values)))
                raise SchemaError(f"times of different {name} are not comparable ({listed}): filter the table first")

    def _refuse(self, wrong: np.ndarray, reason: str) -> None:
        if wrong.any():
            index = int(np.flatnonzero(wrong)[0])
            row = {name: self._rows[name][index].as_py() for name in KEY}
            raise SchemaError(f"row {index} ({', '.join(f'{name} {value}' for name, value in row.items())}) {reason}")

    def _min_seconds(self) -> np.ndarray:
        """Return the fastest repetition of each row as float64, infinity if there is none."""
        column = self._rows["seconds"].combine_chunks()
        offsets = column.offsets.to_numpy()
        values = column.values.to_numpy().astype(np.float64)
        seconds = np.full(len(self), np.inf)
        measured = offsets[1:] > offsets[:-1]
        if measured.any():
            end = offsets[1:][measured][-1]
            seconds[measured] = np.minimum.reduceat(values[:end], offsets[:-1][measured])
        return seconds

    def _groups(self) -> list[Group]:
        found = pd.DataFrame({name: self._text(name) for name in GROUP}).drop_duplicates()
        return list(found.astype(str).itertuples(index=False, name=None))

    def _problems(self) -> pd.MultiIndex:
        columns = {name: self._text(name).astype(str) if name in _TEXTS else self._rows[name] for name in PROBLEM}
        return pd.MultiIndex.from_frame(pd.DataFrame(columns))

    def _text(self, name: str) -> pd.Categorical:
        column = self._rows[name].combine_chunks()
        return pd.Categorical.from_codes(column.indices.to_numpy(), column.dictionary.to_pandas())

    def _is_in(self, name: str, wanted: Collection[str]) -> np.ndarray:
        return self._text(name).isin(list(wanted))

    def _unique(self, name: str) -> list[Any]:
        return pc.unique(self._rows[name].combine_chunks()).to_pylist()

    def _sorted(self) -> pa.Table:
        rows = self._rows
        for index, field in enumerate(SCHEMA):
            if field.name in _TEXTS:
                rows = rows.set_column(index, field.name, rows[field.name].cast(pa.string()))
        return _conform(rows.sort_by([(name, "ascending") for name in ORDER]).combine_chunks(), "sample table")


def _unknown_groups(tables: Sequence[SampleTable]) -> set[Group]:
    """Return the groups with unknown conditions in some table.

    Raises:
        SchemaError: rows of one group have different conditions.
    """
    if len(tables) < 2 or not any(group_of(entry) for table in tables for entry in table.provenance):
        return set()
    found: dict[Group, str] = {}
    unknown = set()
    for group, digest in (item for table in tables for item in table.conditions().items()):
        if not digest:
            unknown.add(group)
        elif found.setdefault(group, digest) != digest:
            raise SchemaError(mixture_message(group, found[group], digest))
    return unknown


def _read(path: Path) -> SampleTable:
    rows = read_rows(path, REMEDY, read_dictionary=list(_TEXTS))
    stored = (rows.schema.metadata or {}).get(_METADATA)
    if stored is None:
        raise SchemaError(f"{path} is not a sample table: its metadata is missing; write it with SampleTable.write")
    try:
        metadata = json.loads(stored)
        found, provenance = metadata["format"], [dict(entry) for entry in metadata["provenance"]]
    except (ValueError, TypeError, KeyError) as error:
        raise SchemaError(f"{path} is damaged (metadata: {error}): {REMEDY}") from None
    if found != FORMAT:
        raise SchemaError(f"{path} has format {found}, this version reads {FORMAT}: collect it again")
    try:  # the checksums are those of pages, so check that the values are possible too
        rows.validate(full=True)
        table = SampleTable(_conform(rows, str(path)), provenance)
        table._check_values()
    except (pa.ArrowException, ValueError, TypeError, LookupError, SchemaError) as error:
        raise SchemaError(f"{path} is damaged ({str(error).splitlines()[0]}): {REMEDY}") from None
    return table


def _conform(rows: pa.Table, origin: str) -> pa.Table:
    missing = [field.name for field in SCHEMA if field.name not in rows.schema.names]
    unknown = [name for name in rows.schema.names if name not in SCHEMA.names]
    if missing or unknown:
        raise SchemaError(f"{origin}: missing columns {missing}, unknown columns {unknown}; columns are {SCHEMA.names}")
    rows = rows.select(SCHEMA.names).replace_schema_metadata(None)
    columns = []
    for field in SCHEMA:
        column = rows[field.name]
        try:
            if field.name in _TEXTS and not pa.types.is_dictionary(column.type):
                column = column.cast(pa.string()).combine_chunks().dictionary_encode()
            columns.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"{origin}: column {field.name} is {column.type}, not {field.type}: {error}") from None
    return pa.table(columns, schema=SCHEMA).unify_dictionaries()


def _without_duplicates(rows: pa.Table) -> pa.Table:
    keys = pd.DataFrame({name: _codes(rows[name]) for name in KEY})
    if not keys.duplicated().any():
        return rows
    first = keys.groupby(list(KEY), sort=False).ngroup().to_numpy()
    originals = pd.Series(np.arange(len(keys))).groupby(first).transform("first").to_numpy()
    repeated = np.flatnonzero(originals != np.arange(len(keys)))
    seconds, failures = rows["seconds"], rows["failure"]
    for index in repeated:
        original = int(originals[index])
        if seconds[index] != seconds[original] or failures[index].as_py() != failures[original].as_py():
            key = ", ".join(f"{name} {rows[name][int(index)].as_py()}" for name in KEY)
            raise SchemaError(f"two different results for one sample ({key}): {seconds[original]} and {seconds[index]}")
    return rows.filter(pa.array(originals == np.arange(len(keys))))


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    joined = column.combine_chunks()
    return joined.indices.to_numpy() if pa.types.is_dictionary(joined.type) else joined.to_numpy()
