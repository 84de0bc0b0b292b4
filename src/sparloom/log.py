"""Output of a run while it runs: console, log file, progress bars, and objective values that a sweep watches."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["REPORTED", "STOP", "STOPPED", "Stopped", "console", "errors", "progress", "report_value", "start", "track"]

T = TypeVar("T")

WIDTH = 160  # columns of tables in files and pipes
REPORTED = "intermediate.csv"
"""File in which a run reports intermediate values to its sweep."""
STOP = "stop"
"""File by which a sweep stops a run."""
STOPPED = "stopped"
"""File by which a run tells that it has been stopped."""

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)
"""Prints tables and result lines to stdout."""
errors = Console(highlight=False, soft_wrap=True, stderr=True)
"""Prints errors to stderr."""


def start(out: Path) -> None:
    """Send INFO and above to the console, and everything that sparloom logs to `out/run.log`."""
    out.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger("sparloom")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        with suppress(OSError):  # a full disk
            handler.close()
    lines = _ConsoleHandler(logging.INFO)
    lines.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    file = _LogFile(out / "run.log", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(lines)
    root.addHandler(file)


class _ConsoleHandler(logging.Handler):
    """Prints one line per record above any progress bar; warnings stand out."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "bold yellow" if record.levelno >= logging.WARNING else None
        console.print(self.format(record), style=style, markup=False)


class _LogFile(logging.FileHandler):
    """Log file that closes with one line on stderr when its disk is full; the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, the name that logging calls
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.getLogger("sparloom").removeHandler(self)
        with suppress(OSError):
            self.close()
        errors.print(f"warning: {self.baseFilename} is no longer written: {error.strerror}", markup=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show bars with count, elapsed and remaining time; silent where the output is no terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("ETA"), TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield bars


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `items` under a progress bar."""
    with progress() as bars:
        yield from bars.track(items, total=total, description=description)


class Stopped(Exception):
    """Ends a run early because its sweep asked for it."""


def report_value(out: Path, *, step: int, value: float) -> bool:
    """Append a value of the objective to `out/intermediate.csv` and return whether the run should stop here.

    A sweep watches the file and answers with a file `out/stop`, which may come some steps late; without a sweep the
    answer is always False. A run that is asked to stop raises `Stopped`, or returns the metrics that it has.

    Args:
        step: counts up from 0 in units that all trials of a sweep share, such as epochs.
    """
    with (out / REPORTED).open("a", encoding="utf-8") as file:
        file.write(f"{step},{float(value)!r}\n")
    asked = (out / STOP).exists()
    if asked:
        (out / STOPPED).touch()
    return asked
