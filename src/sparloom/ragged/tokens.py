"""Sequences of tokens: their dimensions and lengths, and what layers of tokens share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sparloom.ir import Expr
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.program import (
    Operation,
    Program,
    compute,
    real,
    sqrt,
    sum_over,
)
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import offload
from sparloom.ragged.schedule.storage import PANEL, reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Length, Tensor

batch, pos, col, model, part, head, dim, channel, hidden = dims("batch pos col model part head dim channel hidden")
BATCHES = Length("batches")
LENGTHS = Length("lengths", {batch: BATCHES()})
TOKENS: Mapping[Dim, Expr | int] = {batch: BATCHES(), pos: LENGTHS(batch)}


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a layer.

    Args:
        width: of a token.
        heads: dividing the width.
        hidden: of the feed-forward network.
        epsilon: of the norms.
        causal: tokens look at themselves and those before only.
        step: causal scores are computed up to the next multiple of it, and those beyond masked: triangles of tiles. By
            default the tile of queries of the schedule.
        triangles: else all causal scores are computed, and masked: what others do.
    """

    width: int = 512
    heads: int = 8
    hidden: int = 2048
    epsilon: float = 1e-5
    causal: bool = False
    step: int | None = None
    triangles: bool = True

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class EncoderSchedule:
    """What may be searched.

    Args:
        rows: of a tile of tokens.
        panel: columns of a panel of weights; keys, and elements of values, that lie together.
        depth: of the reduction, that a tile of rows meets all panels with; divides it, or is larger.
        queries: rows of a tile of attention.
    """

    rows: int = 48
    panel: int = PANEL
    depth: int = 512
    queries: int = 64


def norm(given: Operation | Tensor, number: str, last: Dim, *, width: int, epsilon: float) -> list[Operation]:
    """Standardise tokens: (x - mean) / sqrt(variance + epsilon) * gain + shift."""
    share = real(1 / width)
    gain, shift = (Tensor(f"{name}_{number}", {last: width}) for name in ("gain", "shift"))
    mean = compute(f"mean_{number}", TOKENS, sum_over({last: width}, given[batch, pos, last]) * share)
    apart = given[batch, pos, last] - mean[batch, pos]
    spread = compute(f"spread_{number}", TOKENS, real(1.0) / sqrt(
        sum_over({last: width}, apart * apart) * share + real(epsilon)))
    standard = compute(f"norm_{number}", {**TOKENS, last: width},
                       apart * spread[batch, pos] * gain[last] + shift[last])
    return [mean, spread, standard]


def scheduled_norm(given: Program, number: str, last: str, kept: Collection[str], *, rows: int = 1, chunk: int = 16
                   ) -> Program:
    """Schedule a norm: a token at a time, or as many rows of one sequence, in parallel."""
    nest, tile = f"norm_{number}", "pos"
    if rows > 1:
        given, tile = split(given, nest, "pos", rows), "pos_outer"
    given, tile = fuse(given, nest, "batch", tile), f"batch_{tile}"
    for producer in (f"spread_{number}", f"mean_{number}"):
        given = compute_at(given, producer, nest, tile, local=producer not in kept)
        given = vectorise(given, producer, given.nest(producer).loops[-1].name)
    return vectorise(parallel(given, nest, tile, chunk=chunk), nest, last)


def linear(given: Program, nest: str, column: str, reduction: str, chosen: EncoderSchedule) -> Program:
    """Schedule a product of all tokens and weights w_..: tiles of rows, panels of columns."""
    operation = given.nest(nest).operation
    weights = next(read.tensor for read in operation.reads if read.tensor.name.startswith("w_"))
    extent = dict((each.name, size) for each, size in operation.reduced)
    blocks = reduction in extent and getattr(extent[reduction], "value", 0) > chosen.depth
    given = split_dimension(given, weights.name, column, chosen.panel)
    if blocks:  # panels lie in memory as the loops meet them
        given = split_dimension(given, weights.name, reduction, chosen.depth)
        outside, along = [f"{reduction}_block"], [f"{reduction}_within"]
    else:
        outside, along = [], list(extent)
    others = [each.name for each, _ in weights.axes if each.name not in (*extent, column)]
    given = reorder_dimensions(given, weights.name, (
        *outside, *others, f"{column}_block", *along, f"{column}_within"))
    given = split(fuse(given, nest, "batch", "pos"), nest, "batch_pos", chosen.rows)
    given = split(given, nest, column, chosen.panel)
    loops = [loop.name for loop in given.nest(nest).loops]
    tiles = ["batch_pos_outer", *(name for name in loops if name not in (
        "batch_pos_outer", "batch_pos_inner", f"{column}_inner", reduction))]
    if blocks:
        given = split(given, nest, reduction, chosen.depth)
        tiles.insert(1, f"{reduction}_outer")
        reduction = f"{reduction}_inner"
    tile = ("batch_pos_inner", f"{column}_inner", reduction)
    given = reorder(given, nest, (*tiles, *tile))
    return parallel(offload(given, nest, *tile), nest, "batch_pos_outer")
