"""Parquet files whose pages have checksums, and the data store of a clone.

data/ is fetched from the DVC store inside the repository, offline, at first use.
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sparloom.errors import MissingArtifact, SchemaError
from sparloom.files import atomic_path, locked, sha256, write_text
from sparloom.lazy import install_command

READ_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError,
               AttributeError)
"""Errors of readers when a file is damaged."""

log = logging.getLogger(__name__)


def write_rows(path: Path, rows: pa.Table, **options: Any) -> None:
    """Write a table as one Parquet file, atomically; equal tables give equal files.

    Args:
        options: options of `pyarrow.parquet.write_table`.
    """
    with atomic_path(path) as partial:
        pq.write_table(rows, partial, **{"compression": "zstd", "write_page_checksum": True, **options})


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame like `DataFrame.to_parquet`, but with checksums and atomically."""
    write_rows(path, pa.Table.from_pandas(frame))


def read_rows(path: Path, remedy: str, **options: Any) -> pa.Table:
    """Read a Parquet file.

    Args:
        remedy: what to do if the file is damaged, the end of a message.
        options: options of `pyarrow.parquet.read_table`.

    Raises:
        SchemaError: damaged, or not a Parquet file.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    try:
        return pq.read_table(pa.BufferReader(content), page_checksum_verification=True, **options)
    except READ_ERRORS as error:
        raise SchemaError(f"{path} is not a Parquet file, or damaged ({_first_line(error)}): {remedy}") from None


def read_frame(path: Path, remedy: str) -> pd.DataFrame:
    """Read a frame that `write_frame` or `DataFrame.to_parquet` wrote.

    Raises:
        SchemaError, OSError: as `read_rows`.
    """
    rows = read_rows(path, remedy)
    try:
        return rows.to_pandas()
    except READ_ERRORS as error:
        raise SchemaError(f"{path} is damaged ({_first_line(error)}): {remedy}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def ensure_data(folder: Path) -> None:
    """Fetch the version of `folder` that the pointer `folder`.dvc names; without a pointer, do nothing.

    The fetched version is recorded, so that later calls cost one checksum of the pointer. Local changes are not
    overwritten; a warning reports them.

    Raises:
        MissingArtifact: fetching failed and there is no data.
        ImportError: dvc is not installed and there is no data.
    """
    folder = Path(folder).absolute()
    pointer = folder.with_name(f"{folder.name}.dvc")
    if not pointer.exists():
        return
    recorded = folder.parent / ".cache" / f"{folder.name}.version"
    with locked(recorded.with_suffix(".lock")):
        version = sha256(pointer)
        if folder.exists() and recorded.exists() and recorded.read_text(encoding="utf-8") == version:
            return
        if find_spec("dvc") is None:
            if not folder.exists():
                raise ImportError(f"dvc fetches {folder.name}/ and is not installed: {install_command('data')}")
            log.warning("%s/ cannot be compared with %s: dvc is not installed", folder.name, pointer.name)
            return
        log.info("fetching %s from the data store of this repository", folder.name)
        fault = _pull(pointer)
        if fault is None:
            write_text(recorded, version)
        elif folder.exists():
            log.warning("%s/ differs from the version of %s and was not changed: %s", folder.name, pointer.name, fault)
        else:
            raise MissingArtifact(
                f"{folder.name}/ could not be fetched from the data store ({fault}): try `dvc pull` in "
                f"{folder.parent}, or collect samples anew", experiment="collect_spade")


def verify_stored(folder: Path, path: Path) -> None:
    """Compare a file under `folder` with its copy in the data store.

    A file of another size is taken as made locally and left to its reader.

    Raises:
        SchemaError: the size is equal and the bytes differ.
    """
    pointer = Path(folder).absolute().with_name(f"{Path(folder).name}.dvc")
    if pointer.exists() and path.is_file():
        digest, size = _listed(pointer, sha256(pointer)).get(path.absolute().relative_to(folder.absolute()).as_posix(),
                                                            ("", -1))
        found = path.stat()
        if found.st_size == size and _md5(path, found.st_mtime_ns) != digest:
            raise SchemaError(f"{path} is damaged (it differs from the file in the data store): "
                              "restore it with `dvc pull --force`")


@lru_cache(maxsize=8)
def _listed(pointer: Path, version: str) -> Mapping[str, tuple[str, int]]:
    """Return MD5 and size by name of the files that a pointer lists; empty if the list is not available locally."""
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
    """Run `dvc pull`; return its error message if it fails."""
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
