"""The encoder layer: every schedule computes the same as NumPy, sequence by sequence."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom import ragged
from sparloom.jit import compile_c

SHAPE = ragged.EncoderShape(width=8, heads=2, hidden=12)
CAUSAL = ragged.EncoderShape(width=8, heads=2, hidden=12, causal=True)
MASKED = ragged.EncoderShape(width=8, heads=2, hidden=12, causal=True, triangles=False)
LONG_ROWS = ragged.EncoderShape(width=8, heads=2, hidden=1024)
SMALL = ragged.EncoderSchedule(rows=3, panel=4, depth=5, queries=4)
LENGTHS_GIVEN = [5, 1, 0, 9]


def parameters(program, seed=0):
    """Small weights; what is read of tokens is packed."""
    rng = np.random.default_rng(seed)
    of = ragged.Structure({ragged.LENGTHS: LENGTHS_GIVEN}, InterpretedLibrary)
    return {name: 0.5 * rng.standard_normal(of.size(program.tensors()[name])).astype(np.float32)
            for name in program.inputs()}


def stored(program, of, values):
    return {name: ragged.RaggedTensor.from_packed(program.tensors()[name], of, value).data for name,
            value in values.items()}


def oracle(shape, values, *, layer):
    """A layer, or attention by itself, in float64."""
    width, heads, size = shape.width, shape.heads, shape.head_width
    v = {name: value.astype(np.float64) for name, value in values.items()}
    results = []
    for x in np.split(v["x"].reshape(-1, width), np.cumsum(LENGTHS_GIVEN)[:-1]):
        qkv = np.einsum("tm,mphd->phtd", x, v["w_qkv"].reshape(width, 3, heads, size))
        q, k, value = qkv + v["b_qkv"].reshape(3, heads, 1, size)
        scores = np.einsum("htd,hsd->hts", q, k) / np.sqrt(size)
        if shape.causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores)
        mixed = np.einsum("hts,hsd->thd", weights / weights.sum(axis=2, keepdims=True), value)
        attended = np.einsum("thd,hdc->tc", mixed, v["w_out"].reshape(heads, size, width)) + v["b_out"]
        if layer:
            first = _norm(attended + x, v["gain_1"], v["shift_1"], shape)
            active = np.maximum(first @ v["w_in"].reshape(width, -1) + v["b_in"], 0)
            attended = _norm(active @ v["w_back"].reshape(-1, width) + v["b_back"] + first, v["gain_2"], v["shift_2"],
                             shape)
        results.append(attended)
    return np.concatenate(results)


def _norm(x, gain, shift, shape):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + shape.epsilon) * gain + shift


@pytest.mark.parametrize("shape", [SHAPE, CAUSAL, MASKED])
@pytest.mark.parametrize("scheduled", [False, True])
def test_interpreted_attention(shape, scheduled):
    program = ragged.scheduled_attention(shape, SMALL) if scheduled else ragged.attention(shape)
    of = ragged.Structure({ragged.LENGTHS: LENGTHS_GIVEN}, InterpretedLibrary)
    values = parameters(ragged.attention(shape))
    found = ragged.interpreted(program, of, **stored(program, of, values))["attended"]
    np.testing.assert_allclose(found.reshape(-1, 8), oracle(shape, values, layer=False), atol=1e-5)


@pytest.mark.parametrize("shape", [SHAPE, CAUSAL])
def test_an_interpreted_layer(shape):
    program = ragged.scheduled_encoder_layer(shape, SMALL)
    of = ragged.Structure({ragged.LENGTHS: LENGTHS_GIVEN}, InterpretedLibrary)
    values = parameters(ragged.encoder_layer(shape))
    found = ragged.interpreted(program, of, **stored(program, of, values))["norm_2"]
    np.testing.assert_allclose(found.reshape(-1, 8), oracle(shape, values, layer=True), atol=1e-5)


@pytest.mark.cc
@pytest.mark.parametrize("shape", [
    SHAPE, CAUSAL, ragged.EncoderShape(width=64, heads=2, hidden=80, causal=True), LONG_ROWS])
@pytest.mark.parametrize("chosen",
                         [ragged.EncoderSchedule(), ragged.EncoderSchedule(rows=5, panel=8, depth=32, queries=64)])
def test_a_compiled_layer(shape, chosen, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    program = ragged.scheduled_encoder_layer(shape, chosen)
    of = ragged.Structure({ragged.LENGTHS: LENGTHS_GIVEN}, compile_c)
    values = parameters(ragged.encoder_layer(shape))
    for name in ("w_in", "w_back", "w_qkv"):
        values[name] *= shape.width**-0.5
    found = ragged.Executable(program)(of, **stored(program, of, values))
    np.testing.assert_allclose(found.reshape(-1, shape.width), oracle(shape, values, layer=True), atol=2e-5)


def test_causal_attention_computes_triangles_of_tiles():
    text = str(ragged.scheduled_mixing(CAUSAL, SMALL))
    assert "dense for col in 0 .. min(lengths(batch), (pos_outer + 1) * 4) (reduction):" in text
    assert "made scores: local f32[" in text
    assert str(ragged.mixing(CAUSAL)).count("launch") == 7
