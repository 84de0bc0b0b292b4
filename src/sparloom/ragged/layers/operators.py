"""The five operators of multi-head attention as programs of their own, each of which stores its result.

    proj1      qkv[batch, pos, part, head, dim] of tokens          softmax   weights[batch, head, pos, col] of scores
    qkt        scores[batch, head, pos, col] of qkv                attnv     mixed[batch, pos, head, dim] of these
    qkt_fused  the same; tiles of all sequences are one loop       proj2     attended[batch, pos, channel] of mixed

They are for comparisons, in which one operator is looked at by itself; `scheduled_attention` is faster than all of them
together, since its scores never leave the caches.

Source: CoRa §7.2 and §7.4, Figure 23.

Two products of attention on tiles of 64: whole by padding, whole by splitting the operation, of any extent.

    padded   rows (of scores: columns, too) run to the next multiple of 64
    split    whole tiles, and what remains, are operations of their own, one launch after the other
    hfused   those parts at once, in one launch
    exact    the last tile is as large as it is: products of tiles take any extents

    qkt      scores[batch, head, pos, col] of queries[batch, pos, head, dim] and keys[batch, head, dim, col]
    attnv    mixed[batch, pos, head, dim] of weights[batch, head, pos, col] and values[batch, col, head, dim]

Source: CoRa §7.3, Figure 14. Departure: the reduction of attnv is not padded.

The three operators of attention whose scores are stored, by loops alone: for comparisons of how elements are found.

    qkt      scores[batch, head, pos, col] += queries * keys, a row of keys at a time
    softmax  as in `ATTENTION_OPERATORS`
    attnv    mixed[batch, pos, head, dim] += weights * values, a row of values at a time

All of them run over sequences and heads in parallel and end in vector lanes. There are no products of tiles, since
rows found by pointers are not known to be evenly spaced.

Source: CoRa §5.3, whose example the scores are.

Multi-head attention whose scores are padded to tiles of 64, with changes of padding by themselves or within others.

    qkv       of tokens, packed                            weights   softmax of narrow, packed
    wide      of qkv: sequences padded (AddPad)            spread    of weights: rows and columns padded (ChangePad)
    keys      of wide: transposed, padded                  mixed     of spread and wide: rows padded
    scores    of wide and keys: rows and columns padded    packed    of mixed: packed (RemovePad)
    narrow    of scores: packed (ChangePad)                attended  of packed

Where products are offloaded, they read plain tensors, so that what changes the padding of an operand becomes storage:
it is written where the next operator wants it, and what is in padding is never used. Where products are loops of their
own, the condition of AddPad stands in them.

Source: CoRa §7.2, Figures 3 and 12; appendix D.8 (offloaded products and padding).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sparloom.ir import Const, Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    EncoderShape,
    batch,
    channel,
    col,
    dim,
    head,
    model,
    part,
    pos,
)
from sparloom.ragged.program import Program, compute, exp, less, max_over, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, unroll, vectorise
from sparloom.ragged.schedule.operations import hfuse, inline, offload, split_operation
from sparloom.ragged.schedule.storage import pad_loop, pad_storage, reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Tensor

TILE = 64  # tokens
COLUMNS = 16  # columns of weights that lie side by side


@dataclass(frozen=True)
class TokenExtents:
    """How many sequences there are, and how many tokens each has."""

    batches: Expr | int
    tokens: Callable[[Dim], Expr | int]

    @property
    def axes(self) -> dict[Dim, Expr | int]:
        """Dimensions of tokens."""
        return {batch: self.batches, pos: self.tokens(batch)}


def ragged_tokens() -> TokenExtents:
    """Sequences as `LENGTHS` says."""
    return TokenExtents(BATCHES(), lambda sequence: LENGTHS(sequence))


def equal_tokens(batches: int, tokens: int) -> TokenExtents:
    """Sequences of one length that is known when the program is compiled: nothing is ragged."""
    return TokenExtents(batches, lambda sequence: tokens)


def stored_densely(given: Program) -> Program:
    """Store all tensors as if every sequence were as long as the longest; loops stay as they are."""
    for tensor in given.tensors().values():
        varying = [each for each, extent in tensor.axes if each in (pos, col) and not isinstance(extent, Const)]
        if tensor.local is None and varying:
            given = pad_storage(given, tensor.name, full=varying)
    return given


def first_projection(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Proj1, by tiles of a sequence's tokens and panels of weights w_qkv[model, part, head, dim]."""
    x, weights = Tensor("x", {**extents.axes, model: shape.width}), {part: 3, head: shape.heads, dim: shape.head_width}
    w, b = Tensor("w_qkv", {model: shape.width, **weights}), Tensor("b_qkv", weights)
    qkv = compute("qkv", {**extents.axes, **weights}, sum_over(
        {model: shape.width}, x[batch, pos, model] * w[model, part, head, dim]) + b[part, head, dim])
    given = split_dimension(program("proj1", [qkv]), "w_qkv", "dim", COLUMNS)
    given = reorder_dimensions(given, "w_qkv", ("part", "head", "dim_block", "model", "dim_within"))
    given = split(_in_tiles(given, "qkv"), "qkv", "dim", COLUMNS)
    tile = ("pos_inner", "dim_inner", "model")
    given = offload(reorder(given, "qkv", ("part", "head", "dim_outer", *tile)), "qkv", *tile)
    return parallel(given, "qkv", "batch_pos_outer")


