"""Results may be changed in place before the backward pass, with the gradients of the operation out of place."""

import copy

import pytest
import torch
from sparse_tensors import dense, sparse_tensor

import sparloom.nn
from sparloom.nn import accelerate, csr_attention, sddmm, spmm

geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant):UserWarning")]

NODES, EDGES, WIDTH = 30, 120, 6
OPERATIONS = {
    "relu": (torch.relu_, torch.relu), "elu": (torch.nn.functional.elu_, torch.nn.functional.elu),
    "scaled": (lambda y: y.mul_(2), lambda y: y * 2),
    "rows": (lambda y: y.index_fill_(0, torch.tensor([0, 3]), 0.0),
             lambda y: y.index_fill(0, torch.tensor([0, 3]), 0.0))}
LAYERS = {
    f"{kind} {options}": (kind, options)
    for kind, several in {
        "GATConv": [{}, {"bias": False}, {"heads": 2, "edge_dim": 3}, {"heads": 2, "concat": False, "residual": True}],
        "GATv2Conv": [{"bias": False}, {"heads": 2, "edge_dim": 3}],
        "TransformerConv": [{"root_weight": False, "bias": False}, {"heads": 2, "edge_dim": 3, "root_weight": False},
                            {"heads": 2, "beta": True}],
        "GCNConv": [{}, {"bias": False}], "SAGEConv": [{}, {"root_weight": False, "bias": False}, {"aggr": "max"}],
        "GraphConv": [{}], "RGCNConv": [{"num_relations": 2}]}.items() for options in several}


def gradients(layer, kind, options, operation):
    x = dense(NODES, WIDTH).requires_grad_()
    edges = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(2))
    more = [dense(EDGES, 3)] if "edge_dim" in options else [torch.arange(EDGES) % 2] if kind == "RGCNConv" else []
    loss = operation(layer(x, edges, *more)).square().sum()
    return torch.autograd.grad(loss, [x, *layer.parameters()], allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_of_layers(name, operation) -> None:
    (kind, options), (in_place, out_of_place) = LAYERS[name], OPERATIONS[operation]
    torch.manual_seed(1)
    reference = getattr(geometric.nn, kind)(WIDTH, 5, **options)
    own = getattr(sparloom.nn, kind)(WIDTH, 5, **options)
    own.load_state_dict(reference.state_dict())
    guarded, unguarded = copy.deepcopy(reference), copy.deepcopy(reference)
    accelerate(guarded), accelerate(unguarded, check=False)
    expected = gradients(reference, kind, options, out_of_place)
    for layer in (own, unguarded, *3 * [guarded]):
        torch.testing.assert_close(gradients(layer, kind, options, in_place), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operation", ["relu", "elu", "scaled"])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "sddmm", "attention"])
def test_of_operations(name, operation) -> None:
    matrix, found = sparse_tensor(), []
    for change in OPERATIONS[operation]:
        x = dense(30, 2, 4).requires_grad_()
        q = dense(40, 2, 4).requires_grad_()
        result = (csr_attention(matrix, q, x, x) if name == "attention" else sddmm(matrix, q[:, 0], x[:, 0])
                  if name == "sddmm" else spmm(matrix, x[:, 0], reduce=name))
        found.append(torch.autograd.grad(change(result).square().sum(), [x, q], allow_unused=True))
    torch.testing.assert_close(*([each for each in grads if each is not None] for grads in found))


def test_of_weights() -> None:
    edges = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(2))
    layer, found = sparloom.nn.GATConv(WIDTH, 4, heads=2), []
    for change in (torch.Tensor.square_, torch.square):
        x = dense(NODES, WIDTH).requires_grad_()
        result, (_, weights) = layer(x, edges, return_attention_weights=True)
        (change(weights).sum() + result.relu_().square().sum()).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
