"""torch.jit, torch.func, forward mode, hooks and replaced modules: right results or clear errors."""

from functools import cache

import pytest
import torch
from sparse_tensors import dense, sparse_tensor
from torch.autograd import forward_ad
from torch.nn.utils import prune, spectral_norm, weight_norm

from sparloom import nn
from sparloom.nn import csr_attention, ragged_softmax, sddmm, spmm

pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning",
        "ignore::torch.jit.TracerWarning")]

NODES, WIDTH, LENGTHS = 20, 8, [5, 0, 12, 3]

@cache
def square() -> tuple:
    """Return the parts of a matrix before a transform, because torch cannot take them inside."""
    a = sparse_tensor(NODES, NODES)
    return a.crow_indices(), a.col_indices(), a.values(), (NODES, NODES)


OPERATIONS = {
    "sum": lambda x: spmm(square(), x), "mean": lambda x: spmm(square(), x, reduce="mean"),
    "max": lambda x: spmm(square(), x, reduce="max"), "sddmm": lambda x: sddmm(square(), x, x),
    "attention": lambda x: csr_attention(square(), x, x, x)}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    square()


def edges() -> torch.Tensor:
    return torch.unique(torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(1)), dim=1)


def layer_of(kind: str) -> tuple[torch.nn.Module, object]:
    """Return a layer and its arguments except x."""
    tokens = {"MultiheadAttention": lambda: nn.MultiheadAttention(WIDTH, 2), "LayerNorm": lambda: nn.LayerNorm(WIDTH),
              "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16)}
    return (tokens[kind](), LENGTHS) if kind in tokens else (getattr(nn, kind)(WIDTH, 4), edges())


GRAPH_LAYERS = ["SAGEConv", "GCNConv", "TransformerConv"]
TOKEN_LAYERS = ["MultiheadAttention", "LayerNorm", "TransformerEncoderLayer"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_traced_operations_compute_new_inputs(name) -> None:
    operation = OPERATIONS[name]
    traced = torch.jit.trace(operation, (dense(NODES, WIDTH),))
    x = dense(NODES, WIDTH, seed=7).requires_grad_()
    found, expected = traced(x), operation(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), x)[0] for result in (found, expected)))


def test_sparse_tensors_inside_of_transforms_and_traces() -> None:
    a, x = sparse_tensor(NODES, NODES), dense(NODES, WIDTH)
    torch.testing.assert_close(torch.func.vmap(lambda x: spmm(a, x))(x[None])[0], spmm(a, x))
    torch.testing.assert_close(torch.func.grad(lambda x: spmm(a, x).sum())(x), a.to_dense().T @ torch.ones_like(x))
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace does not record sparse tensors: pass A as"):
        torch.jit.trace(lambda x: spmm(a, x), (x,))


@pytest.mark.parametrize("kind", GRAPH_LAYERS + TOKEN_LAYERS)
def test_layers_are_neither_traced_nor_scripted_and_work_afterwards(kind) -> None:
    layer, beside = layer_of(kind)
    x = dense(NODES, WIDTH)
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace would record .* as a constant: use torch\.compile"):
        torch.jit.trace(lambda x: layer(x, beside), (x,))
    assert layer(x, beside).shape[0] == NODES
    for model in (layer, torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), layer)):
        with pytest.raises(RuntimeError, match=rf"{kind} cannot be scripted: .* use torch\.compile"):
            torch.jit.script(model)


@pytest.mark.parametrize("name", ["spmm", "sddmm", "csr_attention", "ragged_softmax", "torch_csr", "device_csr"])
def test_functions_are_not_scripted_alone_or_where_others_call_them(name) -> None:
    function = getattr(nn, name)

    def outer(x: torch.Tensor):
        return function(x, x)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            return function(x, x)

    for inputs in (function, outer, Model()):
        with pytest.raises(RuntimeError, match=rf"{name} cannot be scripted: .* use torch\.compile, or script") as told:
            torch.jit.script(inputs)
        assert len(str(told.value).splitlines()[0]) < 250


def test_softmax_is_not_traced() -> None:
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace would record"):
        torch.jit.trace(lambda x: ragged_softmax(x, LENGTHS), (dense(NODES, WIDTH),))


@pytest.mark.parametrize("name", OPERATIONS)
def test_transforms_of_operations(name) -> None:
    operation, x, many = OPERATIONS[name], dense(NODES, WIDTH), dense(3, NODES, WIDTH)

    def energy(x):
        return operation(x).square().sum()

    def slope(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(energy(x), x)[0]

    torch.testing.assert_close(torch.func.vmap(operation)(many), torch.stack([operation(each) for each in many]))
    torch.testing.assert_close(torch.func.vmap(operation, in_dims=2)(many.permute(1, 2, 0)),
                               torch.stack([operation(each) for each in many]))
    assert torch.func.vmap(operation)(many[:0]).shape == (0, *operation(x).shape)
    torch.testing.assert_close(torch.func.grad(energy)(x), slope(x))
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(energy))(many), torch.stack([*map(slope, many)]))
    check_tangent(lambda: torch.func.jvp(operation, (x,), (x,))[1], operation, x, refused=name == "attention")


