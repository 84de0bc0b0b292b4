"""Gradients of a projection of all tokens, out[token, o] = sum_i in[token, i] w[i, o] + b[o].

    d_w[o, i] = sum over tokens of d_out[token, o] in[token, i]       tiles of o and i, in parallel
    d_b[o]    = sum over tokens of d_out[token, o]                    strips of o, in parallel

The gradient of `in` is a projection itself, of d_out by w as PyTorch stores it. Source: CoRa trains nothing; the
reductions over a fused vloop are those of §5.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparloom.ir import Expr
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.program import Operation, Program, compute, sum_over
from sparloom.ragged.schedule.loops import fuse, fuse_neighbours, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import offload
from sparloom.ragged.tokens import TOKENS

__all__ = ["scheduled_sum", "scheduled_weights", "summed"]


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
