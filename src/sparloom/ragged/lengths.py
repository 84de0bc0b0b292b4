"""Lengths of the sequences of eight data sets, from files or generated with the same statistics.

Source: CoRa §7.2 and its table of data sets, which the first 1,280 entries of the authors' files give exactly: 10
batches of 128. The whole files have other statistics.
"""

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np

__all__ = [
    "DATASETS", "Dataset", "LengthCorpus", "LengthStatistics", "SequenceLengths", "generated_lengths", "read_lengths",
]

ENTRIES = 1280
CONCENTRATION = 3.0  # of the beta distribution; those that fit the real lengths best are 0.7 to 6.8


@dataclass(frozen=True)
class LengthStatistics:
    """Least, mean (truncated) and greatest number of tokens."""

    least: int
    mean: int
    most: int


@dataclass(frozen=True)
class Dataset:
    """A row of the paper's table.

    Args:
        title: what figures call it.
    """

    title: str
    statistics: LengthStatistics


DATASETS: Mapping[str, Dataset] = MappingProxyType({
    name: Dataset(title, LengthStatistics(*statistics)) for name, title, statistics in (
        ("race", "RACE", (80, 364, 512)), ("wiki512", "Wiki512", (12, 371, 512)), ("squadv2", "SQuAD", (39, 192, 384)),
        ("wiki128", "Wiki128", (14, 117, 128)), ("mnli", "MNLI", (9, 43, 128)), ("xnli", "XNLI", (9, 70, 128)),
        ("mrpc", "MRPC", (21, 59, 102)), ("cola", "CoLA", (6, 13, 37)))})


@dataclass(frozen=True, eq=False)
class SequenceLengths:
    """The lengths of one data set.

    Args:
        values: (1280,) int64, in the order of the data set.
        real: they were read; else they are generated.
    """

    name: str
    values: np.ndarray
    real: bool

    @property
    def statistics(self) -> LengthStatistics:
        """What the paper's table says of them."""
        return LengthStatistics(int(self.values.min()), int(self.values.mean()), int(self.values.max()))

    def batches(self, size: int, *, count: int = 10) -> list[np.ndarray]:
        """Give the first batches, each of `size` lengths in descending order.

        Batch k holds entries k * size to (k + 1) * size, so smaller batches see less of the data set.

        Raises:
            ValueError: there are not as many entries.

        Source: CoRa §7.2; `run_utils.py` of its benchmarks cuts and sorts like this.
        """
        if size < 1 or count < 1 or size * count > self.values.size:
            raise ValueError(f"{count} batches of {size} lengths of {self.name}: there are {self.values.size} entries, "
                             f"take at most {self.values.size // max(1, size)} batches of this size, and at least one")
        return [np.sort(batch)[::-1].copy() for batch in self.values[: size * count].reshape(count, size)]


@dataclass(frozen=True)
class LengthCorpus:
    """Data sets by name.

    Args:
        folder: holds <name>.txt.gz; None or empty: lengths are generated.
        names: keys of `DATASETS`.
        seed: of generated lengths.
    """

    folder: str | None
    names: Sequence[str]
    seed: int

    def load(self, name: str) -> SequenceLengths:
        """Read or generate the lengths of one data set.

        Raises:
            ValueError: it is not one of `names`, or as by `read_lengths`.
            FileNotFoundError: as by `read_lengths`.
        """
        if name not in self.names:
            raise ValueError(f"data set {name!r} is not in this choice of lengths: {', '.join(self.names)}")
        if not self.folder:
            return generated_lengths(name, seed=self.seed)
        return read_lengths(name, Path(self.folder))


def read_lengths(name: str, folder: Path) -> SequenceLengths:
    """Read the first 1,280 lengths of <folder>/<name>.txt.gz, one decimal number a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the data set is unknown, or the file is damaged, too short or holds something else.
    """
    _known(name)
    path = folder / f"{name}.txt.gz"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file: paths.seqlens (SPARLOOM_SEQLENS) is a folder of lengths, one "
                                f"NAME.txt.gz for each data set; without it lengths are generated")
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            entries = [_entry(path, number, line) for number, line in enumerate(islice(lines, ENTRIES), start=1)]
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a gzip file of decimal numbers ({error}): fetch it again") from error
    if len(entries) < ENTRIES:
        raise ValueError(f"{path}: {len(entries)} lengths, {ENTRIES} are needed: the file is cut off")
    return SequenceLengths(name, np.array(entries, dtype=np.int64), real=True)


def generated_lengths(name: str, *, seed: int) -> SequenceLengths:
    """Draw 1,280 lengths with least, truncated mean and greatest of the data set's real ones.

    Raises:
        ValueError: the data set is unknown.

    Departure: beta-distributed, the same spread for all data sets; the real ones have modes at their limits.
    """
    wanted = _known(name).statistics
    rng = np.random.default_rng([seed, *name.encode()])
    span, share = wanted.most - wanted.least, (wanted.mean + 0.5 - wanted.least) / (wanted.most - wanted.least)
    drawn = rng.beta(CONCENTRATION * share, CONCENTRATION * (1 - share), size=ENTRIES)
    values = wanted.least + np.rint(span * drawn).astype(np.int64)
    low, high = values.argmin(), values.argmax()
    values[low], values[high] = wanted.least, wanted.most
    missing = wanted.mean * ENTRIES + ENTRIES // 2 - int(values.sum())
    while missing:
        step = 1 if missing > 0 else -1
        moved = values + step
        free = (moved >= wanted.least) & (moved <= wanted.most)
        free[[low, high]] = False
        chosen = rng.permutation(np.flatnonzero(free))[: abs(missing)]
        values[chosen] += step
        missing -= step * chosen.size
    return SequenceLengths(name, values, real=False)


def _known(name: str) -> Dataset:
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}: there are {', '.join(DATASETS)}")
    return DATASETS[name]


def _entry(path: Path, number: int, line: str) -> int:
    text = line.strip()
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise ValueError(f"{path}, line {number}: {text[:20]!r} is no length: a line holds a number from 1 to 2^31 - 1")
    return int(text)
