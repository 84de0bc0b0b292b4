"""Refusals that name file, line and what stands there."""

from __future__ import annotations

import linecache

from sparloom.errors import Unfusable
from sparloom.fusion.program import Place

__all__ = ["place_at", "refuse"]


def place_at(file: str, line: int) -> Place:
    """Find a line of source."""
    return Place(file, line, linecache.getline(file, line).strip())


def refuse(place: Place, reason: str) -> Unfusable:
    """Make the error that says why a function cannot be fused.

    Args:
        reason: the offender, the rule, and after a colon the remedy.
    """
    return Unfusable(f"{place.file}:{place.line}: {reason}\n    {place.text}")
