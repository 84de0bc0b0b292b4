"""Sequences of tokens: their dimensions and lengths, and what layers of tokens share.

Structures of batches of sequences, by their lengths.

Gradients of a projection of all tokens, out[token, o] = sum_i in[token, i] w[i, o] + b[o].

    d_w[o, i] = sum over tokens of d_out[token, o] in[token, i]       tiles of o and i, in parallel
    d_b[o]    = sum over tokens of d_out[token, o]                    strips of o, in parallel

The gradient of `in` is a projection itself, of d_out by w as PyTorch stores it. Source: CoRa trains nothing; the
reductions over a fused vloop are those of §5.1.

Gradients of a layer norm, out = (in - mean) spread gain + shift with spread = 1 / sqrt(variance + epsilon).

With e = d_out gain and n = (in - mean) spread, and means over the channels of a token:

    d_in    = spread (e - mean(e) - n mean(e n))
    d_gain  = sum over tokens of d_out n
    d_shift = sum over tokens of d_out

Layer norm of tokens as an operator: (x - mean) / sqrt(variance + epsilon) * gain + shift; and its gradients.

Softmax along the tokens of every sequence, in each column by itself, and its gradient.

    weights[batch, pos, model] = exp(x - peak) total      peak = max of x, total = 1 / sum of exp(x - peak), over pos
    d_x = weights (d_weights - along)                     along = sum of weights d_weights, over pos

The gradient computes weights again, from x and what is known of every column: peak and total.

Source: CoRa §7.2 (softmax over a vloop). Departure: there the rows of scores are normalised, see `attention_operators`;
here it is columns of packed tokens, so that any width is normalised where it lies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparloom.ir import Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.program import Operation, Program, compute, exp, max_over, real, sqrt, sum_over
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, fuse_neighbours, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import inline, offload
from sparloom.ragged.schedule.storage import PANEL, reorder_dimensions, split_dimension
from sparloom.ragged.structure import Structure, length_vector
from sparloom.ragged.tensor import Length, Tensor

__all__ = [
    "NormSchedule", "SoftmaxSchedule", "layer_norm", "layer_norm_backward", "norm_backward", "scheduled_layer_norm",
    "scheduled_layer_norm_backward", "scheduled_norm_backward", "scheduled_softmax", "scheduled_softmax_backward",
    "scheduled_sum", "scheduled_weights", "softmax", "softmax_backward", "structure_of", "summed", "tokens_of",
]

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


REMEMBERED = 16  # structures; layers of a model ask for one after the other


def structure_of(lengths: np.ndarray | Sequence[int]) -> Structure:
    """Give the structure of a batch; the same again while the last 16 lengths that were asked for include these.

    Args:
        lengths: (batch,) integers of at least 0.

    Raises:
        TypeError: lengths are not numbers.
        ValueError: lengths are not a vector, negative, or not integers.
    """
    return _structure(length_vector(lengths).astype(np.int64).tobytes())


def tokens_of(structure: Structure) -> int:
    """Count the tokens of a batch.

    Raises:
        TypeError: not a structure.
        ValueError: the structure has no LENGTHS.
    """
    if not isinstance(structure, Structure):
        raise TypeError(f"structure of type {type(structure).__name__}: give structure_of(lengths)")
    return int(np.sum(structure.table(LENGTHS)))


@lru_cache(maxsize=REMEMBERED)
def _structure(lengths: bytes) -> Structure:
    return Structure({LENGTHS: np.frombuffer(lengths, np.int64)})


def summed(name: str, axes: Mapping[Dim, Expr | int], value: Expr) -> Operation:
    """Define the sum of a value over all tokens."""
    return compute(name, axes, sum_over(TOKENS, value))


def scheduled_weights(given: Program, nest: str, outs: int, *, tile: tuple[int, int]) -> Program:
    """Schedule the gradient of weights: a product whose reduction runs over all tokens.

    Args:
        outs: how many of its first dimensions are those of `out`; those behind are of `in`.
        tile: rows and columns of a task.
    """
    given, out = fuse_neighbours(given, nest, 0, outs)
    given, into = fuse_neighbours(given, nest, 1, len(given.nest(nest).loops) - 3)
    given = fuse(given, nest, "batch", "pos")
    given = split(split(given, nest, out, tile[0]), nest, into, tile[1])
    dense = (f"{out}_inner", f"{into}_inner", "batch_pos")
    given = reorder(given, nest, (f"{out}_outer", f"{into}_outer", *dense))
    given, tasks = fuse_neighbours(given, nest, 0, 2)
    return parallel(offload(given, nest, *dense), nest, tasks)


def scheduled_sum(given: Program, nest: str, *, cols: int) -> Program:
    """Schedule a sum over all tokens, by strips of the last dimension.

    Args:
        cols: of a strip.
    """
    *before, last = (loop.name for loop in given.nest(nest).loops[:-2])
    given = split(fuse(given, nest, "batch", "pos"), nest, last, cols)
    given = reorder(given, nest, (*before, f"{last}_outer", "batch_pos", f"{last}_inner"))
    given, strips = fuse_neighbours(given, nest, 0, len(before) + 1)
    return vectorise(parallel(given, nest, strips), nest, f"{last}_inner")


def norm_backward(number: str, into: Tensor, upstream: Tensor | Operation, *, last: Dim, width: int
                  ) -> list[Operation]:
    """Define d_<into>[batch, pos, last], d_gain_<number> and d_shift_<number>.

    Reads gain_<number>[last], and mean_<number> and spread_<number>[batch, pos] of the way forward.

    Args:
        into: what was normalised.
        upstream: the gradient of the result.
        last: the dimension of channels, `width` of them.
    """
    share, channels = real(1 / width), {last: width}
    mean, spread = (Tensor(f"{name}_{number}", TOKENS)[batch, pos] for name in ("mean", "spread"))
    gain, given = Tensor(f"gain_{number}", channels)[last], upstream[batch, pos, last]
    apart = into[batch, pos, last] - mean
    along = compute(f"along_{number}", TOKENS, sum_over(channels, given * gain) * share)
    across = compute(f"across_{number}", TOKENS, sum_over(channels, given * gain * apart) * share * spread * spread)
    inward = compute(f"d_{into.name}", {**TOKENS, **channels}, spread * (
        given * gain - along[batch, pos] - apart * across[batch, pos]))
    return [along, across, inward, summed(f"d_gain_{number}", channels, given * apart * spread),
            summed(f"d_shift_{number}", channels, given)]


def scheduled_norm_backward(given: Program, number: str, inward: str, *, cols: int, chunk: int = 16) -> Program:
    """Schedule `norm_backward`: a token at a time, sums in strips of columns."""
    given = fuse(given, inward, "batch", "pos")
    for producer in (f"across_{number}", f"along_{number}"):
        given = compute_at(given, producer, inward, "batch_pos", local=True)
        given = vectorise(given, producer, given.nest(producer).loops[-1].name)
    given = vectorise(parallel(given, inward, "batch_pos", chunk=chunk), inward, given.nest(inward).loops[-1].name)
    for name in ("gain", "shift"):
        given = scheduled_sum(given, f"d_{name}_{number}", cols=cols)
    return given


COLS = 64  # of a strip of a sum over tokens


@dataclass(frozen=True)
class NormSchedule:
    """What may be searched.

    Args:
        rows: tokens of a sequence whose means and spreads are computed before they are normalised.
        chunk: times so many tokens that a thread takes at a time.
    """

    rows: int = 1
    chunk: int = 16


def layer_norm(width: int, epsilon: float = 1e-5) -> Program:
    """Define norm_1[batch, pos, model] of x, gain_1[model] and shift_1[model], unscheduled."""
    return program("layer_norm", norm(_tokens("x", width), "1", model, width=width, epsilon=epsilon))


def layer_norm_backward(width: int) -> Program:
    """Define d_x, d_gain_1 and d_shift_1 of d_norm_1, unscheduled; reads what `norm_backward` says."""
    found = norm_backward("1", _tokens("x", width), _tokens("d_norm_1", width), last=model, width=width)
    return program("layer_norm_backward", found, ["d_x", "d_gain_1", "d_shift_1"])


def scheduled_layer_norm(width: int, chosen: NormSchedule, *, epsilon: float = 1e-5, kept: Collection[str] = ()
                         ) -> Program:
    """Schedule `layer_norm` for a CPU: in parallel over tokens, or tiles of the tokens of a sequence.

    Args:
        kept: results that are stored as a whole, though they are needed in one place only: for gradients.
    """
    return scheduled_norm(layer_norm(width, epsilon), "1", "model", kept, rows=chosen.rows, chunk=chosen.chunk)


def scheduled_layer_norm_backward(width: int, chosen: NormSchedule) -> Program:
    """Schedule `layer_norm_backward`: as many tokens at a time as forward, one after the other."""
    return scheduled_norm_backward(layer_norm_backward(width), "1", "d_x", cols=COLS,
                                   chunk=chosen.rows * chosen.chunk)


def _tokens(name: str, width: int) -> Tensor:
    return Tensor(name, {**TOKENS, model: width})


OVER: Mapping[Dim, Expr | int] = {pos: LENGTHS(batch)}


@dataclass(frozen=True)
class SoftmaxSchedule:
    """What may be searched.

    Args:
        cols: of a task, which has one sequence.
        lanes: "columns" that lie side by side, or "tokens" of one column, in vector lanes.
        powers: "stored" in an array of the task, or computed "twice": for their sum, and for the result.
        chunk: tasks that a thread takes at a time.
    """

    cols: int = 64
    lanes: str = "columns"
    powers: str = "stored"
    chunk: int = 1


def softmax(width: int) -> Program:
    """Define weights[batch, pos, model] of x[batch, pos, model], unscheduled."""
    x, columns, all_of = Tensor("x", {**TOKENS, model: width}), _columns(width), {**TOKENS, model: width}
    peak = compute("peak", columns, max_over(OVER, x[batch, pos, model]))
    power = compute("power", all_of, exp(x[batch, pos, model] - peak[batch, model]))
    total = compute("total", columns, real(1.0) / sum_over(OVER, power[batch, pos, model]))
    weights = compute("weights", all_of, power[batch, pos, model] * total[batch, model])
    return program("softmax", [peak, power, total, weights])


def softmax_backward(width: int) -> Program:
    """Define d_x of d_weights, unscheduled; reads x, and peak and total[batch, model] of the way forward."""
    all_of = {**TOKENS, model: width}
    x, upstream = (Tensor(name, all_of)[batch, pos, model] for name in ("x", "d_weights"))
    peak, total = (Tensor(name, _columns(width))[batch, model] for name in ("peak", "total"))
    power = compute("power", all_of, exp(x - peak) * total)
    along = compute("along", _columns(width), sum_over(OVER, power[batch, pos, model] * upstream))
    return program("softmax_backward", [power, along, compute(
        "d_x", all_of, power[batch, pos, model] * (upstream - along[batch, model]))])


def scheduled_softmax(width: int, chosen: SoftmaxSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `softmax` for a CPU: in parallel over sequences and strips of columns.

    Args:
        kept: results that are stored as a whole, though they are needed in one place only: for gradients.

    Raises:
        ValueError: lanes or powers are none that there are.
    """
    return _scheduled(softmax(width), "weights", ("total", "power", "peak"), chosen, width=width, kept=kept)


