"""Files that are complete or absent, lines that are whole or gone; checksums; locks between processes."""

import _thread
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

__all__ = ["append_lines", "atomic_path", "locked", "read_lines", "sha256", "write_json", "write_text"]


@contextmanager
def atomic_path(path: Path, *, wait: bool = True) -> Iterator[Path]:
    """Yield a name beside `path` to write to; on success flush it to disk and rename it over `path`.

    The name is of this thread alone. On an exception the partial file is removed, and an existing `path` stays as it
    was.

    Args:
        wait: False: rename it at once and flush it in the background. Processes that are killed lose nothing by that; a
            machine that loses power may, so who reads such a file must recognise one that is not whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.partial")
    try:
        yield partial
        if wait:
            _sync(partial)
        partial.replace(path)
        if wait:
            _sync(path.parent)
        else:
            with suppress(RuntimeError):  # no more threads: the system writes it when it likes
                _thread.start_new_thread(_sync_late, (path,))  # `Thread.start` would wait until it has a processor
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, wait: bool = True) -> None:
    """Write `text` as UTF-8, atomically; `wait` as of `atomic_path`."""
    with atomic_path(path, wait=wait) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines and wait until they are on disk; any number of processes may append to one file.

    A line that a process was writing when it died is cut off first, so that none is ever joined to another.
    """
    text = "".join(f"{line}\n" for line in lines)
    if not text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _cut_torn_line(file)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """Read the whole lines of a file to which others may be appending; a last one without its end is left out."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def sha256(path: Path) -> str:
    """Hash the content of a file; returns 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if absent) among all threads and processes of this machine.

    A signal handler or finaliser that asks for a lock which the call it interrupts holds has it, too: that call cannot
    go on, and give it back, before the handler returns.
    """
    here = _held_here()
    if path in here.paths:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            here.paths |= {path}
            yield
        finally:
            here.paths -= {path}
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a forked child has the file open, too


class _Held(threading.local):
    """Locks that a thread holds."""

    def __init__(self) -> None:
        self.paths: frozenset[Path] = frozenset()


@cache
def _held_here() -> _Held:
    return _Held()


def _sync_late(path: Path) -> None:
    with suppress(OSError):  # it may be gone by now
        _sync(path)
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_torn_line(file: IO[bytes]) -> None:
    size = file.seek(0, os.SEEK_END)
    block = 1 << 16
    end = size
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        file.truncate(end)
