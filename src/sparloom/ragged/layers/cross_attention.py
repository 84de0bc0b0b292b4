"""Attention between two ragged batches: tokens of one attend to those of the other, its memory, sequence by sequence.

    queries   = x w_q + b_q               x[batch, pos, model]
    kv        = memory w_kv + b_kv        memory[batch, pos, model], of other lengths; parts k and v
    attended  = (softmax(queries kT / sqrt(head width)) v) w_out + b_out

Scores, softmax and mix are those of `attention`, with its schedules. Queries of sequences whose memory is empty, or
hidden by the mask, mix to 0. Weights have the dimensions of PyTorch's parameters in gradients: w_q[head, dim, model],
w_kv[part, head, dim, model], w_out[channel, head, dim].

Source: Vaswani et al. 2017, §3.2.3 (encoder-decoder attention). Departure: CoRa has attention within a batch only.
"""

from __future__ import annotations

from collections.abc import Collection

from sparloom.errors import Unsupported
from sparloom.ragged.definition import program
from sparloom.ragged.layers.attention import (
    define_mix_and_projection,
    define_queries_and_keys,
    define_turned_heads,
    schedule_mix_and_projection,
)
from sparloom.ragged.layers.attention_gradients import (
    d_kv,
    define_mixing_gradients,
    define_output_gradients,
    schedule_mixing_gradients,
)
from sparloom.ragged.layers.precision import operand, schedule_operands
from sparloom.ragged.layers.tokens import (
    MEMORY,
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    fuse_reduction,
    model,
    pos,
    schedule_elementwise,
    schedule_linear,
    schedule_parameter_gradients,
)
from sparloom.ragged.nests import Program, compute, sum_over
from sparloom.ragged.tensor import Tensor

OUTPUTS = ("d_x", "d_memory", "d_w_q", "d_b_q", "d_w_kv", "d_b_kv", "d_w_out", "d_b_out")


def check_cross(shape: EncoderShape) -> None:
    """Check that nothing depends on the distance of tokens, which those of two batches do not have.

    Raises:
        Unsupported: something does.
    """
    for name in ("causal", "window", "rotary", "distances"):
        if getattr(shape, name) not in (None, False, 0):
            raise Unsupported(f"{name}={getattr(shape, name)} with tokens of another batch, whose positions are not "
                              "related: leave it out")


def cross_attention(shape: EncoderShape) -> Program:
    """Define attention to a memory, unscheduled; `shape` has cross=True.

    Raises:
        Unsupported: scores of the shape depend on distances.
    """
    check_cross(shape)
    of_model = {model: shape.width}
    x, memory = (operand(shape, Tensor(name, {**tokens, **of_model}), of_model)
                 for name, tokens in (("x", TOKENS), ("memory", MEMORY)))
    made = define_queries_and_keys(shape, x, memory, MEMORY)
    _, read = define_turned_heads(shape, *made)
    return program("cross_attention", [
        *x.operations, *memory.operations, *define_mix_and_projection(shape, made, read)])


def scheduled_cross_attention(shape: EncoderShape, schedule: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `cross_attention` for a CPU; `kept` as in `scheduled_encoder_layer`."""
    prog = schedule_operands(cross_attention(shape))
    for name in ("queries", "kv"):
        prog = schedule_linear(prog, name, "dim", "model", schedule)
    return schedule_mix_and_projection(prog, schedule, kept)


def cross_attention_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `cross_attention`, unscheduled; its outputs are `OUTPUTS`."""
    check_cross(shape)
    size, of_head, of_parts = shape.width, shape.of_heads, shape.of_keys
    made = Tensor("queries", {**TOKENS, **of_head}), Tensor("kv", {**MEMORY, **of_parts})
    projection = define_output_gradients(shape, Tensor("d_attended", {**TOKENS, channel: size}))
    gradients = define_mixing_gradients(shape, projection[-1], define_turned_heads(shape, *made)[1])
    found = [*projection, *gradients]
    d_q = next(each for each in gradients if each.name == "d_q")
    for name, short, tokens, d_made, outs in (("x", "q", TOKENS, d_q, of_head), ("memory", "kv", MEMORY, d_kv(shape),
                                                                              of_parts)):
        weights, inputs = Tensor(f"w_{short}", {**outs, model: size}), Tensor(name, {**tokens, model: size})
        number = d_made[(batch, pos, *outs)]
        found += [
            compute(f"d_w_{short}", {**outs, model: size}, sum_over(tokens, number * inputs[batch, pos, model])),
            compute(f"d_b_{short}", outs, sum_over(tokens, number)),
            compute(f"d_{name}", {**tokens, model: size}, sum_over(outs, number * weights[(*outs, model)]))]
    return program("cross_attention_backward", found, OUTPUTS)


def scheduled_cross_attention_backward(shape: EncoderShape, schedule: EncoderSchedule) -> Program:
    """Schedule `cross_attention_backward` for a CPU."""
    prog = cross_attention_backward(shape)
    if shape.dropout[1]:
        prog = schedule_elementwise(prog, "d_added")
    prog = schedule_linear(prog, "d_mixed", "dim", "channel", schedule)
    prog = schedule_mixing_gradients(prog, shape, queries=schedule.queries)
    for name in ("d_x", "d_memory"):
        prog, reduction = fuse_reduction(prog, name)
        prog = schedule_linear(prog, name, "model", reduction, schedule)
    return schedule_parameter_gradients(prog, {"out": 1, "q": 2, "kv": 3})
