"""Samples as CSV files: those of SPADE in the format of COGNATE appendix E, and those of described accelerators."""

import csv
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparloom.data.sample import Sample
from sparloom.data.table import SampleTable
from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.files import read_json, sha256, write_json, write_text
from sparloom.space import TIME_COLUMNS, Config, Description, GridSpace, SpadeSpace, integer_of, number_of

COLUMNS = ("name", "row_panels", "column_panels", "split", "barrier", "bypass", "reorder", "time")
UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "arbitrary": 1.0}
"""Seconds per unit; arbitrary units keep order and ratios."""

CLOCKS: Mapping[str, str] = {"measured": "wall", "simulated": "simulated"}
UNKNOWN_START = "1970-01-01T00:00:00Z"
MATRIX = "matrix"  # column of the CSV of a described accelerator

DUPLICATE_TOLERANCE = 0.01  # relative difference allowed between duplicates
UNLISTED = "matrix {!r} is not in the manifest; add its file there"
MISSING = frozenset(("", "nan", "na", "none", "timeout", "inf"))
ALL_COLUMNS = "NUM_COLS"
OTHER_SEPARATORS = (";", "\t", "|")  # which spreadsheets may write

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CsvRules:
    """Rules for interpreting the values of a simulator's file.

    Args:
        cols: id of a matrix -> number of its columns, None if the manifest does not list it.
        name: id of a matrix -> full name.
        splits: code in the column split -> dense columns per pass; other numbers are taken literally.
    """

    cols: Callable[[str], int | None]
    name: Callable[[str], str]
    splits: Mapping[int, int]


def read_csv(path: Path, op: str, rules: CsvRules) -> SampleTable:
    """Read one file of one operation; the sidecar beside it gives unit, width and origin.

    A missing time becomes a failed sample. Rows of the same configuration must agree within 1 %; the first is kept.
    A panel of at least as many columns as the matrix has means all columns, unless the sidecar says "wide_panels":
    "kept", as files of `write_csv` do: they hold every configuration of the space, whatever the width of the matrix.
    Values outside the space are accepted with a warning and listed in the provenance: latent encoders must be trained
    again.

    Raises:
        SchemaError: names file and line of the first bad value.
    """
    sidecar = _read_sidecar(path)
    header, rows = table_rows(path)
    if header != COLUMNS:
        raise SchemaError(f"{path}: the header is {','.join(header)}, not {','.join(COLUMNS)}")
    listed = {parameter.name: parameter.values for parameter in SpadeSpace("spmm").parameters}
    unknown: dict[str, set[int]] = defaultdict(set)
    parsed = []
    for line, row in rows:
        config = _config(row, rules, f"{path}, line {line}", kept=sidecar["wide_panels"] == "kept")
        for name, value in config.values:
            if value not in listed[name]:
                unknown[name].add(value)
        parsed.append((line, rules.name(row["name"]), config, _seconds(row["time"], f"{path}, line {line}")))
    if unknown:
        values = "; ".join(f"{name} {', '.join(map(str, sorted(each)))}" for name, each in sorted(unknown.items()))
        log.warning("%s has values outside the space (%s): train the latent encoder again", path, values)
    samples = _samples(
        path, parsed, scale=UNITS[sidecar["unit"]], repeated=False, op=op, platform="spade",
        preset=str(sidecar["preset"]), width=int(sidecar["width"]), kind="simulated", machine=str(sidecar["source"]),
        commit=str(sidecar["version"]), started=str(sidecar["started"]))
    flagged = {name: sorted(each) for name, each in unknown.items()}
    return SampleTable.of(samples, [{"file": path.name, "sha256": sha256(path), "unknown": flagged, **sidecar}])


def read_described(
    path: Path, op: str, description: Description, *, preset: str, names: Mapping[str, str]
) -> SampleTable:
    """Read the samples of a described accelerator: columns matrix, every parameter, and seconds (ms, us, ns, cycles).

    A missing time becomes a failed sample. Rows of one configuration are repetitions where times are measured;
    simulated ones must agree within 1 %, and the first is kept.

    Args:
        names: name in the column matrix -> full name of the matrix.

    Raises:
        SchemaError: names file and line of the first bad value, such as a configuration outside the space.
    """
    space = description.space(op)
    columns, rows = table_rows(path)
    check_columns(path, columns, [each.name for each in description.parameters])
    unit = next(name for name in columns if name in TIME_COLUMNS)
    parsed = []
    for line, row in rows:
        where = f"{path}, line {line}"
        if row[MATRIX] not in names:
            raise SchemaError(f"{where}: {UNLISTED.format(row[MATRIX])}")
        config = described_config(row, description, space, where)
        parsed.append((line, names[row[MATRIX]], config, _seconds(row[unit], where)))
    if not parsed:
        raise SchemaError(f"{path} has no rows below its header: add one for each matrix and configuration")
    samples = _samples(
        path, parsed, scale=TIME_COLUMNS[unit], repeated=description.times == "measured", op=op,
        platform=description.name, preset=preset, width=description.width, kind=CLOCKS[description.times],
        machine=description.name, commit="", started=UNKNOWN_START)
    return SampleTable.of(samples, [{"file": path.name, "sha256": sha256(path), "unit": unit,
                                     "description": description.path.name, "space": space.digest()}])


