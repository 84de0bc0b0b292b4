"""Batches of token sequences, and what all layers share: dimensions, sizes, schedules, projections, dropout.

Gradients of a projection of all tokens, out[token, o] = sum_i in[token, i] w[i, o] + b[o]; that of `in` is itself a
projection, of d_out by w as PyTorch stores it:

    d_w[o, i] = sum over tokens of d_out[token, o] in[token, i]       tiles of o and i, in parallel
    d_b[o]    = sum over tokens of d_out[token, o]                    strips of o, in parallel

Source: CoRa §5.1 (reductions over a fused vloop). Departure: CoRa has no gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparloom.ir import DTYPES, F64, I64, Cast, Expr, interleaved_rows
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.nests import Operation, Program, compute, less, real, sum_over, where
from sparloom.ragged.schedule.loops import (
    fuse,
    fuse_neighbours,
    parallel,
    reorder,
    split,
    vectorise,
    vectorise_innermost,
)
from sparloom.ragged.schedule.operations import PANEL, offload, pad_storage, reorder_dimensions, split_dimension
from sparloom.ragged.structure import Structure, length_vector
from sparloom.ragged.tensor import Length, Tensor

batch, pos, col, model, part, head, dim, channel, hidden = dims("batch pos col model part head dim channel hidden")
BATCHES = Length("batches")
LENGTHS = Length("lengths", {batch: BATCHES()})
"""Lengths of the sequences of a batch."""
TOKENS: Mapping[Dim, Expr | int] = {batch: BATCHES(), pos: LENGTHS(batch)}
"""Dimensions of packed tokens: sequence, and position in it."""
MEMORY_LENGTHS = Length("memory_lengths", {batch: BATCHES()})
"""Lengths of the sequences of another batch, to whose tokens those of a batch attend."""
MEMORY: Mapping[Dim, Expr | int] = {batch: BATCHES(), pos: MEMORY_LENGTHS(batch)}
"""Dimensions of its tokens."""
LINE, SAME_SET = 64, 4096  # bytes of a cache line, and between those that share a set of the L1 cache
TILE = (48, 256)  # rows and columns of a task of the gradient of weights
WORD, SPREAD, INCREMENT = 1 << 31, 2_654_435_761, 1_013_904_223  # of the random bits of `drop`
ROUNDS = ((747_796_405, 1 << 15), (277_803_737, 1 << 13))
CACHED_STRUCTURES = 16  # the layers of a model request the same one in turn


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a layer.

    Args:
        width: columns of a token.
        heads: number of heads, of queries; divides the width.
        hidden: width of the feed-forward network.
        epsilon: added to variances in norms.
        causal: tokens attend to themselves and earlier ones only.
        step: causal scores are computed up to the next multiple of it, and masked beyond the diagonal: triangles of
            tiles.
            Default: the tile of queries of the schedule.
        triangles: if False, all causal scores are computed, and masked, as in other libraries.
        activation: of the feed-forward network, one of ACTIVATIONS.
        gated: the activation is multiplied by a second projection of the tokens.
        norm: "layer"; "rms": without subtracting means; "rms_centred": that, and gains are added to 1.
        norm_first: tokens are normalised before attention and before the feed-forward network, not after the sums.
        first_norm: if norms come first, whether there is one before attention.
        sum_norms: if norms come first, what attention and the feed-forward network add is normalised, too.
        head: columns of a head; None: the width over the number of heads.
        key_heads: heads of keys and values, each for as many neighbouring heads of queries; divides `heads`. Queries
            have a projection of their own then. None: as many as heads, and one projection to all three.
        head_norms: queries and keys are normalised head by head, without subtracting means, before they are rotated.
        scale: factor of scores; None: one over the square root of the width of a head.
        rotary: leading columns of queries and keys that are rotated by the position of their token, an even number.
        window: tokens attend to others up to so many positions away; None: to all.
        distances: scores get an addend of a table by head and distance, up to this distance and for all beyond it;
            None: none.
        cross: tokens attend to those of another batch, of as many sequences, which is called the memory.
        masked: tokens attend to themselves and to those others only that a mask names; in the memory to these alone.
        precision: of the operands of products with weights, and in bfloat16 of those of attention: "float32",
            "bfloat16" or "int8", see `sparloom.ragged.layers.precision`.
        dropout: probabilities, at most 1, of dropout of weights of attention, of what attention adds to tokens, of the
            hidden columns, and of what the feed-forward network adds.
    """

    width: int = 512
    heads: int = 8
    hidden: int = 2048
    epsilon: float = 1e-5
    causal: bool = False
    step: int | None = None
    triangles: bool = True
    activation: str = "relu"
    gated: bool = False
    norm: str = "layer"
    norm_first: bool = False
    first_norm: bool = True
    sum_norms: bool = False
    head: int | None = None
    key_heads: int | None = None
    head_norms: bool = False
    scale: float | None = None
    rotary: int = 0
    window: int | None = None
    distances: int | None = None
    cross: bool = False
    masked: bool = False
    precision: str = "float32"
    dropout: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @property
    def keys(self) -> Expr:
        """Number of the keys of a sequence."""
        return MEMORY_LENGTHS(batch) if self.cross else LENGTHS(batch)

    @property
    def of_heads(self) -> dict[Dim, Expr | int]:
        """Dimensions of a column of every head."""
        return {head: self.heads, dim: self.head_width}

    @property
    def of_parts(self) -> dict[Dim, Expr | int]:
        """Dimensions of queries, keys and values."""
        return {part: 3, **self.of_heads}

    @property
    def of_keys(self) -> dict[Dim, Expr | int]:
        """Dimensions of keys and values, where queries have a projection of their own."""
        return {part: 2, head: self.key_heads or self.heads, dim: self.head_width}

    @property
    def head_width(self) -> int:
        return self.head or self.width // self.heads

    @property
    def score_scale(self) -> float:
        return self.head_width**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True)
