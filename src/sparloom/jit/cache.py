"""One process compiles, others wait for it: a while, and not without a word.

Compiled libraries on disk: named by their content, found by the key of what they were made from.
"""

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

__all__ = ["FORMAT", "Cache", "build_folder", "cache_folder", "digest", "load", "take_turn"]

REPORT_AFTER_SECONDS = 3.0  # waited before it is said for whom
TIMEOUT_SECONDS = 120.0  # waited for a process that runs
STOPPED_TIMEOUT_SECONDS = 6.0  # waited for one that is stopped (Ctrl-Z, a debugger)
POLL_SECONDS = 0.05

log = logging.getLogger(__name__)


@contextmanager
def take_turn(path: Path, work: str) -> Iterator[None]:
    """Hold a lock, or go on without it after a while: whatever is done in turn may be done twice.

    The lock of a process that ended is free at once. Who is waited for, since when, is said after 3 seconds. A signal
    handler or finaliser does not wait for the call that it interrupts.

    Args:
        path: of the lock, created if absent; it names the process that holds it.
        work: what is done, for messages: "compile cpu/spmm.cpp".

    Raises:
        OSError: the file cannot be made, or files there cannot be locked.
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
    """Wait for a lock; False: no longer."""
    begun, told = time.monotonic(), False
    while not _lock(file):
        waited, (holder, since) = time.monotonic() - begun, _holder(file)
        stopped = holder is not None and _is_stopped(holder)
        who = f"process {holder}{', which is stopped,' if stopped else ''}" if holder else "another process"
        patience = STOPPED_TIMEOUT_SECONDS if stopped else TIMEOUT_SECONDS
        if waited >= patience:
            log.warning("%s still holds %s after %.0f s: this process goes on by itself to %s", who, path, waited, work)
            return False
        if waited >= REPORT_AFTER_SECONDS and not told:
            told = True
            log.warning("waiting for %s to let go of %s, held since %s, to %s; after %.0f s this process goes on by "
                        "itself", who, path, since or "an unknown time", work, patience)
        time.sleep(POLL_SECONDS)
    return True


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(file: IO[str]) -> None:
    with suppress(OSError):  # a full disk: nobody can read who it is
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


VARIABLE = "SPARLOOM_CACHE"
FORMAT = "2"  # of what stands under a key
BUILD_PREFIX = "sparloom-build-"  # how names of folders begin in which something is compiled
LOCK_NAME = "held"  # a file in each of them that is locked as long as it is needed
MIN_AGE_SECONDS = 60.0  # a folder without that file is being made



def cache_folder() -> Path:
    """Name the folder of everything that can be made again: SPARLOOM_CACHE, else ~/.cache/sparloom.

    For a user without a home it is one among the temporary folders, to which nobody else has access.
    """
    if given := os.environ.get(VARIABLE):
        with suppress(RuntimeError):  # ~ without a home
            return Path(given).expanduser()
    try:
        home = Path.home()
    except (RuntimeError, KeyError):  # no HOME, and no entry in the list of users
        home = Path()
    if home.is_absolute():
        return home / ".cache" / "sparloom"
    _warn_once(f"this user has no home: what is compiled and decided goes to {_private_path()}; set {VARIABLE} to a "
              f"folder that is kept")
    with suppress(OSError):  # who writes there finds out
        _make_private_folder()
    return _private_path()


def digest(*parts: str) -> str:
    """Hash texts; ("ab", "c") and ("a", "bc") differ."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


