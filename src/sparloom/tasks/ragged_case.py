"""What is timed of ragged programs, one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparloom.measure import Measurement
from sparloom.tasks.timed_cases import statistics_of

__all__ = ["RaggedCase", "method_rows", "planned_cases"]


@dataclass(frozen=True)
class RaggedCase:
    """One comparison.

    Args:
        part: "encoder", "mha", "causal", "vgemm", "trmm" or "compile".
        data: data set of the sequence lengths, or "".
        size: sequences, products, or rows of a matrix.
        number: which batch.
    """

    part: str
    data: str
    size: int
    number: int = 0

    @property
    def key(self) -> str:
        """Names the case in journals."""
        return f"{self.part} {self.data} {self.size} {self.number}"


def planned_cases(
    parts: Sequence[str], known: Mapping[str, tuple[Sequence[str], Sequence[int], int]],
) -> Iterator[RaggedCase]:
    """List cases, part after part.

    Args:
        known: part -> names of data sets, sizes, and how many batches of each.

    Raises:
        ValueError: there is no such part.
    """
    for part in parts:
        if part not in known:
            raise ValueError(f"part {part!r} of bench_ragged: there are {', '.join(known)}")
        names, sizes, count = known[part]
        yield from (RaggedCase(part, name, size, number) for name in names for size in sizes for number in range(count))


def method_rows(about: Mapping[str, Any], measured: Mapping[str, Measurement]) -> list[dict[str, Any]]:
    """Make a row for each method of a case."""
    return [{**about, "method": method, **statistics_of(taken)} for method, taken in measured.items()]
