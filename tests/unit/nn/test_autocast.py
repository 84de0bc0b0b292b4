"""torch.autocast: kernels compute in float32, results have the types that PyTorch and PyTorch Geometric give."""

import copy
import warnings

import pytest
import torch
from sparse_tensors import dense, sparse_tensor

from sparloom import nn
from sparloom.nn import csr_attention, ragged_softmax, sddmm, spmm

pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.parametrize("half", [
        torch.bfloat16, torch.float16], ids=str),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, WIDTH, LENGTHS = 20, 16, [5, 0, 12, 3]


@pytest.fixture(scope="module")
def theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")


@pytest.fixture
def edges() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, NODES, (2, 80)).unique(dim=1)


def square() -> torch.Tensor:
    return sparse_tensor(NODES, NODES)


def parts(matrix: torch.Tensor, dtype: torch.dtype) -> tuple:
    return matrix.crow_indices(), matrix.col_indices(), matrix.values().to(dtype), matrix.shape


def gradients(function, x: torch.Tensor, *, inside: torch.autocast | None = None) -> list[torch.Tensor]:
    """Return the result and the gradient of x of its sum of squares, computed inside of autocast or after it."""
    x = x.detach().clone().requires_grad_()
    if inside is None:
        result = function(x)
        result.float().square().sum().backward()
    else:
        with inside:
            result = function(x)
            result.float().square().sum().backward()
    return [result.detach(), x.grad]


@pytest.mark.parametrize(("name", "options"), [
    ("GCNConv", {}), ("GCNConv", {"cached": True}), ("SAGEConv", {}), ("SAGEConv", {"bias": False}),
    ("SAGEConv", {"aggr": "max", "normalize": True}), ("SAGEConv", {"root_weight": False, "aggr": "sum"}),
    ("TransformerConv", {"heads": 2}), ("TransformerConv", {"concat": False, "root_weight": False})], ids=str)
@pytest.mark.parametrize("width", [8, 16, 32])
def test_layers_of_any_width_agree_with_pytorch_geometric(theirs, edges, half, name, options, width) -> None:
    layer, peer = getattr(nn, name)(WIDTH, width, **options), getattr(theirs, name)(WIDTH, width, **options)
    peer.load_state_dict(layer.state_dict())
    exact = copy.deepcopy(peer).double()
    for x in (dense(NODES, WIDTH), dense(NODES, WIDTH).to(half)):
        expected = gradients(lambda x: exact(x, edges), x.double())
        with torch.autocast("cpu", half):
            wanted = peer(x, edges).dtype
        def under_autocast(x):
            with torch.autocast("cpu", half):
                return layer(x, edges)

        for run, inside in ((lambda x: layer(x, edges), torch.autocast("cpu", half)), (under_autocast, None)):
            layer.zero_grad()
            found = gradients(run, x, inside=inside)
            assert found[0].dtype == wanted
            assert found[1].dtype == x.dtype
            for actual, right in zip(found, expected, strict=True):
                size = max(1.0, right.abs().max().item())
                torch.testing.assert_close(actual.double(), right, atol=0.05 * size, rtol=0)
            assert all(parameter.grad is None or parameter.grad.dtype == torch.float32
                       for parameter in layer.parameters())


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "TransformerConv"])
def test_layers_follow_each_other(edges, half, name) -> None:
    kind = getattr(nn, name)
    first, second = kind(WIDTH, 32), kind(32, 8)
    plain = gradients(lambda x: second(first(x, edges).relu(), edges), dense(NODES, WIDTH))
    cast = gradients(lambda x: second(first(x, edges).relu(), edges), dense(NODES, WIDTH),
                     inside=torch.autocast("cpu", half))
    for actual, right in zip(cast, plain, strict=True):
        torch.testing.assert_close(actual.float(), right, atol=0.05 * max(1.0, right.abs().max().item()), rtol=0)


@pytest.mark.parametrize("operation", [
    lambda a, x: spmm(a, x), lambda a, x: spmm(a, x, reduce="mean"), lambda a, x: spmm(a, x, reduce="max"),
    lambda a, x: sddmm(a, x, x), lambda a, x: csr_attention(a, x, x, x), lambda a, x: csr_attention(a, x, x.float(), x),
    lambda a, x: ragged_softmax(x, LENGTHS), lambda a, x: ragged_softmax(x[:, 0], LENGTHS),
    lambda a, x: nn.LayerNorm(WIDTH)(x, LENGTHS), lambda a, x: ragged_softmax(x[:, :0], LENGTHS)],
    ids=["sum", "mean", "max", "sddmm", "attention", "mixed", "softmax", "vector", "norm", "empty"])
