"""Gradients of the encoder layer: schedules agree with the definitions; tests of nn compare with PyTorch."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom import ragged

SHAPE = ragged.EncoderShape(width=4, heads=2, hidden=6)
CAUSAL = ragged.EncoderShape(width=4, heads=2, hidden=6, causal=True, step=4)
MASKED = ragged.EncoderShape(width=4, heads=2, hidden=6, causal=True, step=4, triangles=False)
SMALL = ragged.EncoderSchedule(rows=3, panel=4, depth=5, queries=4)
ATTENTION = (ragged.attention_backward, ragged.scheduled_attention_backward)
FORMS = [ragged.EncoderShape(width=4, heads=2, hidden=6, activation="gelu", norm_first=True),
         ragged.EncoderShape(width=4, heads=2, hidden=6, activation="silu", gated=True, norm="rms"),
         ragged.EncoderShape(width=4, heads=2, hidden=6, distances=3, scale=0.5),
         ragged.EncoderShape(width=4, heads=2, hidden=6, distances=7, causal=True, step=4)]
LAYER = (ragged.encoder_backward, ragged.scheduled_encoder_backward)


@pytest.mark.parametrize(("pair", "shape"), [
    (LAYER, SHAPE), *((LAYER, form) for form in FORMS), (ATTENTION, CAUSAL), (ATTENTION, MASKED)])
def test_schedules_compute_the_definitions(pair, shape):
    plain, chosen = pair[0](shape), pair[1](shape, SMALL)
    of = ragged.Structure({ragged.LENGTHS: [5, 1, 0, 6]}, InterpretedLibrary)
    rng = np.random.default_rng(0)
    packed = {name: 0.3 * rng.standard_normal(of.size(tensor), dtype=np.float32)
              for name, tensor in plain.tensors().items() if name in plain.inputs()}
    found = []
    for prog in (plain, chosen):
        inputs = {name: ragged.RaggedTensor.from_packed(prog.tensors()[name], of, value).data
                  for name, value in packed.items()}
        found.append(ragged.interpreted(prog, of, **inputs))
    assert plain.outputs == chosen.outputs
    for name in plain.outputs:
        scale = np.abs(found[0][name]).max()
        np.testing.assert_allclose(found[1][name], found[0][name], atol=1e-5 * scale, err_msg=name)
