"""Norms of tokens, and softmax over the tokens of every sequence, forward and backward.

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

from sparloom.ir import Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    TOKENS,
    batch,
    model,
    pos,
    schedule_token_sum,
    sum_over_tokens,
)
from sparloom.ragged.nests import Operation, Program, compute, exp, max_over, real, sqrt, sum_over
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
from sparloom.ragged.schedule.operations import inline, reorder_dimensions
from sparloom.ragged.tensor import Tensor

NORMS = ("layer", "rms", "rms_centred")
OVER: Mapping[Dim, Expr | int] = {pos: LENGTHS(batch)}  # the tokens of a sequence


def define_norm(inputs: Operation | Tensor, number: str, last: Dim, *, width: int, epsilon: float, kind: str = "layer",
                residual: Operation | Tensor | None = None) -> list[Operation]:
    """Define a norm, plus a residual if given.

        layer    (x - mean) / sqrt(variance + epsilon) * gain + shift
        rms      x / sqrt(mean of x^2 + epsilon) * gain + shift, and gain + 1 instead of gain if "rms_centred"
    """
    share = real(1 / width)
    gain, shift = (Tensor(f"{name}_{number}", {last: width})[last] for name in ("gain", "shift"))
    mean = compute(f"mean_{number}", TOKENS, sum_over({last: width}, inputs[batch, pos, last]) * share)
    apart = inputs[batch, pos, last] - mean[batch, pos] if kind == "layer" else inputs[batch, pos, last]
    spread = compute(f"spread_{number}", TOKENS, real(1.0) / sqrt(
        sum_over({last: width}, apart * apart) * share + real(epsilon)))
    value = apart * spread[batch, pos] * raised_gain(gain, kind) + shift
    standard = compute(f"norm_{number}", {**TOKENS, last: width},
                       value if residual is None else value + residual[batch, pos, last])
    return [mean, spread, standard] if kind == "layer" else [spread, standard]


def raised_gain(gain: Expr, kind: str) -> Expr:
    """Return what a norm multiplies by."""
    return gain + real(1.0) if kind == "rms_centred" else gain


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

    Reads gain_<number>[last], and spread_<number>[batch, pos] and, if kind is "layer", mean_<number>[batch, pos] of
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
    gain = raised_gain(Tensor(f"gain_{number}", channels)[last], kind)
    grad = upstream[batch, pos, last]
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
