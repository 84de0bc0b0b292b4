"""Cache of compiled libraries on disk, safe among processes: named by content, found by the key of their inputs."""

import ctypes
import fcntl
import hashlib
import logging
import mmap
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO

from sparloom.errors import CompileError
from sparloom.files import atomic_path, hold_lock, sha256

__all__ = ["FORMAT", "Cache", "build_folder", "cache_folder", "digest", "is_foreign", "load", "take_turn",
           "warn_unwritable"]

REPORT_AFTER_SECONDS = 3.0  # of waiting, before the holder is logged
TIMEOUT_SECONDS = 120.0  # of waiting for a running process
STOPPED_TIMEOUT_SECONDS = 6.0  # of waiting for a stopped process (Ctrl-Z, a debugger)
POLL_SECONDS = 0.05

VARIABLE = "SPARLOOM_CACHE"
FORMAT = "2"  # version of the entries
BUILD_PREFIX = "sparloom-build-"  # of the names of folders to compile in
LOCK_NAME = "held"  # a file in each of them, locked while the folder is in use
MIN_AGE_SECONDS = 60.0  # a younger folder without that file is being created

log = logging.getLogger(__name__)


@contextmanager
def take_turn(path: Path, work: str) -> Iterator[None]:
    """Hold a lock, or proceed without it after a timeout, in which case the work may be done twice.

    The lock of a process that ended is free at once. After 3 seconds of waiting the holder is logged. A signal handler
    or finaliser does not wait for the call that it interrupts.

    Args:
        path: of the lock file, created if absent; it names the process that holds the lock.
        work: what is done, for messages: "compile cpu/spmm.cpp".

    Raises:
        OSError: the file cannot be created, or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file, hold_lock(
            file, lambda file: _lock(file) or _wait(file, path, work)) as held:
        if held:
            _write_holder(file)
        try:
            yield
        finally:
            if held:
                with suppress(OSError):
                    file.truncate(0)


def _wait(file: IO[str], path: Path, work: str) -> bool:
    """Wait for a lock; return False after the timeout."""
    start, reported = time.monotonic(), False
    while not _lock(file):
        waited, (holder, since) = time.monotonic() - start, _holder(file)
        stopped = holder is not None and _is_stopped(holder)
        who = f"process {holder}{', which is stopped,' if stopped else ''}" if holder else "another process"
        timeout = STOPPED_TIMEOUT_SECONDS if stopped else TIMEOUT_SECONDS
        if waited >= timeout:
            log.warning("%s still holds %s after %.0f s: proceeding without the lock to %s", who, path, waited, work)
            return False
        if waited >= REPORT_AFTER_SECONDS and not reported:
            reported = True
            log.warning("waiting for %s to release %s, held since %s, to %s; proceeding without the lock after %.0f s",
                        who, path, since or "an unknown time", work, timeout)
        time.sleep(POLL_SECONDS)
    return True


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(file: IO[str]) -> None:
    with suppress(OSError):  # a full disk: the holder stays unknown
        file.truncate(0)
        file.write(f"{os.getpid()} {datetime.now().astimezone().isoformat(timespec='seconds')}\n")
        file.flush()


def _holder(file: IO[str]) -> tuple[int | None, str]:
    """Read which process holds a lock, and since when."""
    with suppress(OSError, ValueError):
        file.seek(0)
        process, _, since = file.read(100).strip().partition(" ")
        return int(process), since
    return None, ""


def _is_stopped(process: int) -> bool:
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] in ("T", "t")
    return False


def cache_folder() -> Path:
    """Return the folder of everything that can be made again: SPARLOOM_CACHE, else ~/.cache/sparloom.

    A user without a home directory gets a private folder among the temporary files.
    """
    if folder := os.environ.get(VARIABLE):
        with suppress(RuntimeError):  # ~ without a home
            return Path(folder).expanduser()
    try:
        home = Path.home()
    except (RuntimeError, KeyError):  # no HOME, and no entry in the user database
        home = Path()
    if home.is_absolute():
        return home / ".cache" / "sparloom"
    _warn_once(f"this user has no home directory: compiled kernels and decisions go to {_private_path()}; set "
               f"{VARIABLE} to a permanent folder")
    with suppress(OSError):  # a later write reports the problem
        _make_private_folder()
    return _private_path()


def digest(*parts: str) -> str:
    """Hash texts; ("ab", "c") and ("a", "bc") differ."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode()
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.hexdigest()


