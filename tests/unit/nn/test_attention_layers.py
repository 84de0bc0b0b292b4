"""GATConv, GATv2Conv and TransformerConv: against PyTorch Geometric's with the same weights, memory, and refusals."""

import copy
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch
from sparse_tensors import dense, label

from sparloom.nn import GATConv, GATv2Conv, Graph, TransformerConv, graph_attention
from sparloom.nn.attention_edges import attention_edges

pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, EDGES, CHANNELS, FEATURES = 50, 260, 12, 3
LAYERS = {"GATConv": GATConv, "GATv2Conv": GATv2Conv, "TransformerConv": TransformerConv}


@pytest.fixture(scope="module")
def theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")


@pytest.fixture
def edges() -> torch.Tensor:
    """A directed graph with self-loops, repeated edges, a hub with more edges than a chunk, and isolated nodes."""
    edges = torch.randint(0, NODES - 5, (2, EDGES), generator=torch.Generator().manual_seed(2))
    edges[1, 30:130] = 7
    return edges


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare within 3e-5 of the largest element, 1e-10 in float64: both have errors of rounding."""
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    tolerance = 3e-5 if expected.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


def results(layer: torch.nn.Module, x, graph, edge_attr=None, **options) -> dict[str, torch.Tensor]:
    """Return the result, the attention weights if requested, and all gradients, by name."""
    parts = [each if each is None else each.clone().requires_grad_() for each in (x if isinstance(x, tuple) else (x,))]
    edge_attr = None if edge_attr is None else edge_attr.clone().requires_grad_()
    result = layer(tuple(parts) if isinstance(x, tuple) else parts[0], graph, edge_attr, **options)
    found, weights = ({"result": result}, None) if isinstance(result, torch.Tensor) else (
        {"result": result[0], "weights": result[1][1]}, result[1][1])
    loss = found["result"].tanh().sum()
    if weights is not None:
        loss = loss + (weights.sin() * torch.linspace(0, 3, weights.numel()).view_as(weights)).sum()
    inputs = {f"x{number}": each for number, each in enumerate(parts) if each is not None}
    inputs |= {} if edge_attr is None else {"edge_attr": edge_attr}
    inputs |= dict(layer.named_parameters())
    gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    return found | {f"grad {name}": grad for name, grad in zip(inputs, gradients, strict=True) if grad is not None}


def agree(theirs, kind: str, arguments: tuple, x, graph, edge_attr=None, *, call=None, **options) -> None:
    """Compare a layer with PyTorch Geometric's, with its state dict."""
    peer, own = getattr(theirs, kind)(*arguments, **options), LAYERS[kind](*arguments, **options)
    dtype = (x[0] if isinstance(x, tuple) else x).dtype
    own.load_state_dict(peer.state_dict())
    peer.load_state_dict(own.state_dict())
    expected = results(peer.to(dtype), x, graph, edge_attr, **call or {})
    actual = results(own.to(dtype), x, graph, edge_attr, **call or {})
    assert set(actual) >= set(expected)
    for name in actual:
        assert_near(actual[name], expected.get(name, torch.zeros_like(actual[name])))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("width", "options"), [
    (7, {}), (8, {"heads": 8}), (5, {"heads": 3, "concat": False}), (4, {"heads": 4, "bias": False}),
    (40, {"heads": 2}), (3, {"heads": 17}), (16, {"heads": 3})], ids=label)
def test_results_and_gradients_agree_with_pytorch_geometric(theirs, edges, kind, width, options) -> None:
    if kind == "TransformerConv":
        options = options | {"beta": width == 8, "root_weight": width != 5}
    else:
        options = options | {"residual": width == 8, "add_self_loops": width != 7, "negative_slope": 0.3}
    agree(theirs, kind, (CHANNELS, width), dense(NODES, CHANNELS), edges, **options)
    agree(theirs, kind, (CHANNELS, width), dense(NODES, CHANNELS), edges, dense(EDGES, FEATURES, seed=5),
          edge_dim=FEATURES, call={"return_attention_weights": True}, **options)


@pytest.mark.parametrize("kind", LAYERS)
def test_float64_agrees_too(theirs, edges, kind) -> None:
    agree(theirs, kind, (CHANNELS, 6), dense(NODES, CHANNELS).double(), edges, dense(EDGES, FEATURES).double(), heads=3,
          edge_dim=FEATURES, call={"return_attention_weights": True})


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv"])
@pytest.mark.parametrize("fill", ["mean", "add", "min", "max", "mul", 0.5, torch.tensor([1.0, -2.0, 3.0])], ids=label)
def test_self_loops_get_features(theirs, edges, kind, fill) -> None:
    agree(theirs, kind, (CHANNELS, 4), dense(NODES, CHANNELS), edges, dense(EDGES, FEATURES), heads=2,
          edge_dim=FEATURES, fill_value=fill)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("channels", [(CHANNELS, 9), CHANNELS], ids=["pair", "one"])
