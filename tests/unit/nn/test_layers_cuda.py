"""Graph layers on an emulated GPU: right results, and all their tensors on the device."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from emulated_gpu import SharedMemory
from sparse_tensors import dense
from torch._subclasses.fake_tensor import FakeTensorMode

from sparloom.nn import GCNConv, Graph, SAGEConv, TransformerConv, core_calls
from sparloom.nn import graph as graphs
from sparloom.nn import tensor_backend as tensor_backends
from sparloom.nn.convolution import Adjacency
from sparloom.nn.edges import AdjacencyPattern, AggregationMatrices, Normalisation
from sparloom.nn.tensor_backend import CudaTensorBackend
from sparloom.tuning import MeasurementBudget
from sparloom.tuning.sparse import CsrPolicy, CudaBackend, CudaRates

pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, EDGES, CHANNELS = 30, 140, 8
THERE, NORMALISED = torch.device("cuda", 0), Normalisation(1.0, symmetric=True)
LAYERS = {
    "mean": lambda: SAGEConv(CHANNELS, 4), "sum": lambda: SAGEConv(CHANNELS, 12, "sum"),
    "max": lambda: SAGEConv(CHANNELS, 8, "max"), "transform": lambda: GCNConv(CHANNELS, 4),
    "aggregate": lambda: GCNConv(CHANNELS, 12, bias=False), "attention": lambda: TransformerConv(CHANNELS, 4, heads=2)}


@pytest.fixture(scope="module")
def where(tmp_path_factory) -> CudaBackend:
    return CudaBackend(SharedMemory(tmp_path_factory.mktemp("gpu")), bits=True)


@pytest.fixture
def emulated(where, monkeypatch) -> contextlib.AbstractContextManager[CudaBackend]:
    """Return a context in which the CPU counts as the emulated GPU, without measurements."""
    @contextlib.contextmanager
    def taken() -> Iterator[CudaBackend]:
        with monkeypatch.context() as patch:
            patch.setattr(CudaBackend, "policy", lambda self: CsrPolicy(effort=MeasurementBudget(seconds=1e-9)))
            patch.setattr("sparloom.tuning.sparse.cuda_estimate.measure_cuda_rates",
                          lambda gpu: CudaRates.of_data_sheet(gpu.device))
            patch.setattr(tensor_backends, "CUDA_SPARSE_LIBRARIES", {})
            patch.setattr(graphs, "FUSED_DEVICES", ())
            patch.setattr(core_calls, "_core", lambda: None)  # it would take the tensors for those of the processor
            patch.setattr("sparloom.nn.pattern_cache.tensor_backend",
                          lambda device: CudaTensorBackend(device, where, lambda: 0))
            yield where

    return taken()


@pytest.fixture
def edges() -> torch.Tensor:
    """A directed graph with self-loops, without repeated edges, and nodes without any."""
    drawn = torch.randint(0, NODES - 5, (2, EDGES), generator=torch.Generator().manual_seed(2))
    return torch.unique(drawn, dim=1)


def trained(layer: torch.nn.Module, x: torch.Tensor, graph: Graph) -> list[torch.Tensor]:
    """Return the result and the gradients of features and parameters."""
    x = x.clone().requires_grad_()
    result = layer(x, graph)
    gradients = torch.autograd.grad(result.tanh().sum(), [x, *layer.parameters()])
    return [each.detach().cpu() for each in (result, *gradients)]


def assert_near(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Within 1e-5 of the largest element: both have errors of float32."""
    for found, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-5 * max(1.0, right.abs().max().item()))


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_and_their_gradients_are_computed_there(emulated, edges, kind) -> None:
    layer, x = LAYERS[kind](), dense(NODES, CHANNELS)
    expected = trained(layer, x, Graph(edges, NODES))
    with emulated as where:
        launched = where.gpu.launched
        assert_near(trained(layer, x, Graph(edges, NODES)), expected)
    assert where.gpu.launched > launched


def test_weights_of_edges_learn_there(emulated, edges) -> None:
    layer, x = GCNConv(CHANNELS, 4), dense(NODES, CHANNELS)
    weights = dense(edges.shape[1], seed=5).abs().requires_grad_()

    def learned() -> list[torch.Tensor]:
        result = layer(x, Graph(edges, NODES), weights)
        return [result.detach(), *torch.autograd.grad(result.tanh().sum(), [weights, *layer.parameters()])]

    expected = learned()
    with emulated:
        assert_near(learned(), expected)


