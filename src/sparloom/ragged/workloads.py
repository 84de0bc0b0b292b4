"""Workloads of the paper's encoder: lengths of eight data sets, and what a layer computes and stores for a batch.

Lengths are read from files, or generated with the same statistics. The paper's table describes exactly the first 1,280
entries of the authors' files: 10 batches of 128; the whole files have other statistics.

Operations are counted as in the paper: a multiplication with its addition is one operation, an element of a softmax 5,
of a layer norm 4; biases, residuals and ReLU are one each. Memory of activations is what the kernels write, since the
paper's list of tensors is lost; ragged storage of sequences shorter than its multiple is larger than padded storage:
CoLA with the paper's 64.

Auxiliary tables are those of the paper's programs, as baselines of a comparison; `Structure` builds ours. The dimension
graph knows on what a length depends, so scores[batch, row, head, col] need one table by batch; the scheme of sparse
tensors (CSF) treats every length as a function of all dimensions before it, with an entry for every row of every head.

Source: CoRa §5.1, §5.3, §7.2, §7.4, Figures 2 and 22; of its benchmarks, `intro_study/flops.py` and
`prelude_overheads_breakdown`.
"""

import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

ENTRIES = 1280
CONCENTRATION = 3.0  # of the beta distribution; the best fits to the real lengths have 0.7 to 6.8
ENTRY_BYTES = 4

TENSORS: Mapping[str, tuple[str, ...]] = MappingProxyType({  # by kernel: tensors it reads, then those it writes
    "qkv": ("input", "qkv"), "scores": ("qkv", "qkv", "scores"), "softmax": ("scores", "probabilities"),
    "values": ("probabilities", "qkv", "attention"), "projection": ("attention", "input", "projection"),
    "norm1": ("projection", "norm1"), "ff1": ("norm1", "ff1"), "ff2": ("ff1", "norm1", "ff2"),
    "norm2": ("ff2", "input")})  # input of the next layer

Arrays = tuple[np.ndarray, ...]
_ACCESSED = tuple(tensor for tensors in TENSORS.values() for tensor in tensors)
_TENSORS = tuple(dict.fromkeys(_ACCESSED))
_FUSED = ("qkv", "scores", "values")


@dataclass(frozen=True)
class LengthStatistics:
    """Least, mean (truncated) and greatest number of tokens."""

    minimum: int
    mean: int
    maximum: int


@dataclass(frozen=True)
class Dataset:
    """Row of the paper's table.

    Args:
        title: name in figures.
    """

    title: str
    statistics: LengthStatistics


DATASETS: Mapping[str, Dataset] = MappingProxyType({
    name: Dataset(title, LengthStatistics(*statistics)) for name, title, statistics in (
        ("race", "RACE", (80, 364, 512)), ("wiki512", "Wiki512", (12, 371, 512)), ("squadv2", "SQuAD", (39, 192, 384)),
        ("wiki128", "Wiki128", (14, 117, 128)), ("mnli", "MNLI", (9, 43, 128)), ("xnli", "XNLI", (9, 70, 128)),
        ("mrpc", "MRPC", (21, 59, 102)), ("cola", "CoLA", (6, 13, 37)))})
"""Eight data sets with the least, mean and greatest length of their sequences."""


@dataclass(frozen=True, eq=False)
class SequenceLengths:
    """Lengths of one data set.

    Args:
        values: (1280,) int64, in order of the data set.
        real: whether they were read; otherwise they are generated.
    """

    name: str
    values: np.ndarray
    real: bool

    @property
    def statistics(self) -> LengthStatistics:
        """Statistics as in the paper's table."""
        return LengthStatistics(int(self.values.min()), int(self.values.mean()), int(self.values.max()))

    def batches(self, size: int, *, count: int = 10) -> list[np.ndarray]:
        """Return the first batches, each of `size` lengths in descending order.

        Batch k holds entries k * size to (k + 1) * size, so smaller batches cover less of the data set.

        Source: CoRa §7.2; `run_utils.py` of its benchmarks cuts and sorts in the same way.
        """
        if size < 1 or count < 1 or size * count > self.values.size:
            raise ValueError(f"{count} batches of {size} lengths of {self.name}: there are {self.values.size} entries, "
                             f"use at most {self.values.size // max(1, size)} batches of this size, and at least one")
        return [np.sort(batch)[::-1].copy() for batch in self.values[: size * count].reshape(count, size)]


