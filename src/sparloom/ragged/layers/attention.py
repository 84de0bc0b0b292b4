"""Multi-head attention on ragged batches, for CPU and GPU; its gradients are in `attention_gradients`.

Tokens of all sequences are stored one after the other, x[batch, pos, model]; nothing is padded. On a CPU:

    projections    tiles of tokens, one panel of weights after the other; weights are stored in panels
    attention      in parallel over sequences and heads; keys and values of a head are copied into panels; scores, their
                   softmax and the mix of a tile of queries are local arrays

On a GPU a block of threads computes a token, or the row of a query in attention; its threads compute the columns, or
one thread the value to which a row is reduced. All results are stored.

Source: CoRa §7.2, Figure 3; Ainslie et al. 2023 (heads that share keys); Henry et al. 2020 (norms of heads).
Departures: bulk and partial padding are not needed, since tile products may have any
extent; the three kernels of attention are one. On a GPU nothing is padded, each operation is a kernel, and no tile is
in shared memory: these schedules are correct on any GPU, and not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from sparloom.errors import IllegalSchedule
from sparloom.ir import BF16, F32, Binary, Cast, Const, Expr, Type, interleaved_rows
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.layers.norms import raised_gain
from sparloom.ragged.layers.precision import (
    Operand,
    number,
    operand,
    padded_keys,
    round_for_attention,
    round_for_products,
    schedule_operands,
)
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    MEMORY,
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    col,
    dim,
    drop,
    fuse_reduction,
    head,
    model,
    part,
    pos,
    schedule_elementwise,
    schedule_linear,
)
from sparloom.ragged.nests import (
    Operation,
    Program,
    compute,
    exp2,
    less,
    max_over,
    maximum,
    minimum,
    real,
    sqrt,
    sum_over,
    where,
)
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import (
    fuse,
    one_block_per_row,
    parallel,
    reorder,
    split,
    unroll,
    vectorise_innermost,
)
from sparloom.ragged.schedule.operations import inline, offload, reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Read, Tensor

along = Dim("along")  # the reduced dimension of scores; another name than `dim`, along which panels of values are split
query, distance = dims("query distance")
MOST_KEYS = 1 << 20  # of a sequence, in the index by which weights of attention are dropped
ROW_DIMENSIONS = {"scores": 3, "peak": 3, "weights": 3, "total": 3}  # on a GPU; other rows are tokens: 2


def attention(shape: EncoderShape) -> Program:
    """Define multi-head attention, unscheduled: attended = (softmax(q kT / sqrt(head width)) v) w_out + b_out.

    Inputs are x[batch, pos, model], w_qkv[model, part, head, dim] with parts q, k and v, b_qkv[part, head, dim],
    w_out[head, dim, channel] and b_out[channel]. With heads of keys, w_q[model, head, dim] and w_kv[model, part, head,
    dim] with parts k and v take the place of w_qkv, b_q and b_kv that of b_qkv; norms of heads have gain_q and
    gain_k[dim].
    """
    return program("attention", define_attention(shape, residual=False))


def mixing(shape: EncoderShape) -> Program:
    """Define scaled dot-product attention, unscheduled: mixed[batch, pos, head, dim] of qkv[batch, pos, part, head,
    dim].
    """
    _, type = _rounded_qkv(shape, real(0.0))
    qkv = Tensor("qkv", {**TOKENS, **shape.of_parts}, type)
    return program("mixing", define_mixing(shape, *_define_sources(shape, qkv)))


def scheduled_mixing(shape: EncoderShape, schedule: EncoderSchedule) -> Program:
    """Schedule `mixing` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer` does."""
    return schedule_mixing(mixing(with_step(shape, schedule)), schedule, ())


def scheduled_attention(shape: EncoderShape, schedule: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `attention` for a CPU; `kept` and errors as in `scheduled_encoder_layer`."""
    return schedule_attention(attention(with_step(shape, schedule)), schedule, kept)


def with_step(shape: EncoderShape, schedule: EncoderSchedule) -> EncoderShape:
    """Set the step, so that all rows of a tile of queries end at the same score."""
    step = shape.step or schedule.queries
    if shape.causal and step % schedule.queries:
        raise IllegalSchedule(f"causal attention in steps of {step} with {schedule.queries} queries in a tile: use a "
                              f"multiple of {schedule.queries} as the step")
    return replace(shape, step=step)


def define_qkv(shape: EncoderShape, tokens: Mapping[Dim, Expr | int], inputs: Operand | None = None) -> Operation:
    """Define qkv = x w_qkv + b_qkv over dimensions of tokens, or of other inputs than x."""
    outs = shape.of_parts
    x = inputs or Operand(Tensor("x", {**tokens, model: shape.width}))
    value = x.times("w_qkv", {model: shape.width}, outs) + Tensor("b_qkv", outs)[part, head, dim]
    return compute("qkv", {**tokens, **outs}, *_rounded_qkv(shape, value))


def _rounded_qkv(shape: EncoderShape, value: Expr) -> tuple[Expr, Type]:
    """Round what attention reads, unless queries and keys are to be rotated first."""
    return (value, F32) if shape.rotary else round_for_attention(shape, value)


def define_output_projection(shape: EncoderShape, mixed: Operand, tokens: Mapping[Dim, Expr | int],
                             residual: Expr | None = None) -> Operation:
    """Define attended = mixed w_out + b_out, plus a residual if given, over dimensions of tokens."""
    outs = {channel: shape.width}
    out = mixed.times("w_out", shape.of_heads, outs) + Tensor("b_out", outs)[channel]
    out = drop(shape, 1, pos, channel, out)
    return compute("attended", {**tokens, channel: shape.width}, out if residual is None else out + residual)


def define_attention(shape: EncoderShape, *, residual: bool, inputs: Operation | None = None) -> list[Operation]:
    """Define the operations of `attention`.

    Args:
        residual: x is added to the result.
        inputs: tokens that attend to each other, instead of x.
    """
    x = Tensor("x", {**TOKENS, model: shape.width})
    tokens = operand(shape, inputs or x, {model: shape.width})
    if shape.key_heads is None:
        made = [define_qkv(shape, TOKENS, tokens)]
        turned, read = _define_sources(shape, made[0])
    else:
        made = define_queries_and_keys(shape, tokens, tokens, TOKENS)
        turned, read = define_turned_heads(shape, *made)
    return [*tokens.operations, *made, *define_mix_and_projection(
        shape, turned, read, x[batch, pos, channel] if residual else None)]


def define_queries_and_keys(shape: EncoderShape, inputs: Operand, memory: Operand, of_memory: Mapping[Dim, Expr | int]
                            ) -> list[Operation]:
    """Define queries[batch, pos, head, dim], and kv[batch, pos, part, head, dim] of the memory with parts k and v."""
    of_model = {model: shape.width}

    def project(name: str, short: str, tokens: Operand, of_tokens: Mapping[Dim, Expr | int],
                outs: Mapping[Dim, Expr | int]) -> Operation:
        value = tokens.times(f"w_{short}", of_model, outs) + Tensor(f"b_{short}", outs)[(*outs,)]
        return compute(name, {**of_tokens, **outs}, *_rounded_qkv(shape, value))

    return [project("queries", "q", inputs, TOKENS, shape.of_heads), project("kv", "kv", memory, of_memory,
                                                                             shape.of_keys)]


def define_turned_heads(shape: EncoderShape, queries: Operation | Tensor, kv: Operation | Tensor
                        ) -> tuple[list[Operation], Projected]:
    """Define queries and keys as attention reads them: normalised head by head, and rotated; and where values are.

        turned_q and turned_k[batch, pos, head, dim]    spread_q and spread_k[batch, pos, head], as of norms
    """
    if not shape.rotary:
        return [], read_heads(shape, queries, lambda at, which: kv[batch, at, 0, which, dim], kv)
    made: list[Operation] = []
    for short, heads, source in (("q", shape.heads, lambda at: queries[batch, pos, head, at]),
                                 ("k", shape.key_heads, lambda at: kv[batch, pos, 0, head, at])):
        of_heads, read = {**TOKENS, head: heads}, source
        if shape.head_norms:
            number = source(dim)
            spread = compute(f"spread_{short}", of_heads, real(1.0) / sqrt(
                sum_over({dim: shape.head_width}, number * number) * real(1 / shape.head_width) + real(shape.epsilon)))
            gain = Tensor(f"gain_{short}", {dim: shape.head_width})
            made.append(spread)
            read = _normalised(source, spread, gain, shape.norm)
        made.append(compute(f"turned_{short}", {**of_heads, dim: shape.head_width},
                            *round_for_attention(shape, rotate(shape, read, back=False))))
    turned_q, turned_k = (each for each in made if each.name.startswith("turned"))
    return made, read_heads(shape, turned_q, lambda at, which: turned_k[batch, at, which, dim], kv)


def _normalised(source: Callable[[Expr], Expr], spread: Operation, gain: Tensor, kind: str) -> Callable[[Expr], Expr]:
    return lambda at: source(at) * (spread[batch, pos, head] * raised_gain(gain[at], kind))


def read_heads(shape: EncoderShape, queries: Operation | Tensor, key: Callable[[Expr, Expr], Read],
               kv: Operation | Tensor) -> Projected:
    """Read queries, and keys and values of the head that a head of queries shares with its neighbours.

    Args:
        key: returns column `dim` of the key of a token and a head of keys.
    """
    group = shape.heads // (shape.key_heads or shape.heads)
    which = head // group if group > 1 else head
    return Projected(lambda at, column: queries[batch, at, head, column], lambda at: key(at, which),
                     lambda at: kv[batch, at, 1, which, dim])


def define_mix_and_projection(shape: EncoderShape, made: list[Operation], read: Projected, residual: Expr | None = None
                ) -> list[Operation]:
    """Define what follows the projection to queries, keys and values: `made`, the mix, and the output projection."""
    mixing = define_mixing(shape, made, read)
    mixed = operand(shape, mixing[-1], shape.of_heads)
    return [*mixing, *mixed.operations, define_output_projection(shape, mixed, TOKENS, residual)]


@dataclass(frozen=True)
class Projected:
    """Where attention reads queries, keys and values.

    Args:
        query: column of the query of a token and a head.
        key, value: column `dim` of the key and of the value of a token and a head of keys.
    """

    query: Callable[[Expr, Expr], Read]
    key: Callable[[Expr], Read]
    value: Callable[[Expr], Read]


def read_qkv(source: Operation | Tensor, qkv: Operation | Tensor) -> Projected:
    """Read queries and keys from a source, qkv or what it was rotated to, and values from qkv."""
    return Projected(lambda at, column: source[batch, at, 0, head, column],
                     lambda at: source[batch, at, 1, head, dim], lambda at: qkv[batch, at, 2, head, dim])


def _define_sources(shape: EncoderShape, qkv: Operation | Tensor) -> tuple[list[Operation], Projected]:
    """Define the rotation of queries and keys, if there is one, and where they are read."""
    turned = [define_turned(shape, qkv)] if shape.rotary else []
    return turned, read_qkv(turned[0] if turned else qkv, qkv)


def visible_keys(shape: EncoderShape, query: Dim, *, count: Expr | None = None) -> Expr:
    """Count the keys for which scores are computed.

    Args:
        count: number of keys, if it is not that of the sequence.
    """
    count = shape.keys if count is None else count
    if not shape.causal or not shape.triangles:
        return count
    step = shape.step or EncoderSchedule().queries
    return minimum(count, (query // step + 1) * step)


def define_turned(shape: EncoderShape, qkv: Operation | Tensor) -> Operation:
    """Define turned[batch, pos, part, head, dim]: queries and keys, rotated by the positions of their tokens.

    With half of the rotated columns, for c and s in turn_cos and turn_sin[batch, pos, dim]:

        turned[dim]           = c q[dim] - s q[dim + half]
        turned[dim + half]    = c q[dim + half] + s q[dim]

    Source: Su et al. 2021, with the order of columns of GPT-NeoX.
    """
    turned = rotate(shape, lambda at: qkv[batch, pos, part, head, at], back=False)
    return compute("turned", turned_axes(shape), *round_for_attention(shape, turned))


def turned_axes(shape: EncoderShape) -> dict[Dim, Expr | int]:
    return {**TOKENS, **shape.of_parts, part: 2}


def rotate(shape: EncoderShape, read: Callable[[Expr], Read], *, back: bool) -> Expr:
    """Rotate columns, or rotate them back as gradients do."""
    half = shape.rotary // 2
    cos, sin = (Tensor(f"turn_{name}", {**TOKENS, dim: shape.rotary}) for name in ("cos", "sin"))
    later, earlier = dim + half, dim - half
    if back:
        upper, lower = (read(at) * sin[batch, pos, at] for at in (later, earlier))
    else:
        upper, lower = (read(at) * sin[batch, pos, dim] for at in (later, earlier))
    own = read(dim) * cos[batch, pos, dim]
    turned = where(less(dim, half), own + upper if back else own - upper, own - lower if back else own + lower)
    return turned if shape.rotary == shape.head_width else where(less(dim, shape.rotary), turned, read(dim))


def rows_of_heads(shape: EncoderShape) -> dict[Dim, Expr | int]:
    """Return the dimensions of rows of scores."""
    return {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch)}


def score_addend(shape: EncoderShape, row: Dim) -> Expr | None:
    """Return what is added to the score of a row and `col`."""
    if shape.distances is None:
        return None
    sizes, most = {head: shape.heads, distance: shape.distances + 1}, Const(shape.distances)
    before, after = Tensor("bias_before", sizes), Tensor("bias_after", sizes)
    return where(less(col, row + 1), before[head, minimum(row - col, most)], after[head, minimum(col - row, most)])


def visibility(shape: EncoderShape, row: Dim) -> Expr | None:
    """Return the condition under which a row sees `col`; None: always."""
    conditions = [less(col, row + 1)] if shape.causal else []
    if shape.window is not None:
        conditions += [less(row, col + (shape.window + 1))]
        conditions += [] if shape.causal else [less(col, row + (shape.window + 1))]
    if shape.masked:
        mask = less(real(0.0), Tensor("mask", MEMORY if shape.cross else TOKENS)[batch, col])
        conditions.append(mask if shape.cross else Binary("or", mask, Binary("==", row, col)))
    return reduce(lambda both, other: Binary("and", both, other), conditions) if conditions else None


def define_scores(shape: EncoderShape, axes: Mapping[Dim, Expr | int], product: Expr) -> Operation:
    """Define scores: products of queries and keys, scaled already if something is added."""
    added = score_addend(shape, pos)
    return compute("scores", axes, product if added is None else product * real(shape.score_scale) + added)


def score_weight(shape: EncoderShape, below: Expr) -> Expr:
    """Return the weight of a score that is so far below the peak of its row."""
    return exp2(below * real(math.log2(math.e) * (shape.score_scale if shape.distances is None else 1.0)))


def define_mixing(shape: EncoderShape, made: list[Operation], read: Projected) -> list[Operation]:
    """Define mixed[batch, pos, head, dim], weights of attention times values.

    Queries of cross attention without any visible key mix to 0. In bfloat16, keys are padded to whole groups of
    interleaved rows: the last key is repeated, whose scores are no larger than the peak, and values are 0 there.

    Args:
        made: operations that run first.
    """
    width, stored = shape.head_width, padded_keys(shape, shape.keys)
    of_keys = {batch: BATCHES(), head: shape.heads, col: stored, dim: width}
    padded = stored != shape.keys
    key, value = read.key(minimum(col, shape.keys - 1) if padded else col), read.value(col)
    (key, type), (value, _) = ((each, BF16) if each.tensor.type == BF16 else round_for_attention(shape, each)
                               for each in (key, value))
    keys = compute("keys", of_keys, key, type)
    values = compute("values", of_keys, where(less(col, shape.keys), value, Cast(type, real(0.0))) if padded else value,
                     type)
    rows = rows_of_heads(shape)
    row = (*rows,)
    seen, computed, visible = visible_keys(shape, pos), visible_keys(shape, pos, count=stored), visibility(shape, pos)
    scores = define_scores(shape, {**rows, col: computed}, sum_over(
        {along: width}, number(read.query(pos, along)) * number(keys[batch, head, col, along])))
    score = scores[(*row, col)]
    if shape.window is not None or shape.masked or (shape.causal and not shape.triangles):
        peak = compute("peak", rows, max_over({col: seen}, where(visible, score, real(-math.inf))))
    else:
        peak = compute("peak", rows, max_over({col: pos + 1 if shape.causal else seen}, score))
    weight = score_weight(shape, score - peak[row])
    weight = weight if visible is None else where(visible, weight, real(0.0))
    if padded and (visible is not None or score_addend(shape, pos) is not None):  # they fit no repeated key
        weight = where(less(col, shape.keys), weight, real(0.0))
    weights = compute("weights", {**rows, col: computed}, *round_for_attention(shape, weight))
    sums = sum_over({col: seen}, number(weights[(*row, col)]))  # at least 1, unless there is no visible key
    total = compute("total", rows, real(1.0) / (maximum(sums, real(0.5)) if shape.cross else sums))
    dropped = [define_dropped(shape, weights)] if shape.dropout[0] else []
    used = dropped[0] if dropped else weights
    mixed = compute("mixed", {**TOKENS, **shape.of_heads}, *round_for_products(shape, sum_over(
        {col: computed}, number(used[(*row, col)]) * number(values[batch, head, col, dim])) * total[row]))
    return [*made, keys, values, scores, peak, weights, total, *dropped, mixed]


def define_dropped(shape: EncoderShape, weights: Operation) -> Operation:
    """Define the weights of attention after dropout."""
    weight = drop_weight(shape, number(weights[(*rows_of_heads(shape), col)]))
    return compute("dropped", dict(weights.output.axes), *round_for_attention(shape, weight))


def drop_weight(shape: EncoderShape, weight: Expr) -> Expr:
    return drop(shape, 0, pos, head * MOST_KEYS + col, weight)


def schedule_attention(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Schedule the operations of `define_attention` for a CPU."""
    prog = schedule_operands(prog)
    for name in (each for each in ("qkv", "queries", "kv") if each in {nest.name for nest in prog.nests()}):
        prog = schedule_linear(prog, name, "dim", "model", schedule)
    return schedule_mix_and_projection(prog, schedule, kept)


def schedule_mix_and_projection(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Schedule the operations of `define_mix_and_projection` for a CPU."""
    prog = schedule_mixing(prog, schedule, kept)
    prog, reduction = fuse_reduction(prog, "attended")
    return schedule_linear(prog, "attended", "channel", reduction, schedule)


def schedule_mixing(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Compute attention by tiles of queries; everything before the mix is an array of one tile."""
    prog = split(reorder(prog, "mixed", ("batch", "head", "pos")), "mixed", "pos", schedule.queries)
    prog = fuse(prog, "mixed", "batch", "head")
    names = {nest.name for nest in prog.nests()}
    for producer in (each for each in ("dropped", "total", "weights", "peak", "scores") if each in names):
        prog = compute_at(prog, producer, "mixed", "pos_outer", local=producer not in kept)
    for producer in ("keys", "values"):
        prog = compute_at(prog, producer, "mixed", "batch_head", local=True)
    prog = _multiply_by_panels(prog, "scores", "keys", cut="col", along="dim", size=schedule.panel)
    prog = _multiply_by_panels(prog, "mixed", "values", cut="dim", along="col", size=schedule.panel)
    prog = _copy_by_panels(prog, size=schedule.panel)
    for name in (each for each in ("turned", "turned_q", "turned_k") if each in names):
        spread = name.replace("turned", "spread")
        if spread in names:
            prog = compute_at(prog, spread, name, "head", local=spread not in kept)
            prog = vectorise_innermost(prog, spread)
        prog = schedule_elementwise(prog, name)
    if "dropped" in names:
        prog = vectorise_innermost(prog, "dropped")
    return parallel(vectorise_innermost(prog, "weights", "peak", "total"), "mixed", "batch_head")


def _multiply_by_panels(prog: Program, nest: str, operand: str, *, cut: str, along: str, size: int) -> Program:
    """Store an operand in panels, and multiply a tile of the nest by one panel after the other."""
    prog = split_dimension(prog, operand, cut, size)
    group, order = interleaved_rows(prog.tensors()[operand].type.scalar), (f"{cut}_block", along, f"{cut}_within")
    if group > 1:
        prog = split_dimension(prog, operand, along, group)
        order = (f"{cut}_block", f"{along}_block", f"{cut}_within", f"{along}_within")
    prog = reorder_dimensions(prog, operand, order)
    rows, _, reduction = (loop.name for loop in prog.nest(nest).loops[-3:])
    tile = (rows, f"{cut}_inner", reduction)
    prog = reorder(split(prog, nest, cut, size), nest, (f"{cut}_outer", *tile))
    return offload(prog, nest, *tile)


def _copy_by_panels(prog: Program, *, size: int) -> Program:
    """Copy keys and values into panels, where rows are interleaved a group at a time."""
    prog = split(prog, "values", "dim", size)
    group = interleaved_rows(prog.tensors()["keys"].type.scalar)
    if group == 1:
        return vectorise_innermost(prog, "values")
    prog = split(split(prog, "keys", "dim", group), "values", "col", group)
    _, within, *across = (loop.name for loop in prog.nest("values").loops)
    prog = reorder(prog, "values", (*across, within))
    for nest in ("keys", "values"):
        prog = unroll(prog, nest, prog.nest(nest).loops[-1].name)
    return prog


def device_attention(shape: EncoderShape) -> Program:
    """Schedule `attention` for a GPU."""
    return schedule_on_device(attention(shape))


def schedule_on_device(prog: Program) -> Program:
    """Make one kernel for each operation; keys and values are read from qkv."""
    prog = inline(inline(prog, "keys"), "values")
    for nest in [nest.name for nest in prog.nests()]:
        prog = one_block_per_row(prog, nest, ROW_DIMENSIONS.get(nest, 2))
    return prog
