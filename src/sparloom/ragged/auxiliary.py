"""What a prelude builds for an encoder layer, by three degrees of sharing and two ways to store ragged tensors.

The dimension graph knows on what a length depends, so that scores[batch, row, head, col] need one table by batch; the
scheme of sparse tensors (CSF) takes every length for a function of all dimensions before it, and has an entry for
every row of every head. These are the tables of the paper's programs, as arms of a comparison; `Structure` builds ours.

Source: CoRa §5.1, §5.3, §7.4; `prelude_overheads_breakdown` of its benchmarks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from sparloom.ragged.encoder_flops import EncoderSizes, rounded_up

__all__ = [
    "PRELUDES", "AuxiliaryTables", "TileSizes", "auxiliary_bytes", "fused_maps", "fused_tile_maps", "score_offsets",
    "sparse_qkv_offsets", "sparse_score_offsets", "token_offsets",
]

Arrays = tuple[np.ndarray, ...]
ENTRY_BYTES = 4

TENSORS: Mapping[str, tuple[str, ...]] = MappingProxyType({  # that a kernel reads, then writes; each time it does
    "qkv": ("input", "qkv"), "scores": ("qkv", "qkv", "scores"), "softmax": ("scores", "probabilities"),
    "values": ("probabilities", "qkv", "attention"), "projection": ("attention", "input", "projection"),
    "norm1": ("projection", "norm1"), "ff1": ("norm1", "ff1"), "ff2": ("ff1", "norm1", "ff2"),
    "norm2": ("ff2", "input")})  # which is the next layer's


@dataclass(frozen=True)
class TileSizes:
    """Multiples in the tables; defaults are the paper's.

    Args:
        storage: of a sequence in queries, keys, values, scores, probabilities and what the heads found.
        scores: rows and columns of a tile of scores; all tiles of a batch are one loop.
        values: rows of a tile of what the heads found.
    """

    storage: int = 64
    scores: int = 64
    values: int = 32


@dataclass(frozen=True, eq=False)
class AuxiliaryTables:
    """Arrays for one tensor's storage or one fused loop.

    Args:
        subject: the tensor, or the kernel whose loops are fused.
        entries: of all its arrays.
        build: makes them, int32.
    """

    subject: str
    purpose: Literal["storage", "fusion"]
    entries: int
    build: Callable[[], Arrays]


def token_offsets(lengths: np.ndarray, multiple: int) -> Arrays:
    """Where sequences begin in [batch, token(batch), ..]: sequences + 1 entries."""
    return (_running(rounded_up(lengths, multiple)),)


def score_offsets(lengths: np.ndarray, multiple: int) -> Arrays:
    """Where sequences begin in [batch, row(batch), head, col(batch)], in units of heads: sequences + 1 entries."""
    return (_running(rounded_up(lengths, multiple) ** 2),)


def sparse_qkv_offsets(lengths: np.ndarray, multiple: int) -> Arrays:
    """Sparse storage of [part, batch, token(batch), ..], part one of three: 3 * sequences + 1 entries."""
    return (_running(np.tile(rounded_up(lengths, multiple), 3)),)


def sparse_score_offsets(lengths: np.ndarray, multiple: int, heads: int) -> Arrays:
    """Sparse storage of scores: where rows of sequences begin, and columns of rows of heads.

    Returns:
        sequences + 1 and heads * (sum of lengths) + 1 entries.
    """
    padded = rounded_up(lengths, multiple)
    return _running(padded), _running(np.repeat(padded, heads * padded))


def fused_maps(counts: np.ndarray) -> Arrays:
    """Maps of the loop that `for x0: for x1 in 0 .. counts[x0]` becomes: to x0, to x1, and where each x0 begins.

    Returns:
        F, F and len(counts) entries, F the sum of counts.
    """
    starts = _running(counts)[:-1]
    outer = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
    return outer, np.arange(outer.size, dtype=np.int32) - starts[outer], starts


def fused_tile_maps(counts: np.ndarray) -> Arrays:
    """Like `fused_maps`, of tiles of sequences: with the end behind the last, as in the paper's programs."""
    outer, inner, _ = fused_maps(counts)
    return outer, inner, _running(counts)


