"""Batches of token sequences: dimensions, lengths, and the layers that other layers share: linear, layer norm, softmax.

Gradients of a projection of all tokens, out[token, o] = sum_i in[token, i] w[i, o] + b[o]; that of `in` is itself a
projection, of d_out by w as PyTorch stores it:

    d_w[o, i] = sum over tokens of d_out[token, o] in[token, i]       tiles of o and i, in parallel
    d_b[o]    = sum over tokens of d_out[token, o]                    strips of o, in parallel

Gradients of a layer norm, out = (in - mean) spread gain + shift with spread = 1 / sqrt(variance + epsilon). With
e = d_out gain and n = (in - mean) spread, and means over the channels of a token:

    d_in    = spread (e - mean(e) - n mean(e n))
    d_gain  = sum over tokens of d_out n
    d_shift = sum over tokens of d_out

Softmax over the tokens of every sequence, separately in each column, and its gradient, which recomputes weights from
x, peak and total:

    weights[batch, pos, model] = exp(x - peak) total      peak = max of x, total = 1 / sum of exp(x - peak), over pos
    d_x = weights (d_weights - along)                     along = sum of weights d_weights, over pos

Source: CoRa §5.1 (reductions over a fused vloop), §7.2 (softmax over a vloop). Departures: CoRa has no gradients; its
softmax normalises rows of scores, as `ATTENTION_OPERATORS` do, this one columns of packed tokens of any width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparloom.ir import F64, I64, Cast, Expr, interleaved_rows
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.nests import Operation, Program, compute, exp, less, max_over, real, sqrt, sum_over, where
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import (
    fuse,
    fuse_neighbours,
    parallel,
    reorder,
    split,
    vectorise,
    vectorise_innermost,
)
from sparloom.ragged.schedule.operations import inline, offload
from sparloom.ragged.schedule.storage import PANEL, reorder_dimensions, split_dimension
from sparloom.ragged.structure import Structure, length_vector
from sparloom.ragged.tensor import Length, Tensor

batch, pos, col, model, part, head, dim, channel, hidden = dims("batch pos col model part head dim channel hidden")
BATCHES = Length("batches")
LENGTHS = Length("lengths", {batch: BATCHES()})
"""Lengths of the sequences of a batch."""
TOKENS: Mapping[Dim, Expr | int] = {batch: BATCHES(), pos: LENGTHS(batch)}
"""Dimensions of packed tokens: sequence, and position in it."""
OVER: Mapping[Dim, Expr | int] = {pos: LENGTHS(batch)}
TILE = (48, 256)  # rows and columns of a task of the gradient of weights
WORD, SPREAD, INCREMENT = 1 << 31, 2_654_435_761, 1_013_904_223  # of the random bits of `drop`
ROUNDS = ((747_796_405, 1 << 15), (277_803_737, 1 << 13))
NORMS = ("layer", "rms")
CACHED_STRUCTURES = 16  # the layers of a model request the same one in turn


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a layer.

    Args:
        width: columns of a token.
        heads: number of heads; divides the width.
        hidden: width of the feed-forward network.
        epsilon: added to variances in norms.
        causal: tokens attend to themselves and earlier ones only.
        step: causal scores are computed up to the next multiple of it, and masked beyond the diagonal: triangles of
            tiles.
            Default: the tile of queries of the schedule.
        triangles: if False, all causal scores are computed, and masked, as in other libraries.
        activation: of the feed-forward network, one of ACTIVATIONS.
        gated: the activation is multiplied by a second projection of the tokens.
        norm: "layer", or "rms": without subtracting means.
        norm_first: tokens are normalised before attention and before the feed-forward network, not after the sums.
        first_norm: if norms come first, whether there is one before attention.
        scale: factor of scores; None: one over the square root of the width of a head.
        rotary: leading columns of queries and keys that are rotated by the position of their token, an even number.
        window: tokens attend to others up to so many positions away; None: to all.
        distances: scores get an addend of a table by head and distance, up to this distance and for all beyond it;
            None: none.
        linear: scores get an addend that is linear in the distance, by head.
        masked: tokens attend to themselves and to those others only that a mask names.
        precision: of the operands of products with weights: "float32", "bfloat16" or "int8", see
            `sparloom.ragged.layers.precision`.
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
    scale: float | None = None
    rotary: int = 0
    window: int | None = None
    distances: int | None = None
    linear: bool = False
    masked: bool = False
    precision: str = "float32"
    dropout: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def score_scale(self) -> float:
        return self.head_width**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True)
class EncoderSchedule:
    """Parameters of a schedule, for search.

    Args:
        rows: rows of a tile of tokens.
        panel: contiguous columns: of weights, keys, and elements of values.
        depth: part of the reduction after which a tile of rows moves on to the next panel; divides the reduction, or is
            larger.
        queries: rows of a tile of attention.
        share_columns: threads share the panels of weights of a product instead of the tiles of tokens, of which small
            batches have few.
    """

    rows: int = 48
    panel: int = PANEL
    depth: int = 512
    queries: int = 64
    share_columns: bool = False


def structure_of(lengths: np.ndarray | Sequence[int]) -> Structure:
    """Return the structure of a batch; the same object while these lengths are among the last 16 requested.

    Args:
        lengths: (batch,) integers of at least 0.

    Raises:
        TypeError: lengths are not numbers.
        ValueError: lengths are not a vector of integers, or are negative.
    """
    return _structure(length_vector(lengths).astype(np.int64).tobytes())


def tokens_of(structure: Structure) -> int:
    """Count the tokens of a batch."""
    if not isinstance(structure, Structure):
        raise TypeError(f"structure of type {type(structure).__name__}: give structure_of(lengths)")
    return int(np.sum(structure.table(LENGTHS)))


@lru_cache(maxsize=CACHED_STRUCTURES)
def _structure(lengths: bytes) -> Structure:
    return Structure({LENGTHS: np.frombuffer(lengths, np.int64)})


def schedule_linear(prog: Program, nest: str, column: str, reduction: str, schedule: EncoderSchedule) -> Program:
    """Schedule a product of all tokens and weights w_..: tiles of rows, panels of columns."""
    operation = prog.nest(nest).operation
    weights = next(read.tensor for read in operation.reads if read.tensor.name.startswith("w_"))
    extent = dict((each.name, size) for each, size in operation.reduced)
    group = interleaved_rows(weights.type.scalar)  # partial sums of interleaved rows are not stored
    blocks = group == 1 and reduction in extent and getattr(extent[reduction], "value", 0) > schedule.depth
    prog = split_dimension(prog, weights.name, column, schedule.panel)
    outside, along, last = [], list(extent), [f"{column}_within"]
    if blocks:  # store panels in the order in which loops access them
        prog = split_dimension(prog, weights.name, reduction, schedule.depth)
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
        prog = split(prog, nest, reduction, schedule.depth)
        outer.append(f"{reduction}_outer")
        reduction = f"{reduction}_inner"
    tile = ("batch_pos_inner", f"{column}_inner", reduction)
    prog = reorder(prog, nest, (*panels, *outer, *tile) if schedule.share_columns else (*outer, *panels, *tile))
    prog, shared = offload(prog, nest, *tile), "batch_pos_outer"
    if schedule.share_columns:
        prog, shared = fuse_neighbours(prog, nest, 0, len(panels))
    return parallel(prog, nest, shared)


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


def schedule_token_sum(prog: Program, nest: str, *, cols: int = 64) -> Program:
    """Schedule a sum over all tokens, in strips of `cols` columns of the last dimension."""
    *before, last = (loop.name for loop in prog.nest(nest).loops[:-2])
    prog = split(fuse(prog, nest, "batch", "pos"), nest, last, cols)
    prog = reorder(prog, nest, (*before, f"{last}_outer", "batch_pos", f"{last}_inner"))
    prog, strips = fuse_neighbours(prog, nest, 0, len(before) + 1)
    return vectorise(parallel(prog, nest, strips), nest, f"{last}_inner")


def define_norm(inputs: Operation | Tensor, number: str, last: Dim, *, width: int, epsilon: float, kind: str = "layer"
                ) -> list[Operation]:
    """Define a norm.

        layer    (x - mean) / sqrt(variance + epsilon) * gain + shift
        rms      x / sqrt(mean of x^2 + epsilon) * gain + shift
    """
    share = real(1 / width)
    gain, shift = (Tensor(f"{name}_{number}", {last: width}) for name in ("gain", "shift"))
    mean = compute(f"mean_{number}", TOKENS, sum_over({last: width}, inputs[batch, pos, last]) * share)
    apart = inputs[batch, pos, last] - mean[batch, pos] if kind == "layer" else inputs[batch, pos, last]
    spread = compute(f"spread_{number}", TOKENS, real(1.0) / sqrt(
        sum_over({last: width}, apart * apart) * share + real(epsilon)))
    standard = compute(f"norm_{number}", {**TOKENS, last: width},
                       apart * spread[batch, pos] * gain[last] + shift[last])
    return [mean, spread, standard] if kind == "layer" else [spread, standard]


def schedule_norm(prog: Program, number: str, last: str, kept: Collection[str], *, rows: int = 1, chunk: int = 16
                  ) -> Program:
    """Schedule a norm in parallel: a token at a time, or `rows` tokens of one sequence."""
    nest, tile = f"norm_{number}", "pos"
    if rows > 1:
        prog, tile = split(prog, nest, "pos", rows), "pos_outer"
    prog, tile = fuse(prog, nest, "batch", tile), f"batch_{tile}"
    names = {each.name for each in prog.nests()}
    for producer in (each for each in (f"spread_{number}", f"mean_{number}") if each in names):
        prog = compute_at(prog, producer, nest, tile, local=producer not in kept)
        prog = vectorise_innermost(prog, producer)
    return vectorise(parallel(prog, nest, tile, chunk=chunk), nest, last)


def define_norm_gradients(number: str, into: Tensor, upstream: Tensor | Operation, *, last: Dim, width: int,
                          kind: str = "layer", residual: Tensor | Operation | None = None) -> list[Operation]:
    """Define d_<into>[batch, pos, last], d_gain_<number> and d_shift_<number>.

    Reads gain_<number>[last], and spread_<number>[batch, pos] and, unless kind is "rms", mean_<number>[batch, pos] of
    the forward pass.

    Args:
        into: normalised tensor.
        upstream: gradient of the result.
        last: dimension of channels, of extent `width`.
        kind: of the norm, see `define_norm`.
        residual: further gradient of `into`, which is added.
    """
    share, channels = real(1 / width), {last: width}
    mean, spread = (Tensor(f"{name}_{number}", TOKENS)[batch, pos] for name in ("mean", "spread"))
    gain, grad = Tensor(f"gain_{number}", channels)[last], upstream[batch, pos, last]
    apart = into[batch, pos, last] - mean if kind == "layer" else into[batch, pos, last]
    along = compute(f"along_{number}", TOKENS, sum_over(channels, grad * gain) * share)
    across = compute(f"across_{number}", TOKENS, sum_over(channels, grad * gain * apart) * share * spread * spread)
    centred = grad * gain - along[batch, pos] if kind == "layer" else grad * gain
    inner = spread * (centred - apart * across[batch, pos])
    inward = compute(f"d_{into.name}", {**TOKENS, **channels},
                     inner if residual is None else inner + residual[batch, pos, last])
    return [*([along] if kind == "layer" else []), across, inward,
            sum_over_tokens(f"d_gain_{number}", channels, grad * apart * spread),
            sum_over_tokens(f"d_shift_{number}", channels, grad)]


def schedule_norm_gradients(prog: Program, number: str, inward: str, *, chunk: int = 16) -> Program:
    """Schedule `define_norm_gradients`: a token at a time, sums in strips of columns."""
    prog, names = fuse(prog, inward, "batch", "pos"), {each.name for each in prog.nests()}
    for producer in (each for each in (f"across_{number}", f"along_{number}") if each in names):
        prog = compute_at(prog, producer, inward, "batch_pos", local=True)
        prog = vectorise_innermost(prog, producer)
    prog = vectorise_innermost(parallel(prog, inward, "batch_pos", chunk=chunk), inward)
    for name in ("gain", "shift"):
        prog = schedule_token_sum(prog, f"d_{name}_{number}")
    return prog


@dataclass(frozen=True)
class NormSchedule:
    """Parameters of a schedule, for search.

    Args:
        rows: tokens of a sequence whose means and spreads are computed before they are normalised.
        chunk: groups of `rows` tokens that a thread takes at a time.
    """

    rows: int = 1
    chunk: int = 16


def layer_norm(width: int, epsilon: float = 1e-5) -> Program:
    """Define norm_1[batch, pos, model] of x, gain_1[model] and shift_1[model], unscheduled."""
    return program("layer_norm", define_norm(_tokens("x", width), "1", model, width=width, epsilon=epsilon))


def layer_norm_backward(width: int) -> Program:
    """Define d_x, d_gain_1 and d_shift_1 of d_norm_1, unscheduled; for its inputs see `define_norm_gradients`."""
    found = define_norm_gradients("1", _tokens("x", width), _tokens("d_norm_1", width), last=model, width=width)
    return program("layer_norm_backward", found, ["d_x", "d_gain_1", "d_shift_1"])


def scheduled_layer_norm(width: int, schedule: NormSchedule, *, epsilon: float = 1e-5, kept: Collection[str] = ()
                         ) -> Program:
    """Schedule `layer_norm` for a CPU: in parallel over tokens, or over tiles of tokens of a sequence.

    Args:
        kept: intermediate results to store whole, for gradients.
    """
    return schedule_norm(layer_norm(width, epsilon), "1", "model", kept, rows=schedule.rows, chunk=schedule.chunk)


def scheduled_layer_norm_backward(width: int, schedule: NormSchedule) -> Program:
    """Schedule `layer_norm_backward`: the same number of tokens per task as forward, one after the other."""
    return schedule_norm_gradients(layer_norm_backward(width), "1", "d_x",
                                   chunk=schedule.rows * schedule.chunk)


def _tokens(name: str, width: int) -> Tensor:
    return Tensor(name, {**TOKENS, model: width})


@dataclass(frozen=True)
class SoftmaxSchedule:
    """Parameters of a schedule, for search.

    Args:
        cols: columns of a task, which has one sequence.
        lanes: what vector lanes hold: adjacent "columns", or "tokens" of one column.
        powers: exponentials are "stored" in an array of the task, or computed "twice": for their sum and for the
            result.
        chunk: tasks that a thread takes at a time.
    """

    cols: int = 64
    lanes: str = "columns"
    powers: str = "stored"
    chunk: int = 1


def softmax(width: int) -> Program:
    """Define weights[batch, pos, model] of x[batch, pos, model], unscheduled."""
    x = Tensor("x", {**TOKENS, model: width})
    return program("softmax", define_softmax(x, dict(x.axes), pos))


def define_softmax(inputs: Operation | Tensor, axes: Mapping[Dim, Expr | int], over: Dim, *, scale: float | None = None
                   ) -> list[Operation]:
    """Define peak, power, total and weights: softmax of scaled inputs over one of their dimensions."""
    rows, along = {each: extent for each, extent in axes.items() if each != over}, {over: axes[over]}
    peak = compute("peak", rows, max_over(along, inputs[tuple(axes)]))
    below = inputs[tuple(axes)] - peak[tuple(rows)]
    power = compute("power", axes, exp(below if scale is None else below * real(scale)))
    total = compute("total", rows, real(1.0) / sum_over(along, power[tuple(axes)]))
    return [peak, power, total, compute("weights", axes, power[tuple(axes)] * total[tuple(rows)])]


def softmax_backward(width: int) -> Program:
    """Define d_x of d_weights, unscheduled; reads x, and peak and total[batch, model] of the forward pass."""
    all_of = {**TOKENS, model: width}
    x, upstream = (Tensor(name, all_of)[batch, pos, model] for name in ("x", "d_weights"))
    peak, total = (Tensor(name, _columns(width))[batch, model] for name in ("peak", "total"))
    power = compute("power", all_of, exp(x - peak) * total)
    along = compute("along", _columns(width), sum_over(OVER, power[batch, pos, model] * upstream))
    return program("softmax_backward", [power, along, compute(
        "d_x", all_of, power[batch, pos, model] * (upstream - along[batch, model]))])


def scheduled_softmax(width: int, schedule: SoftmaxSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `softmax` for a CPU: in parallel over sequences and strips of columns.

    Args:
        kept: intermediate results to store whole, for gradients.
    """
    return _schedule_softmax(softmax(width), "weights", ("total", "power", "peak"), schedule, width=width, kept=kept)


