"""Sums over all tokens: gradients of weights and biases."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom.ops import assert_close
from sparloom.ragged import (
    LENGTHS,
    TOKENS,
    Structure,
    Tensor,
    dims,
    interpreted,
    program,
    schedule_token_sum,
    schedule_weight_gradient,
    sum_over_tokens,
)

batch, pos = TOKENS
part, head, dim, model, more = dims("part head dim model more")
OUTS, INS = {part: 3, head: 2, dim: 5}, {model: 4, more: 2}
d_out, into = Tensor("d_out", {**TOKENS, **OUTS}), Tensor("into", {**TOKENS, **INS})
SUMS = program("sums", [
    sum_over_tokens("d_w", {**OUTS, **INS}, d_out[batch, pos, part, head, dim] * into[batch, pos, model, more]),
    sum_over_tokens("d_b", OUTS, d_out[batch, pos, part, head, dim])], ["d_w", "d_b"])


@pytest.mark.parametrize("lengths", [[], [0], [5, 0, 2]])
@pytest.mark.parametrize(("tile", "cols"), [((7, 3), 2), ((48, 256), 64)])
def test_sums_over_tokens(lengths, tile, cols):
    prog = schedule_token_sum(schedule_weight_gradient(SUMS, "d_w", 3, tile=tile), "d_b", cols=cols)
    of = Structure({LENGTHS: lengths}, InterpretedLibrary)
    rng = np.random.default_rng(0)
    grads = rng.standard_normal((sum(lengths), 30), np.float32)
    tokens = rng.standard_normal((sum(lengths), 8), np.float32)
    found = interpreted(prog, of, d_out=grads, into=tokens)
    assert_close(found["d_w"], (grads.T.astype(float) @ tokens).reshape(-1), terms=16, scale=8.0)
    assert_close(found["d_b"], grads.astype(float).sum(axis=0), terms=16, scale=8.0)