def _samples(
    path: Path, rows: Iterable[tuple[int, str, Config, float | None]], *, scale: float, repeated: bool, **origin: Any,
) -> list[Sample]:
    """Make a sample of each line, matrix, configuration and time.

    Args:
        scale: seconds of a unit of time.
        repeated: rows of one configuration are repetitions; else they must agree, and the first is kept.
        origin: the fields that all samples share.
    """
    first: dict[tuple[str, str], tuple[int, float | None]] = {}
    rounds: Counter[tuple[str, str]] = Counter()
    samples = []
    for line, matrix, config, time in rows:
        key = (matrix, config.key)
        if key in first and not repeated:
            _check_duplicate(first[key], (line, time), path, config)
            continue
        first[key] = (line, time)
        samples.append(Sample(
            **origin, matrix=matrix, config=config.key, round=rounds[key], cpu_seconds=(), stolen=False,
            seconds=() if time is None else (time * scale,),
            failure=None if time is not None else f"no time in {path.name}"))
        rounds[key] += 1
    return samples


def matrices_in(path: Path) -> list[str]:
    """List the matrices in the CSV of a described accelerator or of SPADE, in the order of their first rows."""
    columns, rows = table_rows(path)
    column = next((name for name in (MATRIX, COLUMNS[0]) if name in columns), None)
    if column is None:
        raise SchemaError(f"{path}: no column {MATRIX}; the header is {','.join(columns)}")
    return list(dict.fromkeys(row[column] for _, row in rows))


def write_csv(path: Path, table: SampleTable, *, unit: str, sidecar: Mapping[str, Any]) -> None:
    """Write the samples of one operation and preset, and the sidecar; failed samples have the time NaN.

    Args:
        sidecar: source, version, pes, reorder and further entries that describe the origin.

    Raises:
        SchemaError: the samples mix operations or presets, or are not of SPADE; or the unit is unknown.
    """
    if unit not in UNITS:
        raise SchemaError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
    frame = table.frame()
    for name in ("op", "platform", "preset", "width"):
        if frame[name].nunique() != 1:
            raise SchemaError(f"a CSV holds one {name}, not {frame[name].nunique()}: filter the table first")
    if frame["platform"].iloc[0] != "spade":
        raise SchemaError(f"the CSV has columns of SPADE only, not of {frame['platform'].iloc[0]}")
    labels = table.labels().set_index(["matrix", "config"])["seconds"]
    keys = frame[["matrix", "config"]].astype(str).drop_duplicates().sort_values(["matrix", "config"])
    lines = [",".join(COLUMNS)]
    for matrix, key in keys.itertuples(index=False):
        config = Config.parse("spade", key)
        panel = config["column_panel"]
        values = [config["row_panel"], ALL_COLUMNS if panel == "all" else panel,
                  *(config[name] for name in ("split", "barrier", "bypass", "reorder"))]
        time = labels.get((matrix, key), math.nan) / UNITS[unit]
        lines.append(f"{matrix},{','.join(map(str, values))},{time:.9g}")
    write_text(path, "\n".join(lines) + "\n")
    described = {"unit": unit, "width": int(frame["width"].iloc[0]), "preset": str(frame["preset"].iloc[0]),
                 "wide_panels": "kept"}
    write_json(sidecar_path(path), {**described, "default": SpadeSpace("spmm").default().key, **sidecar})


