"""The state of the code that makes data."""

from functools import cache
from pathlib import Path

from sparloom.checkout import revision

__all__ = ["commit"]


@cache
def commit() -> str:
    """Commit of the checkout this package is in, "+" appended when tracked files differ; "unknown" outside of one."""
    found = revision(Path(__file__).parent)
    return "unknown" if found is None else found.commit[:12] + ("+" if found.dirty else "")
