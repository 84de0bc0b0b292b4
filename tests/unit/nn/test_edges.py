"""Graphs in all the forms that PyTorch Geometric has for them: each is parsed to the same edges."""

from types import SimpleNamespace

import pytest
import torch

from sparloom.nn import Graph
from sparloom.nn.graph import cached_graph

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore::DeprecationWarning", "ignore::UserWarning")

SENDERS, RECEIVERS, EDGES = 9, 6, 20


@pytest.fixture
def edge_index() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randperm(SENDERS * RECEIVERS, generator=generator)[:EDGES]
    return torch.stack([pairs % SENDERS, pairs // SENDERS])


def matrix(edge_index: torch.Tensor) -> torch.Tensor:
    """A, with a row for each receiver."""
    return torch.zeros(RECEIVERS, SENDERS).index_put((edge_index[1], edge_index[0]), torch.ones(1))


def parsed(graph: Graph) -> torch.Tensor:
    crow, col, values, shape = graph.aggregation().sum
    return torch.sparse_csr_tensor(crow, col.long(), values, shape).to_dense()


def sparse_tensor(dense: torch.Tensor) -> SimpleNamespace:
    """Have what layers read of a torch_sparse.SparseTensor."""
    csr = dense.to_sparse_csr()
    return SimpleNamespace(csr=lambda: (csr.crow_indices(), csr.col_indices(), None),
                           sparse_sizes=lambda: tuple(dense.shape))


def test_a_bipartite_edge_index_has_two_sizes(edge_index) -> None:
    graph = Graph(edge_index, (SENDERS, RECEIVERS))
    assert (graph.senders, graph.nodes) == (SENDERS, RECEIVERS)
    assert torch.equal(parsed(graph), matrix(edge_index))


def test_sizes_that_are_missing_are_those_that_the_edges_need(edge_index) -> None:
    graph = Graph(edge_index, (None, RECEIVERS + 2))
    assert (graph.senders, graph.nodes) == (int(edge_index[0].max()) + 1, RECEIVERS + 2)


@pytest.mark.parametrize("convert", [
    torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc, torch.Tensor.to_sparse_coo, sparse_tensor])
def test_matrices_of_all_layouts_are_alike(edge_index, convert) -> None:
    graph = Graph(convert(matrix(edge_index)), (SENDERS, RECEIVERS))
    assert torch.equal(parsed(graph), matrix(edge_index))


@pytest.mark.parametrize("order", [None, "row", "col"])
def test_the_order_that_an_edge_index_claims_is_not_trusted(edge_index, order) -> None:
    geometric = pytest.importorskip("torch_geometric")
    claimed = geometric.EdgeIndex(edge_index, sparse_size=(SENDERS, RECEIVERS), sort_order=order)
    for graph in (Graph(claimed, (SENDERS, RECEIVERS)), cached_graph(claimed, (SENDERS, RECEIVERS))):
        assert torch.equal(parsed(graph), matrix(edge_index))
    assert cached_graph(claimed, (SENDERS, RECEIVERS)) is graph


def test_a_reversed_flow_swaps_the_rows(edge_index) -> None:
    graph = Graph(edge_index.flip(0), (SENDERS, RECEIVERS), flow="target_to_source")
    assert torch.equal(parsed(graph), matrix(edge_index))


def test_one_tensor_has_a_graph_for_each_size_and_flow(edge_index) -> None:
    square, wide = cached_graph(edge_index, SENDERS), cached_graph(edge_index, (SENDERS, RECEIVERS))
    back = cached_graph(edge_index, SENDERS, "target_to_source")
    assert len({square, wide, back}) == 3
    assert cached_graph(edge_index, SENDERS) is square
    edge_index[0, 0] = (edge_index[0, 0] + 1) % SENDERS
    assert cached_graph(edge_index, SENDERS) is not square


@pytest.mark.parametrize(("arguments", "options", "error", "message"), [
    ((SENDERS, 3), {}, ValueError, "receivers range from 0 to 5: expected 0 to 2"),
    ((4, RECEIVERS), {}, ValueError, "senders range from 0 to 8: expected 0 to 3"),
    ((1, 2, 3), {}, ValueError, "expected an int, or the numbers of senders and receivers"),
    (("many", 3), {}, TypeError, "nodes='many': expected an int"),
    (SENDERS, {"flow": "both"}, ValueError, "flow='both': expected one of source_to_target, target_to_source"),
], ids=str)
def test_other_sizes_and_flows_are_refused(edge_index, arguments, options, error, message) -> None:
    edge_index[:, 0] = torch.tensor([SENDERS - 1, RECEIVERS - 1])
    edge_index[:, 1] = 0
    with pytest.raises(error, match=message):
        Graph(edge_index, arguments, **options)


def test_a_matrix_has_no_reversed_flow(edge_index) -> None:
    with pytest.raises(ValueError, match="flow='target_to_source' needs an edge_index: pass the transposed matrix"):
        Graph(matrix(edge_index).to_sparse_csr(), (SENDERS, RECEIVERS), flow="target_to_source")


def test_one_kind_of_node_has_a_square_matrix(edge_index) -> None:
    with pytest.raises(ValueError, match=r"has shape \(6, 9\): expected a square matrix"):
        Graph(matrix(edge_index).to_sparse_csr())