@dataclass(frozen=True)
class LengthCorpus:
    """Data sets by name.

    Args:
        folder: folder with <name>.txt.gz; None or empty to generate lengths.
        names: keys of `DATASETS`.
        seed: seed of generated lengths.
    """

    folder: str | None
    names: Sequence[str]
    seed: int

    def load(self, name: str) -> SequenceLengths:
        """Read or generate the lengths of one data set."""
        if name not in self.names:
            raise ValueError(f"data set {name!r} is not in this choice of lengths: {', '.join(self.names)}")
        if not self.folder:
            return generated_lengths(name, seed=self.seed)
        return read_lengths(name, Path(self.folder))


def read_lengths(name: str, folder: Path) -> SequenceLengths:
    """Read the first 1,280 lengths of <folder>/<name>.txt.gz, one decimal number per line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the data set is unknown, or the file is damaged, too short or invalid.
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
    """Draw 1,280 lengths with the least, truncated mean and greatest length of the real data set.

    Departure: beta-distributed, with the same spread for all data sets; the real ones have modes at their limits.
    """
    wanted = _known(name).statistics
    rng = np.random.default_rng([seed, *name.encode()])
    span = wanted.maximum - wanted.minimum
    share = (wanted.mean + 0.5 - wanted.minimum) / span
    drawn = rng.beta(CONCENTRATION * share, CONCENTRATION * (1 - share), size=ENTRIES)
    values = wanted.minimum + np.rint(span * drawn).astype(np.int64)
    low, high = values.argmin(), values.argmax()
    values[low], values[high] = wanted.minimum, wanted.maximum
    missing = wanted.mean * ENTRIES + ENTRIES // 2 - int(values.sum())
    while missing:
        step = 1 if missing > 0 else -1
        moved = values + step
        free = (moved >= wanted.minimum) & (moved <= wanted.maximum)
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
        raise ValueError(f"{path}, line {number}: {text[:20]!r} is not a length: each line holds a number from 1 to "
                         "2^31 - 1")
    return int(text)


@dataclass(frozen=True)
class EncoderSizes:
    """Extents that are the same for all batches; defaults are the paper's.

    Args:
        head: width of a head.
    """

    heads: int = 8
    head: int = 64
    feedforward: int = 2048

    @property
    def width(self) -> int:
        """Columns of a token."""
        return self.heads * self.head


@dataclass(frozen=True)
class LoopPadding:
    """Multiples to which loops are padded; defaults are the paper's on its GPU.

    Args:
        tokens: the loop over all tokens, in all kernels but those of attention.
        scores, softmax, values: rows and columns of a sequence's matrix; the columns of `values` are its reduction.
    """

    tokens: int = 64
    scores: tuple[int, int] = (64, 64)
    softmax: tuple[int, int] = (1, 32)
    values: tuple[int, int] = (64, 16)


UNPADDED = LoopPadding(1, (1, 1), (1, 1), (1, 1))


def dense_flops(lengths: np.ndarray, sizes: EncoderSizes, *, padded: int | None = None) -> dict[str, int]:
    """Count operations with all sequences padded to one length; keys as in `partial_flops`.

    Args:
        padded: that length; None for the longest of the batch.
    """
    return ragged_flops(all_padded(lengths, padded), sizes)


def ragged_flops(lengths: np.ndarray, sizes: EncoderSizes) -> dict[str, int]:
    """Count operations without padding; keys as in `partial_flops`."""
    return partial_flops(lengths, sizes, UNPADDED)


def partial_flops(lengths: np.ndarray, sizes: EncoderSizes, padding: LoopPadding) -> dict[str, int]:
    """Count operations of loops with partial padding.

    The paper's own count takes `with_bulk_sequence(lengths, 64)`: the added sequence passes through attention, too.

    Args:
        lengths: (sequences,) integers.

    Returns:
        Operations by kernel: qkv, scores, softmax, values, projection, norm1, ff1, ff2, norm2.
    """
    tokens, width, forward = int(rounded_up(lengths.sum(), padding.tokens)), sizes.width, sizes.feedforward
    return {
        "qkv": 3 * tokens * width * (width + 1),
        "scores": sizes.width * _areas(lengths, padding.scores),
        "softmax": 5 * sizes.heads * _areas(lengths, padding.softmax),
        "values": sizes.width * _areas(lengths, padding.values),
        "projection": tokens * width * (width + 1),
        "norm1": 4 * tokens * width,
        "ff1": tokens * forward * (width + 2),
        "ff2": tokens * width * (forward + 1),
        "norm2": 4 * tokens * width,
    }


def with_bulk_sequence(lengths: np.ndarray, multiple: int) -> np.ndarray:
    """Append a sequence of 1 to `multiple` tokens that makes the sum a multiple, as the paper's programs do.

    Source: CoRa §7.2 (bulk padding). If the sum is a multiple already, they add a whole one.
    """
    return np.append(lengths, multiple - lengths.sum() % multiple)


def rounded_up(values: np.ndarray, multiple: int) -> np.ndarray:
    """Round up to multiples."""
    return -(-np.asarray(values, dtype=np.int64) // multiple) * multiple


def all_padded(lengths: np.ndarray, padded: int | None) -> np.ndarray:
    """Give every sequence the same length, by default the longest one."""
    longest = int(lengths.max())
    if padded is not None and padded < longest:
        raise ValueError(f"sequences padded to {padded}: the longest has {longest} tokens, use at least as many")
    return np.full_like(lengths, padded or longest)


def _areas(lengths: np.ndarray, multiples: tuple[int, int]) -> int:
    rows, cols = (rounded_up(lengths, multiple) for multiple in multiples)
    return int((rows * cols).sum())


@dataclass(frozen=True)
class StoragePadding:
    """Multiples to which ragged storage is padded; defaults are the paper's.

    Args:
        sequence: tokens of a sequence in queries, keys, values and the result of attention.
        scores: rows and columns of a sequence's scores and probabilities.
        tokens: tokens of a batch, elsewhere.
    """

    sequence: int = 64
    scores: int = 64
    tokens: int = 1


def dense_activations(lengths: np.ndarray, sizes: EncoderSizes, *, padded: int | None = None) -> dict[str, int]:
    """Count elements with all sequences padded to one length; keys as in `ragged_activations`.

    Args:
        padded: that length; None for the longest of the batch.
    """
    return ragged_activations(all_padded(lengths, padded), sizes, StoragePadding(1, 1, 1))


def ragged_activations(lengths: np.ndarray, sizes: EncoderSizes, padding: StoragePadding) -> dict[str, int]:
    """Count the elements that the nine kernels write; the layer's input is counted with the layer that wrote it.

    Returns:
        Elements by tensor: qkv (queries, keys and values), scores, probabilities (after the softmax), attention
        (result of the heads), projection (with the residual), norm1, ff1 (after ReLU), ff2 (with the residual), norm2.
    """
    tokens = int(rounded_up(lengths.sum(), padding.tokens)) * sizes.width
    padded = int(rounded_up(lengths, padding.sequence).sum()) * sizes.width
    scores = int((rounded_up(lengths, padding.scores) ** 2).sum()) * sizes.heads
    return {
        "qkv": 3 * padded, "scores": scores, "probabilities": scores, "attention": padded, "projection": tokens,
        "norm1": tokens, "ff1": tokens // sizes.width * sizes.feedforward, "ff2": tokens, "norm2": tokens,
    }


@dataclass(frozen=True)
class TileSizes:
    """Multiples in the tables; defaults are the paper's.

    Args:
        storage: tokens of a sequence in queries, keys, values, scores, probabilities and the result of attention.
        scores: rows and columns of a tile of scores; all tiles of a batch are one loop.
        values: rows of a tile of the result of attention.
    """

    storage: int = 64
    scores: int = 64
    values: int = 32


@dataclass(frozen=True, eq=False)
class AuxiliaryTables:
    """Arrays for the storage of one tensor or for one fused loop.

    Args:
        subject: the tensor, or the kernel whose loops are fused.
        entries: total number of entries.
        build: makes the arrays, int32.
    """

    subject: str
    purpose: Literal["storage", "fusion"]
    entries: int
    build: Callable[[], Arrays]


def _prelude(tensors: Iterable[str], kernels: Iterable[str], *, sparse: bool = False
             ) -> Callable[[np.ndarray, EncoderSizes, TileSizes], list[AuxiliaryTables]]:
    """Return a function that lists tables for the storage of tensors and the fused loops of kernels."""
    def tables(lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> list[AuxiliaryTables]:
        return ([_stored(tensor, lengths, sizes, tiles, sparse=sparse) for tensor in tensors]
                + [_fused(kernel, lengths, tiles) for kernel in kernels])

    return tables


PRELUDES: Mapping[str, Callable[[np.ndarray, EncoderSizes, TileSizes], list[AuxiliaryTables]]] = MappingProxyType({
    "redundant": _prelude(_ACCESSED, TENSORS),  # every kernel builds tables for each of its tensors
    "by_tensor": _prelude(_TENSORS, _FUSED),  # once for a tensor and a way to fuse loops: the paper's CoRa-Optimized
    "shared": _prelude(("input", "qkv", "scores"), _FUSED),  # once for a layout, as a `Structure` shares them
    "sparse_redundant": _prelude(_ACCESSED, (), sparse=True),
    "sparse_by_tensor": _prelude(_TENSORS, (), sparse=True)})
"""All tables of a prelude, from lengths with the paper's bulk padding `with_bulk_sequence(lengths, 64)`."""


