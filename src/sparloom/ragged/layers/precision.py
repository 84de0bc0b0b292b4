"""Products whose operands are stored in fewer bits: bfloat16, or bytes.

For tokens t[batch, pos, i] and weights w[i, o], with the numbers of columns i and o constant:

    float32     sum_i t w
    bfloat16    sum_i t w with t and w rounded to bfloat16, added up in float32
    int8        t is about low + step q with 0 <= q <= 255, low = min_i t, step = (max_i t - min_i t) / 255, by token;
                w is about scale[o] v with -127 <= v <= 127 and scale = max_i |w| / 127;
                scale (step sum_i q v + low total), total[o] = sum_i v, added up in int32

In bfloat16 the two products of attention are such sums, too, of queries and keys and of weights and values: rotated
queries and keys are rounded after the rotation, and weights of attention before they are added up, so that those that
values are multiplied by add up to 1. Attention whose scores are not scaled down, such as that of T5, stays in float32:
its weights are far apart, and errors of few values do not cancel. Everything else is computed in float32: scores, their
softmax, norms, activations, residual sums; gelu is a polynomial. Tokens with a NaN or an infinite number become NaN in
int8.

Source: Dettmers et al. 2022 (LLM.int8), §2, for scales by row and column; zero points as in Jacob et al. 2018, §2.1.
Departure: the offset `low` is not rounded to a multiple of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ir import BF16, F32, I8, I32, U8, Cast, Expr, Type, interleaved_rows
from sparloom.ragged.dimensions import Dim, round_up
from sparloom.ragged.layers.tokens import EncoderShape, batch, pos, schedule_elementwise
from sparloom.ragged.nests import (
    Operation,
    Program,
    compute,
    less,
    max_over,
    min_over,
    minimum,
    real,
    sum_over,
    where,
)
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, vectorise_innermost
from sparloom.ragged.tensor import Read, Tensor

Dims = Mapping[Dim, Expr | int]

PRECISIONS: Mapping[str, Type] = {"float32": F32, "bfloat16": BF16, "int8": U8}
"""Precision -> type of tokens as products read them."""
MOST_BYTE, MOST_WEIGHT = 255, 127
KEY_MULTIPLE = 16  # whole vectors of scores, and whole groups of interleaved rows
BY_TOKEN = ("low", "valid", "step", "inverse")  # what bytes of a token are made of


@dataclass(frozen=True)
class Operand:
    """Tokens as products with weights read them.

    Args:
        operations: what makes them, if they are not made yet.
        tokens: the tensor that is read.
        low, step: see above, for bytes.
    """

    tokens: Operation | Tensor
    operations: tuple[Operation, ...] = ()
    low: Operation | None = None
    step: Operation | None = None

    def times(self, weights: str, reduced: Dims, outs: Dims) -> Expr:
        """Multiply by weights[reduced, outs]."""
        kind = self.tokens.type if isinstance(self.tokens, Tensor) else self.tokens.output.type
        tokens, dims = self.tokens[(batch, pos, *reduced)], {**reduced, **outs}
        if kind == F32:
            return sum_over(reduced, tokens * Tensor(weights, dims)[tuple(dims)])
        if kind == BF16:
            factor = Tensor(weights, dims, BF16)[tuple(dims)]
            return sum_over(reduced, Cast(F32, tokens) * Cast(F32, factor))
        assert self.low is not None
        assert self.step is not None
        factor, rest = Tensor(weights, dims, I8)[tuple(dims)], weights.removeprefix("w_")
        scale, total = (Tensor(f"{name}_{rest}", outs)[tuple(outs)] for name in ("scale", "total"))
        found = Cast(F32, sum_over(reduced, Cast(I32, tokens) * Cast(I32, factor)))
        return (found * self.step[batch, pos] + self.low[batch, pos] * total) * scale


def check_precision(shape: EncoderShape) -> None:
    """Check that there are programs of this precision.

    Raises:
        ValueError: there is no such precision.
        Unsupported: a number of columns cannot be interleaved.
    """
    if shape.precision not in PRECISIONS:
        raise ValueError(f"precision={shape.precision!r}: there are {', '.join(PRECISIONS)}")
    group = interleaved_rows(PRECISIONS[shape.precision].scalar)
    for name, columns in (("width", shape.width), ("hidden", shape.hidden), ("width of a head", shape.head_width)):
        if columns % group:
            raise Unsupported(f"{name} {columns} is no multiple of {group}, as {shape.precision} needs it: use float32")


def round_for_products(shape: EncoderShape, value: Expr) -> tuple[Expr, Type]:
    """Round a value that only products read, if the precision is bfloat16; also return its type."""
    return (Cast(BF16, value), BF16) if shape.precision == "bfloat16" else (value, F32)


def round_for_attention(shape: EncoderShape, value: Expr) -> tuple[Expr, Type]:
    """Round a value that only products of attention read likewise, see above."""
    return (Cast(BF16, value), BF16) if _has_narrow_attention(shape) else (value, F32)


def _has_narrow_attention(shape: EncoderShape) -> bool:
    return shape.precision == "bfloat16" and shape.score_scale <= 2 * shape.head_width**-0.5


def number(read: Read) -> Expr:
    """Return an element as a number of float32."""
    return Cast(F32, read) if read.tensor.type == BF16 else read


def padded_keys(shape: EncoderShape, count: Expr) -> Expr:
    """Round up a number of keys for products of attention in bfloat16, whose rows are interleaved."""
    return round_up(count, KEY_MULTIPLE) if _has_narrow_attention(shape) else count


def operand(shape: EncoderShape, tokens: Operation | Tensor, over: Dims) -> Operand:
    """Convert tokens for products that reduce the dimensions `over`, their last ones."""
    tensor = tokens if isinstance(tokens, Tensor) else tokens.output
    if PRECISIONS[shape.precision] == tensor.type:
        return Operand(tokens)
    number, name, of_tokens = tokens[(batch, pos, *over)], tensor.name, dict(tensor.axes[:2])
    axes = {**of_tokens, **over}
    if shape.precision == "bfloat16":
        found = compute(f"{name}_rounded", axes, Cast(BF16, number), BF16)
        return Operand(found, (found,))
    low = compute(f"{name}_low", of_tokens, min_over(over, number))
    valid = compute(f"{name}_valid", of_tokens, sum_over(over, number * real(0.0)))  # NaN if a number is none
    step = compute(f"{name}_step", of_tokens, (max_over(over, number) - low[batch, pos]) * real(1 / MOST_BYTE)
                   + valid[batch, pos])
    inverse = compute(f"{name}_inverse", of_tokens, where(less(real(0.0), step[batch, pos]),
                                                          real(1.0) / step[batch, pos], real(0.0)))
    nearest = (number - low[batch, pos]) * inverse[batch, pos] + real(0.5)
    found = compute(f"{name}_bytes", axes, Cast(U8, Cast(I32, minimum(nearest, real(float(MOST_BYTE))))), U8)
    return Operand(found, (low, valid, step, inverse, found), low, step)


def schedule_operands(prog: Program) -> Program:
    """Schedule all conversions for a CPU: a token at a time."""
    names = [nest.name for nest in prog.nests()]
    for name in names:
        if name.endswith("_rounded"):
            prog = schedule_elementwise(prog, name)
        elif name.endswith("_bytes"):
            low, valid, step, inverse = (f"{name.removesuffix('bytes')}{each}" for each in BY_TOKEN)
            for nest, producer in ((low, None), (step, valid), (name, inverse)):
                prog = parallel(fuse(prog, nest, "batch", "pos"), nest, "batch_pos", chunk=16)
                prog = prog if producer is None else compute_at(prog, producer, nest, "batch_pos", local=True)
            prog = vectorise_innermost(prog, low, valid, step, name)
    return prog


def quantised(parameters: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Convert weights (outs, reduced) to bytes, and add their scales and totals, for tensors of i8.

    Args:
        parameters: arrays by name, of weights with their reduced dimensions last.
        weights: tensors of the program.
    """
    found = dict(parameters)
    for name, tensor in weights.items():
        if tensor.type == I8:
            rest = name.removeprefix("w_")
            outs = math.prod(int(extent.value) for _, extent in weights[f"scale_{rest}"].axes)
            rows = parameters[name].reshape(outs, -1)
            scale = np.abs(rows).max(axis=1) / np.float32(MOST_WEIGHT)
            with np.errstate(invalid="ignore"):  # a scale of NaN or infinity makes the results NaN
                found[name] = np.rint(rows / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8)
            found[f"scale_{rest}"] = scale
            found[f"total_{rest}"] = found[name].sum(axis=1, dtype=np.int32).astype(np.float32)
    return found
