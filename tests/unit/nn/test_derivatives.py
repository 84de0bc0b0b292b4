"""Second derivatives, in both modes and by torch.func, are complete or refused."""

import contextlib

import pytest
import torch
from torch.autograd import forward_ad, functional

from sparloom.nn import (
    GCNConv,
    Graph,
    LayerNorm,
    MultiheadAttention,
    SAGEConv,
    TransformerConv,
    TransformerEncoderLayer,
    csr_attention,
    ragged_softmax,
    sddmm,
    spmm,
)

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread"),
              pytest.mark.filterwarnings("ignore:Sparse"),
              pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")]  # torch's own forward mode

ROWS, COLS, NODES, LENGTHS = 5, 4, 5, [3, 0, 2]
REFUSED = r"(no|neither) second derivatives|batched by is_grads_batched=True or vectorize=True"


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


MASK = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
PLACES = MASK.nonzero().T
PATTERN = torch.cat([torch.zeros(1, dtype=torch.int64), MASK.sum(1).cumsum(0)]), PLACES[1].contiguous()
EDGES = torch.tensor([[0, 1, 2, 2, 3, 4, 0], [1, 2, 2, 0, 4, 1, 3]])


def matrix(values):
    return *PATTERN, values, (ROWS, COLS)


def dense(values):
    return torch.zeros(ROWS, COLS, dtype=values.dtype).index_put(tuple(PLACES), values)


def largest(values, x):
    found = (dense(values)[:, :, None] * x).masked_fill(~MASK[:, :, None], -torch.inf).amax(1)
    return found.masked_fill(~MASK.any(1, keepdim=True), 0)


def convolved(x, weights, projection, bias):
    senders, receivers = EDGES
    loops = senders == receivers
    diagonal = torch.ones(NODES, dtype=x.dtype).index_put((senders[loops],), weights[loops])
    adjacency = torch.diag(diagonal).index_put((receivers[~loops], senders[~loops]), weights[~loops], accumulate=True)
    scale = adjacency.sum(1).pow(-0.5)
    return scale[:, None] * adjacency * scale @ x @ projection.T + bias


def values():
    return torch.rand(PLACES.shape[1]) + 0.5


def gcn(first, dtype=torch.float64):
    layer = GCNConv(3, 2, first=first).to(dtype)
    inputs = torch.randn(NODES, 3), torch.rand(EDGES.shape[1]) + 0.5, torch.randn(2, 3), torch.randn(2)
    return (lambda x, weights, projection, bias: torch.func.functional_call(
        layer, {"lin.weight": projection, "bias": bias}, (x, EDGES, weights)), convolved,
        tuple(each.to(dtype) for each in inputs))


RIGHT = {
    "spmm": lambda: (lambda v, x: spmm(matrix(v), x), lambda v, x: dense(v) @ x, (values(), torch.randn(COLS, 3))),
    "mean": lambda: (lambda v, x: spmm(matrix(v), x, reduce="mean"),
                     lambda v, x: dense(v) @ x / MASK.sum(1, keepdim=True).clamp(min=1),
                     (values(), torch.randn(COLS, 3))),
    "max": lambda: (lambda v, x: spmm(matrix(v), x, reduce="max"), largest, (values(), torch.randn(COLS, 3))),
    "sddmm": lambda: (lambda v, q, k: sddmm(matrix(v), q, k), lambda v, q, k: v * (q @ k.T)[tuple(PLACES)],
                      (values(), torch.randn(ROWS, 3), torch.randn(COLS, 3))),
    "gcn transform": lambda: gcn("transform"),
    "gcn aggregate": lambda: gcn("aggregate"),
}
"""What has derivatives of any order -> function, reference, arguments."""


def attending(made):
    layer = made()
    names = [name for name, _ in layer.named_parameters()]
    inputs = torch.randn(sum(LENGTHS), 4), *(torch.randn(each.shape) for each in layer.parameters())
    return (lambda x, *inputs: torch.func.functional_call(layer, dict(zip(names, inputs, strict=True)), (x, LENGTHS)),
            inputs)


REFUSING = {
    "encoder": lambda: attending(lambda: TransformerEncoderLayer(4, 2, 6)),
    "attention": lambda: attending(lambda: MultiheadAttention(4, 2)),
    "norm": lambda: attending(lambda: LayerNorm(4)),
    "softmax": lambda: (lambda x: ragged_softmax(x, LENGTHS), (torch.randn(sum(LENGTHS), 4),)),
    "csr_attention": lambda: (lambda q, k, v: csr_attention(matrix(torch.ones(PLACES.shape[1])), q, k, v),
                              (torch.randn(ROWS, 3), torch.randn(COLS, 3), torch.randn(COLS, 2))),
}
"""What has first derivatives in reverse mode only -> function, arguments."""


def curved(function):
    """Return a scalar whose second derivatives involve the function and the operations after it."""
    return lambda *inputs: function(*inputs).sin().square().sum()