def auxiliary_bytes(tables: Iterable[AuxiliaryTables], purpose: Literal["storage", "fusion"]) -> int:
    """Add up the bytes of the tables for one purpose."""
    return ENTRY_BYTES * sum(table.entries for table in tables if table.purpose == purpose)


def _stored(tensor: str, lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes, *, sparse: bool
            ) -> AuxiliaryTables:
    """Describe the starts of sequences in a tensor: [batch, token(batch), ..] or, in units of heads, [batch,
    row(batch), head, col(batch)].

    Args:
        sparse: in sparse storage, qkv is [part, batch, token(batch), ..], and the rows of scores of every head have
            starts of their own.
    """
    of_scores = tensor in ("scores", "probabilities")
    multiple = tiles.storage if of_scores or tensor in ("qkv", "attention") else 1
    parts = 3 if sparse and tensor == "qkv" else 1
    entries = parts * lengths.size + 1
    if sparse and of_scores:
        entries += sizes.heads * int(rounded_up(lengths, multiple).sum()) + 1

    def build() -> Arrays:
        padded = rounded_up(lengths, multiple)
        if sparse and of_scores:
            return _running(padded), _running(np.repeat(padded, sizes.heads * padded))
        return (_running(padded**2 if of_scores else np.tile(padded, parts)),)

    return AuxiliaryTables(tensor, "storage", entries, build)


def _fused(kernel: str, lengths: np.ndarray, tiles: TileSizes) -> AuxiliaryTables:
    """Describe the maps of the fused loop f of `for x0: for x1 in 0 .. counts[x0]`: x0 and x1 of f, starts of x0.

    It runs over all tokens, or over the tiles of scores or of the result of attention: then the starts have an end, as
    in the paper's programs.
    """
    tile = {"scores": tiles.scores, "values": tiles.values}.get(kernel)
    counts = lengths if tile is None else (rounded_up(lengths, tile) // tile) ** (2 if kernel == "scores" else 1)

    def build() -> Arrays:
        starts = _running(counts)
        outer = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
        inner = np.arange(outer.size, dtype=np.int32) - starts[outer]
        return outer, inner, starts[:-1] if tile is None else starts

    return AuxiliaryTables(kernel, "fusion", 2 * int(counts.sum()) + lengths.size + (tile is not None), build)


def _running(counts: np.ndarray) -> np.ndarray:
    """Return exclusive running sums, followed by the total."""
    sums = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    if sums[-1] >= 2**31:
        raise ValueError(f"offsets up to {sums[-1]}: 32-bit tables end at 2^31 - 1: use fewer sequences")
    return sums.astype(np.int32)