def test_bipartite_graphs_agree(theirs, edges, kind, channels) -> None:
    senders, receivers = 45, 70
    x = dense(senders, CHANNELS), dense(receivers, channels[1] if isinstance(channels, tuple) else channels, seed=4)
    agree(theirs, kind, (channels, 5), x, edges, heads=2)
    if kind == "GATConv":
        agree(theirs, kind, (channels, 5), (x[0], None), edges, heads=2, call={"size": (senders, receivers)})
        agree(theirs, kind, ((CHANNELS, CHANNELS), 5), x[0], edges, heads=2)


@pytest.mark.parametrize("kind", LAYERS)
def test_sparse_matrices_and_reversed_flow_agree(theirs, edges, kind) -> None:
    x, matrix = dense(NODES, CHANNELS), (dense(NODES, NODES, seed=3) * (dense(NODES, NODES, seed=4) > 0.8))
    loops = [{}] if kind == "TransformerConv" else [{"add_self_loops": False}, {"add_self_loops": True}]
    for options in loops:
        for graph in (matrix.to_sparse_csr(), matrix.to_sparse_coo()):
            agree(theirs, kind, (CHANNELS, 6), x, graph, heads=2, call={"return_attention_weights": True}, **options)
        agree(theirs, kind, (CHANNELS, 6), x, edges, dense(EDGES, FEATURES), edge_dim=FEATURES,
              flow="target_to_source", **options)


@pytest.mark.parametrize("form", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_coo, Graph, None], ids=label)
def test_weights_are_returned_with_their_edges(theirs, edges, form) -> None:
    peer, own = theirs.GATConv(CHANNELS, 4, heads=2), GATConv(CHANNELS, 4, heads=2)
    own.load_state_dict(peer.state_dict())
    graph, x = edges, dense(NODES, CHANNELS)
    if form not in (None, Graph):
        graph = form(torch.zeros(NODES, NODES).index_put((edges[1], edges[0]), torch.ones(1)))
    pairs, expected = peer(x, graph, return_attention_weights=True)[1]
    given, actual = own(x, Graph(edges, NODES) if form is Graph else graph, return_attention_weights=True)[1]
    assert_near(actual, expected)
    assert_near(given.to_dense(), pairs.to_dense()) if graph is not edges else torch.testing.assert_close(given, pairs)


class SparseTensor(SimpleNamespace):
    """Have what layers read of a torch_sparse.SparseTensor."""


def test_values_of_a_sparse_tensor_are_features_and_become_weights(edges) -> None:
    layer, x = GATv2Conv(CHANNELS, 4, edge_dim=2, add_self_loops=False), dense(NODES, CHANNELS)
    features = dense(EDGES, 2)
    order = (edges[1] * NODES + edges[0]).argsort(stable=True)
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), edges[1].bincount(minlength=NODES).cumsum(0)])
    graph = SparseTensor(
        csr=lambda: (crow, edges[0][order], torch.ones(EDGES)), sparse_sizes=lambda: (NODES, NODES),
        storage=SimpleNamespace(value=lambda: features[order]), set_value=lambda value, layout: (layout, value))
    expected, (_, weights) = layer(x, edges, features, return_attention_weights=True)
    result, (layout, value) = layer(x, graph, return_attention_weights=True)
    assert_near(result, expected)
    assert layout == "coo"
    assert_near(value, weights[order])


@pytest.mark.parametrize(("kind", "options"), [
    ("GATConv", {}), ("GATConv", {"edge_dim": 2, "residual": True, "concat": False}), ("GATv2Conv", {}),
    ("GATv2Conv", {"share_weights": True, "edge_dim": 2, "bias": False}),
    ("TransformerConv", {"edge_dim": 2, "beta": True})], ids=label)
