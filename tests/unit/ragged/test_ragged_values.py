"""Expressions of values."""

import math

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batch, batches, col, inner, lengths, row

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ir import F64

token = {batch: batches(), row: lengths(batch)}
x = ragged.Tensor("x", {**token, inner: 3})
OF = ragged.Structure({lengths: [2, 0, 3]}, InterpretedLibrary)
X = np.random.default_rng(0).standard_normal((5, 3), np.float32)


def run(value, axes=token):
    return ragged.interpreted(ragged.program("p", [ragged.compute("y", axes, value)]), OF, x=X)["y"]


def test_functions_of_elements():
    element = x[batch, row, inner]
    found = run(ragged.sqrt(ragged.maximum(element, ragged.real(0.0))) + ragged.exp(element), {**token, inner: 3})
    np.testing.assert_allclose(found.reshape(5, 3), np.sqrt(np.maximum(X, 0)) + np.exp(X), rtol=1e-6)


@pytest.mark.parametrize(("reduce", "of"),
                         [(ragged.max_over, np.max), (ragged.min_over, np.min), (ragged.sum_over, np.sum)])
def test_reductions(reduce, of):
    np.testing.assert_allclose(run(reduce({inner: 3}, x[batch, row, inner])), of(X, axis=1), rtol=1e-6)


def test_a_reduction_over_no_dimension():
    empty = {"sum": 0.0, "max": -math.inf, "min": math.inf}
    for reduce, name in ((ragged.sum_over, "sum"), (ragged.max_over, "max"), (ragged.min_over, "min")):
        np.testing.assert_array_equal(run(reduce({inner: 0}, x[batch, row, inner])), np.full(5, empty[name]))


def test_a_condition_on_dimensions_masks_elements():
    square = {**token, col: lengths(batch)}
    found = run(ragged.where(ragged.less(col, row + 1), x[batch, col, 0], ragged.real(-1.0)), square)
    expected = [np.where(np.tri(n, dtype=bool), X[start : start + n, 0], -1) for start, n in ((0, 2), (2, 3))]
    np.testing.assert_array_equal(found, np.concatenate([each.reshape(-1) for each in expected]))


def test_lengths_and_dimensions_are_numbers():
    found = run(ragged.where(ragged.less(row, 9), ragged.real(lengths(batch)) * ragged.real(10.0) + ragged.real(row),
                             x[batch, row, 0]), token)
    np.testing.assert_array_equal(found, [20, 21, 30, 31, 32])


def test_two_dimensions_are_reduced_at_once():
    found = run(ragged.sum_over({row: lengths(batch), inner: 3}, x[batch, row, inner]), {batch: batches()})
    np.testing.assert_allclose(found, [X[:2].sum(), 0, X[2:].sum()], rtol=1e-6)


@pytest.mark.cc
def test_double_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    wide = ragged.Tensor("x", {**token, inner: 3}, F64)
    value = ragged.sum_over({inner: 3}, wide[batch, row, inner] * wide[batch, row, inner])
    run = ragged.Executable(ragged.program("p", [ragged.compute("y", token, value, F64)]))
    data = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(run(ragged.Structure({lengths: [2, 3]}), x=data), (data**2).sum(axis=1), rtol=1e-14)


def test_minima_and_maxima_ignore_padding_with_every_accumulator():
    """Padding is NaN, so a maximum and a minimum cannot both ignore it by chance."""
    for reduce, of in ((ragged.max_over, np.max), (ragged.min_over, np.min)):
        top = ragged.program("p", [ragged.compute("y", {batch: batches(), inner: 3}, reduce(
            {row: lengths(batch)}, x[batch, row, inner]))])
        padded = ragged.pad_loop(ragged.pad_storage(top, "x", {row: 4}), "y", row, 4)
        tiled = ragged.reorder(ragged.split(padded, "y", "row", 2), "y", ("row_outer", "row_inner", "inner"))
        stored = np.full((8, 3), np.nan, np.float32)
        stored[:2], stored[4:7] = X[:2], X[2:]
        for each in (padded, tiled, ragged.vectorise(ragged.reorder(padded, "y", ("row", "inner")), "y", "inner")):
            found = ragged.interpreted(each, OF, x=stored)["y"].reshape(3, 3)
            np.testing.assert_array_equal(found[[0, 2]], [of(X[:2], axis=0), of(X[2:], axis=0)])


def test_operands_have_one_element_type():
    mixed = ragged.program("p",
                           [ragged.compute("y", {**token, inner: 3}, x[batch, row, inner] * ragged.real(2.0, F64))])
    with pytest.raises(IllegalSchedule, match=r"operands of \* are f32 and f64: use Cast"):
        ragged.interpreted(mixed, OF, x=X)