def linear(function):
    """Return a scalar whose gradient by the function's result is constant."""
    def read(*inputs):
        result = function(*inputs)
        return (result * torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view(result.shape)).sum()
    return read


def leaves(inputs):
    return [each.clone().requires_grad_() for each in inputs]


def penalised(function, inputs, place, *, backward=False):
    """Return gradients of a scalar and of the square of its slope by one of the arguments."""
    inputs = leaves(inputs)
    value = linear(function)(*inputs)
    slope, = torch.autograd.grad(value, inputs[place], create_graph=True)
    if backward:
        (value + slope.square().sum()).backward()
        return [each.grad for each in inputs]
    return torch.autograd.grad(value + slope.square().sum(), inputs)


def by_dual_numbers(function, inputs, slopes, place):
    with forward_ad.dual_level():
        result = function(*(forward_ad.make_dual(each, slope) if number == place else each
                            for number, (each, slope) in enumerate(zip(inputs, slopes, strict=True))))
        found = forward_ad.unpack_dual(result)
        assert found.tangent is not None
        return found


def forward_over_reverse(function, inputs, slopes, place):
    with forward_ad.dual_level():
        inputs = [each.clone().requires_grad_() for each in inputs]
        inputs[place] = forward_ad.make_dual(inputs[place], slopes[place])
        grad, = torch.autograd.grad(curved(function)(*inputs), inputs[place], create_graph=True)
        found = forward_ad.unpack_dual(grad)
        assert found.tangent is not None
        return found


def all_places(how):
    return lambda function, inputs, slopes: [how(function, inputs, slopes, place) for place in range(len(inputs))]


def every(count):
    return {"argnums": tuple(range(count))}


SECOND = {
    "penalty by grad": all_places(lambda function, inputs, _, place: penalised(function, inputs, place)),
    "penalty by backward": all_places(
        lambda function, inputs, _, place: penalised(function, inputs, place, backward=True)),
    "functional.hessian": lambda function, inputs, _: functional.hessian(curved(function), tuple(inputs)),
    "functional.vhp": lambda function, inputs, slopes: functional.vhp(curved(function), tuple(inputs), slopes),
    "functional.hvp": lambda function, inputs, slopes: functional.hvp(curved(function), tuple(inputs), slopes),
    "functional.jvp": lambda function, inputs, slopes: functional.jvp(function, tuple(inputs), slopes),
    "func.hessian": lambda function, inputs, _: torch.func.hessian(curved(function), **every(len(inputs)))(*inputs),
    "func.jacrev twice": lambda function, inputs, _: torch.func.jacrev(torch.func.jacrev(curved(function)))(*inputs),
    "func.jvp": lambda function, inputs, slopes: torch.func.jvp(function, tuple(inputs), slopes),
    "func.jacfwd": lambda function, inputs, _: torch.func.jacfwd(function, **every(len(inputs)))(*inputs),
    "dual numbers": all_places(by_dual_numbers),
    "dual numbers without gradients": all_places(
        lambda function, *inputs: torch.no_grad()(by_dual_numbers)(function, *inputs)),
    "forward over reverse": all_places(forward_over_reverse),
}
"""Ways to second derivatives, and to first ones in forward mode."""

FIRST = {
    "func.grad": lambda function, inputs, _: torch.func.grad(curved(function), **every(len(inputs)))(*inputs),
    "func.vjp": lambda function, inputs, _: torch.func.vjp(function, *inputs)[1](torch.ones_like(function(*inputs))),
    "func.jacrev": lambda function, inputs, _: torch.func.jacrev(function, **every(len(inputs)))(*inputs),
    "func.vmap": lambda function, inputs,
    _: torch.func.vmap(function)(*(torch.stack([e, e * 2, e / 2]) for e in inputs)),
    "func.vmap of grad": lambda function, inputs, _: torch.func.vmap(
        torch.func.grad(curved(function), **every(len(inputs))), (0, *[None] * (len(inputs) - 1)))(
            torch.stack([inputs[0], inputs[0] / 2]), *inputs[1:]),
    "grad with create_graph": lambda function, inputs, _: [
        grad.detach() for leaf in [leaves(inputs)]
        for grad in torch.autograd.grad(curved(function)(*leaf), leaf, create_graph=True)],
}
"""Ways to first derivatives that look like second ones."""


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", [*SECOND, *FIRST])
@pytest.mark.parametrize("name", RIGHT)
def test_derivatives_of_any_order_are_those_of_dense_matrices(name, how):
    function, reference, inputs = RIGHT[name]()
    slopes = tuple(map(torch.randn_like, inputs))
    ask = {**SECOND, **FIRST}[how]
    assert_same(ask(function, inputs, slopes), ask(reference, inputs, slopes))


