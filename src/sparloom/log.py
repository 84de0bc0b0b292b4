"""Output of a run while it runs: console, log file and progress bars."""

import logging
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["console", "counts", "errors", "progress", "start", "track"]

T = TypeVar("T")

WIDTH = 160  # columns of tables in files and pipes

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
    """Show bars with count, unit, speed, elapsed and remaining time; silent where the output is no terminal.

    A task may have the fields `unit`, `found` (parts that an earlier run finished, which count as done), and `done` and
    `count` where its progress is weighted.
    """
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=20), _Counts(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield bars


class _Counts(ProgressColumn):
    """Shows what is done of how much, in a unit, and how fast."""

    def render(self, task: Task) -> Text:
        done, count = (task.fields.get(name, value) for name, value in (
            ("done", task.completed), ("count", task.total)))
        return Text(counts(int(done), None if count is None else int(count), unit=task.fields.get("unit", ""),
                           found=task.fields.get("found", 0), seconds=task.elapsed or 0.0))


def counts(done: int, count: int | None, *, unit: str, found: int, seconds: float) -> str:
    """Say what is done of how much, what an earlier run had finished, and the speed since the start.

    Args:
        done, count: parts of this run alone.
        found: parts that were finished before; they are added to both, and do not change the speed.
    """
    if unit == "bytes":
        rate = f", {done / seconds / 1e6:.1f} MB/s" if done and seconds else ""
        return f"{done / 1e6:.1f}{'' if count is None else f' of {count / 1e6:.1f}'} MB{rate}"
    total = "" if count is None else f" of {found + count}"
    text = f"{found + done}{total}{f' {unit}' if unit else ''}{f' ({found} found finished)' if found else ''}"
    if not done or not seconds:
        return text
    speed = done / seconds
    name, factor = ("s", 1) if speed >= 1 else ("min", 60) if speed * 60 >= 1 else ("h", 3600)
    return f"{text}, {speed * factor:.1f} per {name}"


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `items` under a progress bar.

    Args:
        description: the items as a plural, which is the unit of the bar.
    """
    with progress() as bars:
        bar = bars.add_task("", total=len(items) if total is None and isinstance(items, Sized) else total,
                            unit=description)
        for item in items:
            yield item
            bars.advance(bar)
