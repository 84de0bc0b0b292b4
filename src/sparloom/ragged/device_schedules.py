"""Schedules for a GPU: a block of threads per token or row, its threads along the columns; results stay in memory.

    projections, feed-forward    a block per token, a thread per column
    scores, weights              a block per sequence, head and query, a thread per key
    peak, total, means, spreads  a thread per row that is reduced
    mix, norms                   a block per token, a thread per channel
    vgemm, trmm                  a block per row, a thread per column

So the encoder layer is one kernel for each of its operations; keys and values are read where q, k and v lie.
Source: CoRa §7.2, whose nine kernels keep scores, too. Departures: nothing is padded, and no tile is kept in shared
memory: these schedules are made to be right on any GPU, and to be improved on one.
"""

from __future__ import annotations

from sparloom.ragged.encoder import attention, encoder_layer, mixing
from sparloom.ragged.program import Program
from sparloom.ragged.schedule.loops import one_block_per_row
from sparloom.ragged.schedule.operations import inline
from sparloom.ragged.tokens import EncoderShape

__all__ = ["device_attention", "device_encoder_layer", "device_mixing"]


def device_mixing(shape: EncoderShape) -> Program:
    """Schedule `mixing`."""
    return _all(_unstored(mixing(shape)))


def device_attention(shape: EncoderShape) -> Program:
    """Schedule `attention`."""
    return _all(_unstored(attention(shape)))


def device_encoder_layer(shape: EncoderShape) -> Program:
    """Schedule `encoder_layer`."""
    return _all(_unstored(encoder_layer(shape)))


ROW_DIMENSIONS = {"scores": 3, "peak": 3, "weights": 3, "total": 3}
"""Dimensions that name a row; of the others two, batch and pos."""


def _unstored(given: Program) -> Program:
    return inline(inline(given, "keys"), "values")


def _all(given: Program) -> Program:
    for nest in [nest.name for nest in given.nests()]:
        given = one_block_per_row(given, nest, ROW_DIMENSIONS.get(nest, 2))
    return given
