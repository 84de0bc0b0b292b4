"""Files of campaigns: problems, sources, proposals, and results that come back as CSV or T4."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparloom.data import check_columns, read_trials, table_rows
from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.files import read_lines, write_text
from sparloom.space import TIME_COLUMNS, Config, SearchSpace, number_of
from sparloom.sparse import MATRIX_ENDINGS, is_matrix_file, matrix_stem
from sparloom.tuning import Campaign, Proposal, Source
from sparloom.tuning.campaign import TOLD

MATRIX, PROBLEM = "matrix", "problem"  # columns; the second one where problems are no matrices


def matrix_files(place: Path) -> dict[str, Path]:
    """Return the path of every matrix by name.

    Args:
        place: folder of matrix files, one such file, or a CSV with the column `path` and, if wanted, `matrix`.
    """
    if is_matrix_file(place):
        listed = [(matrix_stem(place), place)]
    elif place.is_dir():
        paths = [path for path in sorted(place.rglob("*")) if is_matrix_file(path)]
        listed = [((path.parent.relative_to(place) / matrix_stem(path)).as_posix(), path) for path in paths]
    else:
        header, rows = table_rows(place)
        if "path" not in header:
            raise SchemaError(f"{place} has no column path: give a folder of matrix files, or a CSV with that column")
        listed = [(row.get(MATRIX) or matrix_stem(Path(row["path"])), place.parent / Path(row["path"]).expanduser())
                  for _, row in rows]
    files: dict[str, Path] = {}
    for name, path in listed:
        if name in files:
            raise ValueError(f"{path} and {files[name]} are both named {name}: rename one of them, or give a CSV with "
                             "the columns matrix and path")
        files[name] = path
    if not files:
        raise ValueError(f"{place} holds no matrix file, whose names end in {', '.join(MATRIX_ENDINGS)}")
    return files


def read_problems(path: Path) -> dict[str, dict[str, Any]]:
    """Read problems from a CSV with the column `problem`, their name, and one column for each feature."""
    header, rows = table_rows(path)
    if PROBLEM not in header:
        raise SchemaError(f"{path} has no column {PROBLEM}: give each problem a name, and one column for each feature")
    problems: dict[str, dict[str, Any]] = {}
    for line, row in rows:
        name = row.pop(PROBLEM)
        if not name or name in problems:
            raise SchemaError(f"{path}, line {line}: {'the name is missing' if not name else f'{name} is there twice'}")
        problems[name] = {key: text if (number := number_of(text)) is None else number for key, text in row.items()}
    if not problems:
        raise SchemaError(f"{path} has no problem: give one row for each")
    return problems


def read_source(path: Path) -> Source:
    """Read the trials of another campaign: its folder, a T4 file, a cache of Kernel Tuner, or a CSV of results.

    Raises:
        SchemaError: the file is damaged or has too few trials.
        FileNotFoundError: there is none.
    """
    name = path.name.removesuffix(".gz").removesuffix(path.suffix).removesuffix(".json")
    if path.is_dir():
        try:
            rows = [json.loads(line) for line in read_lines(path / TOLD)]
            trials = pd.DataFrame([{PROBLEM: row[PROBLEM], **dict(Config.parse("source", row["config"]).values),
                                    "seconds": math.nan if row["seconds"] is None else row["seconds"]} for row in rows])
        except (ValueError, LookupError, TypeError) as error:
            raise SchemaError(f"{path / TOLD} is damaged ({error!r}): leave this source out") from None
        return Source(path.name, trials if len(trials) else pd.DataFrame({"seconds": []}))
    if path.suffix != ".csv":
        return Source(name, read_trials(path).drop(columns="failure"))
    header, rows = table_rows(path)
    unit = _time_column(path, header)
    trials = pd.DataFrame([row for _, row in rows if row[unit]], columns=list(header))
    trials = trials.rename(columns={MATRIX: PROBLEM})
    numbers = [math.nan if (number := number_of(text)) is None else number for text in trials[unit]]
    return Source(name, trials.drop(columns=unit).assign(seconds=np.array(numbers) * TIME_COLUMNS[unit]))


def write_proposals(path: Path, trials: Sequence[Proposal], space: SearchSpace, column: str) -> None:
    """Write the next trials as a CSV whose column of seconds is empty."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([column, *space.names, "seconds"])
    rows.writerows([each.problem, *(each.config[name] for name in space.names), ""] for each in trials)
    write_text(path, text.getvalue())


def read_results(
    path: Path, campaign: Campaign, column: str
) -> Iterator[tuple[Proposal, float | None, str | None]]:
    """Read results: trials, their seconds, or why there are none.

    Args:
        column: which names the problems; it may be left out where there is one problem.

    Raises:
        SchemaError: names the line of the first fault.
    """
    if path.suffix != ".csv":
        yield from _read_trials(path, campaign)
        return
    header, rows = table_rows(path)
    check_columns(path, header, campaign.space.names, problem=column, several=len(campaign.problems) > 1)
    unit = _time_column(path, header)
    for line, row in rows:
        where, text = f"{path}, line {line}", row[unit]
        if not text:
            continue
        problem = row.get(column, next(iter(campaign.problems)))
        if problem not in campaign.problems:
            raise SchemaError(f"{where}: {column} {problem!r} is not among those of this campaign")
        try:
            config = campaign.program(problem, {name: row[name] for name in campaign.space.names})
        except IllegalSchedule as error:
            raise SchemaError(f"{where}: {error}: drop the row, or correct the space") from None
        value = number_of(text)
        if value is not None and 0 < value < math.inf:
            yield Proposal(problem, config), value * TIME_COLUMNS[unit], None
        elif text[0] in "+-." or text[0].isnumeric():
            raise SchemaError(f"{where}: {unit} is {text!r}: give a positive number such as 0.5, a word such as "
                              "timeout for a failure, or nothing if it has not run")
        else:
            yield Proposal(problem, config), None, text


def _read_trials(path: Path, campaign: Campaign) -> Iterator[tuple[Proposal, float | None, str | None]]:
    """Read a T4 file; what violates a constraint is no trial."""
    if len(campaign.problems) > 1:
        raise SchemaError(f"{path} does not say of which problem its trials are: give a CSV with a column {PROBLEM}")
    problem = next(iter(campaign.problems))
    trials = read_trials(path, campaign.space)
    for row in trials.to_dict("records"):
        if row["failure"] == "constraint":
            continue
        config = campaign.program(problem, {name: row[name] for name in campaign.space.names})
        failed = row["failure"] is not None
        yield Proposal(problem, config), None if failed else row["seconds"], row["failure"] if failed else None


def _time_column(path: Path, header: Sequence[str]) -> str:
    times = [name for name in header if name in TIME_COLUMNS]
    if len(times) != 1:
        raise SchemaError(f"{path}: the header is {','.join(header) or 'empty'}: give one column of times, named by "
                          f"its unit: {', '.join(TIME_COLUMNS)}")
    return times[0]
