"""torch.compile of operations and layers on sparse tensors, their parts, graphs and edge lists."""

import pytest
import torch
from sparse_tensors import COLS, ROWS, dense, sparse_tensor, with_gradients

from sparloom.nn import GCNConv, Graph, SAGEConv, TransformerConv, csr_attention, sddmm, spmm
from sparloom.nn.torch_integration import dynamo_is_active, eager

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.slow,
              pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

NODES, WIDTH = 30, 8

OPERATIONS = {
    "sum": lambda a, x: spmm(a, x), "mean": lambda a, x: spmm(a, x, reduce="mean"),
    "max": lambda a, x: spmm(a, x, reduce="max"), "sddmm": lambda a, x: sddmm(a, x, x),
    "attention": lambda a, x: csr_attention(a, x, x, x)}


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def parts(a: torch.Tensor) -> tuple:
    return a.crow_indices(), a.col_indices(), a.values(), (NODES, NODES)


def positive(*, seed: int = 0) -> torch.Tensor:
    """Make a matrix with nonnegative row sums, because normalisation takes their root."""
    a = sparse_tensor(NODES, NODES, seed=seed)
    a.values().abs_()
    return a


def assert_same(function, compiled, x: torch.Tensor) -> None:
    """Compare results and gradients of x, in two calls."""
    seen = torch.ones_like(function(x))
    for _ in range(2):
        for found, expected in zip(with_gradients(compiled, [x], seen), with_gradients(function, [x], seen),
                                   strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "backend"), [("sum", "eager"), *((name, "aot_eager") for name in OPERATIONS)])
def test_operations_on_a_sparse_tensor_and_on_its_parts(name, backend) -> None:
    operation, a, x = OPERATIONS[name], sparse_tensor(NODES, NODES), dense(NODES, WIDTH)
    inputs = parts(a)
    assert_same(lambda x: operation(a, x), torch.compile(lambda x: operation(a, x), backend=backend), x)
    for dynamic in (None, True):
        torch._dynamo.reset()
        compiled = torch.compile(operation, backend=backend, fullgraph=True, dynamic=dynamic)
        assert_same(lambda x: operation(a, x), lambda x, run=compiled: run(inputs, x), x)
    torch._dynamo.reset()
    whole = torch.compile(lambda x: operation(inputs, x), backend=backend, fullgraph=True)
    assert_same(lambda x: operation(a, x), whole, x)


def test_sparse_tensors_as_arguments_get_their_gradient() -> None:
    a, x = sparse_tensor(NODES, NODES).requires_grad_(), dense(NODES, WIDTH)
    compiled = torch.compile(lambda a, x: spmm(a, x), backend="aot_eager")
    (expected,) = torch.autograd.grad(spmm(a, x).square().sum(), a)
    (found,) = torch.autograd.grad(compiled(a, x).square().sum(), a)
    torch.testing.assert_close(found.values(), expected.values())
    of_values = torch.compile(lambda values, x: spmm((*parts(a)[:2], values, (NODES, NODES)), x), backend="aot_eager")
    (found,) = torch.autograd.grad(of_values(a.values(), x).square().sum(), a)
    torch.testing.assert_close(found.values(), expected.values())


def test_the_graph_reads_values_that_change() -> None:
    a, x = sparse_tensor(NODES, NODES), dense(NODES, WIDTH)
    compiled = torch.compile(lambda inputs, x: spmm(inputs, x), backend="aot_eager", fullgraph=True)
    before = compiled(parts(a), x)
    a.values().mul_(2)
    torch.testing.assert_close(compiled(parts(a), x), 2 * before)
    other = sparse_tensor(NODES, NODES, seed=5)
    torch.testing.assert_close(compiled(parts(other), x), spmm(other, x))


@pytest.mark.parametrize("layer", [SAGEConv(WIDTH, 4), SAGEConv(WIDTH, 12, "max"), GCNConv(WIDTH, 4),
                                   GCNConv(WIDTH, 12, cached=True), TransformerConv(WIDTH, 4, heads=2)],
                         ids=["SAGE", "largest", "GCN", "cached", "transformer"])
def test_layers_on_every_form_of_a_graph(layer) -> None:
    matrix, x = positive(), dense(NODES, WIDTH)
    edges = torch.unique(torch.randint(0, NODES, (2, 90)), dim=1)
    compiled = torch.compile(layer, backend="eager")
    for graph in (matrix, matrix.to_sparse_coo(), edges, Graph(edges, NODES)):
        assert_same(lambda x, graph=graph: layer(x, graph), lambda x, graph=graph: compiled(x, graph), x)


@pytest.mark.parametrize("options", [{"backend": "aot_eager"}, {"backend": "eager", "dynamic": True}], ids=str)
@pytest.mark.parametrize("kind", [SAGEConv, GCNConv])
def test_layers_with_compiled_gradients_and_sizes_that_change(kind, options) -> None:
    layer = kind(WIDTH, 4)
    run = torch.compile(layer, **options)
    for seed in (0, 1):
        matrix, x = positive(seed=seed), dense(NODES + 5 * seed, WIDTH)
        matrix = torch.block_diag(matrix.to_dense(), torch.eye(5 * seed)).to_sparse_csr() if seed else matrix
        assert_same(lambda x, graph=matrix: layer(x, graph), lambda x, graph=matrix: run(x, graph), x)


def test_graphs_are_made_inside_of_compiled_functions() -> None:
    matrix, x, layer = sparse_tensor(NODES, NODES), dense(NODES, WIDTH), SAGEConv(WIDTH, 4)
    compiled = torch.compile(lambda x: layer(x, Graph(matrix)).relu(), backend="eager")
    assert_same(lambda x: layer(x, Graph(matrix)).relu(), compiled, x)


@pytest.mark.parametrize("layout", [torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_other_layouts_are_refused_by_name_as_without_the_compiler(layout) -> None:
    block = (2, 2) if layout != torch.sparse_csc else None
    matrix = sparse_tensor(NODES, NODES).to_sparse(layout=layout, blocksize=block)
    x, layer = dense(NODES, WIDTH), SAGEConv(WIDTH, 4)
    for wrap in (lambda function: function, lambda function: torch.compile(function, backend="eager")):
        with pytest.raises(TypeError, match=rf"A has layout {layout}: pass A.to_sparse_csr\(\)"):
            wrap(lambda x: spmm(matrix, x))(x)
        if layout == torch.sparse_csc:
            torch.testing.assert_close(wrap(lambda x: layer(x, matrix))(x), layer(x, matrix.to_sparse_csr()))
            continue
        with pytest.raises(ValueError, match=rf"the adjacency matrix has layout {layout}: pass A.to_sparse_csr\(\)"):
            wrap(lambda x: layer(x, matrix))(x)


def test_autocast_inside_and_around_compiled_functions() -> None:
    a, x = sparse_tensor(NODES, NODES), dense(NODES, WIDTH)
    layer = SAGEConv(WIDTH, 4)
    with torch.autocast("cpu", torch.bfloat16):
        for function in (lambda x: spmm(parts(a), x.bfloat16()), lambda x: layer(x, a)):
            torch._dynamo.reset()
            found, expected = torch.compile(function, backend="eager")(x), function(x)
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)


def test_functions_that_an_eager_one_calls_are_kept_out() -> None:
    compiled_inside = []

    def inner() -> None:
        compiled_inside.append(dynamo_is_active())

    @eager
    def outer(matrix, x):
        inner()
        return x + 1

    matrix = sparse_tensor(ROWS, COLS)
    torch.compile(lambda x: outer(matrix, x), backend="eager")(dense(3, 3))
    assert compiled_inside == [False]