class EncoderSchedule:
    """Parameters of a schedule, for search.

    Args:
        rows: rows of a tile of tokens.
        panel: contiguous columns: of weights, keys, and elements of values.
        depth: largest part of the reduction after which a tile of rows moves on to the next panel.
        queries: rows of a tile of attention.
        shared_panels: threads share the panels of weights of a product, so many consecutive ones at a time, which are
            read ahead; 0: they share the tiles of tokens, of which small batches have few.
    """

    rows: int = 48
    panel: int = PANEL
    depth: int = 512
    queries: int = 64
    shared_panels: int = 0


def structure_of(lengths: np.ndarray | Sequence[int], memory: np.ndarray | Sequence[int] | None = None) -> Structure:
    """Return the structure of a batch; the same object while these lengths are among the last 16 requested.

    Args:
        lengths: (batch,) integers of at least 0.
        memory: lengths of the batch that it attends to, if any, as many.

    Raises:
        TypeError: lengths are not numbers.
        ValueError: lengths are not a vector of integers, or are negative, or there are not as many of both.
    """
    given = (lengths,) if memory is None else (lengths, memory)
    vectors = [length_vector(each).astype(np.int64) for each in given]
    if vectors[0].size != vectors[-1].size:
        raise ValueError(f"{vectors[0].size} sequences attend to {vectors[-1].size}: pass as many")
    return _structure(*[each.tobytes() for each in vectors])


def tokens_of(structure: Structure) -> int:
    """Count the tokens of a batch."""
    if not isinstance(structure, Structure):
        raise TypeError(f"structure of type {type(structure).__name__}: give structure_of(lengths)")
    return int(np.sum(structure.table(LENGTHS)))


@lru_cache(maxsize=CACHED_STRUCTURES)
def _structure(lengths: bytes, memory: bytes | None = None) -> Structure:
    vectors = {LENGTHS: lengths} | ({} if memory is None else {MEMORY_LENGTHS: memory})
    return Structure({length: np.frombuffer(entries, np.int64) for length, entries in vectors.items()})


def fuse_reduction(prog: Program, nest: str) -> tuple[Program, str]:
    """Fuse the loops of a reduction, the last ones of an unscheduled nest; also return the name of the fused loop."""
    loops = prog.nest(nest).loops
    count = sum(loop.reduces for loop in loops)
    return fuse_neighbours(prog, nest, len(loops) - count, count)


