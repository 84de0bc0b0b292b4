"""List the experiments of conf/ by purpose, and describe one by its header and its file."""

import re
from dataclasses import dataclass
from pathlib import Path

from sparloom import log
from sparloom.cli.messages import program

GROUPS = ("start here", "recommend and decide", "reproduce COGNATE", "train", "benchmarks", "accelerator studies",
          "collect samples", "GPU")
"""Purposes of experiments, in the order in which they are listed; a header names one with `# Group:`."""
OTHER = "other"
COLUMNS = 80
DURATION = re.compile(r"\bTakes ((?:\d+ h )?\d[\d-]* (?:s|min|h))\b([^.]*)")


@dataclass(frozen=True)
class Entry:
    """File of conf/experiment.

    Args:
        name: of the file.
        title: first sentence of its header.
        time: how long it takes, such as "3 min" or "~2 h" for an estimate; "" if the header does not say.
        group: its purpose, one of `GROUPS` or "other".
        text: lines of the header after the title.
    """

    name: str
    title: str
    time: str
    group: str
    text: tuple[str, ...]


def experiments(conf: Path) -> list[Entry]:
    """Read the headers of all experiments under `conf`, by name."""
    return [_entry(path) for path in sorted((conf / "experiment").glob("*.yaml"))]


def print_experiments(conf: Path) -> None:
    """Print the experiments by purpose, one line of at most 80 columns each, and how to run one."""
    entries = experiments(conf)
    names = max((len(entry.name) for entry in entries), default=0)
    times = max((len(entry.time) for entry in entries), default=0)
    room = COLUMNS - names - times - 4
    for group in (*GROUPS, OTHER):
        members = [entry for entry in entries if entry.group == group]
        if members:
            log.console.print(f"{group[0].upper()}{group[1:]}", style="bold", markup=False)
        for entry in members:
            title = entry.title if len(entry.title) <= room else entry.title[:room - 3].rstrip() + "..."
            log.console.print(f"  {entry.name:{names}} {title:{room}} {entry.time:>{times}}", markup=False)
    log.console.print(
        "\n~ is an estimate."
        f"\nRun one:        {program()} experiment=finetune_tiny"
        f"\nRead about one: {program()} experiment=finetune_tiny --help"
        f"\nChange options: {program()} experiment=finetune_spade op=sddmm", markup=False)


def describe_experiment(entry: Entry, conf: Path) -> None:
    """Print the header of an experiment and its file."""
    lines = [f"{entry.name}: {entry.title}", "", *entry.text]
    text = (conf / "experiment" / f"{entry.name}.yaml").read_text(encoding="utf-8")
    values = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines += ["", f"conf/experiment/{entry.name}.yaml, whose options are key=value on the command line:", "", values]
    lines += ["", f"All options:  {program()} experiment={entry.name} --cfg job"]
    log.console.print("\n".join(lines), markup=False)


def _entry(path: Path) -> Entry:
    group, lines = OTHER, []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line[1:].removeprefix(" ").rstrip()
        if text.startswith("Group:"):
            named = text.partition(":")[2].strip()
            group = named if named in GROUPS else OTHER
        elif text and not text.startswith("@package"):
            lines.append(text)
    taken = DURATION.search(" ".join(lines))
    time = f"{'~' if 'estimate' in taken[2] else ''}{taken[1]}" if taken else ""
    return Entry(path.stem, lines[0].rstrip(".") if lines else "", time, group, tuple(lines[1:]))