def check_tangent(found, function, x, *, refused):
    """Compare the derivative in the direction of x with the product by the Jacobian, or see it refused."""
    if refused:
        with pytest.raises(RuntimeError, match=r"second|twice|forward mode"):
            found()
    else:
        inputs = x.detach()
        jacobian = torch.autograd.functional.jacobian(function, inputs)
        torch.testing.assert_close(found(), torch.tensordot(jacobian, inputs, dims=2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "sddmm"])
def test_transforms_take_second_derivatives(name) -> None:
    operation, x = OPERATIONS[name], dense(NODES, WIDTH)

    def energy(x):
        return operation(x).square().sum()

    inputs = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(energy(inputs), inputs, create_graph=True)
    (expected,) = torch.autograd.grad(first.square().sum(), inputs)
    torch.testing.assert_close(torch.func.grad(lambda x: torch.func.grad(energy)(x).square().sum())(x), expected)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", ["SAGEConv", "TransformerConv"])
def test_layers_of_operations_follow_transforms(kind) -> None:
    layer, beside = layer_of(kind)
    many, parameters = dense(3, NODES, WIDTH), dict(layer.named_parameters())
    torch.testing.assert_close(torch.func.vmap(lambda x: layer(x, beside))(many),
                               torch.stack([layer(x, beside) for x in many]))
    found = torch.func.grad(lambda inputs: torch.func.functional_call(layer, inputs, (many[0], beside)).square().sum())(
        parameters)
    layer(many[0], beside).square().sum().backward()
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["GCNConv", *TOKEN_LAYERS])
def test_layers_of_programs_follow_transforms(kind) -> None:
    layer, beside = layer_of(kind)
    many = dense(3, NODES, WIDTH)

    def slope(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(layer(x, beside).square().sum(), x)[0]

    torch.testing.assert_close(torch.func.vmap(lambda x: layer(x, beside))(many),
                               torch.stack([layer(x, beside) for x in many]))
    torch.testing.assert_close(torch.func.grad(lambda x: layer(x, beside).square().sum())(many[0]), slope(many[0]))
    check_tangent(lambda: torch.func.jvp(lambda x: layer(x, beside), (many[0],), (many[0],))[1],
                  lambda x: layer(x, beside), many[0], refused=kind != "GCNConv")


@pytest.mark.parametrize("kind", TOKEN_LAYERS)
def test_lengths_of_a_tensor_inside_of_transforms(kind) -> None:
    layer, _ = layer_of(kind)
    x, lengths = dense(NODES, WIDTH), torch.tensor(LENGTHS)
    found = torch.func.grad(lambda x: layer(x, lengths).square().sum())(x)
    inputs = x.clone().requires_grad_()
    layer(inputs, LENGTHS).square().sum().backward()
    torch.testing.assert_close(found, inputs.grad)


FUNCTIONS = {**OPERATIONS, "softmax": lambda x: ragged_softmax(x, LENGTHS)}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", [*FUNCTIONS, *GRAPH_LAYERS, *TOKEN_LAYERS])
def test_tangents_are_not_lost(name, grad) -> None:
    x = dense(NODES, WIDTH)
    if name in FUNCTIONS:
        function = FUNCTIONS[name]
    else:
        layer, beside = layer_of(name)
        function = lambda x: layer(x, beside)  # noqa: E731

    def tangent():
        with forward_ad.dual_level(), torch.set_grad_enabled(grad):
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.clone()))).tangent.detach()

    check_tangent(tangent, function, x, refused=name in ("attention", "softmax", "TransformerConv", *TOKEN_LAYERS))


def theirs_like(layer: nn.SAGEConv, x: torch.Tensor) -> torch.Tensor:
    """Compute the mean of senders, then call the linear layers."""
    full = torch.zeros(NODES, NODES).index_put(tuple(edges().flip(0)), torch.tensor(1.0))
    return layer.lin_l(full / full.sum(1, keepdim=True).clamp(min=1) @ x) + layer.lin_r(x)


def normalised_product(layer: nn.GCNConv, x: torch.Tensor) -> torch.Tensor:
    full = torch.zeros(NODES, NODES).index_put(tuple(edges().flip(0)), torch.tensor(1.0))
    full = full * (1 - torch.eye(NODES)) + torch.eye(NODES)
    scale = full.sum(1).rsqrt()
    return scale[:, None] * full * scale @ layer.lin(x) + layer.bias


