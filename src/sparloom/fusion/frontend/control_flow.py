"""Loops, branches and joins of Numba's control flow graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Flow", "mutable_groups"]


class Flow:
    """Questions about the graph of blocks of a function; labels are integers."""

    def __init__(self, blocks: dict[int, Any]) -> None:
        from numba.core.analysis import compute_cfg_from_blocks

        graph = compute_cfg_from_blocks(blocks)
        self.entry: int = graph.entry_point()
        self._loops = graph.loops()
        self._post = graph.post_dominators()

    def is_header(self, label: int) -> bool:
        """Whether a loop begins here."""
        return label in self._loops

    def is_inside(self, label: int | None, header: int) -> bool:
        """Whether a block belongs to the loop that begins at `header`, which itself does."""
        return label in self._loops[header].body

    def join(self, label: int) -> int | None:
        """Find the first block that every way from `label` passes; None where they part until the end."""
        after = self._post[label] - {label}
        return max(after, key=lambda other: len(self._post[other]), default=None)


def mutable_groups(blocks: Iterable[Any]) -> dict[str, str]:
    """Map every version of a variable that is joined by a phi to one name for all of them.

    A variable that is in no phi has one value, so it needs no storage that changes.
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for block in blocks:
        for phi in block.find_exprs(op="phi"):
            target = next(each.target.name for each in block.body if getattr(each, "value", None) is phi)
            for value in phi.incoming_values:
                if hasattr(value, "name"):
                    leader[find(value.name)] = find(target)
    return {name: find(name) for name in list(leader)}
