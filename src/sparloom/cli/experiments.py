"""List the experiments of conf/ by purpose, and describe one: its header, its options, what it reads and writes."""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparloom import log
from sparloom.cli.messages import program
from sparloom.cli.options import at, reached

__all__ = ["GROUPS", "Entry", "describe_experiment", "experiments", "print_experiments", "resumes"]

GROUPS = ("start here", "recommend and decide", "reproduce COGNATE", "train", "benchmarks", "accelerator studies",
          "collect samples", "GPU")
"""Purposes of experiments, in the order in which they are listed; a header names one with `# Group:`."""
OTHER = "other"
COLUMNS = 80
MAX_VALUE = 36  # characters of a value in the list of options
DURATION = re.compile(r"\bTakes ((?:\d+ h )?\d[\d-]* (?:s|min|h))\b([^.]*)")
OPENERS = re.compile(r"(Paper|Bars?:|Needs|Writes|Source,)")  # of sentences that begin a paragraph of their own
FILES = {  # key of `paths` -> what lies there
    "data": "stored samples, inputs and models",
    "mirror": "matrix files: a folder or URL in SuiteSparse layout",
    "matrices": "copies of matrix files",
    "seqlens": "lengths of sequences",
    "artifacts": "models made here, progress of unfinished runs",
}
OWN_SECTION = ("paths", "checkpoints", "models", "task", "hydra")


@dataclass(frozen=True)
class Entry:
    """File of conf/experiment.

    Args:
        name: of the file.
        title: first sentence of its header.
        time: how long it takes, such as "3 min" or "~2 h" for an estimate; "" if the header does not say.
        group: its purpose, one of `GROUPS` or "other".
        text: paragraphs of the header after the title; those that begin with a blank are commands.
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


def describe_experiment(
    entry: Entry, tree: Mapping[str, Any], *, chosen: Mapping[str, str], paths: Mapping[str, str | None], conf: Path,
) -> None:
    """Print the header of an experiment, its options with their values, and what it reads and writes.

    Args:
        tree: its configuration with unresolved interpolations.
        chosen: group -> option.
        paths: the resolved folders of `tree["paths"]`.
        conf: folder of configurations.
    """
    used = reached(tree)
    comments = _comments(conf / "experiment" / f"{entry.name}.yaml")
    if chosen.get("task"):
        shared = _comments(conf / "task" / f"{chosen['task']}.yaml")
        comments = {f"task.{key}": text for key, text in shared.items()} | comments
    lines = [f"{entry.name}: {entry.title}", ""]
    for paragraph in entry.text:
        lines += [paragraph] if paragraph.startswith(" ") else textwrap.wrap(paragraph, COLUMNS, break_long_words=False,
                                                                             break_on_hyphens=False)
    lines += ["", "Reads and writes", *_files(entry.name, tree, used, paths)]
    groups = list(_groups(used, chosen, conf))
    lines += ["", "Option files (group=option)", *_aligned(groups)] if groups else []
    options = [*_options(tree["task"], "task."), *_shared(tree, used, chosen)]
    rows = [(f"{key}={value}", comments.get(key, "")) for key, value in options]
    lines += ["", "Options (key=value)", *_aligned(rows)] if rows else []
    lines += ["", f"Everything:  {program()} experiment={entry.name} --cfg job"]
    log.console.print("\n".join(lines), markup=False)


def resumes(task: Mapping[str, Any]) -> bool:
    """Tell whether an interrupted task keeps its finished parts: journals, designs, or runs of arms."""
    return bool({"journals", "kept", "arms"} & set(task))


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
    return Entry(path.stem, lines[0].rstrip(".") if lines else "", time, group, tuple(_paragraphs(lines[1:])))


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join lines; commands, which are indented, stay as they are."""
    joined = ""
    for line in lines:
        if joined and (line.startswith(" ") or OPENERS.match(line)):
            yield joined
            joined = ""
        if line.startswith(" "):
            yield line
        else:
            joined = f"{joined} {line}".strip()
    if joined:
        yield joined


def _files(
    name: str, tree: Mapping[str, Any], used: set[str], paths: Mapping[str, str | None],
) -> list[str]:
    """Describe the folders that the task refers to."""
    rows = []
    for key, what in FILES.items():
        both = key in ("artifacts", "matrices") or (key == "data" and "data" in tree["task"])
        if f"paths.{key}" in used or (key == "artifacts" and "arms" in tree["task"]):
            rows.append((f"{'reads, writes' if both else 'reads':13} {paths.get(key) or 'not set'}",
                         f"{what} (paths.{key})"))
    if "matrix" in tree:
        rows.append((f"{'reads':13} {tree['matrix'] or 'not set'}", "your matrix (matrix)"))
    rows.append((f"{'writes':13} {paths.get('outputs')}/{name}/<time>",
                 "metrics.json, tables, figures, run.log (paths.outputs)"))
    lines = []
    for place, what in rows:
        lines += [f"  {place}", f"  {'':13}   {what}"]
    return lines


def _groups(used: set[str], chosen: Mapping[str, str], conf: Path) -> Iterator[tuple[str, str]]:
    for group, option in sorted(chosen.items()):
        folder, _, package = group.partition("@")
        if option and (package or folder) in used and (conf / folder).is_dir():
            known = sorted(path.stem for path in (conf / folder).glob("*.yaml"))
            yield f"{group}={option}", ", ".join(known)


def _shared(tree: Mapping[str, Any], used: set[str], chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the options beside the task that it refers to and that no option file sets."""
    packages = {group.rpartition("@")[2] for group in chosen}
    for name in sorted({path.partition(".")[0] for path in used} - packages - {"", *OWN_SECTION}):
        node = at(tree, name)
        if isinstance(node, Mapping):
            yield from _options(node, f"{name}.")
        else:
            yield name, _shown(node)


def _options(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of objects and their values, except references, which are options of other names."""
    for name, value in node.items():
        first = value[0] if isinstance(value, list) and value else value
        if name.startswith("_") or (isinstance(first, str) and first.startswith("${")):
            continue
        if isinstance(value, Mapping) and "_target_" in value:
            yield from _options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        text = f"{{{', '.join(map(str, value))}}}"
    elif isinstance(value, list | tuple):
        text = f"[{','.join(map(_shown, value))}]"
    else:
        text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE - 3]}..."


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Set rows in two columns; the second one wraps below itself."""
    width = min(max(len(left) for left, _ in rows), COLUMNS // 2)
    lines = []
    for left, right in rows:
        wrapped = textwrap.wrap(right, COLUMNS - width - 4, break_on_hyphens=False) or [""]
        if len(left) > width and right:
            lines.append(f"  {left}")
            left = ""
        lines += [f"  {first:{width}}  {text}".rstrip() for first, text in zip(
            [left, *[""] * (len(wrapped) - 1)], wrapped, strict=True)]
    return lines


def _comments(path: Path) -> dict[str, str]:
    """Read the comments beside the keys of a file: dotted key -> text."""
    found, parents = {}, []
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"( *)([\w@/]+):(?:\s[^#]*?)?(?:\s# (.*))?$", line)
        if not match:
            continue
        indent = len(match[1])
        parents = [*(parent for parent in parents if parent[0] < indent), (indent, match[2])]
        if match[3]:
            found[".".join(name for _, name in parents)] = match[3]
    return found
