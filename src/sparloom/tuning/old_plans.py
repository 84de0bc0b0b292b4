"""Decisions as earlier versions kept them: one file for each in the folder itself. They are not read, but removed.

    <digest>.json                               a pair of products
    schedule-<digest>.json                      a ragged operator, or an operation on one sparse matrix
    rates-<machine>-<threads>.json              rates of a machine
    order-<pattern>-<name>-<kernels>.npy        an order of the rows of a pattern
    .<one of these>.<process>-<thread>.partial  one of these while a process wrote it
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

__all__ = ["is_old_plan", "may_be_old_plan", "old_plans", "remove_some"]

LOOKED_AT, REMOVED = 32, 4  # files in one go: a folder of 100,000 must not slow down who keeps one decision
NAME = r"[0-9a-f]{64}\.json|schedule-[0-9a-f]{64}\.json|rates-[0-9a-f]{16}-[0-9]{1,7}\.json|" \
       r"order-[0-9a-f]{32}-[a-z]+-[0-9a-f]{16}\.npy"
WHOLE, PARTIAL = re.compile(NAME), re.compile(rf"\.(?:{NAME})\.[0-9]{{1,7}}-[0-9]+\.partial")
HEADS = (b'{"version": ', b'{\n  "version": ')  # how the JSON began
READ_BYTES = 1 << 20


def may_be_old_plan(path: Path) -> bool:
    """Tell by its name whether a file may be one of these."""
    return bool(WHOLE.fullmatch(path.name) or PARTIAL.fullmatch(path.name))


def is_old_plan(path: Path) -> bool:
    """Tell by name and content whether a file is one of these: other programs may name theirs likewise."""
    if not may_be_old_plan(path):
        return False
    if path.suffix != ".json":
        return True
    with path.open("rb") as file:
        content = file.read(READ_BYTES)
    if any(content[:len(head)] == head[:len(content)] for head in HEADS):
        return True
    if "-" not in path.stem:
        return False  # a digest may be the name of anything
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return True  # damaged
    return False


def old_plans(folder: Path) -> list[Path]:
    """List all of them, by name."""
    try:
        with os.scandir(folder) as found:
            return sorted(_old(found))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_some(folder: Path) -> None:
    """Remove a few of them; calls again and again remove all, each at the same small cost.

    Raises:
        OSError: the folder cannot be read or written to.
    """
    with os.scandir(folder) as found:
        for path in islice(_old(islice(found, LOOKED_AT)), REMOVED):
            path.unlink(missing_ok=True)  # by another process


def _old(found: Iterator[os.DirEntry]) -> Iterator[Path]:
    for each in found:
        path = Path(each.path)
        with suppress(OSError):  # gone, or not to be read
            if may_be_old_plan(path) and each.is_file(follow_symlinks=False) and is_old_plan(path):
                yield path
