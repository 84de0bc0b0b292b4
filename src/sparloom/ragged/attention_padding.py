"""Multi-head attention whose scores are padded to tiles of 64, with changes of padding by themselves or within others.

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
from types import MappingProxyType

from sparloom.ir import Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.program import Program, compute, exp, less, max_over, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, unroll, vectorise
from sparloom.ragged.schedule.operations import inline, offload
from sparloom.ragged.schedule.storage import pad_loop, pad_storage, reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import BATCHES, LENGTHS, EncoderShape, batch, channel, col, dim, head, model, part, pos

__all__ = ["PADDED_ATTENTION", "PADDING_CHANGES"]

TILE = 64
PANEL = 16  # columns of weights that lie side by side
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
    return _changes(_softmax(_offloaded(given)))


def inlined_products(shape: EncoderShape) -> Program:
    """Results are stored with the padding that the next operator wants; products are offloaded."""
    padding = {**PADDING, "qkv": PADDING["wide"], "weights": PADDING["spread"]}
    given = _padded(_defined(shape, lambda _, value: value), padding)
    for name in PADDING_CHANGES:
        given = inline(given, name)
    given = _projections(given, _of_each_sequence)
    return _changes(_softmax(_offloaded(given)))


def separate_loops(shape: EncoderShape) -> Program:
    """Changes of padding are operators; products within the attention are generated loops."""
    given = _padded(_defined(shape, _zeros_beyond), PADDING)
    for name, loops in (("wide", (pos,)), ("keys", (col,)), ("spread", (pos, col))):
        for loop in loops:
            given = pad_loop(given, name, loop, TILE)
    given = _projections(given, _of_all_tokens)
    return _changes(_softmax(_in_registers(given)))


def inlined_loops(shape: EncoderShape) -> Program:
    """Loops that read padding ask whether they do."""
    given = _padded(_defined(shape, _zeros_beyond), PADDING)
    for name in PADDING_CHANGES:
        given = inline(given, name)
    given = _projections(pad_loop(given, "keys", col, TILE), _of_each_sequence)
    return _changes(_softmax(_in_registers(given)))


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
    given = split_dimension(split_dimension(given, "w_qkv", "dim", PANEL), "w_out", "channel", PANEL)
    given = reorder_dimensions(given, "w_qkv", ("part", "head", "dim_block", "model", "dim_within"))
    given = reorder_dimensions(given, "w_out", ("channel_block", "head", "dim", "channel_within"))
    given = fuse(given, "attended", "head", "dim")
    for nest, column, others, depth in (("qkv", "dim", ("part", "head"), "model"),
                                        ("attended", "channel", (), "head_dim")):
        given = split(tiled(given, nest), nest, column, PANEL)
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


def _softmax(given: Program) -> Program:
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