@pytest.mark.parametrize("channels", [9, (9, 7), -1], ids=label)
def test_the_same_seed_draws_the_same_weights(theirs, edges, kind, options, channels) -> None:
    if options.get("share_weights") and channels == (9, 7):
        return
    drawn, x = [], dense(NODES, 9)
    x = (x, dense(NODES, 7)) if isinstance(channels, tuple) else x
    for layers in (getattr(theirs, kind), LAYERS[kind]):
        torch.manual_seed(11)
        layer = layers(channels, 5, heads=2, **options)
        if channels == -1:
            layer(x, edges, dense(EDGES, 2) if "edge_dim" in options else None)
        drawn.append(layer.state_dict())
    assert list(drawn[0]) == list(drawn[1])
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


def attention(score: str, edges: torch.Tensor, *, seed: int = 0, dropout: float = 0.0):
    """Return a function of its operands in float64, and these."""
    found = attention_edges(edges, 8, 9, loops=0)
    shapes = {"additive": {"values": (9, 2, 3), "targets": (8, 2, 3), "edge_scores": (20, 2), "factors": (2, 2, 3),
                           "bias": (2, 3)},
              "leaky": {"values": (9, 2, 3), "targets": (8, 2, 3), "edge_features": (20, 4), "edge_weight": (4, 2, 3),
                        "factors": (1, 2, 3)},
              "dot": {"values": (9, 2, 3), "targets": (8, 2, 3), "sources": (9, 2, 3), "edge_features": (20, 4),
                      "edge_queries": (8, 4, 2)}}[score]
    operands = [dense(*shape, seed=number).double().requires_grad_() for number, shape in enumerate(shapes.values())]

    def function(*tensors: torch.Tensor):
        result = graph_attention.graph_attention(score, found.order, graph_attention.AttentionOperands(
            **dict(zip(shapes, tensors, strict=True)), slope=0.2, dropout=dropout, seed=torch.tensor(seed)),
            weights="used")
        return tuple(each for each in result if each is not None)

    return function, operands


