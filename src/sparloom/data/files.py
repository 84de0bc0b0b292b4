"""Parquet files that carry a checksum of all their bytes, and are compared with it whenever they are read.

The data of a clone: data/ is fetched from the DVC store inside the repository, offline, at first use.
"""

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sparloom.errors import MissingArtifact, SchemaError
from sparloom.files import CHECKSUM, atomic_path, locked, read_checked, sha256, stamp, write_text

__all__ = ["ensure_data", "read_frame", "read_rows", "verify_stored", "write_frame", "write_rows"]

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


log = logging.getLogger(__name__)


def ensure_data(folder: Path) -> None:
    """Bring `folder` to the state that `folder`.dvc beside it points to; without such a pointer do nothing.

    The state is remembered, so that later calls cost one checksum of the pointer. Files that were changed here are not
    overwritten: a warning says so.

    Raises:
        MissingArtifact: nothing could be fetched and there is no data.
    """
    folder = Path(folder).absolute()
    pointer = folder.with_name(f"{folder.name}.dvc")
    if not pointer.exists():
        return
    stamp = folder.parent / ".cache" / f"{folder.name}.version"
    with locked(stamp.with_suffix(".lock")):
        version = sha256(pointer)
        if folder.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == version:
            return
        log.info("fetching %s from the data store of this repository", folder.name)
        fault = _pull(pointer)
        if fault is None:
            write_text(stamp, version)
        elif folder.exists():
            log.warning("%s/ is not what %s says and was left as it is: %s", folder.name, pointer.name, fault)
        else:
            raise MissingArtifact(
                f"{folder.name}/ could not be fetched from the data store ({fault}); run `dvc pull` in {folder.parent}",
                experiment="collect_spade",
            )


def verify_stored(folder: Path, path: Path) -> None:
    """Compare a file under `folder` with the one of the data store, which may carry no checksum of its own.

    A file of another size was made anew here and is left to its reader: damage that keeps the size is found.

    Raises:
        SchemaError: as many bytes as the stored file has, but others.
    """
    pointer = Path(folder).absolute().with_name(f"{Path(folder).name}.dvc")
    if pointer.exists() and path.is_file():
        digest, size = _listed(pointer, sha256(pointer)).get(path.absolute().relative_to(folder.absolute()).as_posix(),
                                                            ("", -1))
        found = path.stat()
        if found.st_size == size and _md5(path, found.st_mtime_ns) != digest:
            raise SchemaError(f"{path} is damaged (it is not the file of the data store): "
                              f"bring it back by `dvc pull --force`")


@lru_cache(maxsize=8)
def _listed(pointer: Path, version: str) -> Mapping[str, tuple[str, int]]:
    """MD5 and size of the files that a pointer of `version` stands for; empty where their list is not at hand."""
    found = re.search(r"md5:\s*([0-9a-f]{32})\.dir", pointer.read_text(encoding="utf-8"))
    stores = (pointer.parent / ".dvc" / "cache" / "files" / "md5", pointer.parent / "dvc-store" / "files" / "md5")
    for store in stores if found else ():
        path = store / found[1][:2] / f"{found[1][2:]}.dir"
        if path.exists():
            files = {entry["relpath"]: entry["md5"] for entry in json.loads(path.read_text(encoding="utf-8"))}
            return {name: (digest, _size(store / digest[:2] / digest[2:])) for name, digest in files.items()}
    return {}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


@lru_cache(maxsize=256)
def _md5(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _pull(pointer: Path) -> str | None:
    """Run `dvc pull`; returns its last line when it fails."""
    private = pointer.parent / ".dvc" / "tmp"
    environment = {
        **os.environ,
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(private / "site"),  # its default is shared by all users of a machine
    }
    command = [sys.executable, "-m", "dvc", "pull", "--quiet", pointer.name]
    done = subprocess.run(command, cwd=pointer.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    return next((line for line in lines if "ERROR" in line), lines[-1])
