"""Where intermediate results lie while a program runs: those that are not needed at once share memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparloom.ragged.program import Launch, Program

__all__ = ["Span", "lifetimes", "needed", "placed", "touched"]

ALIGNMENT = 64  # bytes: a line of a cache

Span = tuple[int, int]  # numbers of the first and the last launch that touch it


def touched(launch: Launch) -> tuple[set[str], set[str]]:
    """Name the tensors that a launch reads, and those that it writes; local ones are in neither."""
    nests = [each for nest in launch.nests for each in nest.tree()]
    reads = {read.tensor for nest in nests for read in nest.operation.reads}
    writes = {nest.operation.output for nest in nests}
    return tuple({tensor.name for tensor in tensors if tensor.local is None} for tensors in (reads, writes))


def needed(program: Program, wanted: Collection[str]) -> tuple[int, ...]:
    """Number the launches without which some wanted results are not computed."""
    missing, found = set(wanted), []
    for number, launch in reversed(list(enumerate(program.launches))):
        reads, writes = touched(launch)
        if writes & missing:
            found.append(number)
            missing |= reads
    return tuple(reversed(found))


def lifetimes(program: Program, launches: Sequence[int]) -> dict[str, Span]:
    """Give the lifetime of every tensor that some launches touch."""
    found: dict[str, Span] = {}
    for number in launches:
        for name in set.union(*touched(program.launches[number])):
            found[name] = (found.get(name, (number,))[0], number)
    return found


def placed(spans: Mapping[str, Span], sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Place tensors so that those alive at once do not overlap: the largest first, each as far in front as it can.

    Args:
        sizes: in bytes.

    Returns:
        By tensor the byte at which it begins, and the size of the whole.
    """
    places: dict[str, int] = {}
    total = 0
    for name in sorted(spans, key=lambda each: -sizes[each]):
        first, last = spans[name]
        beside = sorted((places[other], places[other] + sizes[other]) for other in places
                        if spans[other][0] <= last and first <= spans[other][1])
        begin = 0
        for start, end in beside:
            if begin + sizes[name] <= start:
                break
            begin = max(begin, -(-end // ALIGNMENT) * ALIGNMENT)
        places[name] = begin
        total = max(total, begin + sizes[name])
    return places, total
