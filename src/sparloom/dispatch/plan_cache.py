"""Decisions on disk."""

from pathlib import Path

__all__ = ["PlanCache"]


class PlanCache:
    """A folder of decisions; any number of processes may use it.

    Args:
        folder: made when the first decision is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
