"""SAGEConv and TransformerConv against PyTorch Geometric's with the same weights, dense torch, and refusals."""

import copy
import warnings

import pytest
import torch
from sparse_tensors import dense

from sparloom.nn import GINConv, Graph, SAGEConv, TransformerConv

pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, EDGES, CHANNELS = 50, 260, 12


@pytest.fixture(scope="module")
def theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")


@pytest.fixture
def edges() -> torch.Tensor:
    """A directed graph with self-loops, repeated edges, and nodes without any."""
    return torch.randint(0, NODES - 5, (2, EDGES), generator=torch.Generator().manual_seed(2))


def simple(edges: torch.Tensor) -> torch.Tensor:
    return torch.unique(edges, dim=1)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the largest element: both have errors of float32."""
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * scale)


def results(layer: torch.nn.Module, x: torch.Tensor, graph: torch.Tensor | Graph) -> list[torch.Tensor]:
    """Return the result and the gradients of features and used parameters."""
    x = x.clone().requires_grad_()
    result = layer(x, graph)
    gradients = torch.autograd.grad(result.tanh().sum(), [x, *layer.parameters()], allow_unused=True)
    return [result, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("options", [
    {}, {"aggr": "sum"}, {"aggr": "add", "bias": False}, {"normalize": True}, {"root_weight": False},
    {"project": True}, {"project": True, "aggr": "sum", "normalize": True}, {"aggr": "max"},
    {"aggr": "max", "project": True, "normalize": True}, {"aggr": "max", "root_weight": False, "bias": False},
], ids=str)
@pytest.mark.parametrize("width", [5, 12, 20])
def test_sage_agrees_with_pytorch_geometric(theirs, edges, options, width) -> None:
    peer, own = theirs.SAGEConv(CHANNELS, width, **options), SAGEConv(CHANNELS, width, **options)
    own.load_state_dict(peer.state_dict())
    x = dense(NODES, CHANNELS)
    for actual, expected in zip(results(own, x, edges), results(peer, x, edges), strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("aggr", ["mean", "sum", "max"])
def test_sage_agrees_on_weighted_matrices(theirs, edges, aggr) -> None:
    weights = dense(NODES, NODES, seed=3) * (dense(NODES, NODES, seed=4) > 0.8)
    matrix = weights.to_sparse_csr()
    peer, own = theirs.SAGEConv(CHANNELS, 7, aggr), SAGEConv(CHANNELS, 7, aggr)
    own.load_state_dict(peer.state_dict())
    x = dense(NODES, CHANNELS)
    expected = results(peer, x, matrix)
    for inputs in (matrix, weights.to_sparse_coo(), Graph(matrix)):
        for actual, right in zip(results(own, x, inputs), expected, strict=True):
            assert_near(actual, right)


@pytest.mark.parametrize("options", [
    {}, {"heads": 3}, {"heads": 3, "concat": False}, {"heads": 2, "root_weight": False}, {"bias": False},
], ids=str)
def test_transformer_agrees_with_pytorch_geometric(theirs, edges, options) -> None:
    peer, own = theirs.TransformerConv(CHANNELS, 6, **options), TransformerConv(CHANNELS, 6, **options)
    own.load_state_dict(peer.state_dict())
    x = dense(NODES, CHANNELS)
    for actual, expected in zip(results(own, x, simple(edges)), results(peer, x, simple(edges)), strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize(("kind", "options"), [
    ("SAGEConv", {}), ("SAGEConv", {"project": True, "root_weight": False}), ("TransformerConv", {"heads": 2}),
    ("TransformerConv", {"heads": 2, "concat": False, "bias": False})], ids=str)
def test_the_same_seed_draws_the_same_weights(theirs, kind, options) -> None:
    own, peer = {"SAGEConv": SAGEConv, "TransformerConv": TransformerConv}[kind], getattr(theirs, kind)
    drawn = []
    for layer in (peer, own):
        torch.manual_seed(11)
        drawn.append(layer(30, 20, **options).state_dict())
    expected, actual = drawn
    assert list(actual) == list(expected)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_sage_is_the_dense_mean(edges) -> None:
    layer, x = SAGEConv(CHANNELS, 4), dense(NODES, CHANNELS)
    full = torch.zeros(NODES, NODES).index_put((edges[1], edges[0]), torch.ones(EDGES), accumulate=True)
    mean = full / full.sum(1, keepdim=True).clamp(min=1)
    assert_near(layer(x, edges), mean @ x @ layer.lin_l.weight.T + layer.lin_l.bias + x @ layer.lin_r.weight.T)


def test_repeated_edges_do_not_change_the_largest(theirs, edges) -> None:
    layer, x = SAGEConv(CHANNELS, 4, "max"), dense(NODES, CHANNELS)
    for actual, expected in zip(results(layer, x, edges), results(layer, x, simple(edges)), strict=True):
        assert torch.equal(actual, expected)


def test_of_equal_senders_the_first_gets_the_gradient() -> None:
    layer, x = SAGEConv(3, 2, "max", root_weight=False), torch.ones(4, 3, requires_grad=True)
    layer(x, torch.tensor([[2, 1, 3], [0, 0, 0]])).sum().backward()
    assert_near(x.grad, torch.zeros(4, 3).index_put((torch.tensor(1),), layer.lin_l.weight.sum(0)).detach())


def test_the_largest_of_repeated_edges_with_weights_is_refused() -> None:
    matrix = torch.sparse_csr_tensor(torch.tensor([0, 0, 2]), torch.tensor([0, 0]), torch.tensor([1.0, -2.0]), (2, 2))
    graph = Graph(matrix)
    assert SAGEConv(3, 2, "sum")(torch.zeros(2, 3), graph).shape == (2, 2)
    with pytest.raises(ValueError, match=r"the edge from 0 to 1 occurs more than once, with weights.*each edge once"):
        SAGEConv(3, 2, "max")(torch.zeros(2, 3), graph)


@pytest.mark.usefixtures("each_way")
def test_weights_that_learn(edges) -> None:
    matrix = (dense(NODES, NODES, seed=3) * (dense(NODES, NODES, seed=4) > 0.8)).to_sparse_csr().requires_grad_()
    layer, x = SAGEConv(CHANNELS, 4, "sum"), dense(NODES, CHANNELS)
    graph = Graph(matrix)
    with torch.no_grad():
        layer(x, graph)
    (gradient,) = torch.autograd.grad(layer(x, graph).sum(), matrix)
    _, cols = gradient.detach().to_sparse_coo().indices()
    assert_near(gradient.values(), (x @ layer.lin_l.weight.T).sum(1)[cols].detach())


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("nodes", [0, 1, 5])
@pytest.mark.parametrize("layer", [SAGEConv(3, 2), SAGEConv(2, 3, "sum"), SAGEConv(3, 2, "max"),
                                   TransformerConv(3, 2, heads=2)], ids=["mean", "sum", "max", "attention"])
def test_graphs_without_edges(nodes, layer) -> None:
    x = torch.ones(nodes, layer.in_channels, requires_grad=True)
    result = copy.deepcopy(layer)(x, torch.empty(2, 0, dtype=torch.int64))
    root = layer.lin_skip(x) if isinstance(layer, TransformerConv) else layer.lin_r(x) + layer.lin_l.bias
    assert_near(result, root)


def test_layers_on_one_graph_share_its_matrices(edges) -> None:
    graph, x = Graph(edges, NODES), dense(NODES, CHANNELS)
    first = graph.aggregation()
    SAGEConv(CHANNELS, 4)(x, graph)
    assert graph.aggregation() is first
    assert first.mean[0] is first.sum[0] is first.max[0]


@pytest.mark.slow
def test_layers_can_be_compiled(edges) -> None:
    graph, x = Graph(simple(edges), NODES), dense(NODES, CHANNELS)
    for layer in (SAGEConv(CHANNELS, 4), SAGEConv(CHANNELS, 4, "max"), TransformerConv(CHANNELS, 4, heads=2)):
        compiled = torch.compile(layer, backend="aot_eager")
        for actual, expected in zip(results(compiled, x, graph), results(layer, x, graph), strict=True):
            assert_near(actual, expected)


@pytest.mark.parametrize(("inputs", "error", "message"), [
    ({"x": torch.zeros(NODES, 7)}, ValueError, r"x has shape \(50, 7\): expected \(nodes, 12\)"),
    ({"x": torch.zeros(NODES, CHANNELS).int()}, TypeError, r"x is torch.int32, .* pass x.float\(\)"),
    ({"x": torch.zeros(NODES, CHANNELS).to("meta")}, ValueError, "x is on meta: only CPU (and CUDA )?tensors"),
    ({"x": [1.0]}, TypeError, "x is list: expected a dense tensor"),
    ({"x": torch.zeros(40, CHANNELS)}, ValueError, "expected 0 to 39"),
    ({"edge_index": "edges"}, TypeError, "the graph is a str: expected edge_index, a sparse tensor or a Graph"),
    ({"edge_index": Graph(torch.tensor([[0], [1]]))}, ValueError, "x has 50 rows, but the graph has 2 nodes"),
], ids=[str(number) for number in range(7)])
@pytest.mark.parametrize("layer", [SAGEConv(CHANNELS, 4), TransformerConv(CHANNELS, 4)], ids=["sage", "transformer"])
def test_mismatched_arguments_are_refused(edges, layer, inputs, error, message) -> None:
    with pytest.raises(error, match=message):
        layer(**{"x": torch.zeros(NODES, CHANNELS), "edge_index": edges, **inputs})


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: SAGEConv(0, 4), ValueError, "in_channels=0, out_channels=4: all must be at least 1"),
    (lambda: SAGEConv((3, 4, 5), 4), TypeError, r"in_channels=\(3, 4, 5\): .* those of senders and of receivers"),
    (lambda: SAGEConv(3, 4, "mul"), ValueError, "aggr='mul': expected one of mean, sum, add, max"),
    (lambda: SAGEConv(3, 4, ["mean", "max"]), ValueError, "aggr=.*: expected one of mean, sum, add, max"),
    (lambda: SAGEConv(-1, 4, project=True), ValueError, "in_channels=-1 with project=True: .* pass it"),
    (lambda: SAGEConv(3, 4, node_dim=0), ValueError, "node_dim=0: SAGEConv supports only node_dim=-2"),
    (lambda: SAGEConv(3, 4, decomposed_layers=2), ValueError, "decomposed_layers=2: SAGEConv supports only"),
    (lambda: SAGEConv(3, 4, flaw=1), TypeError, "SAGEConv has no argument 'flaw'"),
    (lambda: TransformerConv(3, 4, heads=0), ValueError, "heads=0: expected a positive int"),
    (lambda: TransformerConv(3, 4, heads=1.5), TypeError, r"heads=1\.5: expected a positive int"),
    (lambda: SAGEConv(3, True), TypeError, "out_channels=True: expected an int"),
    (lambda: TransformerConv(3, 4, beta="yes"), TypeError, "beta='yes': expected a bool"),
    (lambda: TransformerConv(3, 4, dropout=1.5), ValueError, "dropout=1.5: expected a probability"),
    (lambda: TransformerConv(3, 4, edge_dim=0), ValueError, "edge_dim=0: expected a positive int"),
    (lambda: TransformerConv(3, 4)(torch.zeros(2, 3), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 1)),
     ValueError, "edge_attr was passed to a layer without edge features: construct it with edge_dim"),
])
def test_options_are_checked(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("layer", [SAGEConv(3, 4), SAGEConv(3, 4, "max"), TransformerConv(3, 4)], ids=str)
def test_edges_have_float32_weights_under_any_default_dtype(edges, layer) -> None:
    x, edges = torch.randn(NODES, 3), torch.unique(edges, dim=1)
    expected = layer(x, edges)
    torch.set_default_dtype(torch.float64)
    try:
        result = layer(x, edges.clone())
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(result, expected)


def test_matrices_of_changing_self_loops_are_dropped():
    edges, x = torch.randint(0, 9, (2, 30), generator=torch.Generator().manual_seed(0)), dense(9, 4)
    graph, layer = Graph(edges, 9), GINConv(torch.nn.Linear(4, 3))
    for step in range(40):
        layer.eps.fill_(step)
        expected = layer.nn(torch.zeros(9, 4).index_add(0, edges[1], x[edges[0]]) + (1 + step) * x)
        torch.testing.assert_close(layer(x, graph), expected)
    assert len(graph._adjacencies) < 20
