"""Finished runs: where they are and what they found."""

import io
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom.data import read_frame
from sparloom.errors import SchemaError
from sparloom.files import check_sum, read_lines

__all__ = ["Run", "read_run", "read_runs"]

REMEDY = ("run it again, or bring a committed result back by `git checkout`; after results/ was changed on purpose: "
          "(cd results && sha256sum */* > SHA256SUMS)")


@dataclass(frozen=True)
class Run:
    """One finished run; files are read when asked for."""

    folder: Path
    metrics: dict[str, float | None]

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Commit, versions, machine, seed, data; empty where only the results of the run were kept."""
        path = self.folder / "environment.json"
        return _object(path) if path.exists() else {}

    @cached_property
    def command(self) -> str:
        return (self.folder / "command.txt").read_text(encoding="utf-8").strip()

    @cached_property
    def per_matrix(self) -> pd.DataFrame:
        """One row per matrix, method and seed."""
        return _frame(self.folder / "per_matrix.parquet")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per method, seed and epoch."""
        path = self.folder / "curves.csv"
        return pd.read_csv(io.BytesIO(_content(path)))

    def table(self, name: str) -> pd.DataFrame:
        """Read another table that the run's task wrote, `name`.parquet."""
        return _frame(self.folder / f"{name}.parquet")


def read_run(folder: Path) -> Run:
    """Open a run folder, such as one under results/.

    Raises:
        FileNotFoundError: the run has no metrics: it has not finished.
        SchemaError: the metrics are damaged.
    """
    path = Path(folder) / "metrics.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: the run has not finished, or the folder is another")
    return Run(Path(folder), _object(path))


def read_runs(outputs: Path) -> pd.DataFrame:
    """Read `runs.jsonl`: one row per run that has ended, in the order of their ends, one column per metric.

    The others: experiment, overrides, folder (relative to `outputs` if inside), started, wall_seconds, commit, dirty,
    seed, status (finished or failed) and reason.

    Raises:
        SchemaError: a line is damaged; one that is still being written is none.
    """
    path, rows = Path(outputs) / "runs.jsonl", []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = json.loads(line)
            metrics = record.pop("metrics") or {}
            rows.append(record | metrics)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SchemaError(f"{path}, line {number} is damaged ({error}): remove it") from None
    return pd.DataFrame(rows)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        check_sum(path, content)
    except ValueError as error:
        raise SchemaError(f"{path} is damaged ({error}): {REMEDY}") from None
    return content


def _frame(path: Path) -> pd.DataFrame:
    _content(path)
    return read_frame(path, REMEDY)


def _object(path: Path) -> dict[str, Any]:
    content = _content(path)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise SchemaError(f"{path} is damaged ({error}): {REMEDY}") from None
    if not isinstance(value, dict):
        raise SchemaError(f"{path} is damaged (a {type(value).__name__}, no object): {REMEDY}")
    return value