@pytest.mark.parametrize("score", ["additive", "leaky", "dot"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_are_those_of_finite_differences(score, dropout) -> None:
    edges = torch.stack([torch.arange(20) % 9, torch.arange(20) * 3 % 7])
    function, operands = attention(score, edges, seed=2**40 + 5, dropout=dropout)
    assert torch.autograd.gradcheck(function, operands)
    with pytest.raises(RuntimeError, match="graph attention has no second derivatives"):
        torch.autograd.grad(torch.autograd.grad(function(*operands)[0].sum(), operands[0], create_graph=True)[0].sum(),
                            operands[0])


@pytest.mark.parametrize("score", ["additive", "leaky", "dot"])
@pytest.mark.parametrize("change", [lambda each: each[:-1], lambda each: torch.cat([each, each]),
                                    lambda each: each[..., :-1], lambda each: each.unsqueeze(0), lambda each: each[0]])
def test_operands_of_other_shapes_are_refused(score, change) -> None:
    edges = torch.stack([torch.arange(20) % 9, torch.arange(20) * 3 % 7])
    function, operands = attention(score, edges)
    for number, operand in enumerate(operands):
        changed = change(operand)
        repeated = number in (3, 4) and score != "dot" and changed.dim() == operand.dim() and 1 in changed.shape
        if not repeated:  # factors for senders alone, and a bias for all heads
            with pytest.raises(ValueError, match=r"has shape \(.*expected \("):
                function(*operands[:number], changed, *operands[number + 1:])


@pytest.mark.parametrize("score", ["additive", "leaky", "dot"])
def test_operands_that_a_score_reads_are_required(score) -> None:
    edges = torch.stack([torch.arange(20) % 9, torch.arange(20) * 3 % 7])
    names = {"additive": ("values", "targets", "edge_scores", "factors", "bias"),
             "leaky": ("values", "targets", "edge_features", "edge_weight", "factors"),
             "dot": ("values", "targets", "sources", "edge_features", "edge_queries")}[score]
    needed = {"additive": {"factors"}, "leaky": {"targets", "edge_weight", "factors"},
              "dot": {"targets", "sources", "edge_queries"}}[score]
    function, operands = attention(score, edges)
    for number, name in enumerate(names):
        changed = [*operands[:number], None, *operands[number + 1:]]
        if name in needed:
            with pytest.raises(TypeError, match=f"{name} is None: scores of kind '{score}' need it"):
                function(*changed)
        elif name in ("targets", "edge_features"):  # what belongs to them is left over
            with pytest.raises(ValueError, match=r"expected \(0, 2, 3\)|expected \(8, 0, 2\)|targets is None"):
                function(*changed)


def test_dropout_drops_independently_with_its_probability(edges) -> None:
    graph, x = torch.randint(0, 300, (2, 6000), generator=torch.Generator().manual_seed(1)), dense(300, CHANNELS)
    layer, layers = GATConv(CHANNELS, 4, heads=4, dropout=0.3), []
    whole = layer.eval()(x, graph, return_attention_weights=True)[1][1]
    receivers = torch.cat([graph[1][graph[0] != graph[1]], torch.arange(300)])
    assert_near(torch.zeros(300, 4).index_add(0, receivers, whole), torch.ones(300, 4))
    layer.train()
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        layers.append(layer(x, graph, return_attention_weights=True)[1][1])
    assert torch.equal(layers[0], layers[1])
    first, second = layers[0] == 0, layers[2] == 0
    count = first.numel() ** 0.5
    for share, expected in ((first, 0.3), (first & second, 0.09), (first[:, 0] & first[:, 1], 0.09),
                            (first[1:, 2] & first[:-1, 2], 0.09)):
        assert abs(share.double().mean().item() - expected) < 6 * 0.5 / count * 2
    torch.testing.assert_close(layers[0][~first], whole[~first] / 0.7)
    layer.dropout = 1.0
    assert torch.equal(layer(x, graph), layer.bias.expand(300, -1))


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_no_message_is_stored(kind) -> None:
    nodes, edges = 200, 20000
    graph = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(1))
    layer = LAYERS[kind](CHANNELS, 16, heads=8, edge_dim=2)
    x, features = dense(nodes, CHANNELS).requires_grad_(), dense(edges, 2).requires_grad_()
    layer(x, graph, features)
    with torch.profiler.profile(profile_memory=True) as profiler:
        layer(x, graph, features).sum().backward()
    found = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak = most = 0
    for event in sorted(found, key=lambda event: event.start_ns()):
        peak += event.nbytes()
        most = max(most, peak)
    assert 0 < most < edges * 8 * 16 * 4 / 2


@pytest.mark.parametrize("score", ["additive", "leaky", "dot"])
def test_results_do_not_depend_on_the_number_of_threads(score, monkeypatch) -> None:
    monkeypatch.setattr(graph_attention, "SLICE_WORK", 20)
    before, found = torch.get_num_threads(), []
    function, operands = attention(score, torch.stack([torch.arange(20) % 9, torch.arange(20) * 3 % 7]))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            each = function(*operands)
            found.append([*each, *torch.autograd.grad([part.sin().sum() for part in each], operands)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(actual, expected) for actual, expected in zip(other, found[0], strict=True))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("nodes", [0, 1, 5])
def test_graphs_without_edges(theirs, kind, nodes) -> None:
    empty = torch.empty(2, 0, dtype=torch.int64)
    agree(theirs, kind, (3, 2), torch.ones(nodes, 3), empty, heads=2)
    agree(theirs, kind, (3, 2), torch.ones(nodes, 3), empty, torch.ones(0, 2), heads=2, edge_dim=2)


def test_edges_that_are_written_to_are_read_again(edges) -> None:
    layer, x = GATConv(CHANNELS, 4), dense(NODES, CHANNELS)
    layer(x, edges)
    edges[0] = edges[0].flip(0)
    assert torch.equal(layer(x, edges), layer(x, edges.clone()))


def test_layers_are_copied_cast_and_transformed(theirs, edges) -> None:
    x, features = dense(NODES, CHANNELS), dense(EDGES, FEATURES)
    for kind in LAYERS:
        layer, peer = (each(CHANNELS, 4, heads=2, edge_dim=FEATURES) for each in (LAYERS[kind], getattr(theirs, kind)))
        peer.load_state_dict(layer.state_dict())
        expected = layer(x, edges, features)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x, edges, features), expected)
        with torch.autocast("cpu", torch.bfloat16):
            cast, theirs_cast = layer(x, edges, features), peer(x, edges, features)
        assert cast.dtype == theirs_cast.dtype
        torch.testing.assert_close(cast, theirs_cast, rtol=0.05, atol=0.05)
        tangents = torch.func.vmap(torch.func.grad(
            lambda each, layer=layer: layer(each, edges, features).sum()))(x[None])
        given = x.clone().requires_grad_()
        assert_near(tangents[0], torch.autograd.grad(layer(given, edges, features).sum(), given)[0])


def test_the_operator_is_registered_correctly(edges) -> None:
    order = attention_edges(edges, NODES, NODES, loops=0).order
    values, factors = dense(NODES, 2, 3).requires_grad_(), dense(2, 2, 3).requires_grad_()
    torch.library.opcheck(torch.ops.sparloom.graph_attention.default, (
        *order.tensors, values, *(None,) * 6, factors, None, None, 0, 0.2, 0.0, 1, True))


