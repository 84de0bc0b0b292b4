"""The layer against PyTorch Geometric's: the same weights, results and gradients, to 1e-5."""

import pytest
import torch

from sparloom.nn import GCNConv

pytestmark = [
    pytest.mark.cc, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning",
                                               "ignore::UserWarning")]

NODES, EDGES = 120, 700


@pytest.fixture(scope="module")
def theirs():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed").GCNConv


@pytest.fixture
def edges() -> torch.Tensor:
    return torch.randint(0, NODES - 5, (2, EDGES), generator=torch.Generator().manual_seed(2))


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the largest element."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


def results(layer: torch.nn.Module, x: torch.Tensor, graph: torch.Tensor, weight: torch.Tensor | None
            ) -> list[torch.Tensor]:
    """The result and all gradients."""
    x = x.clone().requires_grad_()
    wanted = [x, *layer.parameters()]
    if weight is not None:
        weight = weight.clone().requires_grad_()
        wanted.append(weight)
    result = layer(x, graph, weight)
    return [result, *torch.autograd.grad(result.tanh().sum(), wanted)]


@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"add_self_loops": False}, {"normalize": False}, {"cached": True},
    {"improved": True, "weighted": True}, {"weighted": True}, {"weighted": True, "normalize": False},
], ids=str)
@pytest.mark.parametrize("channels", [(32, 32), (50, 16), (16, 50)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_and_gradients_agree(theirs, edges, options, channels, dtype) -> None:
    generator, options = torch.Generator().manual_seed(0), dict(options)
    weight = torch.rand(EDGES, generator=generator, dtype=dtype) if options.pop("weighted", False) else None
    peer, own = theirs(*channels, **options).to(dtype), GCNConv(*channels, **options).to(dtype)
    own.load_state_dict(peer.state_dict())
    x = torch.randn(NODES, channels[0], generator=generator, dtype=dtype)
    for actual, expected in zip(results(own, x, edges, weight), results(peer, x, edges, weight), strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.parametrize("options", [{}, {"improved": True}, {"normalize": False}], ids=str)
def test_sparse_matrices_agree(theirs, layout, options) -> None:
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(NODES, NODES, generator=generator) * (torch.rand(NODES, NODES, generator=generator) < 0.05)
    matrix = dense.to_sparse(layout=layout)
    peer, own = theirs(24, 24, **options), GCNConv(24, 24, **options)
    own.load_state_dict(peer.state_dict())
    x = torch.randn(NODES, 24, generator=generator)
    for actual, expected in zip(results(own, x, matrix, None), results(peer, x, matrix, None), strict=True):
        assert_near(actual, expected)


def test_the_same_seed_draws_the_same_weights(theirs) -> None:
    drawn = []
    for layer in (theirs, GCNConv):
        torch.manual_seed(11)
        drawn.append([layer(30, 20).state_dict(), layer(20, 5, bias=False).state_dict()])
    for expected, actual in zip(*drawn, strict=True):
        assert set(actual) == set(expected)
        assert all(torch.equal(actual[name], expected[name]) for name in expected)
