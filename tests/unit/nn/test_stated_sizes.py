"""Graphs that state their size: it must fit the features, and says how many receivers without features there are."""

import copy

import pytest
import torch
from sparse_tensors import dense

import sparloom.nn
from sparloom.nn import Graph, accelerate

geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|invariant):UserWarning", "ignore:Converting sparse:UserWarning")]

SENDERS, RECEIVERS, EDGES, WIDTH = 9, 5, 24, 4
KINDS = {"GCNConv": {}, "SAGEConv": {}, "GraphConv": {}, "GATConv": {}, "GATv2Conv": {}, "TransformerConv": {},
         "RGCNConv": {"num_relations": 2}, "GINConv": {}}


def layer(library, kind, channels=WIDTH, **options):
    if kind == "GINConv":
        return library.GINConv(torch.nn.Linear(WIDTH, WIDTH))
    return getattr(library, kind)(channels, WIDTH, **KINDS[kind], **options)


def edges(senders=RECEIVERS, receivers=RECEIVERS):
    seed = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(0, count, (EDGES,), generator=seed) for count in (senders, receivers)])


@pytest.mark.parametrize("size", [(9, 9), (9, 5), (5, 9), (9, None), (None, 9), (3, 5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_an_edge_index_of_another_size_is_refused(flow, kind, size) -> None:
    x, types = dense(RECEIVERS, WIDTH), [torch.arange(EDGES) % 2] if kind == "RGCNConv" else []
    graph = geometric.EdgeIndex(edges(), sparse_size=(9, 9))
    graph._sparse_size = size
    own = layer(sparloom.nn, kind)
    own.flow = flow
    with pytest.raises(ValueError, match=r"sparse_size=\(.*there are 5 senders and 5 receivers: pass"):
        own(x, graph, *types)
    plain = layer(geometric.nn, kind)
    plain.flow = flow
    fast = copy.deepcopy(plain)
    accelerate(fast, check=False)
    try:
        expected = plain(x, graph, *types)
    except (ValueError, IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            fast(x, graph, *types)
    else:  # PyTorch Geometric does not compare the size that this layer does not gather by
        torch.testing.assert_close(fast(x, graph, *types), expected)


@pytest.mark.parametrize("size", [(5, 5), (5, None), (None, None)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_index_that_fits_is_taken(kind, size) -> None:
    x, types = dense(RECEIVERS, WIDTH), [torch.arange(EDGES) % 2] if kind == "RGCNConv" else []
    own = layer(sparloom.nn, kind)
    graph = geometric.EdgeIndex(edges(), sparse_size=size)
    torch.testing.assert_close(own(x, graph, *types), own(x, edges(), *types))


def test_a_graph_has_the_size_that_its_edge_index_states() -> None:
    for size in ((11, 11), (SENDERS, RECEIVERS)):
        graph = Graph(geometric.EdgeIndex(edges(), sparse_size=size))
        assert (graph.senders, graph.nodes) == size
    with pytest.raises(ValueError, match=r"sparse_size=\(11, 11\), but there are 5 senders and 5 receivers"):
        Graph(geometric.EdgeIndex(edges(), sparse_size=(11, 11)), RECEIVERS)


@pytest.mark.parametrize("kind", ["SAGEConv", "GraphConv", "GATConv", "GINConv", "GCNConv"])
def test_graphs_and_sizes_that_do_not_fit_are_refused(kind) -> None:
    x, own = dense(RECEIVERS, WIDTH), layer(sparloom.nn, kind)
    for graph in (Graph(edges(), 9), torch.eye(9).to_sparse_csr(), torch.eye(9).to_sparse_coo()):
        with pytest.raises(ValueError, match="9"):
            own(x, graph)
    if kind != "GCNConv":
        with pytest.raises(ValueError, match=r"x has 5 rows of senders, but size=\(9, 9\) was passed"):
            own(x, edges(), size=(9, 9))


def graphs():
    pairs = torch.unique(edges(SENDERS, RECEIVERS), dim=1).contiguous()
    matrix = torch.sparse_coo_tensor(pairs.flip(0), torch.ones(pairs.shape[1]), (RECEIVERS, SENDERS)).coalesce()
    return {"coo": (matrix,), "csr": (matrix.to_sparse_csr(),), "edge_index": (pairs,),
            "EdgeIndex": (geometric.EdgeIndex(pairs, sparse_size=(SENDERS, RECEIVERS)),),
            "size": (pairs, {"size": (SENDERS, RECEIVERS)})}


@pytest.mark.parametrize("form", ["coo", "csr", "edge_index", "EdgeIndex", "size"])
@pytest.mark.parametrize("options", [{"add_self_loops": False}, {"add_self_loops": True}, {"heads": 2}])
def test_gat_counts_receivers_without_features_as_the_original(options, form) -> None:
    graph, size = (*graphs()[form], {})[:2]
    plain = layer(geometric.nn, "GATConv", (WIDTH, WIDTH), **options)
    own = layer(sparloom.nn, "GATConv", (WIDTH, WIDTH), **options)
    own.load_state_dict(plain.state_dict())
    fast = copy.deepcopy(plain)
    report = accelerate(fast, check=False)
    x = dense(SENDERS, WIDTH).requires_grad_()
    results = [each((x, None), graph, **size) for each in (own, fast, plain)]
    assert results[0].shape == results[2].shape
    for result in results[:2]:
        torch.testing.assert_close(result, results[2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), x) for result in results[1:]))
    assert "original" not in str(report)


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("size", [(9, 12), (9, 20), (None, 12), (9, 9), (9, 5), (None, 5), (9, None), (None, None),
                                  (12, 9), (7, 12)])
def test_gat_has_as_many_receivers_as_an_edge_index_states(size, loops) -> None:
    graph = geometric.EdgeIndex(edges(SENDERS, RECEIVERS))
    graph._sparse_size = size
    plain = layer(geometric.nn, "GATConv", (WIDTH, WIDTH), add_self_loops=loops)
    own = layer(sparloom.nn, "GATConv", (WIDTH, WIDTH), add_self_loops=loops)
    own.load_state_dict(plain.state_dict())
    fast = copy.deepcopy(plain)
    accelerate(fast, check=False)
    pair = dense(SENDERS, WIDTH), None
    if size[0] not in (None, SENDERS):
        with pytest.raises(ValueError, match="sparse_size"):
            own(pair, graph)
        if size[0] > SENDERS or not loops:
            with pytest.raises(ValueError, match="size"):
                plain(pair, graph)
            with pytest.raises(ValueError, match="size"):
                fast(pair, graph)
        else:  # new self-loops enlarge the graph to the senders that there are
            torch.testing.assert_close(fast(pair, graph), plain(pair, graph), rtol=1e-5, atol=1e-5)
    elif not loops and size[1] is None:  # the original counts the receivers that occur
        assert own(pair, graph).shape == (SENDERS, WIDTH)
    else:
        expected = plain(pair, graph)
        for each in (own, fast):
            torch.testing.assert_close(each(pair, graph), expected, rtol=1e-5, atol=1e-5)


def test_a_graph_counts_receivers() -> None:
    pairs, own = edges(SENDERS, RECEIVERS), layer(sparloom.nn, "GATConv", (WIDTH, WIDTH), add_self_loops=False)
    x = dense(SENDERS, WIDTH)
    expected = own((x, None), pairs, size=(SENDERS, RECEIVERS))
    torch.testing.assert_close(own((x, None), Graph(pairs, (SENDERS, RECEIVERS))), expected)


@pytest.mark.parametrize("kind", ["SAGEConv", "GraphConv", "GINConv"])
@pytest.mark.parametrize("form", ["coo", "csr", "edge_index", "EdgeIndex", "size"])
def test_other_layers_count_receivers_without_features(form, kind) -> None:
    graph, size = (*graphs()[form], {})[:2]
    plain = layer(geometric.nn, kind, (WIDTH, WIDTH))
    own = layer(sparloom.nn, kind, (WIDTH, WIDTH))
    own.load_state_dict(plain.state_dict())
    torch.testing.assert_close(own((dense(SENDERS, WIDTH), None), graph, **size),
                               plain((dense(SENDERS, WIDTH), None), graph, **size), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["GATv2Conv", "TransformerConv"])
@pytest.mark.parametrize("form", ["coo", "csr"])
def test_layers_that_need_features_of_receivers(form, kind) -> None:
    graph, = graphs()[form]
    x = dense(SENDERS, WIDTH)
    with pytest.raises(TypeError, match="x is NoneType: expected a dense tensor"):
        layer(sparloom.nn, kind, (WIDTH, WIDTH))((x, None), graph)
    plain = layer(geometric.nn, kind, (WIDTH, WIDTH))
    fast = copy.deepcopy(plain)
    accelerate(fast, check=False)
    pair = x, dense(RECEIVERS, WIDTH)
    torch.testing.assert_close(fast(pair, graph), plain(pair, graph), rtol=1e-5, atol=1e-5)
