"""Whether a tile schedule keeps every dependence between the loops that it fuses."""

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.fusion.loops import Reads
from sparloom.fusion.schedule import TileSchedule
from sparloom.sparse import Pattern

__all__ = ["check_iterations", "check_schedule"]


def check_schedule(schedule: TileSchedule, dependences: Reads | Pattern) -> None:
    """Check that executing the schedule gives what the loops one after the other give.

    Args:
        dependences: row j holds the iterations of loop one that iteration j of loop two reads.

    Raises:
        IllegalSchedule: an iteration is missing or occurs twice, the schedule is of loops of another length, a fused
            iteration reads from another tile, or `needed` is not what wavefront 1 reads.
    """
    check_iterations(schedule)
    reads = Reads.of(dependences) if isinstance(dependences, Pattern) else dependences
    ones, twos = schedule.iterations
    if (twos, ones) != (reads.iterations, reads.extent):
        raise IllegalSchedule(f"a schedule of {ones} and {twos} iterations for dependences of {reads.extent} and "
                              f"{reads.iterations}: inspect the operand that is executed")
    readers = np.repeat(np.arange(twos), np.diff(reads.indptr))
    tile, late = _tile_of(schedule), _late(schedule)
    owner = np.searchsorted(schedule.first, reads.indices, side="right") - 1
    outside = (tile[readers] != owner) & ~late[readers]
    if outside.any():
        edge = int(np.argmax(outside))
        raise IllegalSchedule(f"iteration {readers[edge]} of loop two, in tile {tile[readers[edge]]} of wavefront 0, "
                              f"reads iteration {reads.indices[edge]} of loop one, which is in tile {owner[edge]}: "
                              f"it belongs into wavefront 1")
    read = np.zeros(ones, dtype=np.uint8)
    read[reads.indices[late[readers]]] = 1
    wrong = read != schedule.needed
    if wrong.any():
        iteration = int(np.argmax(wrong))
        raise IllegalSchedule(f"needed[{iteration}] is {schedule.needed[iteration]}, but wavefront 1 reads it "
                              f"{'at least once' if read[iteration] else 'never'}")


def check_iterations(schedule: TileSchedule) -> None:
    """Check that the tiles hold every iteration of both loops once.

    Raises:
        IllegalSchedule: names the first offender.
    """
    for name, extent in zip(("first", "second_ptr"), schedule.iterations, strict=True):
        bounds = getattr(schedule, name)
        if bounds[0] != 0 or bounds[-1] != extent or (bounds[1:] < bounds[:-1]).any():
            raise IllegalSchedule(f"{name} does not rise from 0 to {extent}")
    if (schedule.needed > 1).any():
        raise IllegalSchedule(f"needed[{int(np.argmax(schedule.needed > 1))}] is neither 0 nor 1")
    twos = schedule.iterations[1]
    outside = (schedule.second < 0) | (schedule.second >= twos)
    if outside.any():
        raise IllegalSchedule(f"second holds {schedule.second[outside][0]}: iterations are 0 to {twos - 1}")
    times = np.bincount(schedule.second, minlength=twos)
    if (times != 1).any():
        iteration = int(np.argmax(times != 1))
        raise IllegalSchedule(f"iteration {iteration} of loop two occurs {times[iteration]} times in second")


def _tile_of(schedule: TileSchedule) -> np.ndarray:
    """Number the tile of every iteration of loop two; those of wavefront 1 follow those of wavefront 0."""
    tile = np.empty(schedule.second.size, dtype=np.int64)
    tile[schedule.second] = np.repeat(np.arange(sum(schedule.tiles)), np.diff(schedule.second_ptr))
    return tile


def _late(schedule: TileSchedule) -> np.ndarray:
    """Mark the iterations of loop two that run in wavefront 1."""
    late = np.zeros(schedule.second.size, dtype=bool)
    late[schedule.second[schedule.fused :]] = True
    return late