class Cache:
    """Shared libraries under `folder`, safe among processes.

    `objects/<sha256 of content>.so` are the libraries; a damaged one no longer matches its name. `keys/<key>` holds the
    name of the library that contains the kernel of that key, whatever batch it was compiled in. `any/<key>` does the
    same for a key without the compiler, for machines that have none.

    A read-only `folder` is used for reading; new libraries then go to a private temporary folder. Files that other
    users may have written are not used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._intact: dict[Path, bool] = {}

    def path(self, key: str, *, kind: str = "keys") -> Path | None:
        """Return the path of the library for `key`; None if it is absent or damaged.

        Args:
            kind: "keys", or "any" for a key without the compiler.
        """
        for folder in (self.folder, _private_folder()):
            library = None if folder is None else self._find(folder, Path(kind, key[:2], key))
            if library is not None:
                return library
        return None

    def get(self, key: str, *, kind: str = "keys") -> ctypes.CDLL | None:
        """Load the library for `key`; None if it is absent, damaged, or cannot be loaded on this machine."""
        library = self.path(key, kind=kind)
        if library is None:
            return None
        try:
            return load(library)
        except OSError as error:
            log.warning("%s does not load (%s): compiling it again", library, error)
            return None

    def put(self, built: Path, keys: Mapping[str, str]) -> ctypes.CDLL:
        """Store the library `built` for `keys` if possible, see `store`, and load it."""
        stored = self.store(built, keys)
        if stored is not None:
            with suppress(OSError):
                return load(stored)
        return load(built)

    def store(self, built: Path, keys: Mapping[str, str]) -> Path | None:
        """Copy the library `built` into the cache; return its path, or None if nothing can be written.

        Args:
            keys: key -> key without the compiler.
        """
        try:
            return _store(self.folder, built, keys)
        except OSError as error:
            problem = f"compiled kernels cannot be stored in {self.folder} ({error.strerror or error})"
        remedy = f"set {VARIABLE} to a writable folder"
        try:
            path = _store(_make_private_folder(), built, keys)
        except OSError:
            warn_unwritable(self.folder, f"{problem}, nor among the temporary files: every process compiles its own; "
                                         f"{remedy}")
            return None
        warn_unwritable(self.folder, f"{problem}: storing them in {_private_path()}; {remedy}")
        return path

    def writable_folder(self) -> Path | None:
        """Return the folder that takes new libraries: `folder`, else a private temporary one; None if there is none."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if os.access(self.folder, os.W_OK):
                return self.folder
        with suppress(OSError):
            return _make_private_folder()
        return None

    @contextmanager
    def turn(self, key: str, work: str) -> Iterator[None]:
        """Let one process at a time build what `key` stands for, if the file system has locks; see `take_turn`."""
        with ExitStack() as stack:
            for folder in (self.folder, _private_folder()):
                with suppress(OSError):
                    if folder is not None:
                        stack.enter_context(take_turn(folder / "locks" / key[:2], work))
                        break
            yield

    def _find(self, folder: Path, relative: Path) -> Path | None:
        link = folder / relative
        try:
            name, _, check = link.read_text(encoding="utf-8").strip().partition(" ")
            library = folder / "objects" / f"{name}.so"
            if check != _check(relative.name, name) or not self._is_intact(library):
                return None
            if any(map(is_foreign, (link, library))):
                _warn_once(f"{folder} is writable by others, and {library} or {link} belongs to another user: it is "
                           f"not used; set {VARIABLE} to a folder of your own")
                return None
        except (OSError, ValueError):
            return None
        return library

    def _is_intact(self, library: Path) -> bool:
        if library not in self._intact:
            self._intact[library] = library.is_file() and sha256(library) == library.stem
        return self._intact[library]


def load(library: Path) -> ctypes.CDLL:
    """Load a shared library, also from a folder mounted noexec.

    Raises:
        MemoryError: there is not enough memory.
        OSError: it was built for another machine.
    """
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        size = library.stat().st_size
        if not _has_memory(4 * size):
            raise MemoryError(f"{size} bytes of compiled kernels, {library}, do not fit into the available memory: "
                              "free some, or raise the limit of this process") from error
        with suppress(OSError, AttributeError):
            return _load_copy(library)
        raise


