"""Edges in every form, as layers take them for the first time, against a `Graph` of them."""

import gc
import weakref
from pathlib import Path

import pytest
import torch

from sparloom.nn import GCNConv, GINConv, Graph, GraphConv, SAGEConv
from sparloom.nn import graph as graphs
from sparloom.nn.edges import Normalisation
from sparloom.platforms.cpu_kernels import native_core

pytestmark = [pytest.mark.cc, pytest.mark.filterwarnings("ignore:Sparse")]  # torch says that they are in beta

needs_core = pytest.mark.skipif(native_core() is None, reason="the native core was not built")
NODES, EDGES = 40, 150


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def edges(generator: torch.Generator) -> torch.Tensor:
    """Edges in any order, with self-loops, repeated edges, a hub and nodes without any."""
    drawn = torch.randint(0, NODES - 5, (2, EDGES), generator=generator)
    drawn[1, ::5] = 3
    return drawn


def dense(edges: torch.Tensor, nodes: int = NODES) -> torch.Tensor:
    matrix = torch.zeros(nodes, nodes)
    return matrix.index_put((edges[1], edges[0]), torch.ones(edges.shape[1]), accumulate=True)


FORMS = {
    "int64": lambda edges: edges,
    "int32": lambda edges: edges.int(),
    "transposed": lambda edges: edges.T.contiguous().T,
    "strided": lambda edges: edges.repeat_interleave(2, dim=1)[:, ::2],
    "csr": lambda edges: dense(edges).to_sparse_csr(),
    "csr_int32": lambda edges: torch.sparse_csr_tensor(
        *(each.int() for each in (dense(edges).to_sparse_csr().crow_indices(),
                                  dense(edges).to_sparse_csr().col_indices())),
        dense(edges).to_sparse_csr().values(), (NODES, NODES)),
    "coo": lambda edges: dense(edges).to_sparse_coo().coalesce(),
}


def gradients(
    layer: torch.nn.Module, x: torch.Tensor, graph, weight: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """The result and all gradients."""
    x = x.clone().requires_grad_()
    wanted = [x, *layer.parameters(), *([] if weight is None or not weight.requires_grad else [weight])]
    result = layer(x, graph) if weight is None else layer(x, graph, weight)
    return [result, *torch.autograd.grad(result.tanh().sum(), wanted)]


def assert_near(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for actual, right in zip(found, expected, strict=True):
        scale = float(right.detach().abs().max()) if right.numel() else 1.0
        torch.testing.assert_close(actual, right, rtol=0, atol=1e-5 * max(1.0, scale))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"improved": True}, {"normalize": False}, {"first": "transform"}], ids=str)
def test_edges_and_graphs_agree(edges, generator, form, options) -> None:
    layer, x = GCNConv(12, 9, **options), torch.randn(NODES, 12, generator=generator)
    graph = FORMS[form](edges)
    assert_near(gradients(layer, x, graph, None), gradients(layer, x, Graph(graph, NODES), None))


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [
    lambda: SAGEConv(12, 9), lambda: SAGEConv(12, 15, aggr="sum", normalize=True),
    lambda: SAGEConv(12, 9, root_weight=False), lambda: SAGEConv(12, 9, project=True), lambda: GraphConv(12, 15),
    lambda: GINConv(torch.nn.Linear(12, 5), train_eps=True), lambda: SAGEConv(12, 9, aggr="max", bias=False)],
    ids=("mean", "sum", "no_root", "project", "graph_conv", "gin", "max"))
def test_layers_that_aggregate_agree(edges, generator, form, make) -> None:
    layer, x, graph = make(), torch.randn(NODES, 12, generator=generator), FORMS[form](edges)
    assert_near(gradients(layer, x, graph), gradients(layer, x, Graph(graph, NODES)))


