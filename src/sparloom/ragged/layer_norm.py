"""Layer norm of tokens as an operator: (x - mean) / sqrt(variance + epsilon) * gain + shift; and its gradients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparloom.ragged.definition import program
from sparloom.ragged.norm_backward import norm_backward, scheduled_norm_backward
from sparloom.ragged.program import Program
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import TOKENS, model, norm, scheduled_norm

__all__ = ["NormSchedule", "layer_norm", "layer_norm_backward", "scheduled_layer_norm", "scheduled_layer_norm_backward"]

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
