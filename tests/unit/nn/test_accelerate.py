"""Models of PyTorch Geometric that compute by sparloom: the same objects, results and gradients."""

import copy
import io
import pickle
from threading import Thread

import pytest
import torch
from sparse_tensors import dense
from torch.utils.checkpoint import checkpoint

from sparloom.nn import accelerate, restore

geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, EDGES, WIDTH, CLASSES = 40, 160, 6, 4
models = geometric.nn.models


def edges(nodes: int = NODES) -> torch.Tensor:
    return torch.randint(0, nodes, (2, EDGES), generator=torch.Generator().manual_seed(2))


def sequential() -> torch.nn.Module:
    nn = geometric.nn
    return nn.Sequential("x, edge_index, weight", [
        (nn.GraphConv(WIDTH, 8, "mean"), "x, edge_index, weight -> x"), torch.nn.ReLU(),
        (nn.GCNConv(8, CLASSES, improved=True), "x, edge_index, weight -> x")])


MODELS = {
    "GCN": lambda: models.GCN(WIDTH, 8, 2, CLASSES), "jumping": lambda: models.GCN(WIDTH, 8, 3, CLASSES, jk="cat"),
    "cached": lambda: models.GCN(WIDTH, 8, 2, CLASSES, cached=True, norm="layer"),
    "GraphSAGE": lambda: models.GraphSAGE(WIDTH, 8, 2, CLASSES, jk="max"),
    "largest": lambda: models.GraphSAGE(WIDTH, 8, 2, CLASSES, aggr="max", project=True),
    "GIN": lambda: models.GIN(WIDTH, 8, 2, CLASSES, train_eps=True),
    "GAT": lambda: models.GAT(WIDTH, 8, 2, CLASSES, heads=2), "lazy attention": lambda: models.GAT(-1, 8, 2, CLASSES),
    "GATv2": lambda: models.GAT(WIDTH, 8, 2, CLASSES, heads=2, v2=True, residual=True),
    "TransformerConv": lambda: geometric.nn.TransformerConv(WIDTH, CLASSES, heads=2, beta=True),
    "lazy": lambda: models.GraphSAGE(-1, 8, 2, CLASSES), "sequential": sequential,
    "layer": lambda: geometric.nn.SAGEConv(WIDTH, CLASSES),
}