def is_foreign(path: Path) -> bool:
    """Return whether another user may have put a file there.

    A file is trusted if it is owned by this user or root, or if no folder above it that others can write to contains an
    entry of another user on the path to it.
    """
    trusted = (0, os.geteuid())
    if path.stat().st_uid in trusted:
        return False
    chain = (path.resolve(), *path.resolve().parents)
    return any(parent.stat().st_mode & stat.S_IWOTH and child.stat().st_uid not in trusted
               for child, parent in pairwise(chain))


@contextmanager
def build_folder(cache_folder: Path) -> Iterator[Path]:
    """Create a temporary folder to compile in; remove those that killed processes left behind.

    Args:
        cache_folder: where it is created if there is no temporary folder.

    Raises:
        CompileError: no folder is writable.
    """
    try:
        folder = _new_folder(cache_folder)
    except OSError as error:
        raise CompileError(f"cannot create a folder to compile in ({error}): set TMPDIR or {VARIABLE} to a writable "
                           "folder", source="", log=str(error)) from error
    try:
        with (folder / LOCK_NAME).open("w") as held:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(held, fcntl.LOCK_EX)
            _remove_stale_folders(folder.parent)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder(cache_folder: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=BUILD_PREFIX))
    except OSError:
        cache_folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=cache_folder))


def _remove_stale_folders(parent: Path) -> None:
    """Remove folders of this user in which no process compiles any more."""
    for folder in parent.glob(f"{BUILD_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            if (folder / LOCK_NAME).exists():
                with (folder / LOCK_NAME).open("a") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            elif time.time() - status.st_mtime < MIN_AGE_SECONDS:
                continue
            shutil.rmtree(folder, ignore_errors=True)


def _store(folder: Path, built: Path, keys: Mapping[str, str]) -> Path:
    name = sha256(built)
    library = folder / "objects" / f"{name}.so"
    with atomic_path(library) as partial:
        partial.write_bytes(built.read_bytes())
        partial.chmod(partial.stat().st_mode & ~0o022 | 0o500)
    for key, without_compiler in keys.items():
        _write_key(folder, Path("keys", key[:2], key), name)
        _write_key(folder, Path("any", without_compiler[:2], without_compiler), name)
    return library


def _write_key(folder: Path, relative: Path, name: str) -> None:
    """Write which library a key stands for, without fsync: an incomplete entry is recognised by its checksum."""
    link = folder / relative
    link.parent.mkdir(parents=True, exist_ok=True)
    partial = folder / "objects" / f".{link.name}.{os.getpid()}-{threading.get_native_id()}.partial"
    try:
        partial.write_text(f"{name} {_check(link.name, name)}", encoding="utf-8")
        partial.replace(link)
    finally:
        partial.unlink(missing_ok=True)


def _check(key: str, name: str) -> str:
    """Return the checksum of an entry, by which an entry written for another key is recognised."""
    return digest(key, name)[:16]


def _private_path() -> Path:
    try:
        folder = Path(tempfile.gettempdir())
    except OSError:  # none is writable
        folder = Path("/tmp")
    return folder / f"sparloom-{os.geteuid()}"


def _private_folder() -> Path | None:
    """Return the temporary folder of this user if it exists and no one else can write to it."""
    folder = _private_path()
    try:
        status = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return folder if own else None


def _make_private_folder() -> Path:
    with suppress(FileExistsError):
        _private_path().mkdir(mode=0o700)
    folder = _private_folder()
    if folder is None:
        raise PermissionError(f"{_private_path()} is not a private folder of this user")
    return folder


def _has_memory(size: int) -> bool:
    try:
        mmap.mmap(-1, size + mmap.PAGESIZE).close()
    except (OSError, ValueError):
        return False
    return True


def _load_copy(library: Path) -> ctypes.CDLL:
    """Load a library from a memory file; its descriptor stays open, because the loader identifies it by this name."""
    descriptor = os.memfd_create(library.name, os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(library.read_bytes())
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError:
        os.close(descriptor)
        raise


@cache
def _warn_once(text: str) -> None:
    log.warning(text)


def warn_unwritable(folder: Path, text: str) -> None:
    """Warn that a folder of the cache cannot be written to: once for all folders of SPARLOOM_CACHE."""
    root = cache_folder()
    known = root if folder.is_relative_to(root) else folder
    if known not in _unwritable():
        _unwritable().add(known)
        log.warning(text)


@cache
def _unwritable() -> set[Path]:
    """Folders about which this process has warned."""
    return set()
