"""Files that are complete or absent, lines that are whole or gone; checksums; locks between processes."""

import _thread
import ctypes
import fcntl
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
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any

__all__ = [
    "CHECKSUM", "SUMS", "append_lines", "atomic_folder", "atomic_path", "check_sum", "hold_lock", "json_text",
    "locked", "read_checked", "read_json", "read_lines", "remove_leavings", "scratch_folder", "settle", "sha256",
    "stamp", "stamp_zip", "write_checked_json", "write_json", "write_sums", "write_text",
]

_BEFORE, _AFTER, _DIGITS = "sparloom-sha256-", "-sparloom-sha256", 64
CHECKSUM = f"{_BEFORE}{'0' * _DIGITS}{_AFTER}"
"""What stands in a file for its own checksum until `stamp` fills it in: Parquet metadata, JSON, comment of a zip file.

The names on both sides are 64 bytes apart, so 64 zeroed bytes leave one of them: the file is seen to have had one.
"""
SUMS = "SHA256SUMS"
_SUMMED = (".json", ".csv")  # tables in Parquet carry their own
_LEAVING = re.compile(r"\.(.+)\.([0-9]{1,7})-[0-9]+\.(partial|replaced)")
_ZIP_END = 22  # bytes of the last record of a zip file, without its comment
_LISTED = 10_000  # entries of a folder that are looked at for leavings: the time is bounded
_CLOCK_SECONDS = 60.0  # by which clocks of files and of processes may differ
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of renameat2(2)


@contextmanager
def atomic_path(path: Path, *, wait: bool = True) -> Iterator[Path]:
    """Yield a name beside `path` to write to; on success flush it to disk and rename it over `path`.

    The name is of this thread alone. On an exception the partial file is removed, and an existing `path` stays as it
    was. What killed processes left in the folder is removed when this process first writes to it.

    Args:
        wait: False: rename it at once and flush it in the background. Processes that are killed lose nothing by that; a
            machine that loses power may, so who reads such a file must recognise one that is not whole.
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
            with suppress(RuntimeError):  # no more threads: the system writes it when it likes
                _thread.start_new_thread(_sync_late, (path,))  # `Thread.start` would wait until it has a processor
    finally:
        partial.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder` to fill; on success it takes the place of `folder` at once.

    Where the file system cannot exchange two names, `folder` is renamed away before its successor gets its name;
    `settle` brings it back if the process is killed between the two.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_once(str(folder.parent.absolute()), os.getpid())
    settle(folder)
    made, replaced = _beside(folder, "partial"), _beside(folder, "replaced")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    held = _hold(made, os.O_RDONLY)
    try:
        yield made
        _sync(made)
        if not folder.exists():
            made.rename(folder)
        elif not _exchange(made, folder):
            folder.rename(replaced)
            made.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        os.close(held)


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Make a folder for temporary files and remove it in the end; those of killed processes are removed, too."""
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


def settle(folder: Path) -> None:
    """Bring back a folder that a killed process had renamed away and not yet replaced."""
    if not folder.exists() and folder.parent.is_dir():
        for left in sorted(folder.parent.glob(f".{folder.name}.*.replaced")):
            if _is_left(left):
                with suppress(OSError):  # another process was faster
                    left.rename(folder)
                return


def remove_leavings(folder: Path) -> None:
    """Remove partial files and folders that killed processes left in `folder`; those of living ones stay.

    Who writes holds a lock, which tells the living from the dead in other containers, too, whose numbers of processes
    mean nothing here. At most 10,000 entries are looked at.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(range(_LISTED), entries, strict=False):
            found = _LEAVING.fullmatch(entry.name)
            if found is None or not _is_left(Path(entry.path)):
                continue
            if found[3] == "replaced" and not Path(folder, found[1]).exists():
                continue  # `settle` needs it
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)


def write_text(path: Path, text: str, *, wait: bool = True) -> None:
    """Write `text` as UTF-8, atomically; `wait` as of `atomic_path`."""
    with atomic_path(path, wait=wait) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused."""
    write_text(path, json_text(value))


def json_text(value: Mapping[str, Any] | list[Any]) -> str:
    """Write `value` as indented JSON; NaN and infinity are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as `write_json` does, with a checksum of the file as its last entry, "checksum"."""
    with atomic_path(path) as partial:
        partial.write_text(json_text({**value, "checksum": CHECKSUM}), encoding="utf-8")
        stamp(partial)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, compared with its checksum where it carries one.

    Raises:
        ValueError: damaged, or no JSON object.
        OSError: the file cannot be read.
    """
    content, _ = read_checked(path)
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, no object")
    value.pop("checksum", None)
    return value


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines and wait until they are on disk; any number of processes may append to one file.

    A line that a process was writing when it died is cut off first, so that none is ever joined to another. Lines of a
    signal handler or finaliser that interrupts a call for the same file are written by that call, after its own.
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
    """Read the whole lines of a file to which others may be appending; a last one without its end is left out."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def sha256(path: Path) -> str:
    """Hash the content of a file; returns 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, texts: Mapping[str, str]) -> None:
    """List the SHA-256 of the JSON and CSV files in `folder` in its file SHA256SUMS, as `sha256sum -c` reads it.

    Args:
        texts: content of files that are written next.
    """
    found = {path.name: sha256(path) for path in folder.iterdir() if path.suffix in _SUMMED and path.is_file()}
    found |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    write_text(folder / SUMS, "".join(f"{found[name]}  {name}\n" for name in sorted(found)))


def check_sum(path: Path, content: bytes) -> None:
    """Compare the content of a file with SHA256SUMS beside it or in the folder above, where that lists it.

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
            raise ValueError(f"it is not what {sums} says")


