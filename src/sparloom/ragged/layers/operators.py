"""Single operators of multi-head attention, in the variants that the paper compares.

    proj1      qkv[batch, pos, part, head, dim] of tokens          softmax   weights[batch, head, pos, col] of scores
    qkt        scores[batch, head, pos, col] of qkv                attnv     mixed[batch, pos, head, dim] of weights
    qkt_fused  the same, tiles of all sequences in one loop        proj2     attended[batch, pos, channel] of mixed

`ATTENTION_OPERATORS` store their results, so that one operator can be measured alone; `scheduled_attention` is faster
than all of them together, since its scores never leave the caches. `SPLIT_ARMS` of qkt and attnv differ in how they
treat the ends of sequences.

`ATTENTION_LOOPS` use plain loops instead of tile products, since rows found by pointers are not known to be evenly
spaced: a row of keys or values at a time, in parallel over sequences and heads, innermost loops in vector lanes.

`PADDED_ATTENTION` is whole attention whose scores are padded to tiles of 64, with changes of padding as operators or
inlined:

    qkv       of tokens, packed                            weights   softmax of narrow, packed
    wide      of qkv: sequences padded (AddPad)            spread    of weights: rows and columns padded (ChangePad)
    keys      of wide: transposed, padded                  mixed     of spread and wide: rows padded
    scores    of wide and keys: rows and columns padded    packed    of mixed: packed (RemovePad)
    narrow    of scores: packed (ChangePad)                attended  of packed

Offloaded products read plain tensors, so an inlined change of padding becomes storage: the operand is written where the
next operator reads it, and values in padding are never used. Products that are loops contain the condition of AddPad.

Source: CoRa §5.3; §7.2 to §7.4, Figures 3, 12, 14 and 23; appendix D.8 (offloaded products and padding). Departure: the
reduction of attnv is not padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sparloom.ir import Const, Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.layers.attention import define_output_projection, define_qkv
from sparloom.ragged.layers.norms import define_softmax
from sparloom.ragged.layers.precision import Operand
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    TOKENS,
    EncoderShape,
    batch,
    col,
    dim,
    head,
    part,
    pos,
)
from sparloom.ragged.nests import Program, compute, less, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, unroll, vectorise, vectorise_innermost
from sparloom.ragged.schedule.operations import (
    hfuse,
    inline,
    offload,
    offload_innermost,
    pad_all,
    pad_loop,
    pad_storage,
    reorder_dimensions,
    split_dimension,
    split_operation,
)
from sparloom.ragged.tensor import Tensor

TILE = 64  # tokens
COLUMNS = 16  # contiguous columns of weights
REGISTERS = (8, 32)  # rows and columns that a compiler keeps in registers
PADDING_CHANGES = ("wide", "narrow", "spread", "packed")
"""Operators that change the padding of scores."""
PADDING: Mapping[str, Mapping[Dim, int]] = MappingProxyType({
    "wide": {pos: TILE}, "keys": {col: TILE}, "scores": {pos: TILE, col: TILE}, "spread": {pos: TILE, col: TILE},
    "mixed": {pos: TILE}})

Schedule = Callable[[Program], Program]


@dataclass(frozen=True)
class TokenExtents:
    """Number of sequences, and number of tokens of each."""

    batches: Expr | int
    tokens: Callable[[Dim], Expr | int]

    @property
    def axes(self) -> dict[Dim, Expr | int]:
        """Dimensions of tokens."""
        return {batch: self.batches, pos: self.tokens(batch)}


def ragged_tokens() -> TokenExtents:
    """Return extents given by `LENGTHS`."""
    return TokenExtents(BATCHES(), lambda sequence: LENGTHS(sequence))


def equal_tokens(batches: int, tokens: int) -> TokenExtents:
    """Return constant extents, known when the program is compiled: nothing is ragged."""
    return TokenExtents(batches, lambda sequence: tokens)


def stored_densely(prog: Program) -> Program:
    """Store all tensors as if every sequence were as long as the longest; loops stay as they are."""
    for tensor in prog.tensors().values():
        varying = [each for each, extent in tensor.axes if each in (pos, col) and not isinstance(extent, Const)]
        if tensor.local is None and varying:
            prog = pad_storage(prog, tensor.name, full=varying)
    return prog


def first_projection(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Schedule proj1 by tiles of a sequence's tokens and panels of weights w_qkv[model, part, head, dim]."""
    return _schedule_projection(program("proj1", [define_qkv(shape, extents.axes)]), "qkv", _tiles_of_sequences)