def tiled_scores(shape: EncoderShape, extents: TokenExtents) -> Program:
    """QKT, by tiles of queries; a head's keys are transposed first."""
    qkv = _qkv(shape, extents)
    heads, last = {head: shape.heads, dim: shape.head_width}, {col: extents.tokens(batch)}
    keys = compute("keys", {batch: extents.batches, **heads, **last}, qkv[batch, col, 1, head, dim])
    found = compute("scores", {**_rows(shape, extents), **last}, sum_over(
        {dim: shape.head_width}, qkv[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    given = fuse(split(program("qkt", [keys, found]), "scores", "pos", TILE), "scores", "batch", "head")
    given = compute_at(given, "keys", "scores", "batch_head", local=True)
    return parallel(offload(given, "scores", "pos_inner", "col", "dim"), "scores", "batch_head")


def fused_scores(shape: EncoderShape, extents: TokenExtents) -> Program:
    """QKT as on the paper's GPU: sequences and both loops over their tiles are fused, loops and storage are padded.

    A product is a loop along the head, in vector lanes. Every tile asks which sequence it is of, and where.
    """
    qkv = _qkv(shape, extents)
    found = compute("scores", {**_rows(shape, extents), col: extents.tokens(batch)}, sum_over(
        {dim: shape.head_width}, qkv[batch, pos, 0, head, dim] * qkv[batch, col, 1, head, dim]))
    given = pad_storage(program("qkt_fused", [found]), "qkv", {pos: TILE})
    given = pad_storage(given, "scores", {pos: TILE, col: TILE})
    for loop in (pos, col):
        given = split(pad_loop(given, "scores", loop, TILE), "scores", loop.name, TILE)
    given = reorder(given, "scores", ("batch", "pos_outer", "col_outer", "head", "pos_inner", "col_inner", "dim"))
    given = fuse(fuse(given, "scores", "batch", "pos_outer"), "scores", "batch_pos_outer", "col_outer")
    return parallel(vectorise(given, "scores", "dim"), "scores", "batch_pos_outer_col_outer")


def row_softmax(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Softmax of scaled scores, a row at a time."""
    rows, last = _rows(shape, extents), {col: extents.tokens(batch)}
    given = Tensor("scores", {**rows, **last})
    peak = compute("peak", rows, max_over(last, given[batch, head, pos, col]))
    power = compute("power", {**rows, **last}, exp(
        (given[batch, head, pos, col] - peak[batch, head, pos]) * real(shape.head_width**-0.5)))
    total = compute("total", rows, real(1.0) / sum_over(last, power[batch, head, pos, col]))
    weights = compute("weights", {**rows, **last}, power[batch, head, pos, col] * total[batch, head, pos])
    found = fuse(program("softmax", [peak, power, total, weights]), "weights", "batch", "head")
    for producer in ("total", "power", "peak"):
        found = compute_at(found, producer, "weights", "pos", local=True)
    for nest in ("peak", "power", "total", "weights"):
        found = vectorise(found, nest, found.nest(nest).loops[-1].name)
    return parallel(found, "weights", "batch_head")


def tiled_mixing(shape: EncoderShape, extents: TokenExtents) -> Program:
    """AttnV, by tiles of rows of weights."""
    weights, qkv = Tensor("weights", {**_rows(shape, extents), col: extents.tokens(batch)}), _qkv(shape, extents)
    mixed = compute("mixed", {**extents.axes, head: shape.heads, dim: shape.head_width}, sum_over(
        {col: extents.tokens(batch)}, weights[batch, head, pos, col] * qkv[batch, col, 2, head, dim]))
    given = reorder(program("attnv", [mixed]), "mixed", ("batch", "head", "pos"))
    given = fuse(split(given, "mixed", "pos", TILE), "mixed", "batch", "head")
    return parallel(offload(given, "mixed", "pos_inner", "dim", "col"), "mixed", "batch_head")


def second_projection(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Proj2, by tiles of a sequence's tokens and panels of weights w_out[head, dim, channel]."""
    heads = {head: shape.heads, dim: shape.head_width}
    mixed, w = Tensor("mixed", {**extents.axes, **heads}), Tensor("w_out", {**heads, channel: shape.width})
    b = Tensor("b_out", {channel: shape.width})
    attended = compute("attended", {**extents.axes, channel: shape.width}, sum_over(
        heads, mixed[batch, pos, head, dim] * w[head, dim, channel]) + b[channel])
    given = split_dimension(program("proj2", [attended]), "w_out", "channel", COLUMNS)
    given = reorder_dimensions(given, "w_out", ("channel_block", "head", "dim", "channel_within"))
    given = split(_in_tiles(fuse(given, "attended", "head", "dim"), "attended"), "attended", "channel", COLUMNS)
    tile = ("pos_inner", "channel_inner", "head_dim")
    given = offload(reorder(given, "attended", ("channel_outer", *tile)), "attended", *tile)
    return parallel(given, "attended", "batch_pos_outer")


ATTENTION_OPERATORS: Mapping[str, Callable[[EncoderShape, TokenExtents], Program]] = MappingProxyType({
    "proj1": first_projection, "qkt": tiled_scores, "qkt_fused": fused_scores, "softmax": row_softmax,
    "attnv": tiled_mixing, "proj2": second_projection})
"""Scheduled for a CPU."""


def _qkv(shape: EncoderShape, extents: TokenExtents) -> Tensor:
    return Tensor("qkv", {**extents.axes, part: 3, head: shape.heads, dim: shape.head_width})


def _rows(shape: EncoderShape, extents: TokenExtents) -> dict[Dim, Expr | int]:
    return {batch: extents.batches, head: shape.heads, pos: extents.tokens(batch)}


def _in_tiles(given: Program, nest: str) -> Program:
    """Tiles of sequences as one loop, the outermost."""
    return fuse(split(given, nest, "pos", TILE), nest, "batch", "pos_outer")


Schedule = Callable[[Program], Program]


def scores(shape: EncoderShape) -> Program:
    """Define QKT, unscheduled."""
    queries = Tensor("queries", {batch: BATCHES(), pos: LENGTHS(batch), head: shape.heads, dim: shape.head_width})
    keys = Tensor("keys", {batch: BATCHES(), head: shape.heads, dim: shape.head_width, col: LENGTHS(batch)})
    return program("qkt", [compute(
        "scores", {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch), col: LENGTHS(batch)},
        sum_over({dim: shape.head_width}, queries[batch, pos, head, dim] * keys[batch, head, dim, col]))])


def mixing(shape: EncoderShape) -> Program:
    """Define AttnV, unscheduled but for the order of its loops."""
    weights = Tensor("weights", {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch), col: LENGTHS(batch)})
    values = Tensor("values", {batch: BATCHES(), col: LENGTHS(batch), head: shape.heads, dim: shape.head_width})
    given = program("attnv", [compute(
        "mixed", {batch: BATCHES(), pos: LENGTHS(batch), head: shape.heads, dim: shape.head_width},
        sum_over({col: LENGTHS(batch)}, weights[batch, head, pos, col] * values[batch, col, head, dim]))])
    return reorder(given, "mixed", ("batch", "head", "pos"))


SPLIT_OPERATORS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType(
    {"qkt": scores, "attnv": mixing})


def padded_tiles(given: Program) -> Program:
    """Pad loops and storage to whole tiles."""
    nest = given.outputs[0]
    for tensor in given.tensors().values():
        tiled = {each: TILE for each in _tiled(given) if each in dict(tensor.axes)}
        given = pad_storage(given, tensor.name, tiled)
    for each in _tiled(given):
        given = pad_loop(given, nest, each, TILE)
    return _on_tiles(given, nest)


def split_tiles(given: Program) -> Program:
    """Split the operation where whole tiles end, in every dimension that is tiled."""
    nests = [given.outputs[0]]
    for each in _tiled(given):
        for nest in nests:
            given = split_operation(given, nest, each, multiple=TILE)
        nests = [f"{nest}_{part}" for nest in nests for part in ("main", "rest")]
    for nest in nests:
        given = _on_tiles(given, nest)
    return given


def fused_tiles(given: Program) -> Program:
    """Run the parts of the operation in one launch."""
    given = split_tiles(given)
    return hfuse(given, [nest.name for nest in given.nests()])


def exact_tiles(given: Program) -> Program:
    """Leave the last tile of a sequence as it is."""
    return _on_tiles(given, given.outputs[0])


SPLIT_ARMS: Mapping[str, Schedule] = MappingProxyType(
    {"padded": padded_tiles, "split": split_tiles, "hfused": fused_tiles, "exact": exact_tiles})
"""Schedules of either operator."""


def _tiled(given: Program) -> list[Dim]:
    """Loops of the result whose extents vary."""
    return [each for each, _ in given.nest(given.outputs[0]).operation.output.axes if each in (pos, col)]


def _on_tiles(given: Program, nest: str) -> Program:
    """Sequences and heads in parallel, rows in tiles, a tile by the routine for products."""
    rows = given.nest(nest).loops[2].name
    given = fuse(given, nest, "batch", "head")
    if not rows.endswith("_rest"):
        given = split(given, nest, rows, TILE)
    return parallel(offload(given, nest, *(loop.name for loop in given.nest(nest).loops[-3:])), nest, "batch_head")


def looped_scores(shape: EncoderShape) -> Program:
    """QKT."""
    return _by_rows(SPLIT_OPERATORS["qkt"](shape), "scores", ("batch", "head", "pos", "dim", "col"))


def looped_softmax(shape: EncoderShape) -> Program:
    """Softmax of scaled scores."""
    return ATTENTION_OPERATORS["softmax"](shape, ragged_tokens())


def looped_mixing(shape: EncoderShape) -> Program:
    """AttnV."""
    return _by_rows(SPLIT_OPERATORS["attnv"](shape), "mixed", ("batch", "head", "pos", "col", "dim"))


ATTENTION_LOOPS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType(
    {"qkt": looped_scores, "softmax": looped_softmax, "attnv": looped_mixing})
"""Scheduled for a CPU."""


def _by_rows(given: Program, nest: str, order: tuple[str, ...]) -> Program:
    given = vectorise(reorder(given, nest, order), nest, order[-1])
    return parallel(fuse(given, nest, *order[:2]), nest, "_".join(order[:2]))


REGISTERS = (8, 32)  # rows and columns that a compiler keeps in registers
PADDING_CHANGES = ("wide", "narrow", "spread", "packed")
PADDING: Mapping[str, Mapping[Dim, int]] = MappingProxyType({
    "wide": {pos: TILE}, "keys": {col: TILE}, "scores": {pos: TILE, col: TILE}, "spread": {pos: TILE, col: TILE},
    "mixed": {pos: TILE}})

Added = Callable[[Dim, Expr], Expr]


def separate_products(shape: EncoderShape) -> Program:
    """Changes of padding are operators; products are offloaded."""
    given = _padded(_defined(shape, _zeros_beyond), PADDING)
    for name, loops in (("wide", (pos,)), ("keys", (col,)), ("spread", (pos, col))):
        for loop in loops:
            given = pad_loop(given, name, loop, TILE)
    given = _projections(given, _of_all_tokens)
    return _changes(_schedule_softmax(_offloaded(given)))


def inlined_products(shape: EncoderShape) -> Program:
    """Results are stored with the padding that the next operator wants; products are offloaded."""
    padding = {**PADDING, "qkv": PADDING["wide"], "weights": PADDING["spread"]}
    given = _padded(_defined(shape, lambda _, value: value), padding)
    for name in PADDING_CHANGES:
        given = inline(given, name)
    given = _projections(given, _of_each_sequence)
    return _changes(_schedule_softmax(_offloaded(given)))


def separate_loops(shape: EncoderShape) -> Program:
    """Changes of padding are operators; products within the attention are generated loops."""
    given = _padded(_defined(shape, _zeros_beyond), PADDING)
    for name, loops in (("wide", (pos,)), ("keys", (col,)), ("spread", (pos, col))):
        for loop in loops:
            given = pad_loop(given, name, loop, TILE)
    given = _projections(given, _of_all_tokens)
    return _changes(_schedule_softmax(_in_registers(given)))


def inlined_loops(shape: EncoderShape) -> Program:
    """Loops that read padding ask whether they do."""
    given = _padded(_defined(shape, _zeros_beyond), PADDING)
    for name in PADDING_CHANGES:
        given = inline(given, name)
    given = _projections(pad_loop(given, "keys", col, TILE), _of_each_sequence)
    return _changes(_schedule_softmax(_in_registers(given)))


PADDED_ATTENTION: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType({
    "separate_products": separate_products, "inlined_products": inlined_products, "separate_loops": separate_loops,
    "inlined_loops": inlined_loops})
"""Scheduled for a CPU; tensors as of `attention`."""


def _zeros_beyond(place: Dim, value: Expr) -> Expr:
    return where(less(place, LENGTHS(batch)), value, real(0.0))


def _defined(shape: EncoderShape, added: Added) -> Program:
    """Args: added: a value where there is an element, and what AddPad puts elsewhere."""
    tokens: dict[Dim, Expr | int] = {batch: BATCHES(), pos: LENGTHS(batch)}
    rows: dict[Dim, Expr | int] = {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch)}
    heads, last = {head: shape.heads, dim: shape.head_width}, {col: LENGTHS(batch)}
    x, w_qkv = Tensor("x", {**tokens, model: shape.width}), Tensor("w_qkv", {model: shape.width, part: 3, **heads})
    b_qkv, w_out = Tensor("b_qkv", {part: 3, **heads}), Tensor("w_out", {**heads, channel: shape.width})
    b_out = Tensor("b_out", {channel: shape.width})
    qkv = compute("qkv", {**tokens, part: 3, **heads}, sum_over(
        {model: shape.width}, x[batch, pos, model] * w_qkv[model, part, head, dim]) + b_qkv[part, head, dim])
    wide = compute("wide", {**tokens, part: 3, **heads}, added(pos, qkv[batch, pos, part, head, dim]))
    keys = compute("keys", {batch: BATCHES(), **heads, **last}, added(col, wide[batch, col, 1, head, dim]))
    scores = compute("scores", {**rows, **last}, sum_over(
        {dim: shape.head_width}, wide[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    narrow = compute("narrow", {**rows, **last}, scores[batch, head, pos, col])
    peak = compute("peak", rows, max_over(last, narrow[batch, head, pos, col]))
    power = compute("power", {**rows, **last}, exp(
        (narrow[batch, head, pos, col] - peak[batch, head, pos]) * real(shape.head_width**-0.5)))
    total = compute("total", rows, real(1.0) / sum_over(last, power[batch, head, pos, col]))
    weights = compute("weights", {**rows, **last}, power[batch, head, pos, col] * total[batch, head, pos])
    spread = compute("spread", {**rows, **last}, added(pos, added(col, weights[batch, head, pos, col])))
    mixed = compute("mixed", {**tokens, **heads}, sum_over(
        last, spread[batch, head, pos, col] * wide[batch, col, 2, head, dim]))
    packed = compute("packed", {**tokens, **heads}, mixed[batch, pos, head, dim])
    attended = compute("attended", {**tokens, channel: shape.width}, sum_over(
        heads, packed[batch, pos, head, dim] * w_out[head, dim, channel]) + b_out[channel])
    return program("padded_attention", [qkv, wide, keys, scores, narrow, peak, power, total, weights, spread, mixed,
                                        packed, attended])


def _padded(given: Program, padding: Mapping[str, Mapping[Dim, int]]) -> Program:
    """Pad storage, then the loops of both products."""
    for name, multiples in padding.items():
        given = pad_storage(given, name, multiples)
    for name, loop in (("scores", pos), ("scores", col), ("mixed", pos)):
        given = pad_loop(given, name, loop, TILE)
    return reorder(given, "mixed", ("batch", "head", "pos"))


def _projections(given: Program, tiled: Callable[[Program, str], Program]) -> Program:
    """Both by tiles of tokens and panels of weights."""
    given = split_dimension(split_dimension(given, "w_qkv", "dim", COLUMNS), "w_out", "channel", COLUMNS)
    given = reorder_dimensions(given, "w_qkv", ("part", "head", "dim_block", "model", "dim_within"))
    given = reorder_dimensions(given, "w_out", ("channel_block", "head", "dim", "channel_within"))
    given = fuse(given, "attended", "head", "dim")
    for nest, column, others, depth in (("qkv", "dim", ("part", "head"), "model"),
                                        ("attended", "channel", (), "head_dim")):
        given = split(tiled(given, nest), nest, column, COLUMNS)
        outer, inner = (loop.name for loop in given.nest(nest).loops[:2])
        tile = (inner, f"{column}_inner", depth)
        given = reorder(given, nest, (*others, f"{column}_outer", *tile))
        given = parallel(offload(given, nest, *tile), nest, outer)
    return given


def _of_all_tokens(given: Program, nest: str) -> Program:
    return split(fuse(given, nest, "batch", "pos"), nest, "batch_pos", TILE)


def _of_each_sequence(given: Program, nest: str) -> Program:
    return fuse(split(given, nest, "pos", TILE), nest, "batch", "pos_outer")


def _offloaded(given: Program) -> Program:
    for nest in ("scores", "mixed"):
        given = fuse(split(given, nest, "pos", TILE), nest, "batch", "head")
        tile = (loop.name for loop in given.nest(nest).loops[-3:])
        given = parallel(offload(given, nest, *tile), nest, "batch_head")
    return given


def _in_registers(given: Program) -> Program:
    rows, cols = REGISTERS
    for nest, column, depth in (("scores", "col", "dim"), ("mixed", "dim", "col")):
        given = fuse(split(split(given, nest, "pos", rows), nest, column, cols), nest, "batch", "head")
        given = reorder(given, nest, ("pos_outer", f"{column}_outer", depth, "pos_inner", f"{column}_inner"))
        given = vectorise(unroll(given, nest, "pos_inner"), nest, f"{column}_inner")
        given = parallel(given, nest, "batch_head")
    return given


def _schedule_softmax(given: Program) -> Program:
    """A row at a time."""
    given = fuse(given, "weights", "batch", "head")
    for producer in ("total", "power", "peak"):
        given = compute_at(given, producer, "weights", "pos", local=True)
    for nest in ("peak", "power", "total", "weights"):
        given = vectorise(given, nest, given.nest(nest).loops[-1].name)
    return parallel(given, "weights", "batch_head")


def _changes(given: Program) -> Program:
    """Copies, with the transposition of the keys: along the last dimension in vector lanes."""
    there = {nest.name for nest in given.nests()}
    for nest in (each for each in (*PADDING_CHANGES, "keys") if each in there):
        first, second = (loop.name for loop in given.nest(nest).loops[:2])
        given = parallel(fuse(given, nest, first, second), nest, f"{first}_{second}")
        given = given if nest == "keys" else vectorise(given, nest, given.nest(nest).loops[-1].name)
    return given