@pytest.mark.parametrize("aggr", ["add", "mean"])
@pytest.mark.parametrize("trained", [False, True])
def test_weights_of_edges_are_aggregated(edges, generator, aggr, trained) -> None:
    layer, x = GraphConv(7, 9, aggr=aggr), torch.randn(NODES, 7, generator=generator)
    weight = torch.rand(EDGES, 1, generator=generator).requires_grad_(trained)
    assert_near(gradients(layer, x, edges, weight), gradients(layer, x, Graph(edges, NODES), weight))


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("out", [3, 20])
def test_second_derivatives_of_a_layer_with_a_root(edges, out) -> None:
    layer = SAGEConv(4, out)
    results = []
    for graph in (edges, Graph(edges, NODES)):
        x = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
        first, = torch.autograd.grad(layer(x, graph).tanh().square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()], allow_unused=True))
    assert_near(*([each for each in result if each is not None] for result in results))


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("receivers", [1, 7, 90])
@pytest.mark.parametrize("out", [3, 20])
def test_bipartite_graphs_agree(generator, receivers, out) -> None:
    edges = torch.stack([torch.randint(0, high, (EDGES,), generator=generator) for high in (NODES, receivers)])
    layer = SAGEConv((6, 5), out)
    results = []
    for graph in (edges, Graph(edges, (NODES, receivers))):
        x = [torch.randn(count, width, generator=torch.Generator().manual_seed(count), requires_grad=True)
             for count, width in ((NODES, 6), (receivers, 5))]
        result = layer(tuple(x), graph)
        results.append([result, *torch.autograd.grad(result.tanh().sum(), [*x, *layer.parameters()])])
    assert_near(*results)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("options", [{}, {"normalize": False}], ids=str)
def test_weights_of_edges_agree(edges, generator, trained, options) -> None:
    layer, x = GCNConv(7, 12, **options), torch.randn(NODES, 7, generator=generator)
    weight = torch.rand(EDGES, generator=generator).requires_grad_(trained)
    expected = gradients(layer, x, Graph(edges, NODES), weight)
    assert_near(gradients(layer, x, edges, weight), expected)
    with torch.no_grad():
        weight.mul_(2)
        assert_near([layer(x, edges, weight)], [layer(x, Graph(edges, NODES), weight)])


@pytest.mark.parametrize(("nodes", "edges"), [
    (0, torch.zeros(2, 0, dtype=torch.int64)), (1, torch.zeros(2, 0, dtype=torch.int64)),
    (3, torch.zeros(2, 0, dtype=torch.int64)), (1, torch.zeros(2, 4, dtype=torch.int64))], ids=str)
def test_smallest_graphs(nodes, edges) -> None:
    layer, x = GCNConv(3, 2), torch.randn(nodes, 3, generator=torch.Generator().manual_seed(1))
    assert_near([layer(x, edges)], [layer(x, Graph(edges, nodes))])


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
@pytest.mark.parametrize("wrong", [-1, NODES, 2**40])
@pytest.mark.parametrize("end", [0, 1])
def test_nodes_out_of_range_are_refused(edges, wrong, end, kind) -> None:
    edges[end, 70] = wrong
    name = ("sender", "receiver")[end]
    with pytest.raises(ValueError, match=rf"{name}s range from .*{wrong}.* expected 0 to {NODES - 1}|{name}s range"):
        kind(3, 2)(torch.zeros(NODES, 3), edges)


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_columns_out_of_range_are_refused(wrong, kind) -> None:
    matrix = torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 3]), torch.tensor([0, wrong, 1]), torch.ones(3), (3, 3),
                                     check_invariants=False)
    with pytest.raises(ValueError, match=f"senders range from .*{wrong}.*: expected 0 to 2"):
        kind(3, 2)(torch.zeros(3, 3), matrix)