@pytest.mark.slow
def test_layers_can_be_compiled(edges) -> None:
    for kind in LAYERS:
        layer, features = LAYERS[kind](CHANNELS, 4, heads=2, edge_dim=FEATURES), dense(EDGES, FEATURES)
        compiled = torch.compile(layer, backend="aot_eager")
        expected = results(layer, dense(NODES, CHANNELS), edges, features)
        for name, actual in results(compiled, dense(NODES, CHANNELS), edges, features).items():
            assert_near(actual, expected[name.replace("_orig_mod.", "")])


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"x": torch.zeros(NODES, 7)}, ValueError, r"x has shape \(50, 7\): expected \(nodes, 12\)"),
    ({"x": torch.zeros(NODES, CHANNELS).half()}, TypeError, r"x is torch.float16, .* pass x.float\(\)"),
    ({"x": torch.zeros(NODES, CHANNELS).double()}, TypeError, r"x is torch.float64 and the weight torch.float32"),
    ({"x": (torch.zeros(NODES, CHANNELS),) * 3}, TypeError, "x has 3 parts: expected features of senders and"),
    ({"x": torch.zeros(40, CHANNELS)}, ValueError, "expected 0 to 39"),
    ({"edge_index": [[0], [1]]}, TypeError, "the graph is a list: expected edge_index"),
    ({"edge_index": torch.zeros(2, 3)}, TypeError, "edge_index is torch.float32: expected torch.int64"),
    ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, ValueError, r"edge_index has shape \(3, 2\)"),
    ({"edge_index": torch.eye(3).to_sparse_coo()}, ValueError, r"the adjacency matrix has shape \(3, 3\): expected 50"),
    ({"edge_index": Graph(torch.tensor([[0], [1]]))}, ValueError, "x has 50 rows, but the graph has 2 nodes"),
    ({"edge_attr": torch.zeros(EDGES, 2)}, ValueError, rf"edge_attr has shape \({EDGES}, 2\): expected \({EDGES}, 3\)"),
    ({"edge_attr": torch.zeros(5, 3)}, ValueError, r"edge_attr has shape \(5, 3\): expected"),
    ({"edge_attr": "features"}, TypeError, "edge_attr is str: expected a dense tensor"),
    ({"edge_index": torch.eye(NODES).to_sparse_coo(), "edge_attr": torch.zeros(NODES, 3)}, ValueError,
     "edge_attr was passed with a sparse matrix, to which self-loops are added: pass edge_index"),
], ids=[str(number) for number in range(14)])
def test_mismatched_arguments_are_refused(edges, arguments, error, message) -> None:
    for kind in (GATConv, GATv2Conv):
        with pytest.raises(error, match=message):
            kind(CHANNELS, 4, edge_dim=3)(**{"x": torch.zeros(NODES, CHANNELS), "edge_index": edges} | arguments)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: GATConv(0, 4), ValueError, "in_channels=0, out_channels=4: all must be at least 1"),
    (lambda: GATConv(3, 4, heads=0), ValueError, "heads=0: expected a positive int"),
    (lambda: GATConv(3, 4, aggr="mean"), ValueError, "aggr='mean': expected one of add, sum"),
    (lambda: GATv2Conv(3, 4, fill_value="median"), ValueError, "fill_value='median': expected a number"),
    (lambda: GATv2Conv(3, 4, edge_dim=-2), ValueError, "edge_dim=-2: expected a positive int"),
    (lambda: GATConv(3, 4)(torch.zeros(2, 3), torch.tensor([[0], [1]]), torch.zeros(1, 1)), ValueError,
     "edge_attr was passed to a layer without edge features: construct it with edge_dim"),
    (lambda: TransformerConv(3, 4, edge_dim=2)(torch.zeros(2, 3), torch.tensor([[0], [1]])), ValueError,
     "edge_attr is missing: this layer has edge_dim=2"),
    (lambda: GATConv(3, 4)((torch.zeros(2, 3), None), torch.tensor([[0], [1]]), size=(3, 2)), ValueError,
     r"x has 2 rows of senders, but size=\(3, 2\) was passed: expected 3"),
    (lambda: GATConv((3, 3), 4, flow="target_to_source")(
        (torch.zeros(2, 3), torch.zeros(2, 3)), torch.tensor([[0], [1]])), ValueError, "needs one kind of node"),
])
def test_options_are_checked(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
