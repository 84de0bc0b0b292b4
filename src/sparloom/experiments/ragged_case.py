"""What is timed of ragged programs, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pandas as pd

from sparloom.data import write_frame
from sparloom.experiments.timed_cases import statistics_of, timed_cases
from sparloom.measure import Measurement
from sparloom.ragged import DATASETS

__all__ = ["RaggedCase", "method_rows", "planned_cases", "ragged_frame"]

PREPARING = 6_000.0  # tokens that are timed in as long as it takes to prepare and compile the peers of a batch


class PricedCase(Protocol):
    """What has a name in journals and an expected cost, in any unit."""

    @property
    def key(self) -> str: ...

    @property
    def cost(self) -> float: ...


Case = TypeVar("Case", bound=PricedCase)


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

    @property
    def cost(self) -> float:
        """Expected cost in tokens; products of matrices have neither tokens nor much to prepare."""
        return PREPARING + self.size * DATASETS[self.data].statistics.mean if self.data else PREPARING / 10


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


def ragged_frame(
    rows_of: Callable[[Case], Sequence[Mapping[str, Any]]], planned: Iterable[Case], folder: Path, out: Path, *,
    threads: int,
) -> pd.DataFrame:
    """Do cases as `timed_cases` and write their rows to per_case.parquet.

    Args:
        folder: of what is under way; the caller removes it when its run is complete.
        out: of the results.
    """
    cases = {case.key: case for case in planned}
    frame = timed_cases(rows_of, cases, folder / "cases.jsonl", threads=threads,
                        weights={key: case.cost for key, case in cases.items()})
    write_frame(out / "per_case.parquet", frame)
    return frame


def method_rows(about: Mapping[str, Any], measured: Mapping[str, Measurement]) -> list[dict[str, Any]]:
    """Make a row for each method of a case."""
    return [{**about, "method": method, **statistics_of(taken)} for method, taken in measured.items()]
