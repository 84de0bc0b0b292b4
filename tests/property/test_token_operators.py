"""Softmax along tokens and layer norm, forward and backward: all schedules of their spaces compute what NumPy does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import InterpretedLibrary

from sparloom.jit import compile_c
from sparloom.ragged import (
    KEPT,
    LENGTHS,
    Executable,
    NormSchedule,
    SoftmaxSchedule,
    Structure,
    interpreted,
    layer_norm,
    layer_norm_backward,
    scheduled_layer_norm,
    scheduled_layer_norm_backward,
    scheduled_softmax,
    scheduled_softmax_backward,
    softmax,
    softmax_backward,
)
from sparloom.space import NormSpace, SoftmaxSpace

quick = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
batches_of_lengths = st.lists(st.integers(0, 6) | st.sampled_from([0, 1]), max_size=4)
softmax_schedules = st.sampled_from(list(SoftmaxSpace("softmax"))).map(
    lambda config: SoftmaxSchedule(**dict(config.values))) | st.builds(
    SoftmaxSchedule, cols=st.integers(1, 4), lanes=st.sampled_from(["columns", "tokens"]),
    powers=st.sampled_from(["stored", "twice"]))
norm_schedules = st.sampled_from(list(NormSpace("norm"))).map(lambda config: NormSchedule(**dict(config.values)))


def drawn(lengths, width):
    """Tokens, and a gradient of the result."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((sum(lengths), width), np.float32) for _ in range(2)]


def softmax_oracle(lengths, x, upstream):
    """Weights and d_x, in float64."""
    results = []
    for part, given_back in zip(*(np.split(each.astype(float), np.cumsum(lengths)[:-1] if lengths else [])
                                  for each in (x, upstream)), strict=True):
        weights = np.exp(part) / np.exp(part).sum(axis=0)
        results.append((weights, weights * (given_back - (weights * given_back).sum(axis=0))))
    return [np.concatenate(each) for each in zip(*results, strict=True)]


def norm_oracle(x, gain, shift, upstream):
    """The result, d_x, d_gain and d_shift, in float64."""
    x, gain, upstream = (each.astype(float) for each in (x, gain, upstream))
    apart = x - x.mean(axis=1, keepdims=True)
    spread = 1 / np.sqrt((apart**2).mean(axis=1, keepdims=True) + 1e-5)
    normal, inward = apart * spread, upstream * gain
    d_x = spread * (inward - inward.mean(axis=1, keepdims=True)
                    - normal * (inward * normal).mean(axis=1, keepdims=True))
    return normal * gain + shift, d_x, (upstream * normal).sum(axis=0), upstream.sum(axis=0)


def near(found, expected):
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=0,
                               atol=1e-5 * max(1.0, np.abs(expected).max(initial=0.0)))


def check_softmax(run, forward, backward, lengths, width):
    x, upstream = drawn(lengths, width)
    found = run(forward, x=x)
    grads = run(backward, x=x, d_weights=upstream, peak=found["peak"], total=found["total"])
    for actual, expected in zip((found["weights"], grads["d_x"]), softmax_oracle(lengths, x, upstream), strict=True):
        near(actual, expected)


def check_norm(run, forward, backward, lengths, width):
    x, upstream = drawn(lengths, width)
    gain, shift = drawn([1], width)
    found = run(forward, x=x, gain_1=gain, shift_1=shift)
    grads = run(backward, x=x, gain_1=gain, d_norm_1=upstream, mean_1=found["mean_1"], spread_1=found["spread_1"])
    results = [found["norm_1"], *(grads[name] for name in ("d_x", "d_gain_1", "d_shift_1"))]
    for actual, expected in zip(results, norm_oracle(x, gain, shift, upstream), strict=True):
        near(actual, expected)


def by_interpreter(lengths):
    of = Structure({LENGTHS: lengths}, InterpretedLibrary)
    return lambda program, **given: interpreted(program, of, **given)


@settings(quick, max_examples=40)
@given(lengths=batches_of_lengths, width=st.integers(1, 18), chosen=softmax_schedules)
def test_softmax_interpreted(lengths, width, chosen):
    check_softmax(by_interpreter(lengths), scheduled_softmax(width, chosen, kept=KEPT),
                  scheduled_softmax_backward(width, chosen), lengths, width)


@settings(quick, max_examples=25)
@given(lengths=batches_of_lengths, width=st.integers(2, 18), chosen=norm_schedules)
def test_norm_interpreted(lengths, width, chosen):
    check_norm(by_interpreter(lengths), scheduled_layer_norm(width, chosen, kept=KEPT),
               scheduled_layer_norm_backward(width, chosen), lengths, width)


@pytest.mark.parametrize("lengths", [[], [0], [5, 0, 1, 3]], ids=str)
def test_definitions(lengths):
    check_softmax(by_interpreter(lengths), softmax(5), softmax_backward(5), lengths, 5)
    check_norm(by_interpreter(lengths), layer_norm(5), layer_norm_backward(5), lengths, 5)


@pytest.mark.cc
@pytest.mark.parametrize("operator", ["softmax", "norm"])
@settings(quick, max_examples=6)
@given(data=st.data())
def test_compiled(operator, data, tmp_path_factory):
    width = data.draw(st.sampled_from([2, 40]))
    chosen = data.draw(softmax_schedules if operator == "softmax" else norm_schedules)
    forward, backward, check = (
        (scheduled_softmax(width, chosen, kept=KEPT), scheduled_softmax_backward(width, chosen), check_softmax)
        if operator == "softmax" else
        (scheduled_layer_norm(width, chosen, kept=KEPT), scheduled_layer_norm_backward(width, chosen), check_norm))
    batches = data.draw(st.lists(batches_of_lengths, min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        programs = {forward: Executable(forward), backward: Executable(backward)}
        for lengths in [*batches, [130, 0, 1, 7]]:
            of = Structure({LENGTHS: lengths}, compile_c)

            def run(program, of=of, **given):
                call, bound = programs[program].bind(of, **given)
                call()
                return bound

            check(run, forward, backward, lengths, width)


def test_schedule_options_change_the_program():
    stored, twice = (str(scheduled_softmax(100, SoftmaxSchedule(powers=powers))) for powers in ("stored", "twice"))
    assert "made power: local f32[" in stored
    assert "power" not in twice
    assert "simd for model_inner" in stored
    assert "simd for pos in 0 .. lengths(batch):" in str(scheduled_softmax(40, SoftmaxSchedule(lanes="tokens")))
    assert "chunk 64" in str(scheduled_layer_norm(40, NormSchedule(rows=4, chunk=64)))
    for wrong in (SoftmaxSchedule(lanes="rows"), SoftmaxSchedule(powers="thrice")):
        with pytest.raises(ValueError, match="give 'columns' or 'tokens', and 'stored' or 'twice'"):
            scheduled_softmax(40, wrong)