def scheduled_softmax_backward(width: int, chosen: SoftmaxSchedule) -> Program:
    """Schedule `softmax_backward` as `scheduled_softmax`."""
    return _scheduled(softmax_backward(width), "d_x", ("along", "power"), chosen, width=width)


def _columns(width: int) -> dict[Dim, Expr | int]:
    return {batch: BATCHES(), model: width}


def _scheduled(given: Program, nest: str, producers: Sequence[str], chosen: SoftmaxSchedule, *, width: int,
               kept: Collection[str] = ()) -> Program:
    if chosen.lanes not in ("columns", "tokens") or chosen.powers not in ("stored", "twice"):
        raise ValueError(f"a softmax with lanes={chosen.lanes!r} and powers={chosen.powers!r}: give 'columns' or "
                         f"'tokens', and 'stored' or 'twice'")
    if chosen.powers == "twice":
        given = inline(given, "power")
    outside, inside, task = [], ["model", "pos"], "batch"
    if min(chosen.cols, width) == 1:
        outside, inside = ["model"], ["pos"]
    elif chosen.cols < width:
        given = split(given, nest, "model", chosen.cols)
        outside, inside = ["model_outer"], ["model_inner", "pos"]
    inside = _by_lanes(inside, chosen.lanes)
    given = reorder(given, nest, ("batch", *outside, *inside))
    if outside:
        given, task = fuse_neighbours(given, nest, 0, 2)
    for producer in (each for each in producers if each != "power" or chosen.powers == "stored"):
        given = compute_at(given, producer, nest, task, local=producer not in kept)
        loops = _by_lanes([loop.name for loop in given.nest(producer).loops], chosen.lanes)
        given = vectorise(reorder(given, producer, loops), producer, loops[-1])
    if chosen.lanes == "tokens" and chosen.powers == "stored" and len(inside) > 1:
        given = reorder_dimensions(given, "power", ("model", "pos"))
    return parallel(vectorise(given, nest, inside[-1]), nest, task, chunk=chosen.chunk)


def _by_lanes(loops: Sequence[str], lanes: str) -> list[str]:
    """Put the loop over columns innermost, or that over tokens; a single column has no loop."""
    columns = [each for each in loops if each != "pos"]
    return ["pos", *columns] if lanes == "columns" else [*columns, "pos"]
