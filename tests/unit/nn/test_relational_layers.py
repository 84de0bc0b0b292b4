"""RGCNConv against PyTorch Geometric's: state dicts, results and gradients agree."""

import copy

import pytest
import torch
from sparse_tensors import dense

from sparloom.nn import RGCNConv, accelerate

geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, RECEIVERS, EDGES, WIDTH, OUT, RELATIONS = 40, 17, 160, 6, 4, 5


def edges(receivers: int = NODES) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges and their relations; one relation has none, and each edge occurs once."""
    generator = torch.Generator().manual_seed(2)
    pairs = torch.randperm(NODES * (receivers - 3), generator=generator)[:EDGES]
    types = torch.randint(0, RELATIONS - 1, (EDGES,), generator=generator)
    return torch.stack([pairs % NODES, pairs // NODES]), types + (types > 1)


def results(layer: torch.nn.Module, x: object, *graph: object) -> list[torch.Tensor]:
    parts = [each.clone().requires_grad_() if each is not None and each.is_floating_point() else each
             for each in (x if isinstance(x, tuple) else (x,))]
    result = layer(tuple(parts) if isinstance(x, tuple) else parts[0], *graph)
    wanted = [*(each for each in parts if each is not None and each.requires_grad), *layer.parameters()]
    gradients = torch.autograd.grad(result.tanh().sum(), wanted, allow_unused=True)
    return [result, *(each for each in gradients if each is not None)]


def assert_alike(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, peer in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, peer, rtol=0, atol=1e-5 * max(1.0, peer.abs().max().item()))


def pair(*arguments: object, **options: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    layers = []
    for kind in (geometric.nn.RGCNConv, RGCNConv):
        torch.manual_seed(4)
        layers.append(kind(*arguments, **options))
    peer, own = layers
    assert [*own.state_dict()] == [*peer.state_dict()]
    assert all(torch.equal(*both) for both in zip(own.parameters(), peer.parameters(), strict=True))
    peer.load_state_dict(own.state_dict())
    return peer, own


OPTIONS = [
    {}, {"num_bases": 2}, {"num_blocks": 2}, {"aggr": "add", "root_weight": False}, {"aggr": "max", "bias": False},
    {"flow": "target_to_source", "num_bases": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["edge_index", "EdgeIndex"])
def test_layers_agree(options, kind) -> None:
    peer, own = pair(WIDTH, OUT, RELATIONS, **options)
    graph, types = edges()
    given = geometric.EdgeIndex(graph) if kind == "EdgeIndex" else graph
    for _ in range(2):
        assert_alike(results(own, dense(NODES, WIDTH), given, types), results(peer, dense(NODES, WIDTH), graph, types))


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"aggr": "max"}], ids=str)
def test_layers_agree_on_bipartite_graphs(options) -> None:
    peer, own = pair((WIDTH, 3), OUT, RELATIONS, **options)
    x = dense(NODES, WIDTH), dense(RECEIVERS, 3, seed=5)
    assert_alike(results(own, x, *edges(RECEIVERS)), results(peer, x, *edges(RECEIVERS)))


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"aggr": "add"}, {"aggr": "max"}], ids=str)
@pytest.mark.parametrize("x", [None, torch.arange(NODES).flip(0)], ids=["none", "numbers"])
def test_nodes_without_features_have_embeddings(options, x) -> None:
    peer, own = pair(NODES, OUT, RELATIONS, **options)
    assert_alike(results(own, x, *edges()), results(peer, x, *edges()))


def test_values_of_a_matrix_are_relations() -> None:
    own, (graph, types), x = RGCNConv(WIDTH, OUT, RELATIONS), edges(), dense(NODES, WIDTH)
    matrix = torch.sparse_coo_tensor(graph.flip(0), types, (NODES, NODES)).to_sparse_csr()
    assert_alike([own(x, matrix)], [own(x, graph, types)])


def test_relations_may_change_in_place() -> None:
    peer, own = pair(WIDTH, OUT, RELATIONS)
    (graph, types), x = edges(), dense(NODES, WIDTH)
    own(x, graph, types)
    types[:7], graph[:, 3] = 2, 1
    assert_alike([own(x, graph, types)], [peer(x, graph, types)])


@pytest.mark.parametrize("options", [{}, {"num_blocks": 2}, {"num_bases": 2}], ids=str)
@pytest.mark.parametrize("kind", ["RGCNConv", "FastRGCNConv"])
def test_accelerated_layers_agree(options, kind) -> None:
    model = getattr(geometric.nn, kind)(WIDTH, OUT, RELATIONS, **options)
    twin = copy.deepcopy(model)
    assert accelerate(twin, strict=True).replaced == [""]
    expected = results(model, dense(NODES, WIDTH), *edges())
    for _ in range(4):
        assert_alike(results(twin, dense(NODES, WIDTH), *edges()), expected)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: RGCNConv(6, 4, 5, num_bases=2, num_blocks=2), ValueError, "num_bases and num_blocks cannot be given both"),
    (lambda: RGCNConv(6, 4, 5, num_blocks=4), ValueError, "num_blocks=4 does not divide in_channels=6"),
    (lambda: RGCNConv(-1, 4, 5), ValueError, "in_channels=-1: expected a positive int"),
    (lambda: RGCNConv(6, 4, 0), ValueError, "num_relations=0: expected a positive int"),
    (lambda: RGCNConv(6, 4, 5)(dense(NODES, 6), edges()[0]), TypeError, "edge_type is .*NoneType.*: expected"),
    (lambda: RGCNConv(6, 4, 5)(dense(NODES, 6), edges()[0], torch.arange(3)), ValueError, "one relation per edge"),
    (lambda: RGCNConv(6, 4, 3)(dense(NODES, 6), *edges()), ValueError, "relations range from 0 to 4: expected 0 to 2"),
    (lambda: RGCNConv(6, 4, 5)(dense(NODES, 7), *edges()), ValueError, r"x has shape \(40, 7\): expected \(nodes, 6\)"),
    (lambda: RGCNConv(6, 4, 5)(dense(NODES, 6).double(), *edges()), TypeError, "x of senders is torch.float64"),
    (lambda: RGCNConv(40, 4, 5, num_blocks=2)(None, *edges()), ValueError, "num_blocks needs features"),
])
def test_what_does_not_fit_is_refused(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("nodes", [0, 1])
def test_graphs_without_edges(nodes) -> None:
    layer, none = RGCNConv(3, 2, 2), torch.empty(2, 0, dtype=torch.int64)
    x = torch.ones(nodes, 3)
    torch.testing.assert_close(layer(x, none, none[0]), x @ layer.root + layer.bias)
