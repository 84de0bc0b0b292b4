"""Timing whose methods run for a moment before each turn, not for 30 ms: threads of others disturb no test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sparloom.platforms import timing

__all__ = ["brief_timing"]

SECONDS = 0.001


@contextmanager
def brief_timing() -> Iterator[None]:
    """Shorten what precedes each turn; what is timed, and how often, stays."""
    usual = timing._settle

    def settle(run: Callable[[], None], seconds: float, wall: Callable[[], float]) -> None:
        usual(run, min(seconds, SECONDS), wall)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_settle", settle)
        yield
