"""The graph convolution against dense matrices in torch, with gradients."""

import copy

import pytest
import torch

from sparloom.nn import GCNConv, Graph
from sparloom.platforms.cpu_kernels import native_core

pytestmark = [pytest.mark.cc, pytest.mark.filterwarnings("ignore:Sparse")]  # torch says that they are in beta

needs_core = pytest.mark.skipif(native_core() is None, reason="the native core was not built")
NODES, EDGES = 60, 240


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def edges(generator: torch.Generator) -> torch.Tensor:
    """A directed graph with self-loops, repeated edges, and nodes without any."""
    return torch.randint(0, NODES - 7, (2, EDGES), generator=generator)


def dense_convolution(
    layer: GCNConv, x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None,
) -> torch.Tensor:
    """Compute the layer's definition with dense matrices."""
    nodes = x.shape[0]
    weight = torch.ones(edges.shape[1], dtype=x.dtype) if weight is None else weight
    matrix = torch.zeros(nodes, nodes, dtype=x.dtype)
    if layer.add_self_loops:
        loop = edges[0] == edges[1]
        diagonal = torch.full((nodes,), 2.0 if layer.improved else 1.0, dtype=x.dtype)
        diagonal = diagonal.index_put((edges[0][loop],), weight[loop])
        edges, weight = edges[:, ~loop], weight[~loop]
        matrix = matrix + torch.diag(diagonal)
    matrix = matrix.index_put((edges[1], edges[0]), weight, accumulate=True)
    if layer.normalize:
        degrees = matrix.sum(1)
        scale = torch.where(degrees > 0, degrees, torch.inf).pow(-0.5)
        matrix = scale[:, None] * matrix * scale
    result = matrix @ x @ layer.lin.weight.T
    return result if layer.bias is None else result + layer.bias


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the largest element for float32."""
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    allowed = scale * (1e-5 if actual.dtype == torch.float32 else 1e-12)
    torch.testing.assert_close(actual, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}, {"cached": True},
], ids=str)
@pytest.mark.parametrize("channels", [(32, 32), (20, 7), (7, 20), (1, 1)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layer_is_the_dense_product(edges, generator, options, channels, weighted, dtype) -> None:
    weight = torch.rand(EDGES, generator=generator, dtype=dtype) if weighted else None
    layer = GCNConv(*channels, **options).to(dtype)
    torch.nn.init.normal_(layer.lin.weight, generator=generator)
    x = torch.randn(NODES, channels[0], generator=generator, dtype=dtype)
    seen = torch.randn(NODES, channels[1], generator=generator, dtype=dtype)
    parameters = [*layer.parameters()]
    results = []
    for convolution in (layer, lambda *inputs: dense_convolution(layer, *inputs)):
        inputs = x.clone().requires_grad_()
        result = convolution(inputs, edges, weight)
        results.append([result, *torch.autograd.grad((result * seen).sum(), [inputs, *parameters])])
    for actual, expected in zip(*results, strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("channels", [(3, 3), (4, 2), (2, 4)])
def test_all_gradients_by_differences(channels) -> None:
    generator = torch.Generator().manual_seed(3)
    edges = torch.tensor([[0, 1, 1, 2, 4, 4, 4, 3], [1, 0, 2, 4, 2, 2, 4, 3]])
    layer = GCNConv(*channels).double()
    x, weight, kernel, bias = (torch.rand(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
                               for shape in ((6, channels[0]), (8,), tuple(layer.lin.weight.shape), (channels[1],)))

    def convolution(x, weight, kernel, bias):
        return torch.func.functional_call(layer, {"lin.weight": kernel, "bias": bias}, (x, edges, weight))

    assert torch.autograd.gradcheck(convolution, (x, weight, kernel, bias))
    for needed in range(4):
        inputs = [tensor.detach().requires_grad_(place == needed)
                 for place, tensor in enumerate((x, weight, kernel, bias))]
        assert torch.autograd.gradcheck(convolution, inputs)


@pytest.mark.parametrize("first", ["auto", "aggregate", "transform"])
@pytest.mark.parametrize("channels", [(16, 16), (24, 16)])
def test_each_order_gives_the_same(edges, generator, first, channels) -> None:
    layer = GCNConv(*channels, first=first)
    x = torch.randn(NODES, channels[0], generator=generator, requires_grad=True)
    result = layer(x, Graph(edges, NODES))
    expected = dense_convolution(layer, x, edges, None)
    assert_near(result, expected)
    wanted = [x, *layer.parameters()]
    for actual, right in zip(torch.autograd.grad(result.square().sum(), wanted),
                             torch.autograd.grad(expected.square().sum(), wanted), strict=True):
        assert_near(actual, right)


@pytest.mark.parametrize("nodes", [0, 1, 5])
@pytest.mark.parametrize("channels", [(3, 2), (2, 3)])
def test_graph_without_edges(nodes, channels) -> None:
    layer, empty = GCNConv(*channels), torch.empty(2, 0, dtype=torch.int64)
    x = torch.ones(nodes, channels[0], requires_grad=True)
    result = layer(x, empty)
    assert_near(result, x @ layer.lin.weight.T + layer.bias)
    result.sum().backward()
    assert_near(layer.lin.weight.grad, x.detach().sum(0).expand(channels[1], -1))
    alone = GCNConv(*channels, add_self_loops=False)
    assert_near(alone(x, empty), torch.zeros(nodes, channels[1]))


def test_results_do_not_share_memory(edges, generator) -> None:
    layer = GCNConv(8, 8)
    graph = Graph(edges, NODES)
    inputs = [torch.randn(NODES, 8, generator=generator) for _ in range(4)]
    with torch.no_grad():
        results = [layer(x, graph) for x in inputs]
        views = [layer(x, graph)[3:5] for x in inputs]
        arrays = [layer(x, graph).numpy() for x in inputs]
        for x, result, view, array in zip(inputs, results, views, arrays, strict=True):
            expected = dense_convolution(layer, x, edges, None)
            assert_near(result, expected)
            assert_near(view, expected[3:5])
            assert_near(torch.from_numpy(array), expected)


def test_one_layer_twice_in_a_network(edges, generator) -> None:
    layer = GCNConv(8, 8).double()
    x = torch.randn(NODES, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layer.parameters()]
    results = [torch.autograd.grad(twice.square().sum(), wanted) for twice in (
        layer(torch.relu(layer(x, edges)), edges),
        dense_convolution(layer, torch.relu(dense_convolution(layer, x, edges, None)), edges, None))]
    for actual, expected in zip(*results, strict=True):
        assert_near(actual, expected)


def test_training_gives_the_same_bits_again(edges, generator) -> None:
    x, labels = torch.randn(NODES, 16, generator=generator), torch.randint(0, 4, (NODES,), generator=generator)

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(5)
        layers = torch.nn.ModuleList([GCNConv(16, 16, cached=True), GCNConv(16, 4, cached=True)])
        optimizer, graph = torch.optim.Adam(layers.parameters(), lr=0.01), Graph(edges, NODES)
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(layers[1](torch.relu(layers[0](x, graph)), graph), labels)
            loss.backward()
            optimizer.step()
        return [loss.detach(), *(parameter.detach() for parameter in layers.parameters())]

    for first, again in zip(trained(), trained(), strict=True):
        assert torch.equal(first, again)


def test_changes_are_detected(edges, generator) -> None:
    layer, x = GCNConv(8, 4), torch.randn(NODES, 8, generator=generator)
    weight = torch.rand(EDGES, generator=generator)
    for _ in range(2):
        assert_near(layer(x, edges, weight), dense_convolution(layer, x, edges, weight))
        weight.mul_(2).add_(0.1)
        assert_near(layer(x, edges, weight), dense_convolution(layer, x, edges, weight))
        edges[0, :30] = torch.randint(0, NODES, (30,), generator=generator)
        assert_near(layer(x, edges), dense_convolution(layer, x, edges, None))
    matrix = torch.rand(NODES, NODES, generator=generator).relu().to_sparse_csr()
    wide = GCNConv(8, 4, add_self_loops=False, normalize=False)
    before = wide(x, matrix)
    matrix.values().mul_(2)
    assert_near(wide(x, matrix), 2 * before - wide.bias)


def test_cached_layer_keeps_its_first_graph(edges, generator) -> None:
    layer, x = GCNConv(8, 4, cached=True), torch.randn(NODES, 8, generator=generator)
    first = layer(x, edges)
    assert torch.equal(layer(x, edges.flip(0)), first)
    state = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    layer.load_state_dict(state)
    assert not torch.equal(layer(x, edges.flip(0)), first)


def test_weights_that_learn_after_a_look_without_gradients(edges, generator) -> None:
    layer, x = GCNConv(8, 4), torch.randn(NODES, 8, generator=generator)
    weight = torch.rand(EDGES, generator=generator, requires_grad=True)
    with torch.no_grad():
        layer(x, edges, weight)
    layer(x, edges, weight).sum().backward()
    assert weight.grad.abs().sum() > 0
    with torch.inference_mode():
        inferred = layer(x, edges)
    trained = layer(x, edges)
    trained.sum().backward()
    assert torch.equal(trained, inferred)


@needs_core
def test_layers_share_one_graph(edges, generator) -> None:
    graph, x = Graph(edges, NODES), torch.randn(NODES, 8, generator=generator)
    first, second = (GCNConv(8, 4, first="transform") for _ in range(2))
    first(x, graph)
    tiles = graph.adjacency(first.normalisation, torch.float32).tiles
    plans = dict(tiles.plans)
    second(x, graph)
    assert len(plans) == 1
    assert tiles.plans == plans


@needs_core
def test_threads_follow_torch(edges, generator) -> None:
    layer, graph = GCNConv(8, 4, first="transform"), Graph(edges, NODES)
    x, threads = torch.randn(NODES, 8, generator=generator), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(layer(x, graph))
    finally:
        torch.set_num_threads(threads)
    plans = graph.adjacency(layer.normalisation, torch.float32).tiles.plans
    assert sorted(plan.choice.threads for plan in plans.values()) == [1, 2]
    assert_near(*results)


@pytest.mark.parametrize(("inputs", "error", "message"), [
    ({"x": torch.zeros(NODES, 7)}, ValueError, r"x has shape \(60, 7\): expected \(nodes, 8\)"),
    ({"x": torch.zeros(NODES, 8, dtype=torch.float16)}, TypeError, "both must be float32, or both float64"),
    ({"x": lambda: torch.zeros(NODES, 8).to_sparse()}, TypeError, "expected a dense tensor"),
    ({"x": torch.zeros(40, 8)}, ValueError, "expected 0 to 39"),
    ({"edge_index": torch.zeros(3, 4, dtype=torch.int64)}, ValueError, r"edge_index has shape \(3, 4\)"),
    ({"edge_index": torch.zeros(2, 4)}, TypeError, r"edge_index is torch.float32: expected torch.int64"),
    ({"edge_index": "edges"}, TypeError, "the graph is a str: expected edge_index, a sparse tensor or a Graph"),
    ({"edge_index": lambda: torch.eye(5).to_sparse()}, ValueError, r"has shape \(5, 5\) for 60 nodes"),
    ({"edge_index": lambda: torch.eye(60).to_sparse_bsr((2, 2))}, ValueError, r"pass A.to_sparse_csr\(\)"),
    ({"edge_index": lambda: torch.eye(60).to_sparse(), "edge_weight": torch.ones(60)}, ValueError,
     "put the weights into the matrix"),
    ({"edge_weight": torch.ones(3)}, ValueError, "for 240 edges: expected one weight per edge"),
    ({"edge_index": Graph(torch.tensor([[0], [1]]))}, ValueError, "x has 60 rows, but the graph has 2 nodes"),
], ids=[str(number) for number in range(12)])
def test_mismatched_arguments_are_refused(edges, inputs, error, message) -> None:
    layer = GCNConv(8, 4)
    inputs = {name: value() if callable(value) else value for name, value in inputs.items()}
    with pytest.raises(error, match=message):
        layer(**{"x": torch.zeros(NODES, 8), "edge_index": edges, **inputs})


@pytest.mark.parametrize("channels", [(8, 4), (4, 8)])
@pytest.mark.parametrize("form", [
    lambda inputs: torch.stack([inputs, inputs], -1)[..., 0], lambda inputs: inputs[..., :1].expand_as(inputs),
    lambda inputs: torch.complex(inputs, -inputs).conj().imag], ids=["strided", "expanded", "negated"])
def test_parameters_of_any_form(edges, channels, form) -> None:
    layer, x = GCNConv(*channels), torch.randn(NODES, channels[0])
    torch.nn.init.normal_(layer.bias)
    layer(x, edges)  # binds kernels to plain ones
    parameters = {name: form(parameter.detach()) for name, parameter in layer.named_parameters()}
    plain = {name: parameter.clone().contiguous() for name, parameter in parameters.items()}
    results = [torch.func.functional_call(layer, inputs, (x, edges)) for inputs in (parameters, plain)]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_biases_of_another_type_are_refused(edges, dtype) -> None:
    layer = GCNConv(4, 8)
    layer(torch.zeros(NODES, 4), edges)  # binds a kernel to a bias that fits
    layer.bias = torch.nn.Parameter(torch.ones(8, dtype=dtype), requires_grad=False)
    with pytest.raises(TypeError, match=rf"the bias is {dtype} on cpu and x torch\.float32"):
        layer(torch.zeros(NODES, 4), edges)


def test_channels_and_options_are_checked() -> None:
    with pytest.raises(ValueError, match="in_channels=0, out_channels=4: all must be at least 1"):
        GCNConv(0, 4)
    with pytest.raises(TypeError, match=r"in_channels=\(4, 4\): bipartite graphs are not supported"):
        GCNConv((4, 4), 4)
    with pytest.raises(ValueError, match="add_self_loops=True needs normalize=True"):
        GCNConv(4, 4, add_self_loops=True, normalize=False)


@pytest.mark.parametrize("channels", [(4, 9), (9, 4)], ids=str)
def test_a_bias_is_read_as_it_lies(edges, generator, channels) -> None:
    layer, x = GCNConv(*channels), torch.randn(NODES, channels[0], generator=generator)
    numbers = torch.randn(2 * channels[1], generator=generator)
    for bias in (numbers[: channels[1]], numbers[::2], numbers[:1].expand(channels[1]),
                 torch.complex(numbers, numbers)[::2].conj().imag):
        layer.bias = torch.nn.Parameter(bias)
        for _ in range(2):
            assert_near(layer(x, edges), dense_convolution(layer, x, edges, None))
    for wrong in (numbers[::2].double(), numbers[::2].half(), numbers[::2] * 1j):
        layer.bias = torch.nn.Parameter(wrong)
        with pytest.raises(TypeError, match=r"the bias is .* dtypes and devices must match"):
            layer(x, edges)
    layer.bias = torch.nn.Parameter(numbers[:1])
    with pytest.raises(ValueError, match=r"bias has shape \(1,\): expected"):
        layer(x, edges)


@pytest.mark.parametrize("channels", [(4, 9), (9, 4)], ids=str)
def test_a_bias_of_half_precision_counts_under_autocast(edges, generator, channels) -> None:
    layer, x = GCNConv(*channels), torch.randn(NODES, channels[0], generator=generator)
    torch.nn.init.normal_(layer.bias, generator=generator)
    layer = layer.bfloat16()
    expected = dense_convolution(copy.deepcopy(layer).float(), x, edges, None)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            assert_near(layer(x, edges), expected)


@pytest.mark.parametrize("channels", [(4, 9), (9, 4)], ids=str)
def test_gradients_come_in_any_layout(edges, generator, channels) -> None:
    layer, x = GCNConv(*channels), torch.randn(NODES, channels[0], generator=generator)
    upstream = torch.randn(NODES, channels[1], generator=generator)
    for form in (upstream, upstream.T.contiguous().T, upstream[:1].expand(NODES, -1),
                 torch.complex(upstream, upstream).conj().imag):
        found, expected = (torch.autograd.grad(call(x), [*layer.parameters()], form) for call in (
            lambda x: layer(x, edges), lambda x: dense_convolution(layer, x, edges, None)))
        for own, theirs in zip(found, expected, strict=True):
            assert_near(own, theirs)


def test_invalid_graphs_are_refused_when_they_are_made(edges) -> None:
    for wrong in (1.5, "60", True):
        with pytest.raises(TypeError, match=r"nodes=.*: expected an int"):
            Graph(edges, wrong)
    for wrong in (-1, 2**31):
        with pytest.raises(ValueError, match=r"nodes=.*: expected 0 to 2147483647"):
            Graph(edges, wrong)
    with pytest.raises(ValueError, match="edge_index contains node 1099511627776, above the largest supported"):
        Graph(torch.tensor([[0], [2**40]]))
    with pytest.raises(TypeError, match=r"edge_weight has layout .*: expected a dense tensor"):
        GCNConv(2, 2)(torch.ones(NODES, 2), edges, torch.ones(EDGES).to_sparse())