def scheduled_softmax_backward(width: int, schedule: SoftmaxSchedule) -> Program:
    """Schedule `softmax_backward` like `scheduled_softmax`."""
    return _schedule_softmax(softmax_backward(width), "d_x", ("along", "power"), schedule, width=width)


def _columns(width: int) -> dict[Dim, Expr | int]:
    return {batch: BATCHES(), model: width}


def _schedule_softmax(prog: Program, nest: str, producers: Sequence[str], schedule: SoftmaxSchedule, *, width: int,
                      kept: Collection[str] = ()) -> Program:
    if schedule.lanes not in ("columns", "tokens") or schedule.powers not in ("stored", "twice"):
        raise ValueError(f"a softmax with lanes={schedule.lanes!r} and powers={schedule.powers!r}: give 'columns' or "
                         f"'tokens', and 'stored' or 'twice'")
    if schedule.powers == "twice":
        prog = inline(prog, "power")
    outside, inside, task = [], ["model", "pos"], "batch"
    if min(schedule.cols, width) == 1:
        outside, inside = ["model"], ["pos"]
    elif schedule.cols < width:
        prog = split(prog, nest, "model", schedule.cols)
        outside, inside = ["model_outer"], ["model_inner", "pos"]
    inside = _lane_order(inside, schedule.lanes)
    prog = reorder(prog, nest, ("batch", *outside, *inside))
    if outside:
        prog, task = fuse_neighbours(prog, nest, 0, 2)
    for producer in (each for each in producers if each != "power" or schedule.powers == "stored"):
        prog = compute_at(prog, producer, nest, task, local=producer not in kept)
        loops = _lane_order([loop.name for loop in prog.nest(producer).loops], schedule.lanes)
        prog = vectorise(reorder(prog, producer, loops), producer, loops[-1])
    if schedule.lanes == "tokens" and schedule.powers == "stored" and len(inside) > 1:
        prog = reorder_dimensions(prog, "power", ("model", "pos"))
    return parallel(vectorise(prog, nest, inside[-1]), nest, task, chunk=schedule.chunk)


def _lane_order(loops: Sequence[str], lanes: str) -> list[str]:
    """Put the loop over columns or that over tokens innermost; a single column has no loop."""
    columns = [each for each in loops if each != "pos"]
    return ["pos", *columns] if lanes == "columns" else [*columns, "pos"]
