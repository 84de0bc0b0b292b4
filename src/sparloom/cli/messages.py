"""What the user reads of errors: one line with the remedy, and names close to a wrong one.

The traceback of an error goes to the log of the run.
"""

import difflib
import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from sparloom import log
from sparloom.errors import MissingArtifact, SparloomError
from sparloom.files import DISK_FULL
from sparloom.lazy import EXTRAS, install_command

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
USER_ERRORS = (SparloomError, ValueError, OSError, ImportError, MemoryError)
logger = logging.getLogger(__name__)


class UsageError(ValueError):
    """An error of the command line; the message says what to type instead."""


class Reported(Exception):
    """A failure that was already reported to the user."""


def fail(error: Exception, out: Path, *, debug: bool) -> None:
    """Print an error in one line and write its traceback to `out/run.log`; the line says if it may be a bug.

    Raises:
        Reported: always.
    """
    cause = _cause(error)
    if isinstance(cause, OSError) and cause.filename is None and cause.errno in DISK_FULL:
        cause.filename = str(out)
    trace = "".join(traceback.format_exception(error))
    logger.debug("failed\n%s", trace)
    if debug or os.environ.get("SPARLOOM_DEBUG"):
        log.errors.print(trace, markup=False)
    if _is_users(error, cause):
        log.errors.print(f"error: {_one_line(cause)}", markup=False)
    else:
        log.errors.print(f"error: {type(cause).__name__}: {_one_line(cause)} (a value of the wrong kind, or a fault of "
                         "sparloom; debug=true shows the trace)", markup=False)
    if (out / "run.log").exists():
        log.errors.print(f"       trace: {out / 'run.log'}", markup=False, style="dim")
    raise Reported(str(cause)) from None


def guard(main: Callable[[], object], keys: Callable[[], Iterable[str]]) -> int:
    """Run `main` and turn its exceptions into an exit status and at most one line.

    Args:
        keys: lists the keys of the configuration, to suggest one for an unknown key; called after a failure only.
    """
    try:
        main()
    except Reported:
        return 1
    except KeyboardInterrupt:
        log.errors.print("interrupted: the same command continues where a journal was kept", markup=False)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        users = isinstance(error, UsageError | OSError | UnicodeEncodeError | RecursionError) or _is_hydra(error)
        if os.environ.get("SPARLOOM_DEBUG") or not users:
            raise
        log.errors.print(f"error: {explain(error, keys)}", markup=False)
        return 1
    return 0


def explain(error: Exception, keys: Callable[[], Iterable[str]]) -> str:
    """Explain an error of an override in one line, with what was probably meant."""
    text = str(error)
    missing = re.search(r"Could not (?:override|append to config by override|delete from config) '?([^'\s]+)'?", text)
    if missing:
        key = missing[1].rstrip(".").partition("=")[0]
        alike = (name for name in keys() if name.startswith("hydra.") == key.startswith("hydra."))
        return f"unknown key {key!r}: {suggestion(key, alike)}"
    if re.search(r"mismatched input|token recognition|no viable alternative|extraneous input", text):
        return f"{text.splitlines()[0]}: put the value in quotes, key=\"'...'\""
    launcher = re.search(r"Could not (?:find|load) 'hydra/launcher/(joblib|submitit\w*)'", text)
    if launcher:
        return f"launcher {launcher[1]} is not installed: {install_command('scale')}"
    group = re.search(r"Could not find '([^']+)/([^'/]*)'\s+Available options in '[^']+':\s((?:\s+\S+\n?)+)", text)
    if group:
        options = group[3].partition("Config search path")[0].split()
        return f"{group[1]} {group[2]!r} does not exist: {suggestion(group[2], options)}"
    interpolation = re.search(r"Interpolation key '([^']+)' not found", text)
    if interpolation:
        folder, dot, _ = interpolation[1].rpartition(".")
        known = [key for key in keys() if dot and key.rpartition(".")[0] == folder]
        if known:
            return f"{interpolation[1]!r} does not exist: {suggestion(interpolation[1], known)}"
        return (f"the configuration refers to {interpolation[1]!r}, which does not exist (in a path, ${{ begins such a "
                "reference: a file or folder with ${ in its name needs another name)")
    return failure_reason(error)


def failure_reason(error: BaseException) -> str:
    """Return in one line why a run failed."""
    return _one_line(_cause(error))


def close_names(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Find up to `count` known names that resemble `name`, best first.

    The last part of a dotted name is compared too: `lr` is close to `model.optimizer.lr`.
    """
    names = list(dict.fromkeys(known))
    whole = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    leaf = name.rpartition(".")[2]
    ends = {key: key.rpartition(".")[2] for key in names}
    close = difflib.get_close_matches(leaf, set(ends.values()), n=count, cutoff=0.75)
    by_leaf = [key for end in close for key in names if ends[key] == end]
    return list(dict.fromkeys([*whole, *by_leaf]))[:count]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Phrase the closest names as a remedy, or list all of them if none is close."""
    names = sorted(dict.fromkeys(known))
    close = close_names(name, names)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"


def dotted_keys(tree: object, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested mappings, inner nodes included."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            key = f"{prefix}{name}"
            yield key
            yield from dotted_keys(value, f"{key}.")


def program(started: str | None = None) -> str:
    """Return what to type to start this program: "python run.py" if it was started so, else "sparloom".

    Args:
        started: the first word of a command (default: of this process).
    """
    return "python run.py" if Path(started or sys.argv[0]).name == "run.py" else "sparloom"


def _cause(error: BaseException) -> BaseException:
    """Unwrap exceptions of the configuration library."""
    while _is_hydra(error) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_hydra(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("hydra", "omegaconf")


def _is_users(error: BaseException, cause: BaseException) -> bool:
    called_wrongly = cause is not error and isinstance(cause, TypeError)
    return isinstance(cause, USER_ERRORS) or _is_hydra(cause) or called_wrongly


def _one_line(error: BaseException) -> str:
    if isinstance(error, MissingArtifact):
        words = (program(), f"experiment={error.experiment}", *error.overrides)
        return f"{' '.join(error.message.split())}; make it with: {' '.join(words)}"
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename:
        what = "no such file" if error.errno == errno.ENOENT else error.strerror[0].lower() + error.strerror[1:]
        return f"{error.filename}: {what}: {_remedy(error)}"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"{text}: {_remedy(error)}"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!a} cannot be written as {error.encoding}: rename the file or folder of that name"
    if isinstance(error, ImportError):
        library = (error.name or "").partition(".")[0]
        if "pip install" in text or not text.startswith("No module named"):
            return text
        if library in EXTRAS:
            return f"{text}: {install_command(EXTRAS[library])}"
        return f"{text}: install it, or the extra that contains it (pip install 'sparloom[...]', see pyproject.toml)"
    if isinstance(error, RecursionError):
        return f"{text}: an option or a file of options nests lists or mappings too deeply"
    if isinstance(error, MemoryError):
        return f"out of memory ({text}): use smaller matrices or fewer jobs"
    return text


def _remedy(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "check the path"
    if error.errno == errno.ENAMETOOLONG:
        return "choose a shorter name"
    if error.errno in DISK_FULL:
        return "free space, or write to another disk with paths.outputs=<folder> paths.artifacts=<folder>"
    if error.errno in UNWRITABLE:
        return ("an input must be readable; outputs go to another folder with paths.outputs=<folder>, models and "
                "journals with paths.artifacts=<folder>")
    return "check the path and its disk"