@pytest.mark.parametrize("begin", [[0, 3, 1, 4], [0, 1, 2, 900], [1, 2, 3, 4], [0, -5, 2, 4]])
def test_row_pointers_that_are_not_csr_are_refused(begin) -> None:
    matrix = torch.sparse_csr_tensor(torch.tensor(begin), torch.tensor([0, 1, 2, 0]), torch.ones(4), (3, 3),
                                     check_invariants=False)
    with pytest.raises(ValueError, match="not valid in CSR"):
        GCNConv(3, 2)(torch.zeros(3, 3), matrix)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_changes_in_place_are_noticed(edges, generator, kind) -> None:
    layer, x = kind(6, 4), torch.randn(NODES, 6, generator=generator)
    for change in (lambda: edges.flip(0), lambda: edges.roll(7, 1).flip(0)):
        layer(x, edges)
        edges.copy_(change())
        assert_near(gradients(layer, x, edges, None), gradients(layer, x, Graph(edges, NODES), None))
        edges.numpy()[0, :20] = 1  # torch does not count this write
        assert_near([layer(x, edges)], [layer(x, Graph(edges, NODES))])


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_gradients_belong_to_the_graph_of_the_forward_pass(edges, generator, kind) -> None:
    layer, x = kind(6, 8), torch.randn(NODES, 6, generator=generator, requires_grad=True)
    expected = torch.autograd.grad(layer(x, Graph(edges, NODES)).square().sum(), x)
    result = layer(x, edges)
    edges.zero_()
    assert_near([*torch.autograd.grad(result.square().sum(), x)], [*expected])


def test_a_graph_is_forgotten_with_its_tensor_and_leaves_no_file(generator, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AUTOSAGE_CACHE_DIR", str(tmp_path))
    layer = GCNConv(6, 4)
    for form in FORMS.values():
        edges = form(torch.randint(0, NODES, (2, EDGES), generator=generator))
        layer(torch.randn(NODES, 6, generator=generator), edges).sum().backward()
        cached_graphs = graphs._cache()[edges].made
        graph = weakref.ref(next(iter(cached_graphs.values())))
        del edges, cached_graphs
        gc.collect()
        assert graph() is None
    assert list(Path(tmp_path).rglob("*")) == []


def test_threads_share_larger_graphs(generator) -> None:
    nodes, count = 3000, torch.get_num_threads()
    edges = torch.randint(0, nodes, (2, 20_000), generator=generator)
    edges[1, :6000] = 17
    layer, x = GCNConv(40, 20), torch.randn(nodes, 40, generator=generator)
    try:
        torch.set_num_threads(1)
        expected = gradients(layer, x, Graph(edges, nodes), None)
        torch.set_num_threads(2)
        assert_near(gradients(layer, x, edges, None), expected)
    finally:
        torch.set_num_threads(count)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_a_graph_of_an_evaluation_can_be_trained_on(edges, generator, kind) -> None:
    layer, x = kind(6, 4), torch.randn(NODES, 6, generator=generator)
    with torch.inference_mode():
        seen = layer(x, edges)
    result = layer(x, edges)
    result.sum().backward()
    assert torch.equal(result, seen)


def test_the_matrix_is_that_of_the_edges() -> None:
    edges = torch.tensor([[2, 0, 1, 1, 2], [0, 0, 2, 0, 2]])
    made = Graph.of_memory(edges, 3, "source_to_target").adjacency(Normalisation(1.0, False), torch.float32)
    rows, cols = made.pattern.row_ids, made.pattern.columns.long()
    matrix = torch.zeros(3, 3).index_put((rows, cols), made.values, accumulate=True)
    assert matrix.tolist() == [[1, 1, 1], [0, 1, 0], [0, 1, 1]]
    torch.testing.assert_close(torch.sparse_csr_tensor(*made.matrix[:3], (3, 3)).to_dense(), matrix)


@needs_core
@pytest.mark.parametrize("trained", [False, True])
def test_products_are_kept_only_for_what_needs_them(edges, trained) -> None:
    x = torch.randn(NODES, 6, requires_grad=trained)
    result = GCNConv(6, 8)(x, edges)
    saved = [each for each in result.grad_fn.saved_tensors if each is not None]
    assert len(saved) == (3 if trained else 4)  # X, W and the values, and A X
