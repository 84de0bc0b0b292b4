"""Layers on every form of graph against PyTorch Geometric's: state dicts, results and gradients agree."""

import pytest
import torch
from sparse_tensors import dense, label

from sparloom import nn
from sparloom.nn import Graph

geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, RECEIVERS, EDGES, WIDTH = 40, 17, 160, 6


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4))


def pair(name: str, *arguments: object, **options: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Make their layer and ours with the same weights; the state dict loads both ways."""
    arguments = [each() if each is mlp else each for each in arguments]
    peer = getattr(geometric.nn, name)(*arguments, **options)
    own = getattr(nn, name)(*([mlp()] if name == "GINConv" else arguments), **options)
    assert list(own.state_dict()) == list(peer.state_dict())
    own.load_state_dict(peer.state_dict())
    peer.load_state_dict(own.state_dict())
    return peer, own


def edges(senders: int = NODES, receivers: int = NODES, *, unique: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    drawn = torch.stack([torch.randint(0, senders, (EDGES,), generator=generator),
                         torch.randint(0, receivers - 3, (EDGES,), generator=generator)])
    return torch.unique(drawn, dim=1).contiguous() if unique else drawn


def results(layer: torch.nn.Module, x: object, *inputs: object, **named: object) -> list[torch.Tensor]:
    """Return the result and all gradients that exist."""
    def learning(each: object) -> object:
        if isinstance(each, tuple):
            return tuple(map(learning, each))
        floating = isinstance(each, torch.Tensor) and each.layout == torch.strided and each.is_floating_point()
        return each.clone().requires_grad_() if floating else each

    x, inputs, named = learning(x), tuple(map(learning, inputs)), {name: learning(each) for name, each in named.items()}
    result = layer(x, *inputs, **named)
    given = [*(x if isinstance(x, tuple) else (x,)), *inputs, *named.values(), *layer.parameters()]
    wanted = [each for each in given if isinstance(each, torch.Tensor) and each.requires_grad]
    gradients = torch.autograd.grad(result.tanh().sum(), wanted, allow_unused=True)
    return [result, *(each for each in gradients if each is not None)]


def assert_alike(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Within 1e-5 of the largest element: both have errors of float32."""
    for own, peer in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, peer, rtol=0, atol=1e-5 * max(1.0, peer.abs().max().item()))


LAYERS = [
    ("SAGEConv", (WIDTH, 4), {}), ("SAGEConv", (WIDTH, 9, "min"), {}), ("GraphConv", (WIDTH, 4), {}),
    ("GraphConv", (WIDTH, 9, "mean"), {"bias": False}), ("GraphConv", (WIDTH, 5, "max"), {}),
    ("GINConv", (mlp,), {}), ("GINConv", (mlp,), {"eps": 0.3, "train_eps": True}),
    ("GINConv", (mlp,), {"aggr": "mean", "eps": -1.0}), ("GCNConv", (WIDTH, 4), {}),
]
@pytest.mark.parametrize(("name", "arguments", "options"), LAYERS, ids=label)
@pytest.mark.parametrize("prepared", [False, True])
def test_layers_agree_in_double_precision(name, arguments, options, prepared) -> None:
    peer, own = (each.double() for each in pair(name, *arguments, **options))
    graph, x = edges(unique=True), dense(NODES, WIDTH).double()
    for actual, right in zip(results(own, x, Graph(graph, NODES) if prepared else graph), results(peer, x, graph),
                             strict=True):
        torch.testing.assert_close(actual, right, rtol=0, atol=1e-12 * max(1.0, right.abs().max().item()))


SIMPLE = [("SAGEConv", (WIDTH, 4)), ("GraphConv", (WIDTH, 9)), ("GINConv", (mlp,))]
BIPARTITE = [
    ("SAGEConv", ((WIDTH, 3), 4), {}), ("SAGEConv", ((WIDTH, 3), 9, "max"), {"project": True, "normalize": True}),
    ("SAGEConv", ((-1, -1), 4), {}), ("GraphConv", ((WIDTH, 3), 4), {}), ("GraphConv", ((-1, -1), 9, "mean"), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), LAYERS, ids=label)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_layers_agree_in_both_flows(name, arguments, options, flow) -> None:
    peer, own = pair(name, *arguments, **options, flow=flow)
    x = dense(NODES, WIDTH)
    assert_alike(results(own, x, edges()), results(peer, x, edges()))