def schedule_linear(prog: Program, nest: str, column: str, reduction: str, schedule: EncoderSchedule) -> Program:
    """Schedule a product of all tokens and weights w_..: tiles of rows, panels of columns."""
    operation = prog.nest(nest).operation
    weights = next(read.tensor for read in operation.reads if read.tensor.name.startswith("w_"))
    extent = dict((each.name, size) for each, size in operation.reduced)
    group = interleaved_rows(weights.type.scalar)  # partial sums of interleaved rows are not stored
    count = getattr(extent.get(reduction), "value", 0)
    blocks = group == 1 and count > schedule.depth
    depth = -(-count // -(-count // schedule.depth)) if blocks else count  # of equal blocks
    prog = split_dimension(prog, weights.name, column, schedule.panel)
    outside, along, last = [], list(extent), [f"{column}_within"]
    if blocks:  # store panels in the order in which loops access them
        prog = split_dimension(prog, weights.name, reduction, depth)
        outside, along = [f"{reduction}_block"], [f"{reduction}_within"]
    elif group > 1:
        *before, innermost = along
        prog = split_dimension(prog, weights.name, innermost, group)
        along, last = [*before, f"{innermost}_block"], [*last, f"{innermost}_within"]
    others = [each.name for each, _ in weights.axes if each.name not in (*extent, column)]
    prog = reorder_dimensions(prog, weights.name, (*outside, *others, f"{column}_block", *along, *last))
    prog = split(fuse(prog, nest, "batch", "pos"), nest, "batch_pos", schedule.rows)
    prog = split(prog, nest, column, schedule.panel)
    loops = [loop.name for loop in prog.nest(nest).loops]
    panels = [name for name in loops if name not in (
        "batch_pos_outer", "batch_pos_inner", f"{column}_inner", reduction)]
    outer = ["batch_pos_outer"]
    if blocks:
        prog = split(prog, nest, reduction, depth)
        outer.append(f"{reduction}_outer")
        reduction = f"{reduction}_inner"
    tile = ("batch_pos_inner", f"{column}_inner", reduction)
    prog = reorder(prog, nest, (*panels, *outer, *tile) if schedule.shared_panels else (*outer, *panels, *tile))
    prog, shared = offload(prog, nest, *tile), "batch_pos_outer"
    if schedule.shared_panels:
        prog, shared = fuse_neighbours(prog, nest, 0, len(panels))
    return parallel(prog, nest, shared, chunk=max(schedule.shared_panels, 1))


def spread_rows(prog: Program, *names: str) -> Program:
    """Leave a gap of a cache line between rows of intermediate results that would all begin in one set of the L1 cache.

    There are more rows in a tile of a product than lines in a set.

    Args:
        names: of results, which need not exist.
    """
    tensors = prog.tensors()
    for name in (each for each in names if each in tensors and each not in prog.outputs):
        last, extent = tensors[name].axes[-1]
        size = np.dtype(DTYPES[tensors[name].type.scalar]).itemsize
        if extent.value * size % SAME_SET == 0:
            prog = pad_storage(prog, name, {last: extent.value + LINE // size})
    return prog


def drop(shape: EncoderShape, place: int, row: Dim, index: Expr, value: Expr) -> Expr:
    """Apply dropout to a value that has an index in the row of a token.

    Which values are dropped depends on random[batch, row], a random number of 31 bits, the place and the index only, so
    it is the same in all schedules and in gradients. The bits are mixed by rounds of x (2 x + 1), one to one in whole
    words and not linear, a sum of upper and lower bits, and a step of a linear congruential generator.

    Source: Rivest et al. 1998 (RC6), for x (2 x + 1).

    Args:
        place: index of the probability in `shape.dropout`.
    """
    share = shape.dropout[place]
    if not share:
        return value
    bits = (Cast(I64, Tensor("random", TOKENS, F64)[batch, row]) + (index * SPREAD + place * INCREMENT)) % WORD
    for factor, shift in ROUNDS:
        bits = bits * (bits * 2 + 1) % WORD
        bits = ((bits + bits // shift) % WORD * factor + INCREMENT) % WORD
    bits = bits * (bits * 2 + 1) % WORD
    return where(less(bits, int(share * WORD)), real(0.0), value * real(1 / (1 - share) if share < 1 else 0.0))


def schedule_elementwise(prog: Program, nest: str, *, chunk: int = 16) -> Program:
    """Schedule an element-wise operation on tokens: a token at a time."""
    return vectorise_innermost(parallel(fuse(prog, nest, "batch", "pos"), nest, "batch_pos", chunk=chunk), nest)


def sum_over_tokens(name: str, axes: Mapping[Dim, Expr | int], value: Expr) -> Operation:
    """Define the sum of a value over all tokens."""
    return compute(name, axes, sum_over(TOKENS, value))


def schedule_weight_gradient(prog: Program, nest: str, outs: int, *, tile: tuple[int, int]) -> Program:
    """Schedule the gradient of weights: a product that reduces over all tokens.

    Args:
        outs: number of leading dimensions that belong to `out`; the others belong to `in`.
        tile: rows and columns of a task.
    """
    prog, out = fuse_neighbours(prog, nest, 0, outs)
    prog, into = fuse_neighbours(prog, nest, 1, len(prog.nest(nest).loops) - 3)
    prog = fuse(prog, nest, "batch", "pos")
    prog = split(split(prog, nest, out, tile[0]), nest, into, tile[1])
    dense = (f"{out}_inner", f"{into}_inner", "batch_pos")
    prog = reorder(prog, nest, (f"{out}_outer", f"{into}_outer", *dense))
    prog, tasks = fuse_neighbours(prog, nest, 0, 2)
    return parallel(offload(prog, nest, *dense), nest, tasks)


def schedule_parameter_gradients(prog: Program, outs: Mapping[str, int]) -> Program:
    """Schedule the gradients d_w_.. and d_b_.. of projections, by name; see `schedule_weight_gradient` for `outs`."""
    for name, count in outs.items():
        prog = schedule_weight_gradient(prog, f"d_w_{name}", count, tile=TILE)
        prog = schedule_token_sum(prog, f"d_b_{name}")
    return prog


def schedule_token_sum(prog: Program, nest: str, *, cols: int = 64) -> Program:
    """Schedule a sum over all tokens, in strips of `cols` columns of the last dimension."""
    *before, last = (loop.name for loop in prog.nest(nest).loops[:-2])
    prog = split(fuse(prog, nest, "batch", "pos"), nest, last, cols)
    prog = reorder(prog, nest, (*before, f"{last}_outer", "batch_pos", f"{last}_inner"))
    prog, strips = fuse_neighbours(prog, nest, 0, len(before) + 1)
    return vectorise(parallel(prog, nest, strips), nest, f"{last}_inner")
