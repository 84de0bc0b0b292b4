"""Softmax along the tokens of sequences and layer norm against PyTorch's, with gradients."""

import copy
import pickle
import re

import pytest
import torch

from sparloom.nn import LayerNorm, ragged_softmax
from sparloom.ragged import NormSchedule, SoftmaxSchedule

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

WIDTH = 20
BATCHES = [[5, 1, 0, 9, 3], [7], [70, 3, 130], [0], []]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def by_sequence(x, lengths):
    return torch.cat([x[:0], *(each.softmax(0) for each in x.split(list(lengths)))])


def norms(**options):
    """Make PyTorch's layer with random parameters, and ours with its state dict."""
    theirs = torch.nn.LayerNorm(WIDTH, **options)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, parameter.mean().item(), 0.3)
    ours = LayerNorm(WIDTH, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def assert_near(actual, expected):
    """Within 1e-5 of the largest element."""
    size = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * size)


def assert_same(x, *calls):
    """Results, and gradients by x and by parameters: calls are (function of x, parameters)."""
    seen, found = torch.randn_like(x), []
    for call, parameters in calls:
        inputs = x.clone().requires_grad_()
        result = call(inputs)
        found.append([result, *torch.autograd.grad((result * seen).sum(), [inputs, *parameters])])
        with torch.no_grad():
            assert_near(call(x), result)
    for actual, expected in zip(*found, strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
@pytest.mark.parametrize("schedule", [None, SoftmaxSchedule(cols=8, lanes="tokens", powers="twice", chunk=4)])
@pytest.mark.parametrize("width", [1, WIDTH])
def test_softmax_is_that_of_pytorch(width, schedule, lengths):
    x = torch.randn(sum(lengths), width)
    assert_same(x, (lambda x: ragged_softmax(x, lengths, schedule=schedule), []),
                (lambda x: by_sequence(x, lengths), []))


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}], ids=str)
def test_norm_is_that_of_pytorch(options, lengths):
    theirs, ours = norms(**options)
    shown = repr(ours) if "bias" in repr(theirs) else re.sub(", bias=(True|False)", "", repr(ours))  # PyTorch 2.6
    assert shown == repr(theirs)
    other = LayerNorm(WIDTH, **options, schedule=NormSchedule(rows=4, chunk=2))
    other.load_state_dict(theirs.state_dict())
    x = torch.randn(sum(lengths), WIDTH)
    for module in (ours, other):
        assert_same(x, (lambda x, module=module: module(x, lengths), module.parameters()),
                    (theirs, theirs.parameters()))


def test_softmax_of_large_and_of_masked_values():
    x = torch.randn(9, WIDTH)
    x[:5] += 1e4
    x[6] = -torch.inf
    for schedule in (SoftmaxSchedule(), SoftmaxSchedule(lanes="tokens", powers="twice")):
        result = ragged_softmax(x, [5, 4], schedule=schedule)
        assert_near(result, by_sequence(x, [5, 4]))
        assert not result[6].any()


def test_one_value_per_token_needs_no_columns():
    x = torch.randn(9, requires_grad=True)
    result = ragged_softmax(x, [5, 0, 4])
    assert_near(result, by_sequence(x, [5, 0, 4]))
    grads = [torch.autograd.grad(each.square().sum(), x)[0] for each in (result, by_sequence(x, [5, 0, 4]))]
    assert_near(*grads)
    assert ragged_softmax(torch.ones(3, 0), [3]).shape == (3, 0)


def test_nested_tensors_stay_nested():
    parts = [torch.randn(length, WIDTH, requires_grad=True) for length in (5, 2, 7)]
    inputs = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    theirs, ours = norms()
    result = ours(ragged_softmax(inputs))
    assert result.is_nested
    assert_near(result.values(), theirs(by_sequence(torch.cat(parts), [5, 2, 7])))
    result.values().square().sum().backward()
    assert all(part.grad.abs().sum() > 0 for part in parts)


def test_norm_is_copied_and_saved():
    ours = norms()[1]
    x = torch.randn(6, WIDTH)
    expected = ours(x, [6])
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(copied(x, [6]), expected)
        with torch.no_grad():
            copied.weight.zero_()
        assert not torch.allclose(copied(x, [6]), expected)
    torch.testing.assert_close(ours(x, [6]), expected)


def test_initial_parameters_are_those_of_pytorch():
    expected, found = torch.nn.LayerNorm(WIDTH).state_dict(), LayerNorm([WIDTH]).state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_arguments_are_checked():
    x = torch.randn(6, WIDTH)
    for call in (ragged_softmax, LayerNorm(WIDTH)):
        with pytest.raises(TypeError, match=r"lengths have layout torch\.sparse_coo: expected a dense tensor"):
            call(x, torch.tensor([6]).to_sparse())
        with pytest.raises(ValueError, match="the lengths add up to 7, but there are 6 tokens"):
            call(x, [7])
    with pytest.raises(ValueError, match=r"tokens have shape \(6, 20\): expected \(tokens, 8\)"):
        LayerNorm(8)(x, [6])
    for shape in (0, [2, 3], []):
        with pytest.raises(ValueError, match=r"normalized_shape=.*: expected (the width of a token|a positive int)"):
            LayerNorm(shape)


def test_gradients_and_norms_without_weights_are_float32_under_any_default_dtype():
    x = torch.randn(6, WIDTH, requires_grad=True)
    norm = LayerNorm(WIDTH, elementwise_affine=False)
    torch.set_default_dtype(torch.float64)
    try:
        found, = torch.autograd.grad(norm(ragged_softmax(x, [4, 2]), [4, 2]).square().sum() + norm(x, [6])[0, 0], x)
    finally:
        torch.set_default_dtype(torch.float32)
    wanted, = torch.autograd.grad(norm(ragged_softmax(x, [4, 2]), [4, 2]).square().sum() + norm(x, [6])[0, 0], x)
    assert torch.equal(found, wanted)
