"""Softmax along the tokens of sequences of different lengths."""

from __future__ import annotations

import torch

from sparloom.nn.eager import eager
from sparloom.nn.layer_call import call_layer
from sparloom.nn.schedules import Schedule, checked_schedule, schedule_of
from sparloom.nn.threads import torch_threads
from sparloom.nn.tokens import Lengths, batch_of
from sparloom.nn.transforms import unscriptable
from sparloom.nn.weights import PackedWeights
from sparloom.ragged import SoftmaxSchedule, compiled_softmax
from sparloom.tuning import token_operators

__all__ = ["ragged_softmax"]


@unscriptable
@eager
def ragged_softmax(tokens: torch.Tensor, lengths: Lengths | None = None, *, schedule: Schedule[SoftmaxSchedule] = None
                   ) -> torch.Tensor:
    """Normalise every column of every sequence, exp(x) / sum of exp(x) over its tokens: torch.softmax(sequence, dim=0).

    Results and gradients agree with PyTorch's up to rounding. Nothing is padded.

    Args:
        tokens: (tokens, width) or (tokens,), the sequences one after the other, float32, on the CPU; or a nested tensor
            of layout torch.jagged, (batch, length, width).
        lengths: of the sequences, which may be 0: a tensor, any sequence, or a Structure, which calls share; None
            beside a nested tensor.
        schedule: of the programs; that of `SoftmaxSchedule` unless given; "auto": searched, see
            `sparloom.tuning.choose_schedule`, when batches like one are met for the first time on a machine.

    Returns:
        As tokens.

    Raises:
        TypeError, ValueError: tokens and lengths do not fit together, or schedule is none; the message says how.

    Source: CoRa §7.2; the operation is jagged_softmax of FBGEMM.
    """
    chosen = checked_schedule(schedule, SoftmaxSchedule)
    if isinstance(tokens, torch.Tensor) and tokens.dim() == 1:
        return ragged_softmax(tokens[:, None], lengths, schedule=chosen)[:, 0]
    width = tokens.shape[-1] if isinstance(tokens, torch.Tensor) and tokens.dim() else 0
    batch = batch_of(tokens, lengths, width)
    if not width:
        return batch.like(batch.x.clone())
    threads = torch_threads()
    found = schedule_of(chosen, SoftmaxSchedule, lambda: token_operators(width)["softmax"], batch.structure, threads)
    return batch.like(call_layer(compiled_softmax(width, found, threads), batch, {}, PackedWeights()))
