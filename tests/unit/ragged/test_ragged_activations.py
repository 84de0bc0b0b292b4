"""Activations of the ragged language: compiled and interpreted values and derivatives are those of float64."""

import numpy as np
import pytest
import torch
from interpreted import InterpretedLibrary

from sparloom import ragged
from sparloom.jit import compile_c
from sparloom.ragged import dims
from sparloom.ragged.schedule.loops import vectorise_innermost

batch, pos = dims("batch pos")
BATCHES = ragged.Length("batches")
LENGTHS = ragged.Length("lengths", {batch: BATCHES()})
REFERENCE = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
             "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
POINTS = np.concatenate([np.linspace(-12, 12, 4001), [-1e4, -90.0, -1e-6, 1e-30, 1e-6, 90.0, 1e4]]).astype(np.float32)


def elementwise(function: object) -> ragged.Program:
    x = ragged.Tensor("x", {batch: BATCHES(), pos: LENGTHS(batch)})
    return vectorise_innermost(ragged.program("elementwise", [
        ragged.compute("y", dict(x.axes), function(x[batch, pos]))]), "y")


def run(function: object, points: np.ndarray, *, compiled: bool) -> np.ndarray:
    prog = elementwise(function)
    of = ragged.Structure({LENGTHS: [points.size]}, compile_c if compiled else InterpretedLibrary)
    if compiled:
        return ragged.Executable(prog)(of, x=points)
    return ragged.interpreted(prog, of, x=points)["y"]


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", list(REFERENCE))
@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_derivatives(name: str, compiled: bool) -> None:
    activation, points = ragged.ACTIVATIONS[name], POINTS if compiled else POINTS[::40].copy()
    x = torch.from_numpy(points).double().requires_grad_()
    expected = REFERENCE[name](x)
    slopes, = torch.autograd.grad(expected.sum(), x)
    allowed = 1e-6 * np.maximum(1, np.abs(points))
    found = run(activation.value, points, compiled=compiled)
    assert (np.abs(found - expected.detach().numpy()) <= allowed).all()
    assert (np.abs(run(activation.derivative, points, compiled=compiled) - slopes.numpy()) <= 2e-6).all()


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("compiled", [False, True])
def test_values_to_be_rounded(name: str, compiled: bool) -> None:
    points = POINTS if compiled else POINTS[::40].copy()
    expected = REFERENCE[name](torch.from_numpy(points).double()).numpy()
    found = run(ragged.ACTIVATIONS[name].rough, points, compiled=compiled)
    assert (np.abs(found - expected) <= 5e-5 * np.maximum(1, np.abs(expected))).all()
    extremes = run(ragged.ACTIVATIONS[name].rough, np.array([np.inf, np.nan, 0.0], np.float32), compiled=compiled)
    np.testing.assert_array_equal(extremes, [np.inf, np.nan, 0])


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("function", "expected", "ulps"), [
    (ragged.tanh, torch.tanh, 3), (ragged.erf, torch.erf, 5), (ragged.exp, torch.exp, 2),
    (ragged.exp2, torch.exp2, 1)])
def test_functions_have_small_relative_errors(function, expected, ulps) -> None:
    sizes = np.geomspace(1e-30, 80, 20_000, dtype=np.float32)
    points = np.concatenate([-sizes, sizes])
    exact = expected(torch.from_numpy(points).double()).numpy()
    found = run(function, points, compiled=True).astype(np.float64)
    normal = np.abs(exact) > 2.0**-126
    spacing = np.spacing(np.abs(exact[normal]).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact)[normal] <= ulps * spacing).all()


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
def test_special_values() -> None:
    points = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    np.testing.assert_array_equal(run(ragged.tanh, points, compiled=True), [1, -1, np.nan, 0])
    np.testing.assert_array_equal(run(ragged.erf, points, compiled=True), [1, -1, np.nan, 0])
    points = np.array([np.inf, -np.inf, np.nan, 0.0, 128, 1e9, -127, -1e9, -126], np.float32)
    np.testing.assert_array_equal(run(ragged.exp2, points, compiled=True),
                                  [np.inf, 0, np.nan, 1, np.inf, np.inf, 0, 0, 2.0**-126])
