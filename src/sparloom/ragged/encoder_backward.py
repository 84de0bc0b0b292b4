"""Gradients of the encoder layer and of attention, from those of their results, for training.

The way forward keeps what is listed in `KEPT`. Gradients of weights have the dimensions of PyTorch's parameters, and
the weights are read in these, so the names of `encoder_layer` stand for other orders of dimensions here:

    w_qkv[part, head, dim, model]    w_out[channel, head, dim]    w_in[hidden, channel]    w_back[model, hidden]

and the gradient of a tensor t is d_t. That of the result, d_norm_2 or d_attended, is given.

    norm_2      d_fed, d_gain_2, d_shift_2                          see norm_backward
    fed         d_w_back, d_b_back, d_active = d_fed w_back where active is above 0
    active      d_w_in, d_b_in, d_norm_1 = d_active w_in + d_fed
    norm_1      d_attended, d_gain_1, d_shift_1
    attended    d_w_out, d_b_out, d_mixed = d_attended w_out
    mixed       d_qkv                                               see attention_backward
    qkv         d_w_qkv, d_b_qkv, d_x = d_qkv w_qkv + d_attended

Source: CoRa compiles the forward pass only; this is its derivative, with the same schedules.
"""

from __future__ import annotations

from sparloom.ragged.attention_backward import mix_backward, scheduled_mix_backward
from sparloom.ragged.definition import Part, program
from sparloom.ragged.encoder import stepped
from sparloom.ragged.linear_backward import scheduled_sum, scheduled_weights, summed
from sparloom.ragged.norm_backward import norm_backward, scheduled_norm_backward
from sparloom.ragged.program import Operation, Program, compute, less, real, sum_over, where
from sparloom.ragged.schedule.loops import fuse
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import (
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    dim,
    head,
    hidden,
    linear,
    model,
    part,
    pos,
)

__all__ = [
    "KEPT", "attention_backward", "encoder_backward", "scheduled_attention_backward", "scheduled_encoder_backward",
]

KEPT = ("peak", "total", "mean_1", "spread_1", "mean_2", "spread_2")
"""What the forward pass stores for the gradients beside what it stores anyway."""

TILE = (48, 256)  # rows and columns of a task of the gradient of weights
COLS = 64  # of a strip of a sum over tokens


def attention_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `attention`, unscheduled; outputs: d_x, then those of w_qkv, b_qkv, w_out, b_out."""
    attended = Tensor("d_attended", {**TOKENS, channel: shape.width})
    outputs = ["d_x", "d_w_qkv", "d_b_qkv", "d_w_out", "d_b_out"]
    return program("attention_backward", _attention(shape, attended, residual=False), outputs)


def encoder_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `encoder_layer`, unscheduled; outputs: d_x, then in the order of PyTorch's parameters."""
    size, many = shape.width, shape.hidden
    fed, attended = Tensor("fed", {**TOKENS, model: size}), Tensor("attended", {**TOKENS, channel: size})
    active, first = Tensor("active", {**TOKENS, hidden: many}), Tensor("norm_1", {**TOKENS, channel: size})
    w_back, w_in = Tensor("w_back", {model: size, hidden: many}), Tensor("w_in", {hidden: many, channel: size})
    upstream = Tensor("d_norm_2", {**TOKENS, model: size})
    norm_2 = norm_backward("2", fed, upstream, last=model, width=size)
    d_fed = next(each for each in norm_2 if each.name == "d_fed")
    d_active = compute("d_active", {**TOKENS, hidden: many}, where(
        less(real(0.0), active[batch, pos, hidden]),
        sum_over({model: size}, d_fed[batch, pos, model] * w_back[model, hidden]), real(0.0)))
    d_first = compute("d_norm_1", {**TOKENS, channel: size}, sum_over(
        {hidden: many}, d_active[batch, pos, hidden] * w_in[hidden, channel]) + d_fed[batch, pos, channel])
    norm_1 = norm_backward("1", attended, d_first, last=channel, width=size)
    d_attended = next(each for each in norm_1 if each.name == "d_attended")
    outputs = ["d_x", "d_w_qkv", "d_b_qkv", "d_w_out", "d_b_out", "d_w_in", "d_b_in", "d_w_back", "d_b_back",
               "d_gain_1", "d_shift_1", "d_gain_2", "d_shift_2"]
    return program("encoder_backward", [
        *norm_2,
        summed("d_w_back", {model: size, hidden: many}, d_fed[batch, pos, model] * active[batch, pos, hidden]),
        summed("d_b_back", {model: size}, d_fed[batch, pos, model]),
        d_active,
        summed("d_w_in", {hidden: many, channel: size},
               d_active[batch, pos, hidden] * first[batch, pos, channel]),
        summed("d_b_in", {hidden: many}, d_active[batch, pos, hidden]),
        d_first, *norm_1, *_attention(shape, d_attended, residual=True)], outputs)