def twins(name: str, **options: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    model = MODELS[name]()
    call(model)
    twin = copy.deepcopy(model)
    accelerate(twin, strict=True, **options)
    return model, twin


def call(model: torch.nn.Module, x: torch.Tensor | None = None, graph: object = None) -> torch.Tensor:
    x, graph = dense(NODES, WIDTH) if x is None else x, edges() if graph is None else graph
    weights = torch.linspace(0.5, 2, EDGES, dtype=x.dtype) if isinstance(model, geometric.nn.Sequential) else None
    return model(x, graph) if weights is None else model(x, graph, weights)


def gradients(model: torch.nn.Module, graph: object = None) -> list[torch.Tensor]:
    x = dense(NODES, WIDTH).requires_grad_()
    result = call(model, x, graph)
    return [result, *torch.autograd.grad(result.tanh().sum(), [x, *model.parameters()])]


def assert_alike(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, peer in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, peer, rtol=0, atol=2e-5 * max(1.0, peer.abs().max().item()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("check", [True, False])
def test_models_agree_in_every_call(name, check) -> None:
    model, twin = twins(name, check=check)
    expected = gradients(model)
    for _ in range(4):
        assert_alike(gradients(twin), expected)
    model.eval(), twin.eval()
    with torch.no_grad():
        for _ in range(3):
            assert_alike([call(twin)], [call(model)])
    assert not [each for each in twin.modules() if "_sparloom_declined" in each.__dict__]


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN"])
def test_models_agree_on_sparse_matrices(name) -> None:
    model, twin = twins(name, check=False)
    matrix = (dense(NODES, NODES).abs() * (dense(NODES, NODES, seed=4) > 0.5)).to_sparse_csr()
    assert_alike(gradients(twin, matrix), gradients(model, matrix))


def test_layers_remain_the_same_objects() -> None:
    model = MODELS["GCN"]()
    layer, calls = model.convs[0], []
    layer.register_forward_hook(lambda *_: calls.append(1))
    names, parameters = [*model.state_dict()], [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, 1.0)
    model.eval()
    report = accelerate(model)
    assert model.convs[0] is layer
    assert isinstance(layer, geometric.nn.GCNConv)
    assert not layer.training
    assert ([*model.state_dict()], [*map(id, model.parameters())]) == (names, [*map(id, parameters)])
    before = layer.lin.weight.clone()
    call(model).sum().backward()
    optimizer.step()
    assert calls == [1]
    assert not torch.equal(layer.lin.weight, before)
    report.restore()
    assert type(layer) is geometric.nn.GCNConv
    assert not [name for name in layer.__dict__ if "sparloom" in name]


class Negative(geometric.nn.SAGEConv):
    """A layer with a message of its own."""

    def message(self, x_j):
        return -x_j


def replaced(layer):
    layer.message = lambda x_j: -x_j
    return layer


def hooked(layer):
    layer.register_message_forward_hook(lambda *_: None)
    return layer


def decomposed(layer):
    layer.decomposed_layers = 2
    return layer


def explained(layer):
    layer.explain = True
    return layer


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: Negative(WIDTH, CLASSES), "a subclass of SAGEConv that overrides message"),
    (lambda: geometric.nn.SAGEConv(WIDTH, CLASSES, ["mean", "max"]), r"aggr=\['mean', 'max'\] is not supported"),
    (lambda: geometric.nn.GCNConv(WIDTH, CLASSES, aggr="max"), r"aggr='max' is not supported \(supported: add, sum\)"),
    (lambda: replaced(geometric.nn.SAGEConv(WIDTH, CLASSES)), "its message was replaced"),
    (lambda: hooked(geometric.nn.SAGEConv(WIDTH, CLASSES)), "hooks are registered on its message"),
    (lambda: decomposed(geometric.nn.SAGEConv(WIDTH, CLASSES)), "decomposed_layers=2"),
    (lambda: explained(geometric.nn.SAGEConv(WIDTH, CLASSES)), "an explainer watches its messages"),
    (lambda: geometric.nn.ChebConv(WIDTH, CLASSES, 2), "sparloom has no such layer"),
])
def test_layers_that_are_left_have_a_reason(make, reason) -> None:
    layer = make()
    model = torch.nn.ModuleList([layer, geometric.nn.SAGEConv(WIDTH, CLASSES)])
    with pytest.raises(ValueError, match=rf"1 of 2 layers cannot be accelerated: 0 \({reason}"):
        accelerate(model, strict=True)
    assert type(model[1]) is geometric.nn.SAGEConv
    report = accelerate(model)
    assert report.replaced == ["1"]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(report.left["0"])
    assert "1 of 2 layers accelerated" in repr(report)
    assert "left: " in repr(report)


def test_what_changes_later_is_computed_by_the_original() -> None:
    model, twin = twins("GraphSAGE", check=False)
    for each in (model, twin):
        hooked(each.convs[0])._message_forward_hooks.popitem()
        each.convs[0].register_message_forward_hook(lambda layer, inputs, output: 2 * output)
    assert_alike(gradients(twin), gradients(model))


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN"])
def test_other_dtypes_are_computed_by_the_original(name) -> None:
    model, twin = twins(name, check=False)
    for dtype in (torch.float64, torch.bfloat16):
        model.to(dtype), twin.to(dtype)
        assert_alike([call(twin, dense(NODES, WIDTH).to(dtype))], [call(model, dense(NODES, WIDTH).to(dtype))])
    assert "_sparloom_declined" in twin.convs[0].__dict__
    if name != "GIN":  # promotes types
        with pytest.raises(RuntimeError, match="dtype"):
            call(twin, dense(NODES, WIDTH).half())


def test_what_only_the_original_does_is_left_to_it() -> None:
    x, graph = dense(NODES, WIDTH), torch.cat([edges(), edges()[:, :5]], dim=1)
    weights = dense(1, EDGES + 5)[0].abs()
    for layer, *inputs in (
            (geometric.nn.GraphConv(WIDTH, CLASSES, "max"), x, graph, weights),  # of edges that occur twice
            (geometric.nn.GCNConv(WIDTH, CLASSES), x, graph, weights.double()),  # promotes
            (geometric.nn.SAGEConv(WIDTH, CLASSES), torch.stack([x, x]), graph)):  # several features of one graph
        twin = copy.deepcopy(layer)
        report = accelerate(twin, strict=True)
        for _ in range(2):
            assert_alike([twin(*inputs)], [layer(*inputs)])
        assert "some calls are computed by the original" in repr(report)
    with pytest.raises((IndexError, ValueError), match=r"range|larger"):
        twin(x, graph + 20)