def sidecar_path(path: Path) -> Path:
    """Return the path of the JSON file that describes a CSV file."""
    return path.with_suffix(".json")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object that a user wrote.

    Raises:
        SchemaError: the file holds something else.
    """
    try:
        return read_json(path)
    except (ValueError, RecursionError) as error:  # text in another encoding, too; or nested too deeply
        raise SchemaError(f"{path} is not a JSON object in UTF-8 ({error}): correct it") from None


def _read_sidecar(path: Path) -> dict[str, Any]:
    defaults = {"unit": "ms", "width": 256, "preset": "", "source": "unknown simulator", "version": "",
                "started": UNKNOWN_START, "wide_panels": "all"}
    beside = sidecar_path(path)
    stored = read_object(beside) if beside.exists() else {}
    sidecar = {**defaults, **stored}
    if sidecar["unit"] not in UNITS:
        raise SchemaError(f"{beside}: unit {sidecar['unit']!r} is not one of {', '.join(UNITS)}")
    if sidecar["wide_panels"] not in ("all", "kept"):
        raise SchemaError(f"{beside}: wide_panels {sidecar['wide_panels']!r} is neither \"all\" (a panel of at least "
                          "as many columns as the matrix has covers all of them) nor \"kept\"")
    return sidecar


def table_rows(path: Path) -> tuple[tuple[str, ...], list[tuple[int, dict[str, str]]]]:
    """Return the header, and every row that is not blank with the number of its line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = tuple(field.strip() for field in next(reader, []))
            if len(header) == 1 and (separator := next(filter(header[0].count, OTHER_SEPARATORS), "")):
                raise SchemaError(f"{path}: fields are separated by {separator!r}: save it with commas between fields "
                                  "and points in numbers")
            rows = []
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise SchemaError(f"{path}, line {reader.line_num}: {len(fields)} fields instead of {len(header)}")
                rows.append((reader.line_num, dict(zip(header, (field.strip() for field in fields), strict=True))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SchemaError(f"{path} is not a CSV file in UTF-8 ({error}): save it as one") from None
    return header, rows


def check_columns(path: Path, columns: Sequence[str], parameters: Sequence[str], *, problem: str = MATRIX,
                  several: bool = True) -> None:
    """Check that a header has the problem, every parameter and one time, each once and nothing else.

    Args:
        problem: column that names the problem, which may be left out unless there are several.
    """
    times = [name for name in columns if name in TIME_COLUMNS]
    needed = [problem, *parameters] if several else parameters
    twice = [name for name in columns if columns.count(name) > 1]
    missing = [name for name in needed if name not in columns]
    unknown = [name for name in columns if name not in (problem, *parameters, *TIME_COLUMNS)]
    header = f"{path}: the header is {','.join(columns) or 'empty'}"
    if twice:
        raise SchemaError(f"{header}: column {twice[0]} is there twice, keep one")
    if unknown:
        raise SchemaError(f"{header}: column {unknown[0]!r} is no parameter of the description: drop or describe it")
    if missing:
        raise SchemaError(f"{header}: column {missing[0]} is missing; needed are {', '.join(needed)} and seconds")
    if len(times) != 1:
        raise SchemaError(f"{header}: give one column of times, named by its unit: {', '.join(TIME_COLUMNS)}")


def described_config(row: Mapping[str, str], description: Description, space: GridSpace, where: str) -> Config:
    """Return the configuration in a row, whose values are those of the description; `where` names the row in errors."""
    values = []
    for parameter in description.parameters:
        try:
            values.append((parameter.name, parameter.parse(row[parameter.name])))
        except IllegalSchedule as error:
            raise SchemaError(f"{where}: {error}: drop the row, or add the value to {description.path}") from None
    config = Config(space.name, tuple(values))
    reason = space.refuse(config)
    if reason is not None:
        raise SchemaError(f"{where}: {config} is {reason} in {description.path}: drop the row, or the rule")
    return config


def _config(row: Mapping[str, str], rules: CsvRules, where: str, *, kept: bool) -> Config:
    cols = rules.cols(row["name"])
    if cols is None:
        raise SchemaError(f"{where}: {UNLISTED.format(row['name'])}")
    columns = "all" if row["column_panels"] == ALL_COLUMNS else _whole(row, "column_panels", where, least=1)
    if columns != "all" and columns >= cols and not kept:
        columns = "all"
    code = _whole(row, "split", where)
    if code < 2 and code not in rules.splits:
        raise SchemaError(f"{where}: split {code} is a code; the manifest must say how many columns it stands for")
    flags = tuple((name, _whole(row, name, where, most=1)) for name in ("barrier", "bypass", "reorder"))
    panel = ("row_panel", _whole(row, "row_panels", where, least=1))
    return Config("spade", (panel, ("column_panel", columns), ("split", rules.splits.get(code, code)), *flags))


def _seconds(text: str, where: str) -> float | None:
    if text.lower() in MISSING:
        return None
    value = number_of(text)
    if value is None:
        raise SchemaError(f"{where}: time {text!r} is not a number such as 0.5 or 1e-3; leave it empty when it is "
                          "missing")
    if not (math.isfinite(value) and value > 0):
        raise SchemaError(f"{where}: time {text} must be above 0; leave it empty when it is missing")
    return value


def _check_duplicate(
    earlier: tuple[int, float | None], later: tuple[int, float | None], path: Path, config: Config
) -> None:
    (line, seconds), (other_line, other) = earlier, later
    same = seconds == other if seconds is None or other is None else (
        abs(seconds - other) <= DUPLICATE_TOLERANCE * seconds)
    if not same:
        shown = ["no time" if value is None else f"{value:g}" for value in (seconds, other)]
        raise SchemaError(f"{path}, lines {line} and {other_line}: two times for {config}: {shown[0]} and {shown[1]}")


def _whole(row: Mapping[str, str], name: str, where: str, *, least: int = 0, most: int | None = None) -> int:
    value = integer_of(row[name])
    if value is None or value < least or (most is not None and value > most):
        limits = f"from {least}" if most is None else f"from {least} to {most}"
        raise SchemaError(f"{where}: {name} {row[name]!r} is not a whole number {limits}")
    return value
