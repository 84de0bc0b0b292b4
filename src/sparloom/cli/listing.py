"""What can be run: every experiment with the first line of its header and its expected time."""

import re
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from sparloom import log

__all__ = ["Entry", "experiments", "show"]


@dataclass(frozen=True)
class Entry:
    """One file of conf/experiment: name, first line of its header, and how long it takes ("" when not said)."""

    name: str
    title: str
    time: str


def experiments(conf: Path) -> list[Entry]:
    """Read the headers of all experiments under `conf`, by name."""
    return [_entry(path) for path in sorted((conf / "experiment").glob("*.yaml"))]


def show(conf: Path) -> None:
    """Print the experiments and how to run one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, options in (("experiment", {"no_wrap": True}), ("what", {}), ("time", {"no_wrap": True})):
        table.add_column(heading, **options)
    for entry in experiments(conf):
        table.add_row(entry.name, entry.title, entry.time)
    log.console.print(table, soft_wrap=False)
    log.console.print(
        "\nRun one:        python run.py experiment=finetune_spade"
        "\nChange options: python run.py experiment=finetune_spade op=sddmm selection.matrices=7"
        "\nSee them:       python run.py experiment=finetune_spade --cfg job", soft_wrap=True)


def _entry(path: Path) -> Entry:
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if text and not text.startswith("@package"):
            lines.append(text)
    taken = re.search(r"\bTakes\s+(.+?)\.?(?=$|\.\s)", " ".join(lines))
    return Entry(path.stem, lines[0].rstrip(".") if lines else "", taken.group(1) if taken else "")