def stamp(path: Path) -> None:
    """Fill in the checksum of a file that holds `CHECKSUM` where it belongs.

    It is the SHA-256 of the file as it stands, with zeros in place of the checksum.

    Raises:
        ValueError: the file does not hold `CHECKSUM`.
    """
    content = path.read_bytes()
    place = content.rfind(CHECKSUM.encode())
    if place < 0:
        raise ValueError(f"{path} has no place for a checksum: write sparloom.files.CHECKSUM into it first")
    with path.open("r+b") as file:
        file.seek(place + len(_BEFORE))
        file.write(hashlib.sha256(content).hexdigest().encode())


def stamp_zip(path: Path) -> None:
    """Give a zip file its checksum as a comment, which readers of such files pass over.

    Raises:
        ValueError: no zip file, or one that has a comment already.
    """
    with path.open("r+b") as file:
        file.seek(-_ZIP_END, os.SEEK_END)
        end = file.read()
        if not end.startswith(b"PK\x05\x06") or end[-2:] != b"\0\0":
            raise ValueError(f"{path} is no zip file without a comment: it gets no checksum")
        file.seek(-2, os.SEEK_END)
        file.write(len(CHECKSUM).to_bytes(2, "little") + CHECKSUM.encode())
    stamp(path)


def read_checked(path: Path) -> tuple[bytes, bool]:
    """Read a file and compare it with the checksum it carries.

    Returns:
        The content, and whether it carries one: files of older versions do not.

    Raises:
        ValueError: the content is not what the checksum says.
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
        raise ValueError("its content is not what its checksum says")
    return content, True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if absent) among all threads and processes of this machine.

    A signal handler or finaliser that asks for a lock which the call it interrupts holds has it, too: that call cannot
    go on, and give it back, before the handler returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file, hold_lock(file, _wait):
        yield


@contextmanager
def hold_lock(file: IO[Any], take: Callable[[IO[Any]], bool]) -> Iterator[bool]:
    """Hold a lock on an open file; a call that interrupts one of the same thread shares its lock.

    Args:
        take: locks a file, which may be that of the interrupted call; False: it gave up, and the body runs without.

    Yields:
        Whether this call has taken the lock: False, too, where it shares one.
    """
    locks, key, process = _held_here().locks, _identity(file), os.getpid()
    shared = locks.get(key)
    if shared is not None:
        if not shared.decided:  # it may have the lock already, or still wait for another process: its file tells
            take(shared.file)
        yield False
        return
    mine = locks[key] = _Lock(file)  # before the lock is taken: an interruption right after that must find it
    try:
        taken = take(file)
        mine.decided = True
        yield taken
    finally:
        del locks[key]
        if os.getpid() == process:  # a child that was forked in the body shares the lock of its parent
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a forked child has the file open, too


@dataclass(eq=False)
class _Lock:
    """A lock that a call of this thread has, or waits for.

    Args:
        decided: it has it, or gave up.
    """

    file: IO[Any]
    decided: bool = False


class _Held(threading.local):
    """What calls of a thread are in the middle of, by the device and number of the file.

    Args:
        locks: that they have or wait for.
        appends: what signal handlers wish to be appended, too.
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
    """Append texts, and those that interrupting calls add meanwhile."""
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
        if waiting:  # added just before, or an exception came in between
            _append(file, waiting)


def _write(file: IO[bytes], text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(file.fileno(), rest):]


def _beside(path: Path, ending: str) -> Path:
    """Name a hidden file beside `path`, of this thread alone."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.{ending}")


@lru_cache(maxsize=256)
def _remove_once(folder: str, process: int) -> None:
    remove_leavings(Path(folder))


def _hold(path: Path, flags: int) -> int:
    """Open and lock what is being written, so that nobody takes it for a leaving."""
    held = os.open(path, flags | os.O_CLOEXEC, 0o666)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def _is_left(path: Path) -> bool:
    """Tell whether who wrote a partial file is dead: it holds no lock, and its number is gone or another's."""
    found = _LEAVING.fullmatch(path.name)
    if found is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        began = _began(int(found[2]))
        return began is None or os.fstat(descriptor).st_mtime < began - _CLOCK_SECONDS
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _began(process: int) -> float | None:
    """When a process began, in seconds since the epoch; None: there is none, infinitely long ago: nobody knows."""
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
    """Exchange the names of two files or folders at once; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0


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