def test_explainers_see_messages() -> None:
    model, twin = twins("GraphSAGE")
    explained = []
    for each in (model, twin):
        explainer = geometric.explain.Explainer(
            each, algorithm=geometric.explain.GNNExplainer(epochs=2), explanation_type="model", edge_mask_type="object",
            model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"})
        torch.manual_seed(1)
        explained.append(explainer(dense(NODES, WIDTH), edges()).edge_mask)
    assert_alike(explained[1:], explained[:1])


WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)),
        "save": lambda model: saved(model)}


def saved(model: torch.nn.Module) -> torch.nn.Module:
    sink = io.BytesIO()
    torch.save(model, sink)
    return torch.load(io.BytesIO(sink.getvalue()), weights_only=False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["GCN", "cached", "GIN"])
def test_copies_compute_alike(way, name) -> None:
    model, twin = twins(name)
    gradients(twin)
    copied = WAYS[way](twin)
    assert type(copied.convs[0]) is type(twin.convs[0]) is not type(model.convs[0])
    for _ in range(3):
        assert_alike(gradients(copied), gradients(model))
    other = MODELS[name]()
    other.load_state_dict(copied.state_dict())
    copied.load_state_dict(other.state_dict())
    restore(copied)
    assert type(copied.convs[0]) is type(model.convs[0])
    assert_alike(gradients(copied), gradients(model))


def heterogeneous(wrap: str) -> torch.nn.Module:
    nn, kinds = geometric.nn, (["user", "item"], [("user", "buys", "item"), ("item", "of", "user")])
    if wrap == "to_hetero":
        return nn.to_hetero(models.GraphSAGE((-1, -1), 8, 2, CLASSES), kinds)
    return nn.HeteroConv({kinds[1][0]: nn.SAGEConv((WIDTH, 3), CLASSES),
                          kinds[1][1]: nn.GraphConv((3, WIDTH), CLASSES)})


@pytest.mark.parametrize("wrap", ["to_hetero", "HeteroConv"])
def test_graphs_of_several_kinds(wrap) -> None:
    x = {"user": dense(NODES, WIDTH), "item": dense(NODES, 3)}
    graphs = {("user", "buys", "item"): edges(), ("item", "of", "user"): edges().flip(0)}
    torch.manual_seed(0)
    model = heterogeneous(wrap)
    expected = model(x, graphs)
    twin = copy.deepcopy(model)
    assert len(accelerate(twin, strict=True).replaced) == (4 if wrap == "to_hetero" else 2)
    for _ in range(3):
        actual = twin(x, graphs)
        assert_alike([*actual.values()], [*expected.values()])


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_has_edge_features_and_weights(kind) -> None:
    model = getattr(geometric.nn, kind)((WIDTH, 3), CLASSES, heads=2, edge_dim=5)
    twin, named = copy.deepcopy(model), {"edge_attr": dense(EDGES, 5)}
    accelerate(twin, strict=True, check=False)
    x, graph = (dense(NODES, WIDTH), dense(NODES, 3)), edges()
    assert_alike([twin(x, graph, **named)], [model(x, graph, **named)])
    results = [each(x, graph, **named, return_attention_weights=True) for each in (twin, model)]
    assert_alike([results[0][0], *results[0][1]], [results[1][0], *results[1][1]])
    assert "_sparloom_declined" not in twin.__dict__


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GAT"])
def test_autocast_has_the_dtypes_of_the_original(name) -> None:
    model, twin = twins(name, check=False)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = call(model), call(twin)
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.05)


def test_batches_of_small_graphs() -> None:
    model, twin = twins("GIN")
    data = [geometric.data.Data(x=dense(NODES, WIDTH, seed=seed), edge_index=edges()) for seed in range(6)]
    for batch in geometric.loader.DataLoader(data, batch_size=4):
        assert_alike([twin(batch.x, batch.edge_index)], [model(batch.x, batch.edge_index)])


def test_random_parts_of_a_graph() -> None:
    model, twin = twins("GCN")
    data = geometric.data.Data(x=dense(NODES, WIDTH), edge_index=edges())
    for batch in geometric.loader.RandomNodeLoader(data, num_parts=3):
        assert_alike([twin(batch.x, batch.edge_index)], [model(batch.x, batch.edge_index)])