def redundant_tables(lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> list[AuxiliaryTables]:
    """Every kernel builds what it needs, for each of its tensors."""
    storage = [_stored(tensor, lengths, tiles) for tensors in TENSORS.values() for tensor in tensors]
    return storage + [_fused(kernel, lengths, tiles) for kernel in TENSORS]


def tensor_tables(lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> list[AuxiliaryTables]:
    """Once for every tensor, and once for every way to fuse loops: the paper's CoRa-Optimized."""
    return ([_stored(tensor, lengths, tiles) for tensor in _tensors()]
            + [_fused(kernel, lengths, tiles) for kernel in ("qkv", "scores", "values")])


def shared_tables(lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> list[AuxiliaryTables]:
    """Once for all tensors of the same layout: what a `Structure` shares."""
    return ([_stored(tensor, lengths, tiles) for tensor in ("input", "qkv", "scores")]
            + [_fused(kernel, lengths, tiles) for kernel in ("qkv", "scores", "values")])


def sparse_redundant_tables(lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> list[AuxiliaryTables]:
    """Sparse storage for each tensor of each kernel; loops are not fused."""
    return [_sparse(tensor, lengths, sizes, tiles) for tensors in TENSORS.values() for tensor in tensors]


def sparse_tensor_tables(lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> list[AuxiliaryTables]:
    """Sparse storage, once for every tensor; loops are not fused."""
    return [_sparse(tensor, lengths, sizes, tiles) for tensor in _tensors()]


PRELUDES: Mapping[str, Callable[[np.ndarray, EncoderSizes, TileSizes], list[AuxiliaryTables]]] = MappingProxyType({
    "redundant": redundant_tables, "by_tensor": tensor_tables, "shared": shared_tables,
    "sparse_redundant": sparse_redundant_tables, "sparse_by_tensor": sparse_tensor_tables})
"""From lengths, with the paper's bulk padding `with_bulk_sequence(lengths, 64)`, to all tables of a prelude."""


def auxiliary_bytes(tables: Iterable[AuxiliaryTables], purpose: Literal["storage", "fusion"]) -> int:
    """Add up what tables of one purpose take."""
    return ENTRY_BYTES * sum(table.entries for table in tables if table.purpose == purpose)


def _tensors() -> tuple[str, ...]:
    return tuple(dict.fromkeys(tensor for tensors in TENSORS.values() for tensor in tensors))


def _stored(tensor: str, lengths: np.ndarray, tiles: TileSizes) -> AuxiliaryTables:
    multiple = tiles.storage if tensor in ("qkv", "attention") else 1
    if tensor in ("scores", "probabilities"):
        return AuxiliaryTables(tensor, "storage", lengths.size + 1, lambda: score_offsets(lengths, tiles.storage))
    return AuxiliaryTables(tensor, "storage", lengths.size + 1, lambda: token_offsets(lengths, multiple))


def _sparse(tensor: str, lengths: np.ndarray, sizes: EncoderSizes, tiles: TileSizes) -> AuxiliaryTables:
    if tensor == "qkv":
        return AuxiliaryTables(tensor, "storage", 3 * lengths.size + 1,
                               lambda: sparse_qkv_offsets(lengths, tiles.storage))
    if tensor in ("scores", "probabilities"):
        rows = int(rounded_up(lengths, tiles.storage).sum())
        return AuxiliaryTables(tensor, "storage", lengths.size + 1 + sizes.heads * rows + 1,
                               lambda: sparse_score_offsets(lengths, tiles.storage, sizes.heads))
    return _stored(tensor, lengths, tiles)


def _fused(kernel: str, lengths: np.ndarray, tiles: TileSizes) -> AuxiliaryTables:
    """Tokens are one loop; tiles of scores, and of what the heads found, are others."""
    if kernel not in ("scores", "values"):
        return AuxiliaryTables(kernel, "fusion", 2 * int(lengths.sum()) + lengths.size, lambda: fused_maps(lengths))
    tile = tiles.scores if kernel == "scores" else tiles.values
    along = rounded_up(lengths, tile) // tile
    counts = along**2 if kernel == "scores" else along
    return AuxiliaryTables(kernel, "fusion", 2 * int(counts.sum()) + lengths.size + 1, lambda: fused_tile_maps(counts))


def _running(counts: np.ndarray) -> np.ndarray:
    """Sums of all before, and of all: one entry more."""
    sums = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    if sums[-1] >= 2**31:
        raise ValueError(f"offsets up to {sums[-1]}: tables of 32 bits end at 2^31 - 1, take fewer sequences")
    return sums.astype(np.int32)
