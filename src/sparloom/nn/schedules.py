"""Which schedule a layer runs with: one that is given, or the one that is chosen for batches like this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from sparloom.ragged import Structure
from sparloom.tuning import RaggedOperator, choose_schedule

__all__ = ["Schedule", "checked_schedule", "schedule_of"]

S = TypeVar("S")
Schedule = S | Literal["auto"] | None

_chosen: dict[tuple[object, ...], Any] = {}


def checked_schedule(given: Schedule[S], kind: type[S]) -> S | Literal["auto"]:
    """Put the default in place of None.

    Raises:
        ValueError: it is no schedule of this kind.
    """
    if given is None:
        return kind()
    if given == "auto" or isinstance(given, kind):
        return given
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ValueError(f"schedule={given!r}: give {article} {kind.__name__}, 'auto', or None for the default")


def schedule_of(given: S | Literal["auto"], kind: type[S], operator: Callable[[], RaggedOperator],
                structure: Structure, threads: int) -> S:
    """Give the schedule of a batch; "auto" searches when batches like this are met for the first time on a machine.

    Args:
        operator: gives the one whose schedule is searched.
    """
    if isinstance(given, kind):
        return given
    chosen_for = operator()
    key = (chosen_for.name, tuple(chosen_for.alike(structure).items()), threads)
    if key not in _chosen:
        config = choose_schedule(chosen_for, structure, threads=threads).config
        _chosen[key] = kind(**dict(config.values))
    return _chosen[key]