def scheduled_attention_backward(shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    """Schedule `attention_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer`."""
    shape = stepped(shape, chosen)
    return _scheduled_attention(attention_backward(shape), shape, chosen)


def scheduled_encoder_backward(shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    """Schedule `encoder_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer`."""
    shape = stepped(shape, chosen)
    given = encoder_backward(shape)
    for number, inward in (("2", "d_fed"), ("1", "d_attended")):
        given = scheduled_norm_backward(given, number, inward, cols=COLS)
    for name, column, reduction in (("back", "hidden", "model"), ("in", "channel", "hidden")):
        given = scheduled_weights(given, f"d_w_{name}", 1, tile=TILE)
        given = scheduled_sum(given, f"d_b_{name}", cols=COLS)
        given = linear(given, "d_active" if name == "back" else "d_norm_1", column, reduction, chosen)
    return _scheduled_attention(given, shape, chosen)


def _attention(shape: EncoderShape, d_attended: Tensor | Operation, *, residual: bool) -> list[Operation | Part]:
    """From the gradient of what comes out of attention to those of its tokens and weights."""
    size, of_head = shape.width, {head: shape.heads, dim: shape.head_width}
    of_heads = {part: 3, **of_head}
    w_out, w_qkv = Tensor("w_out", {channel: size, **of_head}), Tensor("w_qkv", {**of_heads, model: size})
    mixed, x = Tensor("mixed", {**TOKENS, **of_head}), Tensor("x", {**TOKENS, model: size})
    d_mixed = compute("d_mixed", {**TOKENS, **of_head}, sum_over(
        {channel: size}, d_attended[batch, pos, channel] * w_out[channel, head, dim]))
    mix = mix_backward(shape, d_mixed)
    d_qkv = mix[-1].operation.output
    inward = sum_over(of_heads, d_qkv[batch, pos, part, head, dim] * w_qkv[part, head, dim, model])
    return [
        summed("d_w_out", {channel: size, **of_head},
               d_attended[batch, pos, channel] * mixed[batch, pos, head, dim]),
        summed("d_b_out", {channel: size}, d_attended[batch, pos, channel]),
        d_mixed, *mix,
        summed("d_w_qkv", {**of_heads, model: size},
               d_qkv[batch, pos, part, head, dim] * x[batch, pos, model]),
        summed("d_b_qkv", of_heads, d_qkv[batch, pos, part, head, dim]),
        compute("d_x", {**TOKENS, model: size}, inward + d_attended[batch, pos, model] if residual else inward),
    ]


def _scheduled_attention(given: Program, shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    given = linear(given, "d_mixed", "dim", "channel", chosen)
    given = scheduled_mix_backward(given, shape, queries=chosen.queries)
    given = fuse(fuse(given, "d_x", "part", "head"), "d_x", "part_head", "dim")
    given = linear(given, "d_x", "model", "part_head_dim", chosen)
    for name, outs in (("out", 1), ("qkv", 3)):
        given = scheduled_weights(given, f"d_w_{name}", outs, tile=TILE)
        given = scheduled_sum(given, f"d_b_{name}", cols=COLS)
    return given
