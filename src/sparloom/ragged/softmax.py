"""Softmax along the tokens of every sequence, in each column by itself, and its gradient.

    weights[batch, pos, model] = exp(x - peak) total      peak = max of x, total = 1 / sum of exp(x - peak), over pos
    d_x = weights (d_weights - along)                     along = sum of weights d_weights, over pos

The gradient computes weights again, from x and what is known of every column: peak and total.

Source: CoRa §7.2 (softmax over a vloop). Departure: there the rows of scores are normalised, see `attention_operators`;
here it is columns of packed tokens, so that any width is normalised where it lies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sparloom.ir import Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.program import Program, compute, exp, max_over, real, sum_over
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse_neighbours, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import inline
from sparloom.ragged.schedule.storage import reorder_dimensions
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import BATCHES, LENGTHS, TOKENS, batch, model, pos

__all__ = ["SoftmaxSchedule", "scheduled_softmax", "scheduled_softmax_backward", "softmax", "softmax_backward"]

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