@pytest.mark.parametrize("first", ["transform", "aggregate"])
def test_gradients_of_gradients_of_a_convolution_by_differences(first):
    function, _, inputs = gcn(first)
    assert torch.autograd.gradgradcheck(function, leaves(inputs), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("how", SECOND)
@pytest.mark.parametrize("name", REFUSING)
def test_unsupported_second_derivatives_are_refused(name, how):
    function, inputs = REFUSING[name]()
    slopes = tuple(map(torch.randn_like, inputs))
    with pytest.raises(RuntimeError, match=REFUSED):
        SECOND[how](function, inputs, slopes)


@pytest.mark.parametrize("name", REFUSING)
def test_second_derivatives_by_any_argument_are_refused(name):
    """Each argument of a gradient, the gradient that comes from above included, leads to the error."""
    function, inputs = REFUSING[name]()
    for place in range(len(inputs)):
        leaf = leaves(inputs)
        grad, = torch.autograd.grad(linear(function)(*leaf), leaf[0], create_graph=True)
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.autograd.grad(grad.square().sum(), leaf[place])
    fixed = [inputs[0].clone().requires_grad_(), *inputs[1:]]
    result = function(*fixed)
    upstream = torch.randn_like(result).requires_grad_()
    grad, = torch.autograd.grad(result, fixed[0], upstream, create_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(grad.sum(), upstream)


@pytest.mark.parametrize("how", FIRST)
@pytest.mark.parametrize("name", REFUSING)
def test_first_derivatives_are_those_of_backward(name, how):
    function, inputs = REFUSING[name]()
    leaf = leaves(inputs)

    def rows(result, leaf):
        return [torch.stack(each).view(*result.shape, *each[0].shape) for each in zip(*(
            torch.autograd.grad(one, leaf, retain_graph=True) for one in result.flatten()), strict=True)]

    found = FIRST[how](function, inputs, None)
    if how == "func.vjp":
        assert_same(list(found), list(torch.autograd.grad(function(*leaf).sum(), leaf)))
    elif how == "func.jacrev":
        assert_same(list(found), rows(function(*leaf), leaf))
    elif how == "func.vmap":
        assert_same(found, torch.stack([function(*(factor * each for each in inputs)) for factor in (1, 2, 0.5)]))
    elif how == "func.vmap of grad":
        for number, factor in enumerate((1, 0.5)):
            leaf = leaves([inputs[0] * factor, *inputs[1:]])
            assert_same([each[number] for each in found], list(torch.autograd.grad(curved(function)(*leaf), leaf)))
    else:
        assert_same(list(found), list(torch.autograd.grad(curved(function)(*leaf), leaf)))


@pytest.mark.parametrize("name", [*RIGHT, *REFUSING])
def test_batches_of_gradients_are_refused(name):
    function, *_, inputs = {**RIGHT, **REFUSING}[name]()
    leaf = leaves(inputs)
    result = function(*leaf)
    with pytest.raises(RuntimeError, match="batched by is_grads_batched=True or vectorize=True"):
        torch.autograd.grad(result, leaf, torch.stack([torch.ones_like(result)] * 2), is_grads_batched=True)


@pytest.mark.parametrize("layer", [
    lambda: SAGEConv(3, 2), lambda: SAGEConv(2, 3, "max"), lambda: TransformerConv(3, 2, heads=2),
    lambda: GCNConv(3, 2), lambda: GCNConv(2, 3)])
def test_penalties_through_layers_of_graphs(layer):
    """Sums of gradients of a linear read-out, against central differences, or refused."""
    layer, graph = layer(), Graph(EDGES, NODES)
    x = torch.randn(NODES, layer.in_channels)

    def slope_of(x):
        x = x.clone().requires_grad_()
        grad, = torch.autograd.grad(linear(lambda inputs: layer(inputs, graph))(x), x, create_graph=True)
        return grad.square().sum(), x

    refused = isinstance(layer, TransformerConv)
    with pytest.raises(RuntimeError, match=REFUSED) if refused else contextlib.nullcontext():
        parameters = list(layer.parameters())
        value, _ = slope_of(x)
        grads = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        for parameter, grad in zip(parameters, grads, strict=True):
            with torch.no_grad():
                before, step = parameter.view(-1)[0].item(), 1e-2
                ends = []
                for place in (before + step, before - step):
                    parameter.view(-1)[0] = place
                    with torch.enable_grad():
                        ends.append(slope_of(x)[0].item())
                parameter.view(-1)[0] = before
            assert abs(grad.view(-1)[0].item() - (ends[0] - ends[1]) / (2 * step)) < 1e-2 * max(1.0, abs(ends[0]))


def test_weights_of_edges_that_a_transform_follows_leave_nothing_behind():
    layer, graph, x = GCNConv(3, 2), Graph(EDGES, NODES), torch.randn(NODES, 3)
    weights = torch.rand(EDGES.shape[1]) + 0.5
    torch.func.grad(lambda inputs: layer(x, graph, inputs).sum())(weights)
    torch.func.grad(lambda inputs: layer(inputs, graph).sum())(x)
    expected = convolved(x, torch.ones(EDGES.shape[1]), layer.lin.weight, layer.bias)
    assert_same(layer(x, graph), expected)
    expected.sum().backward()
    layer.zero_grad()
    layer(x, graph).sum().backward()
    assert layer.lin.weight.grad.abs().sum() > 0
