"""The three operators of attention whose scores are stored, by loops alone: for comparisons of how elements are found.

    qkt      scores[batch, head, pos, col] += queries * keys, a row of keys at a time
    softmax  as in `ATTENTION_OPERATORS`
    attnv    mixed[batch, pos, head, dim] += weights * values, a row of values at a time

All of them run over sequences and heads in parallel and end in vector lanes. There are no products of tiles, since
rows found by pointers are not known to be evenly spaced.

Source: CoRa §5.3, whose example the scores are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sparloom.ragged.attention_operators import ATTENTION_OPERATORS, ragged_tokens
from sparloom.ragged.attention_splits import SPLIT_OPERATORS
from sparloom.ragged.program import Program
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, vectorise
from sparloom.ragged.tokens import EncoderShape

__all__ = ["ATTENTION_LOOPS"]


def scores(shape: EncoderShape) -> Program:
    """QKT."""
    return _by_rows(SPLIT_OPERATORS["qkt"](shape), "scores", ("batch", "head", "pos", "dim", "col"))


def softmax(shape: EncoderShape) -> Program:
    """Softmax of scaled scores."""
    return ATTENTION_OPERATORS["softmax"](shape, ragged_tokens())


def mixed_values(shape: EncoderShape) -> Program:
    """AttnV."""
    return _by_rows(SPLIT_OPERATORS["attnv"](shape), "mixed", ("batch", "head", "pos", "col", "dim"))


ATTENTION_LOOPS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType(
    {"qkt": scores, "softmax": softmax, "attnv": mixed_values})
"""Scheduled for a CPU."""


def _by_rows(given: Program, nest: str, order: tuple[str, ...]) -> Program:
    given = vectorise(reorder(given, nest, order), nest, order[-1])
    return parallel(fuse(given, nest, *order[:2]), nest, "_".join(order[:2]))