def test_a_cached_matrix_is_kept_there(emulated, edges) -> None:
    layer, x = GCNConv(CHANNELS, 4, cached=True), dense(NODES, CHANNELS)
    with emulated:
        expected = layer(x, edges)
        assert isinstance(layer._cached.pattern, AdjacencyPattern)
        torch.testing.assert_close(layer(x, edges.flip(0)), expected)


def moved(graph: Graph, device: torch.device) -> Graph:
    """Return the graph as if it had been made from edges on another device."""
    there = Graph.__new__(Graph)
    there._set(replace(graph.edges, device=device), None)
    return there


def test_matrices_of_a_graph_are_made_on_its_device(edges) -> None:
    graph = moved(Graph(torch.cat([edges, edges[:, :1]], dim=1), NODES), torch.device("meta"))
    found = graph.aggregation()
    for matrix in (found.sum, found.mean, found.max, graph.adjacency(NORMALISED, torch.float32).matrix):
        assert [part.device.type for part in matrix[:3]] == ["meta"] * 3
        assert matrix[3] == (NODES, NODES)
    assert found.sum[0] is found.max[0]
    assert graph.adjacency(NORMALISED, torch.float32) is graph.adjacency(NORMALISED, torch.float32)


class MatrixThere(NamedTuple):
    """A pattern whose matrix is made already."""

    matrix: tuple
    shape: tuple[int, int] = (NODES, NODES)

    def operand(self, values: torch.Tensor) -> tuple:
        return self.matrix


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_compute_where_their_tensors_are(edges, kind) -> None:
    """Tensors without numbers, which know their device: operations of torch on tensors of two are errors."""
    layer, graph = LAYERS[kind](), Graph(edges, NODES)
    matrices, looped = graph.aggregation(), graph.adjacency(NORMALISED, torch.float32).matrix
    graph = moved(graph, THERE)
    with FakeTensorMode(), torch.no_grad():
        def there(*parts: torch.Tensor) -> tuple:
            return *(torch.zeros(part.shape, dtype=part.dtype).to(THERE) for part in parts), (NODES, NODES)

        for module in layer.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                setattr(module, name, there(parameter)[0])
        graph._aggregation[torch.float32] = AggregationMatrices(
            *(there(*each[:3]) for each in (matrices.sum, matrices.mean, matrices.max)), None)
        normalised = there(*looped[:3])
        graph._adjacencies[NORMALISED, torch.float32] = None, Adjacency(MatrixThere(normalised), normalised[2])
        result = layer(there(dense(NODES, CHANNELS))[0], graph)
    assert result.device == THERE
    assert result.shape[0] == NODES


@pytest.mark.parametrize("kind", ["mean", "transform", "attention"])
def test_features_and_graph_on_two_devices_are_refused(edges, kind) -> None:
    layer, graph = LAYERS[kind](), moved(Graph(edges, NODES), THERE)
    if kind == "transform":
        layer._cached = Adjacency(MatrixThere(()), torch.zeros(1, device="meta"))
    with pytest.raises(ValueError, match=r"x is on cpu and the graph on (cuda:0|meta): make the graph from"):
        layer(dense(NODES, CHANNELS), graph)


def test_edges_and_their_weights_on_two_devices_are_refused(edges) -> None:
    with pytest.raises(ValueError, match="edge_weight is on meta and the graph on cpu: move one of them"):
        GCNConv(CHANNELS, 4)(dense(NODES, CHANNELS), edges, torch.ones(edges.shape[1], device="meta"))


def test_a_graph_on_another_device_is_refused(edges) -> None:
    with pytest.raises(ValueError, match=r"the graph is on meta: .* pass graph.cpu\(\) or graph.cuda\(\)"):
        Graph(edges.to("meta"), NODES)


def test_float64_is_for_the_cpu(edges) -> None:
    layer = GCNConv(CHANNELS, 4)
    with FakeTensorMode(), torch.no_grad():
        del layer.lin.weight
        layer.lin.weight = torch.zeros(4, CHANNELS).double().to(THERE)
        with pytest.raises(TypeError, match="both must be float32, or both float64, on the CPU"):
            layer(torch.zeros(NODES, CHANNELS).double().to(THERE), edges)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_on_a_gpu_are_those_of_the_cpu(edges, kind) -> None:
    layer, x = LAYERS[kind](), dense(NODES, CHANNELS)
    expected = trained(layer, x, Graph(edges, NODES))
    assert_near(trained(layer.cuda(), x.cuda(), Graph(edges.cuda(), NODES)), expected)