@pytest.mark.parametrize(("name", "arguments", "options"), LAYERS, ids=label)
@pytest.mark.parametrize("convert", [
    lambda graph: geometric.EdgeIndex(graph, sparse_size=(NODES, NODES)),
    lambda graph: geometric.EdgeIndex(graph, sparse_size=(NODES, NODES)).sort_by("col").values,
    lambda graph: geometric.utils.to_torch_csr_tensor(graph, size=(NODES, NODES)).t().to_sparse_csr(),
    lambda graph: geometric.utils.to_torch_coo_tensor(graph, size=(NODES, NODES)).t(),
    lambda graph: graph.int(),
], ids=["edge_index", "sorted", "csr", "coo", "int32"])
def test_layers_agree_on_every_form_of_graph(name, arguments, options, convert) -> None:
    peer, own = pair(name, *arguments, **options)
    graph, x = convert(edges(unique=True)), dense(NODES, WIDTH)
    theirs = graph.long() if isinstance(graph, torch.Tensor) and graph.dtype == torch.int32 else graph
    assert_alike(results(own, x, graph), results(peer, x, theirs))


@pytest.mark.parametrize(("name", "arguments", "options"), BIPARTITE, ids=label)
@pytest.mark.parametrize("form", ["edge_index", "matrix", "graph", "size"])
def test_layers_agree_on_bipartite_graphs(name, arguments, options, form) -> None:
    graph, x = edges(NODES, RECEIVERS, unique=True), (dense(NODES, WIDTH), dense(RECEIVERS, 3, seed=5))
    peer, own = getattr(geometric.nn, name)(*arguments, **options), getattr(nn, name)(*arguments, **options)
    peer(x, graph)
    own.load_state_dict(peer.state_dict())
    named = {"size": (NODES, RECEIVERS)} if form == "size" else {}
    matrix = torch.zeros(RECEIVERS, NODES).index_put((graph[1], graph[0]), torch.ones(1)).to_sparse_csr()
    given = {"matrix": matrix, "graph": Graph(graph, (NODES, RECEIVERS))}.get(form, graph)
    assert_alike(results(own, x, given, **named), results(peer, x, matrix if form == "matrix" else graph, **named))


@pytest.mark.parametrize(("name", "arguments"), SIMPLE)
@pytest.mark.parametrize("size", [None, (NODES, RECEIVERS)], ids=label)
def test_receivers_may_have_no_features(name, arguments, size) -> None:
    peer, own = pair(name, *arguments)
    graph, x = edges(NODES, RECEIVERS), (dense(NODES, WIDTH), None)
    assert_alike(results(own, x, graph, size=size), results(peer, x, graph, size=size))


@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=label)
def test_edges_have_weights(aggr, shape) -> None:
    peer, own = pair("GraphConv", WIDTH, 4, aggr)
    graph, x = edges(unique=aggr == "max"), dense(NODES, WIDTH)
    weights = dense(1, graph.shape[1], seed=8).reshape(shape)
    assert_alike(results(own, x, graph, weights), results(peer, x, graph, weights))


@pytest.mark.parametrize(("name", "arguments"), [
    ("GCNConv", (-1, 4)), ("SAGEConv", (-1, 4)), ("GraphConv", (-1, 9)), ("SAGEConv", ((-1, -1), 4, "max"))], ids=label)
def test_sizes_of_the_first_call_draw_the_same_weights(name, arguments) -> None:
    drawn = []
    for module in (geometric.nn, nn):
        torch.manual_seed(11)
        layer = getattr(module, name)(*arguments)
        result = layer(dense(NODES, WIDTH), edges())
        drawn.append(([*layer.state_dict()], [*layer.parameters()], result))
    (names, theirs, expected), (own_names, own, actual) = drawn
    assert own_names == names
    assert all(torch.equal(*both) for both in zip(own, theirs, strict=True))
    assert_alike([actual], [expected])


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GraphConv"])
def test_a_layer_without_a_size_loads_weights(name) -> None:
    peer = getattr(geometric.nn, name)(WIDTH, 4)
    own = getattr(nn, name)(-1, 4)
    own.load_state_dict(peer.state_dict())
    x = dense(NODES, WIDTH)
    assert_alike(results(own, x, edges()), results(peer, x, edges()))


