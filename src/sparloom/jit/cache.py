"""Cache of compiled libraries on disk, shared by processes, and where it is.

    objects/<hash of the content>   a library; a damaged one no longer matches its name
    keys/, any/<key>                the hash of the library for a key: of a kernel, or of a kernel without the compiler,
                                    for machines that have none
    locks/                          held while a library is compiled
"""

import ctypes
import hashlib
import logging
import mmap
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path

from sparloom.errors import CompileError
from sparloom.files import remove_leftovers, scratch_folder, sha256

WAITS = (3.0, "waiting for it"), (120.0, "no longer waiting")  # seconds for another process, and what follows
VARIABLE = "SPARLOOM_CACHE"
FORMAT = "2"  # version of the entries
KINDS = ("keys", "any")  # of keys
MAX_BYTES = 4 << 30  # of all files; the least recently used ones are deleted
DAY_SECONDS = 86400.0  # between two writes of the time of use, and between two checks of the size

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of everything that can be made again: SPARLOOM_CACHE, else ~/.cache/sparloom.

    A user without a home directory gets a private folder among the temporary files.
    """
    if folder := os.environ.get(VARIABLE):
        with suppress(RuntimeError):  # ~ without a home
            return Path(folder).expanduser()
    with suppress(RuntimeError, KeyError):  # no HOME, and no entry in the user database
        if Path.home().is_absolute():
            return Path.home() / ".cache" / "sparloom"
    _warn_once(f"this user has no home directory: compiled kernels and decisions go to {_private_path()}; set "
               f"{VARIABLE} to a permanent folder")
    with suppress(OSError):  # a later write reports the problem
        _private_folder(create=True)
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
    """Libraries by key under `folder`, see the top of this file.

    A damaged entry counts as absent. A read-only `folder` is used for reading; new objects then go to a private
    temporary folder. Files that other users may have written are not used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._intact: dict[Path, bool] = {}

    def path(self, key: str, kind: str) -> Path | None:
        """Return the path of the library for `key`, one of a kind in `KINDS`; None if it is absent or damaged."""
        for find in (lambda: self.folder, _private_folder):
            with suppress(OSError, ValueError):
                return self._find(find(), key, kind)
        return None

    def get(self, key: str, *, kind: str = "keys") -> ctypes.CDLL | None:
        """Load the library for `key`; None if it is absent, damaged, or cannot be loaded on this machine."""
        library = self.path(key, kind)
        if library is None:
            return None
        try:
            return load(library)
        except OSError as error:
            log.warning("%s does not load (%s): compiling it again", library, error)
            return None

    def put(self, built: Path, keys: Mapping[str, str]) -> ctypes.CDLL:
        """Store the library `built` if possible, and load it.

        Args:
            keys: key -> key without the compiler.
        """
        stored = self.store(built.read_bytes(), [
            pair for key, without_compiler in keys.items() for pair in (("keys", key), ("any", without_compiler))])
        if stored is not None:
            with suppress(OSError):
                return load(stored)
        return load(built)

    def store(self, content: bytes, keys: Sequence[tuple[str, str]]) -> Path | None:
        """Store a library for pairs of kind and key; return its path, or None if nothing can be written."""
        try:
            return _store(self.folder, content, keys)
        except OSError as error:
            problem = f"compiled kernels cannot be stored in {self.folder} ({error.strerror or error})"
        path, instead = None, "nor among the temporary files: every process compiles its own"
        with suppress(OSError):
            path, instead = _store(_private_folder(create=True), content, keys), f"storing them in {_private_path()}"
        warn_unwritable(self.folder, f"{problem}: {instead}; set {VARIABLE} to a writable folder")
        return path

    def writable_folder(self) -> Path | None:
        """Return the folder that takes new objects: `folder`, else a private temporary one; None if there is none."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if os.access(self.folder, os.W_OK):
                return self.folder
        with suppress(OSError):
            return _private_folder(create=True)
        return None

    @contextmanager
    def turn(self, key: str, work: str) -> Iterator[None]:
        """Let one process at a time build what `key` stands for.

        After two minutes of waiting, and where files cannot be locked, the work may be done twice.

        Args:
            work: what is done, for messages: "compile cpu/spmm.cpp".
        """
        from filelock import FileLock, Timeout  # takes milliseconds

        folder = self.writable_folder()
        with ExitStack() as stack:
            for seconds, then in WAITS if folder else ():
                lock = folder / "locks" / key[:2]
                try:
                    lock.parent.mkdir(exist_ok=True)
                    stack.enter_context(FileLock(lock, timeout=seconds))
                except Timeout:
                    log.warning("another process has been holding %s for %.0f s, to %s: %s", lock, seconds, work, then)
                    continue
                except (OSError, NotImplementedError):
                    pass
                break
            yield

    def _find(self, folder: Path, key: str, kind: str) -> Path:
        """Return the path of an object.

        Raises:
            OSError, ValueError: it is absent, damaged, or may be another user's.
        """
        link = folder / kind / key[:2] / key
        name, _, check = link.read_text(encoding="utf-8").strip().partition(" ")
        path = folder / "objects" / f"{name}.so"
        if path not in self._intact:
            self._intact[path] = sha256(path) == name
        if check != _check(key, name) or not self._intact[path]:
            raise ValueError(f"{link} is damaged")
        if any(map(_is_foreign, (link, path))):
            _warn_once(f"{folder} is writable by others, and {path} or {link} belongs to another user: it is not used; "
                       f"set {VARIABLE} to a folder of your own")
            raise PermissionError(f"{path} may be another user's")
        if abs(time.time() - link.stat().st_mtime) > DAY_SECONDS:
            with suppress(OSError):
                os.utime(link)
                os.utime(path)
        return path


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
        descriptor = os.memfd_create(library.name, os.MFD_CLOEXEC)  # stays open: the loader knows it by this name
        try:
            os.write(descriptor, library.read_bytes())
            return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        except OSError:
            os.close(descriptor)
            raise error from None


@contextmanager
def build_folder(fallback: Path) -> Iterator[Path]:
    """Create a temporary folder to compile in.

    Args:
        fallback: where it is created if there is no temporary folder.

    Raises:
        CompileError: no folder is writable.
    """
    with ExitStack() as stack:
        try:
            try:
                folder = stack.enter_context(scratch_folder("build"))
            except OSError:
                fallback.mkdir(parents=True, exist_ok=True)
                folder = stack.enter_context(scratch_folder("build", fallback))
        except OSError as error:
            raise CompileError(f"cannot create a folder to compile in ({error}): set TMPDIR or {VARIABLE} to a "
                               "writable folder", source="", log=str(error)) from error
        yield folder


def warn_unwritable(folder: Path, text: str) -> None:
    """Warn that a folder of the cache cannot be written to: once for all folders of SPARLOOM_CACHE."""
    root = cache_folder()
    place = root if folder.is_relative_to(root) else folder
    if place not in _unwritable:
        _unwritable.add(place)
        log.warning(text)


_unwritable: set[Path] = set()
_warn_once = cache(log.warning)


def _is_foreign(path: Path) -> bool:
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


def _store(folder: Path, content: bytes, keys: Sequence[tuple[str, str]]) -> Path:
    name = hashlib.sha256(content).hexdigest()
    path = folder / "objects" / f"{name}.so"
    _write(path, content)
    for kind, key in keys:
        _write(folder / kind / key[:2] / key, f"{name} {_check(key, name)}".encode())
    _evict(folder)
    return path


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, but do not flush it: an incomplete one is recognised by its hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.partial")
    try:
        partial.write_bytes(content)
        partial.chmod(partial.stat().st_mode & ~0o022 | 0o500)  # others cannot write to it under any umask
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _check(key: str, name: str) -> str:
    """Return the checksum of an entry, by which one written for another key is recognised."""
    return digest(key, name)[:16]


def _evict(folder: Path) -> None:
    """Delete the least recently used files while all take more than `MAX_BYTES`; once a day."""
    with suppress(OSError):  # another process deletes them, too
        checked = folder / "checked"
        if checked.exists() and time.time() - checked.stat().st_mtime < DAY_SECONDS:
            return
        checked.touch()
        remove_leftovers(folder / "objects")
        files = [(path.stat(), path) for kind in ("objects", *KINDS) for path in (folder / kind).rglob("*")
                 if path.is_file()]
        excess = sum(512 * status.st_blocks for status, _ in files) - MAX_BYTES
        for status, path in sorted(files, key=lambda file: file[0].st_mtime):
            if excess <= 0:
                break
            path.unlink()
            excess -= 512 * status.st_blocks


def _private_path() -> Path:
    return Path(tempfile.gettempdir()) / f"sparloom-{os.geteuid()}"


def _private_folder(*, create: bool = False) -> Path:
    """Return the temporary folder of this user.

    Raises:
        OSError: it is missing, or others can write to it.
    """
    folder = _private_path()
    if create:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user")
    return folder


def _has_memory(size: int) -> bool:
    try:
        mmap.mmap(-1, size + mmap.PAGESIZE).close()
    except (OSError, ValueError):
        return False
    return True