def test_operations_compute_in_float32(half, operation) -> None:
    a = square()
    for x in (dense(NODES, WIDTH), dense(NODES, WIDTH).to(half)):
        found = gradients(lambda x: operation(a, x), x, inside=torch.autocast("cpu", half))
        expected = gradients(lambda x: operation(a, x), x.float())
        assert found[0].dtype == torch.float32
        assert found[1].dtype == x.dtype
        torch.testing.assert_close(found[0], expected[0])
        rounded = 4 * torch.finfo(half).eps * max(1.0, expected[1].abs().max().item() if x.numel() else 0)
        torch.testing.assert_close(found[1].float(), expected[1], rtol=0, atol=rounded)  # it is added up in x's type


@pytest.mark.parametrize("make", [lambda: nn.MultiheadAttention(WIDTH, 2),
                                  lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32)])
def test_token_layers_compute_in_float32(half, make) -> None:
    layer, x = make(), dense(NODES, WIDTH).to(half)
    found = gradients(lambda x: layer(layer(x, LENGTHS), LENGTHS), x, inside=torch.autocast("cpu", half))
    expected = gradients(lambda x: layer(layer(x, LENGTHS), LENGTHS), x.float())
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1].to(half))
    nested = torch.nested.nested_tensor([dense(3, WIDTH).to(half), dense(4, WIDTH).to(half)], layout=torch.jagged)
    with torch.autocast("cpu", half):
        assert layer(nested).values().dtype == torch.float32


def test_values_and_weights_of_half_precision(edges, half) -> None:
    a, x = square(), dense(NODES, WIDTH)
    layer = nn.GCNConv(WIDTH, 8).to(half)
    with torch.autocast("cpu", half):
        torch.testing.assert_close(spmm(parts(a, half), x), spmm(parts(a.to(half), torch.float32), x))
        assert spmm(a.to(half), x.to(half)).dtype == torch.float32
        assert layer(x.to(half), edges).dtype == torch.float32


@pytest.mark.parametrize("make", [
    lambda: nn.GCNConv(WIDTH, 8), lambda: nn.GCNConv(WIDTH, 32), lambda: nn.LayerNorm(WIDTH),
    lambda: nn.MultiheadAttention(WIDTH, 2), lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32)])
def test_parameters_of_half_precision(edges, half, make) -> None:
    layer, x = make(), dense(NODES, WIDTH).to(half)
    beside = edges if isinstance(layer, nn.GCNConv) else LENGTHS
    layer(x.float(), beside)  # binds kernels to float32
    layer.to(half)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    with torch.autocast("cpu", half):
        result = layer(x, beside)
    expected = copy.deepcopy(layer).float()(x.float(), beside)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert all(parameter.grad.dtype == half for parameter in layer.parameters())


def test_the_gradient_of_edge_weights_ignores_autocast_that_is_on_behind(edges, half) -> None:
    layer, x = nn.GCNConv(WIDTH, 8), dense(NODES, WIDTH)
    found = []
    for enabled in (False, True):
        weight = torch.ones(edges.shape[1], requires_grad=True)
        with torch.autocast("cpu", half, enabled=enabled):
            layer(x, edges, weight).square().sum().backward()
        found.append(weight.grad)
    torch.testing.assert_close(*found)


def test_without_autocast_half_precision_is_refused(edges, half) -> None:
    x = dense(NODES, WIDTH).to(half)
    layers = [nn.SAGEConv(WIDTH, 8), nn.TransformerConv(WIDTH, 8), nn.GCNConv(WIDTH, 8)]
    with torch.autocast("cpu", half), torch.autocast("cpu", enabled=False):
        for call in (lambda: ragged_softmax(x, LENGTHS), *(
                lambda layer=layer: layer(x, edges) for layer in layers)):
            with pytest.raises(TypeError, match=str(half)):
                call()
        assert layers[0](x.float(), edges).dtype == torch.float32
        assert spmm(square(), x).dtype == torch.float32  # promoted
    with torch.autocast("cpu", half):
        assert spmm(square(), x.double()).dtype == torch.float64