@pytest.mark.parametrize("width", [4, 12])
@pytest.mark.parametrize("wrap", [
    lambda module: prune.l1_unstructured(module, "weight", amount=0.5), lambda module: weight_norm(module),
    lambda module: spectral_norm(module).eval(),
    lambda module: module.register_forward_hook(lambda *inputs: 2 * inputs[2]),
    lambda module: module.register_forward_pre_hook(lambda module, inputs: (3 * inputs[0],)),
], ids=["pruned", "weight norm", "spectral norm", "hook", "pre-hook"])
@pytest.mark.parametrize("kind", ["SAGEConv", "GCNConv"])
def test_hooks_of_linear_layers_are_seen(kind, wrap, width) -> None:
    layer, x = getattr(nn, kind)(WIDTH, width), dense(NODES, WIDTH)
    exact = theirs_like if kind == "SAGEConv" else normalised_product
    wrap(layer.lin_l if kind == "SAGEConv" else layer.lin)
    steps = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], 0.1)
    for _ in range(2):
        torch.testing.assert_close(layer(x, edges()), exact(layer, x), rtol=1e-4, atol=1e-4)
        steps.zero_grad()
        layer(x, edges()).square().sum().backward()
        steps.step()


class Adapter(torch.nn.Linear):
    """Linear layer with an additional term."""

    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.usefixtures("each_way")
def test_adapters_that_replace_linear_layers_are_called() -> None:
    for kind, name, exact in (("SAGEConv", "lin_l", theirs_like), ("GCNConv", "lin", normalised_product)):
        layer, x = getattr(nn, kind)(WIDTH, 4), dense(NODES, WIDTH)
        setattr(layer, name, Adapter(WIDTH, 4, bias=False))
        torch.testing.assert_close(layer(x, edges()), exact(layer, x), rtol=1e-4, atol=1e-4)


def test_weights_made_by_hooks_reach_programs() -> None:
    layer, x = nn.TransformerEncoderLayer(WIDTH, 2, 16), dense(NODES, WIDTH)
    theirs = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
    theirs.load_state_dict(layer.state_dict())
    for model in (layer, theirs):
        prune.l1_unstructured(model.linear1, "weight", amount=0.5)
        prune.l1_unstructured(model.linear2, "weight", amount=0.5)
    steps = [torch.optim.SGD(model.parameters(), 0.1) for model in (layer, theirs)]
    for _ in range(2):
        found, expected = layer(x, [NODES]), theirs(x[None])[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        for step, result in zip(steps, (found, expected), strict=True):
            step.zero_grad()
            result.square().sum().backward()
            step.step()


@pytest.mark.parametrize(("change", "name"), [
    (lambda layer: layer.linear1.register_forward_hook(print), "linear1"),
    (lambda layer: layer.linear2.register_forward_pre_hook(print), "linear2"),
    (lambda layer: layer.norm1.register_full_backward_hook(print), "norm1"),
    (lambda layer: layer.self_attn.register_forward_hook(print), "self_attn"),
    (lambda layer: layer.self_attn.out_proj.register_forward_hook(print), "out_proj"),
    (lambda layer: setattr(layer, "linear1", Adapter(WIDTH, 16)), "linear1"),
    (lambda layer: setattr(layer.linear2, "forward", torch.relu), "linear2"),
])
def test_hooks_that_a_program_would_skip_are_refused(change, name) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16)
    change(layer)
    with pytest.raises(RuntimeError, match=rf"{name} is not called in this layer.*register hooks on the layer itself"):
        layer(dense(NODES, WIDTH), [NODES])
    if name == "out_proj":
        with pytest.raises(RuntimeError, match="out_proj is not called in this layer"):
            layer.self_attn(dense(NODES, WIDTH), [NODES])


@pytest.mark.parametrize("kind", GRAPH_LAYERS + TOKEN_LAYERS)
def test_hooks_of_the_layer_itself_are_called(kind) -> None:
    layer, beside = layer_of(kind)
    x, seen = dense(NODES, WIDTH).requires_grad_(), []
    layer.register_forward_pre_hook(lambda module, inputs: seen.append("before"))
    layer.register_forward_hook(lambda module, inputs, result: seen.append("after"))
    layer.register_full_backward_hook(lambda module, inputs, grads: seen.append("backward"))
    layer(x, beside).sum().backward()
    assert seen == ["before", "after", "backward"]


class Subclass(torch.Tensor):
    """A tensor of another class."""


@pytest.mark.parametrize("kind", GRAPH_LAYERS + TOKEN_LAYERS)
def test_views_of_every_kind_and_subclasses(kind) -> None:
    layer, beside = layer_of(kind)
    x, wide = dense(NODES, WIDTH), torch.view_as_complex(dense(NODES, WIDTH, 2))
    for inputs in (x[:1].expand(NODES, WIDTH), torch._neg_view(x), wide.conj().imag, x.T.contiguous().T,
                  torch.repeat_interleave(x, 2, dim=1)[:, ::2], x.as_subclass(Subclass),
                  torch.nn.Parameter(x.as_subclass(Subclass))):
        expected = layer(inputs.detach().as_subclass(torch.Tensor).resolve_neg().clone(), beside)
        torch.testing.assert_close(layer(inputs, beside).as_subclass(torch.Tensor), expected)
