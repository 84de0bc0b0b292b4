"""Files that processes share: atomic writes, locks, lines that any number of them append, JSON, and checksums.

Damage is detected in Parquet by the CRC of each page, in zip files (.npz, .pt) and gzip files by their CRC-32, in JSON
of models by a checksum in the file, in the files of a run by SHA256SUMS, and in the data store by its list of MD5 sums.
"""

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

__all__ = [
    "SUMS", "append_lines", "atomic_folder", "atomic_path", "check_sum", "json_text", "locked",
    "read_json", "read_lines", "remove_leftovers", "scratch_folder", "sha256", "write_checked_json",
    "write_json", "write_sums", "write_text",
]

_UNKNOWN_CHECKSUM = f"sparloom-sha256-{'0' * 64}-sparloom-sha256"  # stands in a JSON file while it is hashed
SUMS = "SHA256SUMS"
"""Name of the file that lists the SHA-256 of a run's JSON and CSV files."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SUMMED_SUFFIXES = (".json", ".csv")  # Parquet has checksums of its own
_LEFTOVER = re.compile(r"\..+\.[0-9]{1,7}-[0-9]+\.(partial|replaced)")
_LEFTOVER_SECONDS = 7 * 86_400  # age at which a partial file belongs to a process that was killed
_MAX_ENTRIES = 10_000  # of a folder that are searched for leftovers, to bound the time
_EXCHANGE, _AT_CWD = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of renameat2(2)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; on success flush it to disk and rename it to `path`.

    Each thread has its own temporary path. On an exception the partial file is removed, and an existing `path` is
    unchanged. Leftovers of killed processes are removed a week later, when a process first writes to the folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(path, "partial")
    _remove_once(str(path.parent.absolute()))
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        _name_file(error, path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` to fill; on success it replaces `folder` atomically.

    Where the file system cannot exchange two names, `folder` is renamed to .FOLDER.<process>.replaced first, and a
    process that is killed right then leaves it there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_once(str(folder.parent.absolute()))
    partial, replaced = _beside(folder, "partial"), _beside(folder, "replaced")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _sync(partial)
        if not folder.exists():
            partial.rename(folder)
        elif not _exchange(partial, folder):
            folder.rename(replaced)
            partial.rename(folder)
            shutil.rmtree(replaced, ignore_errors=True)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def scratch_folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for temporary files and remove it at the end; those of killed processes are removed too.

    Args:
        parent: in which it is made (default: that of the system).
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_once(str(parent))
    folder = parent / f".sparloom-{purpose}.{os.getpid()}-{threading.get_native_id()}{time.time_ns()}.partial"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove partial files and folders that are a week old from `folder`; at most 10,000 entries are examined."""
    with suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False):
            if not _LEFTOVER.fullmatch(entry.name):
                continue
            with suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _LEFTOVER_SECONDS:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
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
    with path.open("a", encoding="utf-8") as file, _hold_lock(file, mode):
        yield


@contextmanager
def _hold_lock(file: IO[Any], mode: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Lock an open file by flock(2); a call that interrupts another of the same thread shares its lock."""
    status, process, locked_files = os.fstat(file.fileno()), os.getpid(), _HELD.files
    key = status.st_dev, status.st_ino
    if key in locked_files:
        fcntl.flock(locked_files[key], mode)  # the interrupted call may hold the lock, or wait for another process
        yield
        return
    locked_files[key] = file  # before the lock is taken, so that an interruption right after it finds it
    try:
        fcntl.flock(file, mode)
        yield
    finally:
        try:
            if os.getpid() == process:  # a child forked in the body shares the lock of its parent
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a forked child has the file open too
        finally:
            del locked_files[key]


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines and flush them to disk; several processes, and signal handlers, may append to a file.

    An incomplete last line of a killed process is cut off first, so that it is not joined to another.

    Raises:
        OSError: the disk is full; nothing was appended.
    """
    text = "".join(f"{line}\n" for line in lines).encode()
    if not text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file, _hold_lock(file):
        _cut_torn_line(file)
        try:
            written = os.write(file.fileno(), text)  # in one call, which no signal handler interrupts
            if written < len(text):
                file.truncate(file.seek(0, os.SEEK_END) - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            _name_file(error, path)
            raise
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file to which others may append; a last line without its end is dropped."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused."""
    write_text(path, json_text(value))


def json_text(value: Mapping[str, Any] | list[Any]) -> str:
    """Format `value` as indented JSON; NaN and infinity are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as `write_json` does, with a checksum of the file as its last entry, "checksum"."""
    text = json_text({**value, "checksum": _UNKNOWN_CHECKSUM})
    write_text(path, text.replace(_UNKNOWN_CHECKSUM, _checksum(text)))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object and verify its checksum if it has one.

    Raises:
        ValueError: damaged, or not a JSON object.
        OSError: the file cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    checksum = value.pop("checksum", None)
    if checksum is not None and _checksum(text.replace(str(checksum), _UNKNOWN_CHECKSUM)) != checksum:
        raise ValueError("its checksum does not match its content")
    return value


def _checksum(text: str) -> str:
    return _UNKNOWN_CHECKSUM.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest())


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


class _Held(threading.local):
    """Files that the unfinished calls of a thread have locked or wait for, by device and inode."""

    def __init__(self) -> None:
        self.files: dict[tuple[int, int], IO[Any]] = {}


_HELD = _Held()


def _name_file(error: OSError, path: Path) -> None:
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
def _remove_once(folder: str) -> None:
    remove_leftovers(Path(folder))


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders atomically; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(_AT_CWD, os.fsencode(first), _AT_CWD, os.fsencode(second), _EXCHANGE) == 0


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