class Cache:
    """Shared libraries under `folder`, safe among processes.

    `objects/<sha256 of content>.so` are the libraries: a damaged one is recognised by its name. `keys/<key>` holds the
    name of the library that has the kernel of that key, so a kernel is found whatever batch it was compiled in, and
    `any/<key>` the same by a key that leaves the compiler out, for machines without one.

    What is in `folder` is used even if nothing can be written there. What cannot be kept there is kept in a private
    temporary folder. Files that other users may have put there are not used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[Path, bool] = {}

    def find(self, key: str, *, kind: str = "keys") -> Path | None:
        """Return the path of the library for `key`; None when absent or damaged.

        Args:
            kind: "keys", or "any" for a key without the compiler.
        """
        for folder in (self.folder, _private_folder()):
            library = None if folder is None else self._find(folder, Path(kind, key[:2], key))
            if library is not None:
                return library
        return None

    def loaded(self, key: str, *, kind: str = "keys") -> ctypes.CDLL | None:
        """Load the library for `key`; None when it is absent, damaged, or does not load on this machine."""
        library = self.find(key, kind=kind)
        if library is None:
            return None
        try:
            return load(library)
        except OSError as error:
            log.warning("%s does not load (%s): it is compiled anew", library, error)
            return None

    def keep(self, built: Path, keys: Mapping[str, str]) -> ctypes.CDLL:
        """Load the library `built`, which is kept for `keys`, see `put`, where that is possible."""
        kept = self.put(built, keys)
        if kept is not None:
            with suppress(OSError):
                return load(kept)
        return load(built)

    def put(self, built: Path, keys: Mapping[str, str]) -> Path | None:
        """Copy the library `built` in and let keys point to it; returns where it is, or None if nothing can be written.

        Args:
            keys: key -> the key without the compiler.
        """
        try:
            return _store(self.folder, built, keys)
        except OSError as error:
            problem = f"compiled kernels cannot be kept in {self.folder} ({error.strerror or error})"
        remedy = f"set {VARIABLE} to a folder that can be written to"
        try:
            kept = _store(_make_private_folder(), built, keys)
        except OSError:
            _warn_once(f"{problem} nor among the temporary files: every process compiles its own; {remedy}")
            return None
        _warn_once(f"{problem}: they go to {_private_path()}; {remedy}")
        return kept

    @contextmanager
    def turn(self, key: str, work: str) -> Iterator[None]:
        """Let one process after the other build what `key` stands for, where there can be locks; see `turns.turn`."""
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
            if check != _check(relative.name, name) or not self._is_whole(library):
                return None
            if any(map(_is_foreign, (link, library))):
                _warn_once(f"{folder} can be written by others, and {library} or {link} is not of this user: it is not "
                          f"used; set {VARIABLE} to a folder of your own")
                return None
        except (OSError, ValueError):
            return None
        return library

    def _is_whole(self, library: Path) -> bool:
        if library not in self._whole:
            self._whole[library] = library.is_file() and sha256(library) == library.stem
        return self._whole[library]


def load(library: Path) -> ctypes.CDLL:
    """Load a shared library, also from a folder from which nothing may run.

    Raises:
        MemoryError: there is no memory for it.
        OSError: it is none for this machine.
    """
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        size = library.stat().st_size
        if not _has_memory(4 * size):
            raise MemoryError(f"{size} bytes of compiled kernels, {library}, do not fit into the memory that is left: "
                              f"free some, or raise the limit of this process") from error
        with suppress(OSError, AttributeError):
            return _load_copy(library)
        raise


@contextmanager
def build_folder(cache_folder: Path) -> Iterator[Path]:
    """Make a temporary folder to compile in; those that killed processes left are removed.

    Args:
        cache_folder: where it is made if there is no other place.

    Raises:
        CompileError: there is no folder that can be written to.
    """
    try:
        folder = _new_folder(cache_folder)
    except OSError as error:
        raise CompileError(f"no folder to compile in can be made ({error}): set TMPDIR, or {VARIABLE}, to a folder "
                           f"that can be written to", source="", log=str(error)) from error
    try:
        with (folder / LOCK_NAME).open("w") as held:
            with suppress(OSError):  # a file system without locks
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
    """Remove folders of this user in which nobody compiles any more."""
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
    """Write which library a key stands for, without waiting for the disk: one that is not whole is recognised."""
    link = folder / relative
    link.parent.mkdir(parents=True, exist_ok=True)
    partial = folder / "objects" / f".{link.name}.{os.getpid()}-{threading.get_native_id()}.partial"
    try:
        partial.write_text(f"{name} {_check(link.name, name)}", encoding="utf-8")
        partial.replace(link)
    finally:
        partial.unlink(missing_ok=True)


def _check(key: str, name: str) -> str:
    """Give what stands behind the name of a library, so that what was written for another key is not used."""
    return digest(key, name)[:16]


def _private_path() -> Path:
    try:
        folder = Path(tempfile.gettempdir())
    except OSError:  # none can be written to
        folder = Path("/tmp")
    return folder / f"sparloom-{os.geteuid()}"


def _private_folder() -> Path | None:
    """Give the temporary folder of this user, if there is one, and nobody else can have written to it."""
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
        raise PermissionError(f"{_private_path()} is not a folder of this user alone")
    return folder


def _is_foreign(path: Path) -> bool:
    """Whether somebody else may have put a file there: it is not of this user, nor is a folder that all may write to
    without an entry of another user on the way to it.
    """
    trusted = (0, os.geteuid())
    if path.stat().st_uid in trusted:
        return False
    way = (path.resolve(), *path.resolve().parents)
    return any(parent.stat().st_mode & stat.S_IWOTH and child.stat().st_uid not in trusted
               for child, parent in pairwise(way))


def _has_memory(size: int) -> bool:
    try:
        mmap.mmap(-1, size + mmap.PAGESIZE).close()
    except (OSError, ValueError):
        return False
    return True


def _load_copy(library: Path) -> ctypes.CDLL:
    """Load a library from memory that has a name; the descriptor stays open, for the loader goes by that name."""
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
