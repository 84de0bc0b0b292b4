"""Locks between threads and processes, and lines that any number of processes append to one file."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

__all__ = ["append_lines", "hold_lock", "locked", "read_lines"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if absent) among all threads and processes of this machine.

    A signal handler or finaliser shares a lock of the call that it interrupts, since that call cannot continue and
    release it before the handler returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file, hold_lock(file, _wait):
        yield


@contextmanager
def hold_lock(file: IO[Any], take: Callable[[IO[Any]], bool]) -> Iterator[bool]:
    """Hold a lock on an open file; a call that interrupts another of the same thread shares its lock.

    Args:
        take: locks a file, which may be that of the interrupted call; returns False if it gave up, in which case the
            body runs without the lock.

    Yields:
        Whether this call took the lock itself; False if it shares one or gave up.
    """
    locks, key, process = _held_here().locks, _identity(file), os.getpid()
    shared = locks.get(key)
    if shared is not None:
        if not shared.decided:  # it may hold the lock already, or wait for another process; `take` works in both cases
            take(shared.file)
        yield False
        return
    mine = locks[key] = _Lock(file)  # before the lock is taken, so that an interruption right after it finds it
    try:
        taken = take(file)
        mine.decided = True
        yield taken
    finally:
        del locks[key]
        if os.getpid() == process:  # a child forked in the body shares the lock of its parent
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a forked child has the file open too


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines and flush them to disk; any number of processes may append to a file.

    An incomplete last line of a killed process is cut off first, so that it is not joined to another. Lines of a signal
    handler or finaliser that interrupts a call for the same file are written by that call, after its own.
    """
    text = "".join(f"{line}\n" for line in lines).encode()
    if not text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        waiting = _held_here().appends.get(_identity(file))
        if waiting is None:
            _append(file, [text])
        else:
            waiting.append(text)


def read_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file to which others may append; a last line without its end is dropped."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


@dataclass(eq=False)
class _Lock:
    """Lock that a call of this thread holds or waits for.

    Args:
        decided: the call holds it, or gave up.
    """

    file: IO[Any]
    decided: bool = False


class _Held(threading.local):
    """Unfinished calls of a thread, by device and inode of their files.

    Args:
        locks: held or awaited.
        appends: texts that interrupting calls add to those of the interrupted call.
    """

    def __init__(self) -> None:
        self.locks: dict[tuple[int, int], _Lock] = {}
        self.appends: dict[tuple[int, int], list[bytes]] = {}


@cache
def _held_here() -> _Held:
    return _Held()


def _identity(file: IO[Any]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _wait(file: IO[Any]) -> bool:
    fcntl.flock(file, fcntl.LOCK_EX)
    return True


def _append(file: IO[bytes], texts: list[bytes]) -> None:
    """Append texts, and those that interrupting calls add in the meantime."""
    appends, key = _held_here().appends, _identity(file)
    waiting = appends[key] = []
    try:
        with hold_lock(file, _wait):
            _cut_torn_line(file)
            for text in texts:
                _write(file, text)
            while waiting:
                _write(file, waiting[0])
                del waiting[0]
            os.fsync(file.fileno())
    finally:
        del appends[key]
        if waiting:  # added at the last moment, or after an exception
            _append(file, waiting)


def _write(file: IO[bytes], text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(file.fileno(), rest):]


def _cut_torn_line(file: IO[bytes]) -> None:
    """Truncate a file after its last line end."""
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