def test_layers_that_drop_parts_of_a_sampled_graph() -> None:
    model, twin = twins("lazy")
    x, graph = dense(NODES, WIDTH), edges(20)
    order = graph[1].div(10, rounding_mode="floor").argsort(stable=True)
    hops = {"num_sampled_nodes_per_hop": [10, 10, 20], "num_sampled_edges_per_hop": [EDGES // 2, EDGES // 2]}
    assert_alike([twin(x, graph[:, order], **hops)], [model(x, graph[:, order], **hops)])


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_compute_the_same_layer_again(reentrant) -> None:
    model, twin = twins("GraphSAGE")
    expected = gradients(model)
    for _ in range(4):
        x = dense(NODES, WIDTH).requires_grad_()
        result = checkpoint(call, twin, x, use_reentrant=reentrant)
        twin.zero_grad()
        result.tanh().sum().backward()
        assert_alike([result, x.grad, *(each.grad for each in twin.parameters())], expected)


@pytest.mark.parametrize("name", ["GraphSAGE", "GIN"])
def test_functions_of_parameters(name) -> None:
    model, twin = twins(name)
    x, graph = dense(NODES, WIDTH), edges()

    def loss(each):
        return lambda weights: torch.func.functional_call(each, weights, (x, graph)).tanh().sum()

    weights = {key: 2 * each.detach() for key, each in model.named_parameters()}
    expected, actual = (torch.func.grad(loss(each))(weights) for each in (model, twin))
    assert_alike([*actual.values()], [*expected.values()])
    several = torch.stack([x, 2 * x])
    batched = [torch.func.vmap(lambda x, each=each: each(x, graph))(several) for each in (model, twin)]
    assert_alike(batched[1:], batched[:1])


def test_scripts_and_traces_are_those_of_the_original() -> None:
    model, twin = twins("layer")
    x, graph = dense(NODES, WIDTH), edges()
    assert_alike([torch.jit.script(twin)(x, graph), torch.jit.trace(twin, (x, graph))(x, graph)], 2 * [model(x, graph)])
    assert type(twin) is not type(model)


def test_threads_share_a_model() -> None:
    model, twin = twins("GCN")
    expected, results = call(model), []
    threads = [Thread(target=lambda: results.extend(call(twin).detach() for _ in range(8))) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(results) == 24
    assert_alike(results, 24 * [expected.detach()])


def test_a_model_is_accelerated_twice_and_restored() -> None:
    model, twin = twins("GCN")
    report = accelerate(twin, check=False)
    assert report.replaced == ["convs.0", "convs.1"]
    assert report.speedups == {}
    assert_alike(gradients(twin), gradients(model))
    restore(twin)
    restore(twin)
    assert type(twin.convs[0]) is type(model.convs[0])


def test_a_slower_layer_goes_back(monkeypatch) -> None:
    clock = iter(range(10**9))
    model, twin = twins("GCN", check=False)
    report = accelerate(twin)
    monkeypatch.setattr("sparloom.nn.guard.perf_counter", lambda: float(next(clock)))
    convolve = type(twin.convs[0]).convolve
    monkeypatch.setattr(type(twin.convs[0]), "convolve", lambda layer, *prepared: (
        [next(clock) for _ in range(50)], convolve(layer, *prepared))[1])
    with torch.no_grad():
        for _ in range(140):
            call(twin)
    assert [type(layer) for layer in twin.convs] == [geometric.nn.GCNConv] * 2
    assert all(speedup < 1 for layer in report.speedups.values() for speedup in layer.values())
    assert "the original is used" in repr(report)
    assert_alike(gradients(twin), gradients(model))


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_training_with_dropout_is_never_timed(kind) -> None:
    layer = getattr(geometric.nn, kind)(8, 3, dropout=0.5)
    accelerate(layer)
    x, edges = torch.randn(20, 8), torch.randint(0, 20, (2, 60))
    for _ in range(30):
        layer(x, edges).sum().backward()
    assert not layer.__dict__["_sparloom_guard"].trials
    layer.eval()(x, edges)
    assert layer.__dict__["_sparloom_guard"].trials


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model is a dict: expected a torch.nn.Module"):
        accelerate({})
    assert repr(accelerate(torch.nn.Linear(2, 2))) == "Linear: 0 of 0 layers accelerated"


@pytest.mark.slow
def test_compiled_models_agree() -> None:
    model, twin = twins("GraphSAGE")
    matrix = (dense(NODES, NODES).abs() * (dense(NODES, NODES, seed=4) > 0.5)).to_sparse_csr()
    compiled = torch.compile(twin, backend="eager")
    for graph in (edges(), matrix):
        assert_alike(gradients(compiled, graph), gradients(model, graph))
