"""What was made of a pattern, kept while the next question is about the same one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from sparloom.sparse import Pattern

__all__ = ["LastSeen"]

Made = TypeVar("Made")


class LastSeen(Generic[Made]):
    """Makes something of a pattern, and gives it again until another pattern is asked about.

    Several operations and widths ask about one matrix in turn. The pattern itself is not kept alive.

    Args:
        make: what is made.
    """

    def __init__(self, make: Callable[[Pattern], Made]) -> None:
        self._make = make
        self._seen: tuple[weakref.ref[Pattern], Made] | None = None

    def of(self, pattern: Pattern) -> Made:
        """Make it, or take what was made."""
        seen = self._seen
        if seen is None or seen[0]() is not pattern:
            seen = self._seen = weakref.ref(pattern), self._make(pattern)
        return seen[1]
