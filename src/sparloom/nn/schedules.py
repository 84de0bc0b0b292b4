"""Which schedule a layer runs with: one that is given, or the one that is chosen for batches like this."""

from __future__ import annotations

from typing import Literal

from sparloom.dispatch import RaggedOperator, choose_schedule, encoder_operators
from sparloom.ragged import EncoderSchedule, EncoderShape, Structure

__all__ = ["Schedule", "checked_schedule", "schedule_of"]

Schedule = EncoderSchedule | Literal["auto"] | None

_operators: dict[EncoderShape, dict[str, RaggedOperator]] = {}
_chosen: dict[tuple[object, ...], EncoderSchedule] = {}


def checked_schedule(given: Schedule) -> EncoderSchedule | Literal["auto"]:
    """Put the default in place of None.

    Raises:
        ValueError: it is no schedule.
    """
    if given is None:
        return EncoderSchedule()
    if given == "auto" or isinstance(given, EncoderSchedule):
        return given
    raise ValueError(f"schedule={given!r}: give an EncoderSchedule, 'auto', or None for the default")


def schedule_of(given: EncoderSchedule | Literal["auto"], operator: str, shape: EncoderShape, structure: Structure,
                threads: int) -> EncoderSchedule:
    """Give the schedule of a batch; "auto" searches when batches like this are met for the first time on a machine.

    Args:
        operator: "encoder" or "attention".
    """
    if isinstance(given, EncoderSchedule):
        return given
    if shape not in _operators:
        _operators[shape] = encoder_operators(shape)
    chosen_for = _operators[shape][operator]
    key = (chosen_for.name, tuple(chosen_for.alike(structure).items()), threads)
    if key not in _chosen:
        config = choose_schedule(chosen_for, structure, threads=threads).config
        _chosen[key] = EncoderSchedule(**{name: int(value) for name, value in config.values})
    return _chosen[key]
