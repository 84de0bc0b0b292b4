"""Gradients of a layer norm, out = (in - mean) spread gain + shift with spread = 1 / sqrt(variance + epsilon).

With e = d_out gain and n = (in - mean) spread, and means over the channels of a token:

    d_in    = spread (e - mean(e) - n mean(e n))
    d_gain  = sum over tokens of d_out n
    d_shift = sum over tokens of d_out
"""

from __future__ import annotations

from sparloom.ragged.dimensions import Dim
from sparloom.ragged.linear_backward import scheduled_sum, summed
from sparloom.ragged.program import Operation, Program, compute, real, sum_over
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, vectorise
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import TOKENS, batch, pos

__all__ = ["norm_backward", "scheduled_norm_backward"]


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
