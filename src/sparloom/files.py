"""Files that processes share: atomic writes, locks, lines that any number of them append, JSON, and checksums."""

import _thread
import ctypes
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = [
    "CHECKSUM", "SUMS", "append_lines", "atomic_folder", "atomic_path", "check_sum", "hold_lock",
    "json_text", "locked", "read_checked", "read_json", "read_lines", "remove_leftovers", "restore_folder",
    "scratch_folder", "sha256", "stamp", "stamp_zip", "write_checked_json", "write_json", "write_sums", "write_text",
]

_BEFORE, _AFTER, _DIGITS = "sparloom-sha256-", "-sparloom-sha256", 64
CHECKSUM = f"{_BEFORE}{'0' * _DIGITS}{_AFTER}"
"""Placeholder for the checksum of a file in the file itself (Parquet metadata, JSON, zip comment); see `stamp`.

The markers on both sides are 64 bytes apart, so that one survives 64 zeroed bytes: it shows that there was a checksum.
"""
SUMS = "SHA256SUMS"
"""Name of the file that lists the SHA-256 of a run's JSON and CSV files."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SUMMED_SUFFIXES = (".json", ".csv")  # tables in Parquet carry their own
_LEFTOVER = re.compile(r"\.(.+)\.([0-9]{1,7})-[0-9]+\.(partial|replaced)")
_ZIP_END_BYTES = 22  # bytes of the last record of a zip file, without its comment
_MAX_ENTRIES = 10_000  # of a folder that are searched for leftovers, to bound the time
_CLOCK_TOLERANCE = 60.0  # seconds by which clocks of files and of processes may differ
_EXCHANGE, _AT_CWD = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of renameat2(2)


@contextmanager
def atomic_path(path: Path, *, wait: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; on success flush it to disk and rename it to `path`.

    Each thread has its own temporary path. On an exception the partial file is removed, and an existing `path` is
    unchanged. Leftovers of killed processes are removed when this process first writes to the folder.

    Args:
        wait: False: rename at once and flush in the background. A killed process loses nothing by that, but a power
            failure may, so readers of such a file must recognise an incomplete one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, held = _beside(path, "partial"), None
    if wait:
        _remove_once(str(path.parent.absolute()), os.getpid())
        held = _hold(partial, os.O_CREAT | os.O_RDWR)
    try:
        yield partial
        if wait:
            _sync(partial)
        partial.replace(path)
        if wait:
            _sync(path.parent)
        else:
            with suppress(RuntimeError):  # no more threads: the system flushes it at some time
                _thread.start_new_thread(_sync_late, (path,))  # `Thread.start` would wait until the thread runs
    except OSError as error:
        _name_file(error, path)
        raise
    finally:
        partial.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` to fill; on success it replaces `folder` atomically.

    Where the file system cannot exchange two names, `folder` is renamed away before its successor gets its name;
    `restore_folder` renames it back if the process is killed in between.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_once(str(folder.parent.absolute()), os.getpid())
    restore_folder(folder)
    partial, replaced = _beside(folder, "partial"), _beside(folder, "replaced")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    held = _hold(partial, os.O_RDONLY)
    try:
        yield partial
        _sync(partial)
        if not folder.exists():
            partial.rename(folder)
        elif not _exchange(partial, folder):
            folder.rename(replaced)
            partial.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        os.close(held)


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Make a folder for temporary files and remove it at the end; those of killed processes are removed too."""
    parent = Path(tempfile.gettempdir())
    _remove_once(str(parent), os.getpid())
    folder = parent / f".sparloom-{purpose}.{os.getpid()}-{threading.get_native_id()}{time.time_ns()}.partial"
    folder.mkdir(mode=0o700)
    held = _hold(folder, os.O_RDONLY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def restore_folder(folder: Path) -> None:
    """Rename back a folder that a killed process had renamed away and not yet replaced."""
    if not folder.exists() and folder.parent.is_dir():
        for left in sorted(folder.parent.glob(f".{folder.name}.*.replaced")):
            if _is_leftover(left):
                with suppress(OSError):  # another process did it
                    left.rename(folder)
                return


def remove_leftovers(folder: Path) -> None:
    """Remove partial files and folders that killed processes left in `folder`, but not those of running processes.

    A writer holds a lock, by which it is also recognised in other containers, whose process IDs mean nothing here. At
    most 10,000 entries are examined.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False):
            found = _LEFTOVER.fullmatch(entry.name)
            if found is None or not _is_leftover(Path(entry.path)):
                continue
            if found[3] == "replaced" and not Path(folder, found[1]).exists():
                continue  # `restore_folder` needs it
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if absent) among all threads and processes of this machine.

    A signal handler or finaliser shares a lock of the call that it interrupts, since that call cannot continue and
    release it before the handler returns.

    Raises:
        BlockingIOError: another process or thread holds the lock, and wait=False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    with path.open("a", encoding="utf-8") as file, hold_lock(file, lambda each: fcntl.flock(each, mode) is None):
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
    locks, key, process = _HELD.locks, _identity(file), os.getpid()
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
        waiting = _HELD.appends.get(_identity(file))
        if waiting is None:
            _append(file, [text])
        else:
            waiting.append(text)


def read_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file to which others may append; a last line without its end is dropped."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def write_text(path: Path, text: str, *, wait: bool = True) -> None:
    """Write `text` as UTF-8, atomically; `wait` as in `atomic_path`."""
    with atomic_path(path, wait=wait) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused."""
    write_text(path, json_text(value))


def json_text(value: Mapping[str, Any] | list[Any]) -> str:
    """Format `value` as indented JSON; NaN and infinity are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as `write_json` does, with a checksum of the file as its last entry, "checksum"."""
    with atomic_path(path) as partial:
        partial.write_text(json_text({**value, "checksum": CHECKSUM}), encoding="utf-8")
        stamp(partial)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object and verify its checksum if it has one.

    Raises:
        ValueError: damaged, or not a JSON object.
        OSError: the file cannot be read.
    """
    content, _ = read_checked(path)
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    value.pop("checksum", None)
    return value


def sha256(path: Path) -> str:
    """Hash the content of a file to 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the SHA-256 of the JSON and CSV files in `folder` to its file SHA256SUMS, as `sha256sum -c` reads it.

    `texts` will be written to the files of these names next.
    """
    found = {path.name: sha256(path) for path in folder.iterdir() if path.suffix in _SUMMED_SUFFIXES and path.is_file()}
    found |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    write_text(folder / SUMS, "".join(f"{found[name]}  {name}\n" for name in sorted(found)))


def check_sum(path: Path, content: bytes) -> None:
    """Compare the content of a file with SHA256SUMS in its folder and the folder above, if the file is listed there.

    Raises:
        ValueError: it differs.
    """
    for folder in path.absolute().parents[:2]:
        sums = folder / SUMS
        if not sums.exists():
            continue
        pairs = (line.split("  ", 1) for line in sums.read_text(encoding="utf-8", errors="replace").splitlines())
        listed = {pair[1]: pair[0] for pair in pairs if len(pair) == 2}
        wanted = listed.get(path.absolute().relative_to(folder).as_posix())
        if wanted is not None and hashlib.sha256(content).hexdigest() != wanted:
            raise ValueError(f"its checksum differs from that in {sums}")


def stamp(path: Path) -> None:
    """Replace the placeholder `CHECKSUM` in a file by the SHA-256 of the file with the placeholder.

    Raises:
        ValueError: the file does not contain `CHECKSUM`.
    """
    content = path.read_bytes()
    offset = content.rfind(CHECKSUM.encode())
    if offset < 0:
        raise ValueError(f"{path} has no placeholder for a checksum: write sparloom.files.CHECKSUM into it first")
    with path.open("r+b") as file:
        file.seek(offset + len(_BEFORE))
        file.write(hashlib.sha256(content).hexdigest().encode())


def stamp_zip(path: Path) -> None:
    """Write the checksum of a zip file into its comment, which readers of such files ignore.

    Raises:
        ValueError: not a zip file, or one that has a comment already.
    """
    with path.open("r+b") as file:
        file.seek(-_ZIP_END_BYTES, os.SEEK_END)
        end = file.read()
        if not end.startswith(b"PK\x05\x06") or end[-2:] != b"\0\0":
            raise ValueError(f"{path} is not a zip file without a comment: it cannot hold a checksum")
        file.seek(-2, os.SEEK_END)
        file.write(len(CHECKSUM).to_bytes(2, "little") + CHECKSUM.encode())
    stamp(path)


def read_checked(path: Path) -> tuple[bytes, bool]:
    """Read a file and verify the checksum in it.

    Returns:
        The content, and whether it has a checksum; files of older versions have none.

    Raises:
        ValueError: the checksum does not match the content, or is damaged.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    before, after = _BEFORE.encode(), _AFTER.encode()
    end = content.rfind(after)
    start = end - _DIGITS
    if end < 0 and before not in content:
        return content, False
    if start < len(before) or content[start - len(before):start] != before:
        raise ValueError("its checksum is damaged")
    whole = hashlib.sha256(memoryview(content)[:start])
    whole.update(b"0" * _DIGITS)
    whole.update(memoryview(content)[end:])
    if whole.hexdigest().encode() != content[start:end]:
        raise ValueError("its checksum does not match its content")
    return content, True


@dataclass(eq=False)
class _Lock:
    """Lock that a call of this thread holds or waits for."""

    file: IO[Any]
    decided: bool = False  # the call holds it, or gave up


class _Held(threading.local):
    """Unfinished calls of a thread, by device and inode of their files."""

    def __init__(self) -> None:
        self.locks: dict[tuple[int, int], _Lock] = {}  # held or awaited
        self.appends: dict[tuple[int, int], list[bytes]] = {}  # of interrupting calls, to be written by the interrupted


_HELD = _Held()


def _identity(file: IO[Any]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _append(file: IO[bytes], texts: list[bytes]) -> None:
    """Append texts, and those that interrupting calls add in the meantime."""
    appends, key = _HELD.appends, _identity(file)
    waiting = appends[key] = []
    try:
        with hold_lock(file, lambda each: fcntl.flock(each, fcntl.LOCK_EX) is None):
            _cut_torn_line(file)
            _write(file, b"".join(texts))
            while waiting:
                _write(file, waiting[0])
                del waiting[0]
            os.fsync(file.fileno())
    finally:
        del appends[key]
        if waiting:  # added at the last moment, or after an exception
            _append(file, waiting)


def _write(file: IO[bytes], text: bytes) -> None:
    """Write a text at the end of a file, or nothing of it if the disk is full."""
    end, rest = file.seek(0, os.SEEK_END), memoryview(text)
    try:
        while rest:
            rest = rest[os.write(file.fileno(), rest):]
    except OSError as error:
        file.truncate(end)
        _name_file(error, file.name)
        raise


def _name_file(error: OSError, path: Path | str) -> None:
    if error.errno in DISK_FULL and error.filename is None:
        error.filename = str(path)


def _cut_torn_line(file: IO[bytes]) -> None:
    """Truncate a file after its last line end."""
    block = 1 << 16
    end = size = file.seek(0, os.SEEK_END)
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


def _beside(path: Path, ending: str) -> Path:
    """Return the path of a hidden file beside `path` that only this thread uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.{ending}")


@functools.lru_cache(maxsize=256)
def _remove_once(folder: str, process: int) -> None:
    remove_leftovers(Path(folder))


def _hold(path: Path, flags: int) -> int:
    """Open and lock a path that is being written, so that no process takes it for a leftover."""
    held = os.open(path, flags | os.O_CLOEXEC, 0o666)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def _is_leftover(path: Path) -> bool:
    """Check that the writer of a partial file is dead: it holds no lock, and its process ID is free or reused."""
    found = _LEFTOVER.fullmatch(path.name)
    if found is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        started = _start_time(int(found[2]))
        return started is None or os.fstat(descriptor).st_mtime < started - _CLOCK_TOLERANCE
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _start_time(process: int) -> float | None:
    """Return when a process started, in seconds since the epoch; None if there is none, -inf if it is unknown."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # of another user
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        booted = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(encoding="utf-8"), re.MULTILINE)
        return int(booted[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, TypeError, ValueError):
        return float("-inf")


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders atomically; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(_AT_CWD, os.fsencode(first), _AT_CWD, os.fsencode(second), _EXCHANGE) == 0


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
