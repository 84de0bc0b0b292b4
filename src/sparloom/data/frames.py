"""Parquet files that carry a checksum of all their bytes, and are compared with it whenever they are read."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sparloom.errors import SchemaError
from sparloom.files import CHECKSUM, atomic_path, read_checked, stamp

__all__ = ["read_frame", "read_rows", "write_frame", "write_rows"]

KEY = "sparloom.checksum"
DAMAGES = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, AttributeError)
"""What readers of Parquet raise where a file without checksum is damaged."""


def write_rows(path: Path, rows: pa.Table, **options: Any) -> None:
    """Write a table as one Parquet file with its checksum, atomically; equal tables give equal files.

    Args:
        options: of `pyarrow.parquet.ParquetWriter`.
    """
    with atomic_path(path) as partial:
        with pq.ParquetWriter(partial, rows.schema, **{"compression": "zstd", **options}) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({KEY: CHECKSUM})
        stamp(partial)


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as `DataFrame.to_parquet` does, with its checksum, atomically."""
    write_rows(path, pa.Table.from_pandas(frame))


def read_rows(path: Path, remedy: str, **options: Any) -> tuple[pa.Table, bool]:
    """Read a Parquet file.

    Args:
        remedy: what to do if it is damaged, the end of a sentence.
        options: of `pyarrow.parquet.read_table`.

    Returns:
        The table, and whether it was compared with a checksum: files of older versions have none.

    Raises:
        SchemaError: damaged, or no Parquet file.
        OSError: it cannot be read.
    """
    try:
        content, checked = read_checked(path)
    except ValueError as error:
        raise SchemaError(f"{path} is damaged ({error}): {remedy}") from None
    try:
        return pq.read_table(pa.BufferReader(content), **options), checked
    except DAMAGES as error:
        raise SchemaError(f"{path} is not a Parquet file, or damaged ({_first_line(error)}): {remedy}") from None


def read_frame(path: Path, remedy: str) -> pd.DataFrame:
    """Read a frame that `write_frame` or `DataFrame.to_parquet` wrote.

    Raises:
        SchemaError, OSError: as `read_rows`.
    """
    rows, _ = read_rows(path, remedy)
    try:
        return rows.to_pandas()
    except DAMAGES as error:
        raise SchemaError(f"{path} is damaged ({_first_line(error)}): {remedy}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