def sparse_tensor(matrix: torch.Tensor) -> object:
    """Have what layers read of a torch_sparse.SparseTensor."""
    class SparseTensor:
        def csr(self):
            return matrix.crow_indices(), matrix.col_indices(), matrix.values()

        def sparse_sizes(self):
            return tuple(matrix.shape)

    return SparseTensor()


@pytest.mark.parametrize(("name", "arguments"), SIMPLE)
def test_values_of_a_sparse_tensor_weigh_where_they_do_in_pytorch_geometric(name, arguments) -> None:
    peer, own = pair(name, *arguments)
    matrix = (dense(NODES, NODES, seed=3) * (dense(NODES, NODES, seed=4) > 0.8)).to_sparse_csr()
    ones = torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), torch.ones_like(matrix.values()))
    x = dense(NODES, WIDTH)
    assert_alike(results(own, x, sparse_tensor(matrix)), results(peer, x, matrix if name == "GraphConv" else ones))


def test_layers_work_in_a_convolution_of_several_kinds() -> None:
    kinds = ("user", "buys", "item"), ("item", "of", "user"), ("user", "knows", "user")
    x, graph = {"user": dense(NODES, WIDTH), "item": dense(RECEIVERS, 3)}, edges(NODES, RECEIVERS)
    graphs = dict(zip(kinds, (graph, graph.flip(0), edges()), strict=True))
    theirs, ours = ({kind: layer for kind, layer in zip(kinds, (
        module.SAGEConv((-1, -1), 4), module.GraphConv((-1, -1), 4), module.GCNConv(-1, 4)), strict=True)}
        for module in (geometric.nn, nn))
    peer, own = geometric.nn.HeteroConv(theirs), geometric.nn.HeteroConv(ours)
    peer(x, graphs)
    own.load_state_dict(peer.state_dict())
    expected, actual = peer(x, graphs), own(x, graphs)
    assert_alike([*actual.values()], [*expected.values()])
    data = geometric.data.HeteroData({"user": {"x": x["user"]}, "item": {"x": x["item"]}, **{
        kind: {"edge_index": each} for kind, each in graphs.items()}})
    assert_alike([*own(data.x_dict, data.edge_index_dict).values()], [*expected.values()])


def test_what_does_not_fit_is_refused() -> None:
    layer, x, graph = nn.SAGEConv((WIDTH, 3), 4), dense(NODES, WIDTH), edges(NODES, RECEIVERS)
    target = dense(RECEIVERS, 3)
    with pytest.raises(ValueError, match=r"40 rows of senders, but size=\(9, 17\) was passed: expected 9"):
        layer((x, target), graph, size=(9, RECEIVERS))
    with pytest.raises(ValueError, match="x has 40 rows of senders and 17 of receivers, but the graph has 40"):
        layer((x, target), Graph(graph, (NODES, NODES)))
    with pytest.raises(ValueError, match="flow='target_to_source' needs one kind of node"):
        nn.SAGEConv((WIDTH, 3), 4, flow="target_to_source")((x, target), graph)
    with pytest.raises(ValueError, match="the graph is bipartite, with 40 senders and 17 receivers"):
        nn.GCNConv(WIDTH, 4)(x, Graph(graph, (NODES, RECEIVERS)))
    with pytest.raises(ValueError, match=r"edge_weight has shape \(3,\) for 160 edges: expected one weight per edge"):
        nn.GraphConv(WIDTH, 4)(x, graph, torch.ones(3))
    with pytest.raises(ValueError, match="edge_weight was passed with a sparse matrix: put the weights"):
        nn.GraphConv(WIDTH, 4)(x, torch.eye(NODES).to_sparse_csr(), torch.ones(NODES))