def tiled_scores(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Schedule qkt by tiles of queries; the keys of a head are transposed first."""
    qkv = _qkv(shape, extents)
    heads, last = {head: shape.heads, dim: shape.head_width}, {col: extents.tokens(batch)}
    keys = compute("keys", {batch: extents.batches, **heads, **last}, qkv[batch, col, 1, head, dim])
    found = compute("scores", {**_rows(shape, extents), **last}, sum_over(
        {dim: shape.head_width}, qkv[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    prog = fuse(split(program("qkt", [keys, found]), "scores", "pos", TILE), "scores", "batch", "head")
    prog = compute_at(prog, "keys", "scores", "batch_head", local=True)
    return parallel(offload_innermost(prog, "scores"), "scores", "batch_head")


def fused_scores(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Schedule qkt as on the paper's GPU: fuse sequences and both loops over their tiles, pad loops and storage.

    A dot product is a loop along the head, in vector lanes. Every tile looks up its sequence and its position there.
    """
    qkv = _qkv(shape, extents)
    found = compute("scores", {**_rows(shape, extents), col: extents.tokens(batch)}, sum_over(
        {dim: shape.head_width}, qkv[batch, pos, 0, head, dim] * qkv[batch, col, 1, head, dim]))
    tile = {pos: TILE, col: TILE}
    prog = pad_all(program("qkt_fused", [found]), {"qkv": {pos: TILE}, "scores": tile}, "scores", tile)
    prog = split(split(prog, "scores", "pos", TILE), "scores", "col", TILE)
    prog = reorder(prog, "scores", ("batch", "pos_outer", "col_outer", "head", "pos_inner", "col_inner", "dim"))
    prog = fuse(fuse(prog, "scores", "batch", "pos_outer"), "scores", "batch_pos_outer", "col_outer")
    return parallel(vectorise(prog, "scores", "dim"), "scores", "batch_pos_outer_col_outer")


def row_softmax(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Schedule the softmax of scaled scores, a row at a time."""
    axes = {**_rows(shape, extents), col: extents.tokens(batch)}
    return _schedule_softmax(program("softmax", define_softmax(
        Tensor("scores", axes), axes, col, scale=shape.head_width**-0.5)))


def tiled_mixing(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Schedule attnv by tiles of rows of weights."""
    weights, qkv = Tensor("weights", {**_rows(shape, extents), col: extents.tokens(batch)}), _qkv(shape, extents)
    mixed = compute("mixed", {**extents.axes, head: shape.heads, dim: shape.head_width}, sum_over(
        {col: extents.tokens(batch)}, weights[batch, head, pos, col] * qkv[batch, col, 2, head, dim]))
    return _multiply_in_tiles(reorder(program("attnv", [mixed]), "mixed", ("batch", "head", "pos")), "mixed")


def second_projection(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Schedule proj2 by tiles of a sequence's tokens and panels of weights w_out[head, dim, channel]."""
    mixed = Tensor("mixed", {**extents.axes, head: shape.heads, dim: shape.head_width})
    prog = program("proj2", [define_output_projection(shape, Operand(mixed), extents.axes)])
    return _schedule_projection(prog, "attended", _tiles_of_sequences)


ATTENTION_OPERATORS: Mapping[str, Callable[[EncoderShape, TokenExtents], Program]] = MappingProxyType({
    "proj1": first_projection, "qkt": tiled_scores, "qkt_fused": fused_scores, "softmax": row_softmax,
    "attnv": tiled_mixing, "proj2": second_projection})
"""Operators scheduled for a CPU."""


def scores(shape: EncoderShape) -> Program:
    """Define qkt of queries[batch, pos, head, dim] and keys[batch, head, dim, col], unscheduled."""
    queries = Tensor("queries", {**TOKENS, head: shape.heads, dim: shape.head_width})
    keys = Tensor("keys", {batch: BATCHES(), head: shape.heads, dim: shape.head_width, col: LENGTHS(batch)})
    return program("qkt", [compute(
        "scores", {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch), col: LENGTHS(batch)},
        sum_over({dim: shape.head_width}, queries[batch, pos, head, dim] * keys[batch, head, dim, col]))])


def mixing(shape: EncoderShape) -> Program:
    """Define attnv of weights[batch, head, pos, col] and values[batch, col, head, dim], with loops in their order."""
    weights = Tensor("weights", {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch), col: LENGTHS(batch)})
    values = Tensor("values", {batch: BATCHES(), col: LENGTHS(batch), head: shape.heads, dim: shape.head_width})
    prog = program("attnv", [compute(
        "mixed", {**TOKENS, head: shape.heads, dim: shape.head_width},
        sum_over({col: LENGTHS(batch)}, weights[batch, head, pos, col] * values[batch, col, head, dim]))])
    return reorder(prog, "mixed", ("batch", "head", "pos"))


SPLIT_OPERATORS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType({"qkt": scores, "attnv": mixing})
"""Definitions for `SPLIT_ARMS`."""


def padded_tiles(prog: Program) -> Program:
    """Pad loops and storage to whole tiles."""
    nest, loops = prog.outputs[0], {each: TILE for each in _variable_loops(prog)}
    tensors = {name: {each: TILE for each in loops if each in dict(tensor.axes)}
               for name, tensor in prog.tensors().items()}
    return _fuse_and_tile(pad_all(prog, tensors, nest, loops), nest)


def split_tiles(prog: Program) -> Program:
    """Split the operation where whole tiles end, in every tiled dimension."""
    nests = [prog.outputs[0]]
    for each in _variable_loops(prog):
        for nest in nests:
            prog = split_operation(prog, nest, each, multiple=TILE)
        nests = [f"{nest}_{part}" for nest in nests for part in ("main", "rest")]
    for nest in nests:
        prog = _fuse_and_tile(prog, nest)
    return prog


def fused_tiles(prog: Program) -> Program:
    """Run the parts of the operation in one launch."""
    prog = split_tiles(prog)
    return hfuse(prog, [nest.name for nest in prog.nests()])


def exact_tiles(prog: Program) -> Program:
    """Let the last tile of a sequence have the size of the remainder."""
    return _fuse_and_tile(prog, prog.outputs[0])


SPLIT_ARMS: Mapping[str, Schedule] = MappingProxyType(
    {"padded": padded_tiles, "split": split_tiles, "hfused": fused_tiles, "exact": exact_tiles})
"""Schedules of either operator."""


def looped_scores(shape: EncoderShape) -> Program:
    """Schedule qkt without tile products."""
    return _rows_in_parallel(scores(shape), "scores", ("batch", "head", "pos", "dim", "col"))


def looped_mixing(shape: EncoderShape) -> Program:
    """Schedule attnv without tile products."""
    return _rows_in_parallel(mixing(shape), "mixed", ("batch", "head", "pos", "col", "dim"))


ATTENTION_LOOPS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType(
    {"qkt": looped_scores, "softmax": lambda shape: row_softmax(shape, ragged_tokens()), "attnv": looped_mixing})
"""Operators scheduled for a CPU, to compare how elements are found."""


def separate_products(shape: EncoderShape) -> Program:
    """Make changes of padding operators; offload products."""
    return _schedule_rows(_multiply_in_tiles(_separate(shape), "scores", "mixed"))


def separate_loops(shape: EncoderShape) -> Program:
    """Make changes of padding operators; generate loops for products of attention."""
    return _schedule_rows(_multiply_in_registers(_separate(shape)))


def inlined_products(shape: EncoderShape) -> Program:
    """Store results with the padding that the next operator needs; offload products."""
    padding = {**PADDING, "qkv": PADDING["wide"], "weights": PADDING["spread"]}
    prog = _padded(_define_padded_attention(shape, lambda _, value: value), padding)
    for name in PADDING_CHANGES:
        prog = inline(prog, name)
    return _schedule_rows(_multiply_in_tiles(_schedule_projections(prog, _tiles_of_sequences), "scores", "mixed"))


def inlined_loops(shape: EncoderShape) -> Program:
    """Check for padding where loops read it."""
    prog = _padded(_define_padded_attention(shape, _zeros_beyond), PADDING)
    for name in PADDING_CHANGES:
        prog = inline(prog, name)
    prog = _schedule_projections(pad_loop(prog, "keys", col, TILE), _tiles_of_sequences)
    return _schedule_rows(_multiply_in_registers(prog))


PADDED_ATTENTION: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType({
    "separate_products": separate_products, "inlined_products": inlined_products, "separate_loops": separate_loops,
    "inlined_loops": inlined_loops})
"""Attention scheduled for a CPU; tensors as in `attention`."""


def _qkv(shape: EncoderShape, extents: TokenExtents) -> Tensor:
    return Tensor("qkv", {**extents.axes, part: 3, head: shape.heads, dim: shape.head_width})


def _rows(shape: EncoderShape, extents: TokenExtents) -> dict[Dim, Expr | int]:
    return {batch: extents.batches, head: shape.heads, pos: extents.tokens(batch)}


def _schedule_softmax(prog: Program) -> Program:
    """Compute a row at a time."""
    prog = fuse(prog, "weights", "batch", "head")
    for producer in ("total", "power", "peak"):
        prog = compute_at(prog, producer, "weights", "pos", local=True)
    prog = vectorise_innermost(prog, "peak", "power", "total", "weights")
    return parallel(prog, "weights", "batch_head")


def _schedule_projection(prog: Program, nest: str, tiled: Callable[[Program, str], Program]) -> Program:
    """Schedule proj1 or proj2 by tiles of tokens and panels of weights."""
    weights, column, others, reduced = {
        "qkv": ("w_qkv", "dim", ("part", "head"), ("model",)),
        "attended": ("w_out", "channel", (), ("head", "dim"))}[nest]
    prog = split_dimension(prog, weights, column, COLUMNS)
    prog = reorder_dimensions(prog, weights, (*others, f"{column}_block", *reduced, f"{column}_within"))
    prog = fuse(prog, nest, *reduced) if len(reduced) > 1 else prog
    prog = split(tiled(prog, nest), nest, column, COLUMNS)
    outer, inner = (loop.name for loop in prog.nest(nest).loops[:2])
    tile = (inner, f"{column}_inner", "_".join(reduced))
    prog = reorder(prog, nest, (*others, f"{column}_outer", *tile))
    return parallel(offload(prog, nest, *tile), nest, outer)


def _schedule_projections(prog: Program, tiled: Callable[[Program, str], Program]) -> Program:
    return _schedule_projection(_schedule_projection(prog, "qkv", tiled), "attended", tiled)


def _tiles_of_tokens(prog: Program, nest: str) -> Program:
    return split(fuse(prog, nest, "batch", "pos"), nest, "batch_pos", TILE)


def _tiles_of_sequences(prog: Program, nest: str) -> Program:
    return fuse(split(prog, nest, "pos", TILE), nest, "batch", "pos_outer")


def _multiply_in_tiles(prog: Program, *nests: str) -> Program:
    """Run sequences and heads in parallel; offload tiles of rows."""
    for nest in nests:
        prog = fuse(split(prog, nest, "pos", TILE), nest, "batch", "head")
        prog = parallel(offload_innermost(prog, nest), nest, "batch_head")
    return prog


def _multiply_in_registers(prog: Program) -> Program:
    rows, cols = REGISTERS
    for nest, column, depth in (("scores", "col", "dim"), ("mixed", "dim", "col")):
        prog = fuse(split(split(prog, nest, "pos", rows), nest, column, cols), nest, "batch", "head")
        prog = reorder(prog, nest, ("pos_outer", f"{column}_outer", depth, "pos_inner", f"{column}_inner"))
        prog = vectorise(unroll(prog, nest, "pos_inner"), nest, f"{column}_inner")
        prog = parallel(prog, nest, "batch_head")
    return prog


def _variable_loops(prog: Program) -> list[Dim]:
    """Return the loops of the result whose extents vary."""
    return [each for each, _ in prog.nest(prog.outputs[0]).operation.output.axes if each in (pos, col)]


def _fuse_and_tile(prog: Program, nest: str) -> Program:
    """Run sequences and heads in parallel; offload tiles of rows, or all rows of a remainder."""
    rows = prog.nest(nest).loops[2].name
    prog = fuse(prog, nest, "batch", "head")
    if not rows.endswith("_rest"):
        prog = split(prog, nest, rows, TILE)
    return parallel(offload_innermost(prog, nest), nest, "batch_head")


def _rows_in_parallel(prog: Program, nest: str, order: tuple[str, ...]) -> Program:
    prog = vectorise(reorder(prog, nest, order), nest, order[-1])
    return parallel(fuse(prog, nest, *order[:2]), nest, "_".join(order[:2]))


def _zeros_beyond(coordinate: Dim, value: Expr) -> Expr:
    return where(less(coordinate, LENGTHS(batch)), value, real(0.0))


def _define_padded_attention(shape: EncoderShape, padded: Callable[[Dim, Expr], Expr]) -> Program:
    """Define all operators; `padded` makes the value of AddPad from a coordinate and a value inside."""
    rows, last = _rows(shape, ragged_tokens()), {col: LENGTHS(batch)}
    heads: dict[Dim, Expr | int] = {head: shape.heads, dim: shape.head_width}
    qkv = define_qkv(shape, TOKENS)
    wide = compute("wide", {**TOKENS, part: 3, **heads}, padded(pos, qkv[batch, pos, part, head, dim]))
    keys = compute("keys", {batch: BATCHES(), **heads, **last}, padded(col, wide[batch, col, 1, head, dim]))
    scores = compute("scores", {**rows, **last}, sum_over(
        {dim: shape.head_width}, wide[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    narrow = compute("narrow", {**rows, **last}, scores[batch, head, pos, col])
    *softmax, weights = define_softmax(narrow, {**rows, **last}, col, scale=shape.head_width**-0.5)
    spread = compute("spread", {**rows, **last}, padded(pos, padded(col, weights[batch, head, pos, col])))
    mixed = compute("mixed", {**TOKENS, **heads}, sum_over(
        last, spread[batch, head, pos, col] * wide[batch, col, 2, head, dim]))
    packed = compute("packed", {**TOKENS, **heads}, mixed[batch, pos, head, dim])
    attended = define_output_projection(shape, Operand(packed), TOKENS)
    return program("padded_attention", [qkv, wide, keys, scores, narrow, *softmax, weights, spread, mixed, packed,
                                        attended])


def _padded(prog: Program, padding: Mapping[str, Mapping[Dim, int]]) -> Program:
    """Pad storage, then the loops of both products."""
    prog = pad_all(prog, padding, "scores", {pos: TILE, col: TILE})
    prog = pad_loop(prog, "mixed", pos, TILE)
    return reorder(prog, "mixed", ("batch", "head", "pos"))


def _separate(shape: EncoderShape) -> Program:
    """Pad changes of padding as operators, and schedule the projections."""
    prog = _padded(_define_padded_attention(shape, _zeros_beyond), PADDING)
    for name, loop in (("wide", pos), ("keys", col), ("spread", pos), ("spread", col)):
        prog = pad_loop(prog, name, loop, TILE)
    return _schedule_projections(prog, _tiles_of_tokens)


def _schedule_rows(prog: Program) -> Program:
    """Schedule the softmax and copies, with the transposition of keys; innermost loops in vector lanes."""
    prog = _schedule_softmax(prog)
    existing = {nest.name for nest in prog.nests()}
    for nest in (each for each in (*PADDING_CHANGES, "keys") if each in existing):
        first, second = (loop.name for loop in prog.nest(nest).loops[:2])
        prog = parallel(fuse(prog, nest, first, second), nest, f"{first}_{second}")
        prog = prog if nest == "keys" else vectorise_innermost(prog, nest)
    return prog
