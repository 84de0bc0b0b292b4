"""Console, log files and progress bars of one run."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["console", "errors", "progress", "start", "track"]

T = TypeVar("T")

WIDTH = 160  # of tables in files and pipes

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)
errors = Console(highlight=False, soft_wrap=True, stderr=True)


def start(out: Path) -> None:
    """Send INFO and above to the console, DEBUG of sparloom to `out/run.log`."""
    out.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger("sparloom")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        with suppress(OSError):  # a full disk
            handler.close()
    shown = _Lines(logging.INFO)
    shown.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    kept = _File(out / "run.log", encoding="utf-8")
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(shown)
    root.addHandler(kept)


class _Lines(logging.Handler):
    """One line per record on the console, above any progress bar; warnings stand out."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "bold yellow" if record.levelno >= logging.WARNING else None
        console.print(self.format(record), style=style, markup=False)


class _File(logging.FileHandler):
    """A log that ends with one line on stderr when its disk is full; the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, the name that logging calls
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.getLogger("sparloom").removeHandler(self)
        with suppress(OSError):
            self.close()
        errors.print(f"warning: {self.baseFilename} is not written any more: {error.strerror}", markup=False)


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
